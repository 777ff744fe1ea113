-- Final jobs past their window: counted, copied into archives, deleted.

-- name: purgeable
SELECT id, finished_at FROM millpond_final WHERE state = :state AND finished_at < :before
 ORDER BY finished_at, id LIMIT :limit;

-- name: count_purgeable
SELECT count(*) FROM millpond_final WHERE state = :state AND finished_at < :before;

-- name: sizes
-- How much of a job is in its own row and its result; histories are bounded.
SELECT j.charged_bytes + coalesce((SELECT length(r.body) FROM millpond_result r WHERE r.job = j.id), 0)
  FROM json_each(:ids) e CROSS JOIN millpond_job j ON j.id = e.value ORDER BY e.key;

-- name: unchanged
-- How many of [id, finished_at] are final and still of that moment.
SELECT count(*) FROM json_each(:refs) e
  CROSS JOIN millpond_final f ON f.id = e.value->>0 AND f.finished_at = e.value->>1;

-- name: any_event
SELECT EXISTS (SELECT 1 FROM millpond_event);

-- name: purge_job_events
-- What was done to a job goes with it; that it was discarded stays.
DELETE FROM millpond_event WHERE what IN ('cancel', 'requeue')
   AND which IN (SELECT CAST(value AS TEXT) FROM json_each(:ids));

-- name: purge_events
-- Ids follow time, so the oldest ones tell whether there is anything to do.
DELETE FROM millpond_event WHERE id IN (
  SELECT id FROM (SELECT id, at FROM millpond_event ORDER BY id LIMIT :limit) WHERE at < :before);

-- name: purge_attempts
DELETE FROM millpond_attempt WHERE job IN (SELECT value FROM json_each(:ids));

-- name: purge_tracebacks
DELETE FROM millpond_traceback WHERE job IN (SELECT value FROM json_each(:ids));

-- name: purge_again
DELETE FROM millpond_again WHERE id IN (SELECT value FROM json_each(:ids));

-- name: purge_memos
-- A memo goes with the last job of its operation.
DELETE FROM millpond_memo WHERE operation_id IN (
    SELECT operation_id FROM millpond_job WHERE id IN (SELECT value FROM json_each(:ids)))
  AND NOT EXISTS (SELECT 1 FROM millpond_job j WHERE j.operation_id = millpond_memo.operation_id
    AND j.id NOT IN (SELECT value FROM json_each(:ids)));

-- name: purge_jobs
DELETE FROM millpond_job WHERE id IN (SELECT value FROM json_each(:ids));

-- name: purge_finals
DELETE FROM millpond_final WHERE id IN (SELECT value FROM json_each(:ids));

-- name: purge_dedup
DELETE FROM millpond_dedup WHERE (queue, task, key) IN (
  SELECT queue, task, key FROM millpond_dedup
   WHERE expires_at IS NOT NULL AND expires_at <= :now LIMIT :limit);

-- name: purge_results
DELETE FROM millpond_result WHERE job IN (
  SELECT job FROM millpond_result WHERE expires_at <= :now LIMIT :limit);

-- name: store_id
SELECT store_id FROM millpond_meta WHERE id = 1;

-- name: under_way
-- Where an archive stood when the last batch was deleted; there while one is open.
SELECT code_value FROM millpond_setting
 WHERE scope = 'store' AND which = 'archive' AND name = 'under_way';

-- name: put_under_way
INSERT INTO millpond_setting (scope, which, name, code_value)
VALUES ('store', 'archive', 'under_way', :value)
ON CONFLICT (scope, which, name) DO UPDATE SET code_value = excluded.code_value;

-- name: drop_under_way
DELETE FROM millpond_setting WHERE scope = 'store' AND which = 'archive' AND name = 'under_way';

-- name: present
SELECT count(*) FROM json_each(:ids) e CROSS JOIN millpond_job j ON j.id = e.value;

-- name: still_final
SELECT f.id, f.finished_at FROM json_each(:refs) e
  CROSS JOIN millpond_final f ON f.id = e.value->>0 AND f.finished_at = e.value->>1;

-- name: export_jobs
SELECT j.id, t.name AS task, q.name AS queue, w.name AS workload, n.name AS tenant, f.state,
  j.priority, j.created_at, coalesce(a.due, j.first_due) AS due_at, f.finished_at, j.max_attempts,
  f.reason, f.fingerprint, j.operation_id, j.key, j.coalesce_key, j.limit_key, j.origin, j.parent,
  j.batch, j.traceparent, j.charged_bytes AS payload_bytes, j.payload, j.meta, r.body AS result
  FROM json_each(:ids) e CROSS JOIN millpond_job j ON j.id = e.value
  CROSS JOIN millpond_lane l ON l.id = j.lane
  CROSS JOIN millpond_task t ON t.id = l.task
  CROSS JOIN millpond_queue q ON q.id = l.queue
  CROSS JOIN millpond_workload w ON w.id = l.workload
  CROSS JOIN millpond_final f ON f.id = j.id
  LEFT JOIN millpond_tenant n ON n.id = j.tenant
  LEFT JOIN millpond_again a ON a.id = j.id
  LEFT JOIN millpond_result r ON r.job = j.id
 ORDER BY e.key;

-- name: export_attempts
SELECT a.job AS job_id, a.claim, a.number, w.host || ':' || w.pid AS worker, a.claimed_at,
  a.started_at, a.ended_at, a.outcome, a.error_type, a.message, b.text AS traceback,
  a.fingerprint, a.signal, a.late_at
  FROM json_each(:ids) e CROSS JOIN millpond_attempt a ON a.job = e.value
  LEFT JOIN millpond_worker w ON w.id = a.worker
  LEFT JOIN millpond_traceback b ON b.job = a.job AND b.claim = a.claim
 ORDER BY a.job, a.claim;

-- name: export_events
SELECT CAST(v.which AS INTEGER) AS job_id, v.at, v.who, v.what, v.note, v.before, v.after
  FROM json_each(:ids) e
  CROSS JOIN millpond_event v ON v.which = CAST(e.value AS TEXT)
 WHERE v.what IN ('cancel', 'requeue') ORDER BY v.id;
