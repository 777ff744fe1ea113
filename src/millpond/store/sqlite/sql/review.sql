-- name: final_jobs
-- Jobs as a requeue or a discard finds them; those that are not final with the state they have.
SELECT j.id, j.lane, j.tenant, j.priority, j.max_attempts, j.first_attempts, j.charged_bytes,
  coalesce(length(j.meta), 0), j.operation_id, j.key, j.coalesce_key, f.state, f.finished_at,
  f.reason,
  CASE WHEN f.id IS NOT NULL THEN f.state
    WHEN EXISTS (SELECT 1 FROM millpond_running r WHERE r.id = j.id) THEN 'running'
    WHEN EXISTS (SELECT 1 FROM millpond_scheduled s
      WHERE s.due = coalesce(a.due, j.first_due) AND s.id = j.id) THEN 'scheduled'
    ELSE 'ready' END,
  coalesce((SELECT max(t.number) FROM millpond_attempt t WHERE t.job = j.id), 0),
  (SELECT count(*) FROM millpond_attempt t WHERE t.job = j.id AND t.outcome = 'crashed')
  FROM json_each(:ids) e CROSS JOIN millpond_job j ON j.id = e.value
  LEFT JOIN millpond_final f ON f.id = j.id
  LEFT JOIN millpond_again a ON a.id = j.id;

-- name: requeue_job
UPDATE millpond_job SET rank = ?2, first_due = ?3, max_attempts = ?4, first_attempts = ?5
 WHERE id = ?1;

-- name: payload_of
SELECT payload FROM millpond_job WHERE id = :id;

-- name: correct_payload
UPDATE millpond_job SET payload = :payload, codec = 'json', payload_ref = NULL,
  charged_bytes = :bytes WHERE id = :id;

-- name: rename_operation
UPDATE millpond_job SET operation_id = :operation_id WHERE id = :id;

-- name: drop_memo
-- A memo goes with the last job of its operation.
DELETE FROM millpond_memo WHERE operation_id = :operation_id
  AND NOT EXISTS (SELECT 1 FROM millpond_job j WHERE j.operation_id = :operation_id);

-- name: drop_again
DELETE FROM millpond_again WHERE id = ?1;

-- name: drop_final
DELETE FROM millpond_final WHERE id = ?1;

-- name: holder_of_key
SELECT job, ttl_ms, expires_at FROM millpond_dedup
 WHERE queue = :queue AND task = :task AND key = :key;

-- name: hold_keys
-- Those that it still has, also of requests that were merged into it, hold while it waits.
UPDATE millpond_dedup SET expires_at = NULL, operation_id = ?2
 WHERE job = ?1 AND (expires_at IS NULL OR expires_at > ?3);

-- name: discard_results
DELETE FROM millpond_result WHERE job IN (SELECT value FROM json_each(:ids));

-- name: discard_keys
DELETE FROM millpond_dedup WHERE job IN (SELECT value FROM json_each(:ids));

-- name: put_event
INSERT INTO millpond_event (id, at, who, what, which, note, before, after)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8);

-- name: events
SELECT id, at, who, what, which, note, before, after FROM millpond_event
 WHERE id < :before AND (:what IS NULL OR what = :what) ORDER BY id DESC LIMIT :limit;

-- name: events_of
SELECT id, at, who, what, which, note, before, after FROM millpond_event
 WHERE which = :which AND id < :before AND (:what IS NULL OR what = :what)
 ORDER BY id DESC LIMIT :limit;

-- name: failure_groups
-- From an index that holds failed jobs alone and all that is grouped by.
SELECT fingerprint, task, queue, count(*), min(finished_at), max(finished_at), max(id), min(id)
  FROM (SELECT finished_at, id, fingerprint, queue, task
          FROM millpond_final INDEXED BY millpond_final_failed
         WHERE state = 'failed' ORDER BY finished_at DESC, id DESC LIMIT :scan)
 GROUP BY fingerprint, task, queue;

-- name: more_failures
SELECT EXISTS (SELECT 1 FROM millpond_final INDEXED BY millpond_final_failed
  WHERE state = 'failed' LIMIT 1 OFFSET :scan);

-- name: failure_sample
SELECT t.error_type, t.message, f.reason FROM millpond_final f
  LEFT JOIN millpond_attempt t ON t.job = f.id AND t.claim = (
    SELECT max(x.claim) FROM millpond_attempt x
     WHERE x.job = f.id AND x.outcome NOT IN ('completed', 'released', 'snoozed'))
 WHERE f.id = :id;

-- name: last_job
SELECT value FROM millpond_seq WHERE name = 'job';

-- name: final_bound
-- How far a step goes that looks at :scan final jobs of a state.
SELECT finished_at, id FROM millpond_final
 WHERE state = :state AND (finished_at, id) > (:at, :id) AND finished_at <= :by
 ORDER BY finished_at, id LIMIT 1 OFFSET :scan - 1;

-- name: pick_final
SELECT id FROM millpond_final
 WHERE state = :state AND (finished_at, id) > (:at, :id) AND (finished_at, id) <= (:to_at, :to_id)
   AND id <= :max_id
   AND (:queue IS NULL OR queue = :queue) AND (:task IS NULL OR task = :task)
   AND (:reason IS NULL OR reason = :reason)
   AND (:fingerprint IS NULL OR fingerprint = :fingerprint)
 ORDER BY finished_at, id;

-- name: page_running
SELECT id, id FROM millpond_running WHERE id > :id ORDER BY id LIMIT :scan;

-- name: page_scheduled
SELECT due, id, id FROM millpond_scheduled WHERE (due, id) > (:due, :id)
 ORDER BY due, id LIMIT :scan;

-- name: page_ready
SELECT lane, rank, id, id FROM millpond_ready WHERE (lane, rank, id) > (:lane, :rank, :id)
 ORDER BY lane, rank, id LIMIT :scan;

-- name: page_blocked
SELECT kind, ref, lane, rank, id, id FROM millpond_blocked
 WHERE (kind, ref, lane, rank, id) > (:kind, :ref, :lane, :rank, :id)
 ORDER BY kind, ref, lane, rank, id LIMIT :scan;

-- name: narrow
-- Which of some jobs fit what their place does not tell, in the order given.
SELECT j.id FROM json_each(:ids) e CROSS JOIN millpond_job j ON j.id = e.value
  JOIN millpond_lane l ON l.id = j.lane
  LEFT JOIN millpond_final f ON f.id = j.id
 WHERE j.id <= :max_id
   AND (:queue IS NULL OR l.queue = :queue) AND (:task IS NULL OR l.task = :task)
   AND (:workload IS NULL OR l.workload IN (SELECT id FROM millpond_workload WHERE name = :workload))
   AND (:tenant IS NULL OR j.tenant = (SELECT id FROM millpond_tenant WHERE name = :tenant))
   AND (:key IS NULL OR j.key = :key)
   AND (:operation_id IS NULL OR j.operation_id = :operation_id)
   AND (:created_after IS NULL OR j.created_at >= :created_after)
   AND (:created_before IS NULL OR j.created_at <= :created_before)
   AND (:error IS NULL OR f.state IS NOT 'completed' AND instr(lower(coalesce(
     (SELECT coalesce(t.error_type || ': ', '') || coalesce(t.message, '')
        FROM millpond_attempt t
       WHERE t.job = j.id AND t.outcome NOT IN ('completed', 'released', 'snoozed')
       ORDER BY t.claim DESC LIMIT 1), f.reason, '')), lower(:error)) > 0)
 ORDER BY e.key;
