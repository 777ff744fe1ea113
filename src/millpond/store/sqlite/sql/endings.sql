-- name: held_jobs
-- The claimed jobs of these ids, whoever holds them, in the order asked for; one seek a row.
SELECT e.key, r.id, r.claim, r.lane, r.due, r.claimed_at, r.cancel_at IS NOT NULL, r.size,
  r.worker, max(r.claimed_mono, w.beat_mono) + r.lease_ms,
  j.max_attempts, j.key, j.limit_key, j.tenant, j.coalesce_key, coalesce(a.rank, j.rank),
  coalesce(a.attempts, 0), coalesce(a.crashes, 0), j.first_due, j.operation_id
  FROM json_each(:ids) e
  CROSS JOIN millpond_running r ON r.id = e.value
  CROSS JOIN millpond_worker w ON w.id = r.worker
  CROSS JOIN millpond_job j ON j.id = r.id
  LEFT JOIN millpond_again a ON a.id = r.id;

-- name: drop_running
DELETE FROM millpond_running WHERE id = ?1 AND claim = ?2;

-- name: drop_running_many
DELETE FROM millpond_running WHERE id IN (SELECT value FROM json_each(:ids));

-- name: add_attempt
INSERT INTO millpond_attempt (job, claim, number, worker, claimed_at, started_at, ended_at,
  outcome, error_type, message, fingerprint, signal, late_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13);

-- name: add_attempt_many
INSERT INTO millpond_attempt (job, claim, number, worker, claimed_at, started_at, ended_at,
  outcome, error_type, message, fingerprint, signal, late_at)
SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7,
  value->>8, value->>9, value->>10, value->>11, value->>12 FROM json_each(:rows);

-- name: add_completed
-- The history of a completed job: what is NULL in it is not bound.
INSERT INTO millpond_attempt (job, claim, number, worker, claimed_at, started_at, ended_at,
  outcome)
VALUES (?, ?, ?, ?, ?, ?, ?, 'completed');

-- name: add_completed_finals
INSERT INTO millpond_final (id, state, finished_at, queue, task)
SELECT value, 'completed', :now, :queue, :task FROM json_each(:ids);

-- name: add_traceback
INSERT OR REPLACE INTO millpond_traceback (job, claim, text) VALUES (?1, ?2, ?3);

-- name: add_final
INSERT INTO millpond_final (id, state, finished_at, queue, task, reason, fingerprint)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- name: add_final_many
INSERT INTO millpond_final (id, state, finished_at, queue, task, reason, fingerprint)
SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6
  FROM json_each(:rows);

-- name: add_result
INSERT OR REPLACE INTO millpond_result (job, operation_id, task, body, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5);

-- name: drop_result
DELETE FROM millpond_result WHERE job = ?1;

-- name: put_again
INSERT INTO millpond_again (id, lane, due, rank, attempts, crashes) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (id) DO UPDATE SET lane = excluded.lane, due = excluded.due, rank = excluded.rank,
  attempts = excluded.attempts, crashes = excluded.crashes;

-- name: keep_dedup
UPDATE millpond_dedup SET expires_at = :now + ttl_ms WHERE job = :job;

-- name: free_dedup
DELETE FROM millpond_dedup WHERE job = :job;

-- name: drop_progress
DELETE FROM millpond_progress WHERE job IN (SELECT value FROM json_each(:ids));

-- name: any_progress
SELECT EXISTS (SELECT 1 FROM millpond_progress);

-- name: count_ended
UPDATE millpond_lane SET n_running = n_running - :running, n_ready = n_ready + :ready,
  n_scheduled = n_scheduled + :scheduled, total_completed = total_completed + :completed,
  total_failed = total_failed + :failed, total_cancelled = total_cancelled + :cancelled,
  total_retried = total_retried + :retried, total_snoozed = total_snoozed + :snoozed,
  total_released = total_released + :released, total_lost = total_lost + :lost
 WHERE id = :lane;

-- name: give_capacity
UPDATE millpond_workload SET n_jobs = n_jobs - :jobs, n_bytes = n_bytes - :bytes
 WHERE id = :workload;

-- name: give_tenant
UPDATE millpond_tenant_use SET n_jobs = n_jobs - :jobs, n_bytes = n_bytes - :bytes
 WHERE queue = :queue AND tenant = :tenant;

-- name: mark_late
-- Only what its worker has lost: a settled attempt that is reported twice is not late.
UPDATE millpond_attempt SET late_at = :now
 WHERE job = :job AND claim = :claim AND worker = :worker AND late_at IS NULL
   AND outcome IN ('lease_lost', 'crashed');

-- name: expired
-- Reads the running rows and nothing else; claims stay in memory-sized numbers.
SELECT r.id, r.claim FROM millpond_running r CROSS JOIN millpond_worker w ON w.id = r.worker
 WHERE w.domain = :domain AND max(r.claimed_mono, w.beat_mono) + r.lease_ms <= :mono
 ORDER BY r.claim LIMIT :limit;

-- name: expired_of_worker
SELECT r.id, r.claim FROM millpond_running r CROSS JOIN millpond_worker w ON w.id = r.worker
 WHERE r.worker = :worker AND max(r.claimed_mono, w.beat_mono) + r.lease_ms <= :mono;

-- name: expired_elsewhere
-- Workers of another clock domain: their own clock cannot be compared, so a watcher says for
-- how long beat and newest claim have not moved.
-- One row a claim, even when a worker was named twice.
SELECT DISTINCT r.id, r.claim FROM json_each(:observed) o
  CROSS JOIN millpond_running r ON r.worker = o.value->>0
  CROSS JOIN millpond_worker w ON w.id = r.worker
 WHERE w.domain <> :domain AND w.beat_mono = o.value->>1 AND r.lease_ms <= o.value->>3
   AND o.value->>2 = (SELECT max(x.claim) FROM millpond_running x WHERE x.worker = w.id)
 ORDER BY r.claim LIMIT :limit;

-- name: worker_running
SELECT id, claim, cancel_at IS NOT NULL FROM millpond_running WHERE worker = :worker;

-- name: write_beat
UPDATE millpond_worker SET beat_at = :now, beat_mono = :mono, interval_ms = :interval_ms
 WHERE id = :worker AND ended_at IS NULL;

-- name: still_running
SELECT 1 FROM millpond_running WHERE id = :job AND claim = :claim;

-- name: rejoin_coalesce
INSERT INTO millpond_coalesce (queue, task, key, job) VALUES (:queue, :task, :key, :job)
ON CONFLICT (queue, task, key) DO NOTHING;
