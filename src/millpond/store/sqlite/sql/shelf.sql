-- The connection to an archive, `main`, beside which the store it takes jobs from stands as
-- `live`, read only. Both have the same schema, so rows are copied whole.

-- name: shelf_attach
ATTACH DATABASE :address AS live;

-- name: shelf_is_store
SELECT EXISTS (SELECT 1 FROM main.sqlite_schema WHERE name = 'millpond_meta');

-- name: shelf_owner
SELECT state, closed_to, EXISTS (SELECT 1 FROM main.millpond_job) FROM main.millpond_meta WHERE id = 1;

-- name: shelf_close_intake
UPDATE main.millpond_meta SET state = 'closed', closed_to = :owner, generation = generation + 1
 WHERE id = 1;

-- name: shelf_last
SELECT code_value FROM main.millpond_setting
 WHERE scope = 'store' AND which = 'archive' AND name = 'last';

-- name: shelf_put_last
INSERT INTO main.millpond_setting (scope, which, name, code_value)
VALUES ('store', 'archive', 'last', :value)
ON CONFLICT (scope, which, name) DO UPDATE SET code_value = excluded.code_value;

-- name: shelf_queues
INSERT OR IGNORE INTO main.millpond_queue SELECT * FROM live.millpond_queue;

-- name: shelf_workloads
INSERT OR IGNORE INTO main.millpond_workload SELECT * FROM live.millpond_workload;

-- name: shelf_tasks
INSERT OR IGNORE INTO main.millpond_task SELECT * FROM live.millpond_task;

-- name: shelf_lanes
INSERT OR IGNORE INTO main.millpond_lane SELECT * FROM live.millpond_lane;

-- name: shelf_empty_lanes
-- Nothing waits or runs in an archive; what was counted before was counted elsewhere.
UPDATE main.millpond_lane SET n_scheduled = 0, n_ready = 0, n_blocked = 0, n_running = 0,
  total_accepted = 0, total_claimed = 0, total_completed = 0, total_failed = 0,
  total_cancelled = 0, total_retried = 0, total_snoozed = 0, total_released = 0, total_lost = 0
 WHERE n_scheduled + n_ready + n_blocked + n_running + total_accepted > 0;

-- name: shelf_empty_workloads
UPDATE main.millpond_workload SET n_jobs = 0, n_held = 0, n_bytes = 0, n_held_bytes = 0
 WHERE n_jobs + n_held + n_bytes + n_held_bytes > 0;

-- name: shelf_tenants
INSERT OR IGNORE INTO main.millpond_tenant SELECT * FROM live.millpond_tenant
 WHERE id IN (SELECT tenant FROM live.millpond_job WHERE id IN (SELECT value FROM json_each(:ids)));

-- name: shelf_workers
INSERT OR IGNORE INTO main.millpond_worker SELECT * FROM live.millpond_worker
 WHERE id IN (SELECT worker FROM live.millpond_attempt
   WHERE job IN (SELECT value FROM json_each(:ids)));

-- name: shelf_end_workers
UPDATE main.millpond_worker SET wake = NULL, marks = NULL, ended_at = beat_at
 WHERE ended_at IS NULL;

-- name: shelf_jobs
INSERT OR REPLACE INTO main.millpond_job SELECT * FROM live.millpond_job
 WHERE id IN (SELECT value FROM json_each(:ids));

-- name: shelf_finals
INSERT OR REPLACE INTO main.millpond_final SELECT * FROM live.millpond_final
 WHERE id IN (SELECT value FROM json_each(:ids));

-- name: shelf_again
INSERT OR REPLACE INTO main.millpond_again SELECT * FROM live.millpond_again
 WHERE id IN (SELECT value FROM json_each(:ids));

-- name: shelf_attempts
INSERT OR REPLACE INTO main.millpond_attempt SELECT * FROM live.millpond_attempt
 WHERE job IN (SELECT value FROM json_each(:ids));

-- name: shelf_tracebacks
INSERT OR REPLACE INTO main.millpond_traceback SELECT * FROM live.millpond_traceback
 WHERE job IN (SELECT value FROM json_each(:ids));

-- name: shelf_results
INSERT OR REPLACE INTO main.millpond_result SELECT * FROM live.millpond_result
 WHERE job IN (SELECT value FROM json_each(:ids));

-- name: shelf_events
INSERT OR REPLACE INTO main.millpond_event SELECT * FROM live.millpond_event
 WHERE what IN ('cancel', 'requeue')
   AND which IN (SELECT CAST(value AS TEXT) FROM json_each(:ids));

-- name: shelf_count
SELECT count(*) FROM main.millpond_job j JOIN main.millpond_final f ON f.id = j.id
 WHERE j.id IN (SELECT value FROM json_each(:ids));

-- name: shelf_drop_jobs
DELETE FROM main.millpond_job WHERE id IN (SELECT value FROM json_each(:ids));

-- name: shelf_drop_finals
DELETE FROM main.millpond_final WHERE id IN (SELECT value FROM json_each(:ids));

-- name: shelf_drop_again
DELETE FROM main.millpond_again WHERE id IN (SELECT value FROM json_each(:ids));

-- name: shelf_drop_attempts
DELETE FROM main.millpond_attempt WHERE job IN (SELECT value FROM json_each(:ids));

-- name: shelf_drop_tracebacks
DELETE FROM main.millpond_traceback WHERE job IN (SELECT value FROM json_each(:ids));

-- name: shelf_drop_results
DELETE FROM main.millpond_result WHERE job IN (SELECT value FROM json_each(:ids));

-- name: shelf_drop_events
DELETE FROM main.millpond_event WHERE what IN ('cancel', 'requeue')
   AND which IN (SELECT CAST(value AS TEXT) FROM json_each(:ids));
