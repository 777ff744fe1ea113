-- Final jobs past their window: counted, copied into archives, deleted.

-- name: purgeable
SELECT id, finished_at FROM millpond_final WHERE state = :state AND finished_at < :before
 ORDER BY finished_at, id LIMIT :limit;

-- name: count_purgeable
SELECT count(*) FROM millpond_final WHERE state = :state AND finished_at < :before;

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
