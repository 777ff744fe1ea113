-- name: first_due
SELECT due FROM millpond_scheduled ORDER BY due LIMIT 1;

-- name: due_jobs
-- Reads only what is due, at most :limit rows, from the front of the key.
SELECT s.due, s.id, coalesce(a.lane, j.lane), coalesce(a.rank, j.rank)
  FROM millpond_scheduled s CROSS JOIN millpond_job j ON j.id = s.id
  LEFT JOIN millpond_again a ON a.id = s.id
 WHERE s.due <= :now ORDER BY s.due, s.id LIMIT :limit;

-- name: drop_due
DELETE FROM millpond_scheduled WHERE due = ?1 AND id = ?2;

-- name: heads
-- The first ready job of every non-empty lane; the partial index holds just those lanes. One
-- seek a lane, and one row, so that the interpreter is given up once and not once a lane. The
-- arrays are joined as text, because what is known to be JSON within a subquery is not outside.
SELECT '[' || coalesce(group_concat((
    SELECT json_array(r.lane, l.n_ready, r.rank, r.id, r.due) FROM millpond_ready r
     WHERE r.lane = l.id ORDER BY r.rank, r.id LIMIT 1)), '') || ']'
  FROM millpond_lane l INDEXED BY millpond_lane_ready WHERE l.n_ready > 0;

-- name: chunk
SELECT rank, id, due FROM millpond_ready
 WHERE lane = :lane AND (rank, id) > (:rank, :id) ORDER BY rank, id LIMIT :limit;

-- name: chunk_first
SELECT rank, id, due FROM millpond_ready WHERE lane = :lane ORDER BY rank, id LIMIT :limit;

-- name: chunks
-- The next :limit rows of several lanes, given as [lane, rank, id], in one statement and one row.
SELECT '[' || group_concat((SELECT json_group_array(json_array(rank, id, due)) FROM (
    SELECT r.rank, r.id, r.due FROM millpond_ready r
     WHERE r.lane = e.value->>0 AND (r.rank, r.id) > (e.value->>1, e.value->>2)
     ORDER BY r.rank, r.id LIMIT :limit))) || ']'
  FROM json_each(:lanes) e;

-- name: chunks_first
-- The first :limit rows of several lanes.
SELECT '[' || group_concat((SELECT json_group_array(json_array(rank, id, due)) FROM (
    SELECT r.rank, r.id, r.due FROM millpond_ready r
     WHERE r.lane = e.value ORDER BY r.rank, r.id LIMIT :limit))) || ']'
  FROM json_each(:lanes) e;

-- name: limits_of
SELECT limit_key, tenant FROM millpond_job WHERE id = :id;

-- name: running_counts
SELECT queue, workload, task, n_running
  FROM millpond_lane INDEXED BY millpond_lane_running WHERE n_running > 0;

-- name: claim_ready
DELETE FROM millpond_ready WHERE lane = ?1 AND rank = ?2 AND id = ?3;

-- name: claim_ready_to
DELETE FROM millpond_ready WHERE lane = ?1 AND (rank, id) <= (?2, ?3);

-- name: claim_running
INSERT INTO millpond_running (id, claim, lane, worker, due, claimed_at, claimed_mono, lease_ms,
  tenant, size)
SELECT j.id, :claim + e.key, e.value->>0, :worker, e.value->>3, :now, :mono, j.lease_ms,
  j.tenant, j.charged_bytes
  FROM json_each(:rows) e CROSS JOIN millpond_job j ON j.id = e.value->>2;

-- name: claimed
SELECT j.id, j.payload, coalesce(a.attempts, 0), j.max_attempts, coalesce(a.crashes, 0),
  j.lease_ms, j.timeout_ms, j.operation_id, j.priority, j.created_at, j.meta, j.traceparent,
  j.coalesce_key, j.limit_key, j.tenant
  FROM json_each(:ids) e CROSS JOIN millpond_job j ON j.id = e.value
  LEFT JOIN millpond_again a ON a.id = j.id;

-- name: memo_of
SELECT value FROM millpond_memo WHERE operation_id = :operation_id AND task = :task;

-- name: any_memo
SELECT EXISTS (SELECT 1 FROM millpond_memo);

-- name: count_claimed
-- Once for all lanes that gave as many jobs.
UPDATE millpond_lane SET n_ready = n_ready - :n, n_running = n_running + :n,
  total_claimed = total_claimed + :n WHERE id IN (SELECT value FROM json_each(:lanes));

-- name: drop_coalesce
DELETE FROM millpond_coalesce WHERE queue = :queue AND task = :task AND key = :key AND job = :job;

-- name: claim_stands
SELECT count(*) FROM millpond_running WHERE worker = :worker AND claim BETWEEN :first AND :last;

-- name: claimable_tasks
SELECT t.name FROM millpond_lane l INDEXED BY millpond_lane_ready
  CROSS JOIN millpond_task t ON t.id = l.task WHERE l.n_ready > 0;
