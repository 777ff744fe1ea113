-- name: job_place
-- Where a job stands now, everything a change of a waiting or final job needs.
SELECT j.id, coalesce(a.lane, j.lane), coalesce(a.rank, j.rank), coalesce(a.due, j.first_due),
  j.tenant, j.limit_key, j.coalesce_key, j.key, j.charged_bytes, r.claim, f.state
  FROM millpond_job j
  LEFT JOIN millpond_again a ON a.id = j.id
  LEFT JOIN millpond_running r ON r.id = j.id
  LEFT JOIN millpond_final f ON f.id = j.id
 WHERE j.id = :id;

-- name: is_blocked
SELECT 1 FROM millpond_blocked
 WHERE kind = :kind AND ref = :ref AND lane = :lane AND rank = :rank AND id = :id;

-- name: wake_of_holder
SELECT w.wake FROM millpond_running r JOIN millpond_worker w ON w.id = r.worker
 WHERE r.id = :id AND w.wake IS NOT NULL;

-- name: ask_cancel
UPDATE millpond_running SET cancel_at = coalesce(cancel_at, :now), cancel_by = coalesce(cancel_by, :who)
 WHERE id = :id AND claim = :claim;

-- name: count_cancelled
UPDATE millpond_lane SET total_cancelled = total_cancelled + :cancelled,
  total_failed = total_failed + :failed WHERE id = :lane;

-- name: drop_coalesce_of
DELETE FROM millpond_coalesce WHERE queue = :queue AND task = :task AND key = :key AND job = :job;

-- name: put_memo
INSERT INTO millpond_memo (operation_id, task, value, saved_at)
SELECT j.operation_id, l.task, :value, :now
  FROM millpond_running r JOIN millpond_worker w ON w.id = r.worker
  JOIN millpond_job j ON j.id = r.id JOIN millpond_lane l ON l.id = r.lane
 WHERE r.id = :job AND r.claim = :claim AND r.worker = :worker
   AND max(r.claimed_mono, w.beat_mono) + r.lease_ms > :mono
ON CONFLICT (operation_id, task) DO UPDATE SET value = excluded.value, saved_at = excluded.saved_at;

-- name: put_progress
INSERT INTO millpond_progress (job, claim, value, at)
SELECT r.id, r.claim, ?3, ?4 FROM millpond_running r JOIN millpond_worker w ON w.id = r.worker
 WHERE r.id = ?1 AND r.claim = ?2 AND r.worker = ?5
   AND max(r.claimed_mono, w.beat_mono) + r.lease_ms > ?6
ON CONFLICT (job) DO UPDATE SET claim = excluded.claim, value = excluded.value, at = excluded.at;

-- name: recount_lanes
WITH place(lane, scheduled, ready, blocked, running) AS (
  SELECT coalesce(a.lane, j.lane), 1, 0, 0, 0
    FROM millpond_scheduled s JOIN millpond_job j ON j.id = s.id
    LEFT JOIN millpond_again a ON a.id = s.id
  UNION ALL SELECT lane, 0, 1, 0, 0 FROM millpond_ready
  UNION ALL SELECT lane, 0, 0, 1, 0 FROM millpond_blocked
  UNION ALL SELECT lane, 0, 0, 0, 1 FROM millpond_running
), total AS (
  SELECT lane, sum(scheduled) s, sum(ready) r, sum(blocked) b, sum(running) u
    FROM place GROUP BY lane
)
SELECT l.id, l.n_scheduled, l.n_ready, l.n_blocked, l.n_running,
  coalesce(t.s, 0), coalesce(t.r, 0), coalesce(t.b, 0), coalesce(t.u, 0)
  FROM millpond_lane l LEFT JOIN total t ON t.lane = l.id
 WHERE (l.n_scheduled, l.n_ready, l.n_blocked, l.n_running)
    IS NOT (coalesce(t.s, 0), coalesce(t.r, 0), coalesce(t.b, 0), coalesce(t.u, 0));

-- name: mend_lane
UPDATE millpond_lane SET n_scheduled = :scheduled, n_ready = :ready, n_blocked = :blocked,
  n_running = :running WHERE id = :id;

-- name: recount_workloads
-- Outstanding is accepted and not final: counted from jobs without a final row.
SELECT w.id, w.n_jobs, w.n_bytes, coalesce(t.n, 0), coalesce(t.b, 0)
  FROM millpond_workload w LEFT JOIN (
    SELECT l.workload AS workload, count(*) AS n, sum(j.charged_bytes) AS b
      FROM (SELECT id FROM millpond_scheduled UNION ALL SELECT id FROM millpond_ready
            UNION ALL SELECT id FROM millpond_blocked UNION ALL SELECT id FROM millpond_running) o
      JOIN millpond_job j ON j.id = o.id JOIN millpond_lane l ON l.id = j.lane
     GROUP BY l.workload) t ON t.workload = w.id
 WHERE (w.n_jobs, w.n_bytes) IS NOT (coalesce(t.n, 0), coalesce(t.b, 0));

-- name: mend_workload
UPDATE millpond_workload SET n_jobs = :jobs, n_bytes = :bytes WHERE id = :id;

-- name: recount_tenants
WITH counted AS (
  SELECT l.queue AS queue, j.tenant AS tenant, count(*) AS n, sum(j.charged_bytes) AS b
    FROM (SELECT id FROM millpond_scheduled UNION ALL SELECT id FROM millpond_ready
          UNION ALL SELECT id FROM millpond_blocked UNION ALL SELECT id FROM millpond_running) o
    JOIN millpond_job j ON j.id = o.id AND j.tenant IS NOT NULL
    JOIN millpond_lane l ON l.id = j.lane
   GROUP BY l.queue, j.tenant
), known AS (
  SELECT queue, tenant FROM counted UNION SELECT queue, tenant FROM millpond_tenant_use
)
SELECT k.queue, k.tenant, coalesce(u.n_jobs, 0), coalesce(u.n_bytes, 0),
  coalesce(c.n, 0), coalesce(c.b, 0)
  FROM known k
  LEFT JOIN millpond_tenant_use u ON u.queue = k.queue AND u.tenant = k.tenant
  LEFT JOIN counted c ON c.queue = k.queue AND c.tenant = k.tenant
 WHERE (coalesce(u.n_jobs, 0), coalesce(u.n_bytes, 0)) IS NOT (coalesce(c.n, 0), coalesce(c.b, 0));

-- name: mend_tenant
INSERT INTO millpond_tenant_use (queue, tenant, n_jobs, n_bytes)
VALUES (:queue, :tenant, :jobs, :bytes)
ON CONFLICT (queue, tenant) DO UPDATE SET n_jobs = excluded.n_jobs, n_bytes = excluded.n_bytes;

-- name: recount_gates
SELECT g.kind, g.ref, g.n, coalesce(t.n, 0) FROM millpond_gate g LEFT JOIN (
    SELECT 'limit' AS kind, j.limit_key AS ref, count(*) AS n
      FROM millpond_running r JOIN millpond_job j ON j.id = r.id
     WHERE j.limit_key IS NOT NULL GROUP BY j.limit_key
    UNION ALL
    SELECT 'tenant', l.queue || '/' || r.tenant, count(*)
      FROM millpond_running r JOIN millpond_lane l ON l.id = r.lane
     WHERE r.tenant IS NOT NULL GROUP BY l.queue, r.tenant
  ) t ON t.kind = g.kind AND t.ref = g.ref
 WHERE g.n IS NOT coalesce(t.n, 0);

-- name: mend_gate
UPDATE millpond_gate SET n = :n WHERE kind = :kind AND ref = :ref;

-- name: nowhere
SELECT j.id FROM millpond_job j LEFT JOIN (
    SELECT id, 'scheduled' AS place FROM millpond_scheduled
    UNION ALL SELECT id, 'ready' FROM millpond_ready
    UNION ALL SELECT id, 'blocked' FROM millpond_blocked
    UNION ALL SELECT id, 'running' FROM millpond_running
    UNION ALL SELECT id, 'final' FROM millpond_final) p ON p.id = j.id
 WHERE p.id IS NULL LIMIT 100;

-- name: everywhere
SELECT p.id, count(*), group_concat(p.place, ' and ') FROM (
    SELECT id, 'scheduled' AS place FROM millpond_scheduled
    UNION ALL SELECT id, 'ready' FROM millpond_ready
    UNION ALL SELECT id, 'blocked' FROM millpond_blocked
    UNION ALL SELECT id, 'running' FROM millpond_running
    UNION ALL SELECT id, 'final' FROM millpond_final) p
 GROUP BY p.id HAVING count(*) > 1 LIMIT 100;

-- name: homeless
-- Places of jobs that do not exist.
SELECT p.id, p.place FROM (
    SELECT id, 'scheduled' AS place FROM millpond_scheduled
    UNION ALL SELECT id, 'ready' FROM millpond_ready
    UNION ALL SELECT id, 'blocked' FROM millpond_blocked
    UNION ALL SELECT id, 'running' FROM millpond_running
    UNION ALL SELECT id, 'final' FROM millpond_final) p
 WHERE NOT EXISTS (SELECT 1 FROM millpond_job j WHERE j.id = p.id) LIMIT 100;

-- name: wrong_place
-- Waiting jobs whose place does not say what their job row says.
SELECT r.id FROM (SELECT id, lane, rank FROM millpond_ready
    UNION ALL SELECT id, lane, rank FROM millpond_blocked) r
  JOIN millpond_job j ON j.id = r.id LEFT JOIN millpond_again a ON a.id = r.id
 WHERE (r.lane, r.rank) IS NOT (coalesce(a.lane, j.lane), coalesce(a.rank, j.rank))
UNION ALL
SELECT s.id FROM millpond_scheduled s JOIN millpond_job j ON j.id = s.id
  LEFT JOIN millpond_again a ON a.id = s.id WHERE s.due IS NOT coalesce(a.due, j.first_due)
LIMIT 100;

-- name: ownerless
SELECT r.id, r.worker FROM millpond_running r
 WHERE NOT EXISTS (SELECT 1 FROM millpond_worker w WHERE w.id = r.worker) LIMIT 100;

-- name: charged_attempts
-- What `again` says was used must be what the history holds, as long as the job is outstanding.
SELECT j.id, coalesce(a.attempts, 0) AS used, count(t.number) AS shown, coalesce(max(t.number), 0)
  FROM millpond_job j LEFT JOIN millpond_again a ON a.id = j.id
  LEFT JOIN millpond_attempt t ON t.job = j.id
 WHERE NOT EXISTS (SELECT 1 FROM millpond_final f WHERE f.id = j.id)
 GROUP BY j.id HAVING used <> shown OR used <> coalesce(max(t.number), 0)
 LIMIT 100;

-- name: completed_twice
-- Only a job that was put back may be completed again.
SELECT a.job, count(*) FROM millpond_attempt a JOIN millpond_job j ON j.id = a.job
 WHERE a.outcome = 'completed' AND j.first_attempts IS NULL
 GROUP BY a.job HAVING count(*) > 1 LIMIT 100;

-- name: stuck
-- A limit has room, jobs of a lane are set aside for it, and none of that lane has been brought
-- back to take the room: nothing would ever wake them.
SELECT min(b.id), count(*) - 1, b.lane, b.kind, b.ref
  FROM millpond_blocked b LEFT JOIN millpond_gate g ON g.kind = b.kind AND g.ref = b.ref
 WHERE g.max IS NULL OR g.n < g.max
 GROUP BY b.lane, b.kind, b.ref HAVING NOT EXISTS (
   SELECT 1 FROM millpond_ready r JOIN millpond_job j ON j.id = r.id
     JOIN millpond_lane l ON l.id = r.lane
    WHERE r.lane = b.lane AND ((b.kind = 'limit' AND j.limit_key = b.ref)
      OR (b.kind = 'tenant' AND l.queue || '/' || j.tenant = b.ref)))
 LIMIT 100;

-- name: stray_coalesce
-- A key held by a job that does not wait would swallow every request that joins it.
SELECT c.key, c.task, c.job FROM millpond_coalesce c
 WHERE NOT EXISTS (SELECT 1 FROM (SELECT id FROM millpond_scheduled
    UNION ALL SELECT id FROM millpond_ready UNION ALL SELECT id FROM millpond_blocked) p
   WHERE p.id = c.job) LIMIT 100;

-- name: stray_key
SELECT d.key, d.task, d.job FROM millpond_dedup d
 WHERE d.expires_at IS NULL AND (EXISTS (SELECT 1 FROM millpond_final f WHERE f.id = d.job)
   OR NOT EXISTS (SELECT 1 FROM millpond_job j WHERE j.id = d.job)) LIMIT 100;
