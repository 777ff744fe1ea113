-- name: find_dedup
SELECT job, operation_id FROM millpond_dedup
 WHERE queue = :queue AND task = :task AND key = :key
   AND (expires_at IS NULL OR expires_at > :now);

-- name: put_dedup
INSERT INTO millpond_dedup (queue, task, key, job, operation_id, ttl_ms, expires_at)
VALUES (:queue, :task, :key, :job, :operation_id, :ttl_ms, NULL)
ON CONFLICT (queue, task, key) DO UPDATE SET job = excluded.job,
  operation_id = excluded.operation_id, ttl_ms = excluded.ttl_ms, expires_at = NULL;

-- name: find_coalesce
SELECT c.job, j.operation_id, j.charged_bytes, j.lane, coalesce(a.lane, j.lane) AS lane_now,
  coalesce(a.due, j.first_due) AS due, coalesce(a.rank, j.rank) AS rank, j.priority, j.tenant,
  a.id IS NOT NULL
  FROM millpond_coalesce c JOIN millpond_job j ON j.id = c.job
  LEFT JOIN millpond_again a ON a.id = c.job
 WHERE c.queue = :queue AND c.task = :task AND c.key = :key;

-- name: put_coalesce
INSERT INTO millpond_coalesce (queue, task, key, job) VALUES (:queue, :task, :key, :job)
ON CONFLICT (queue, task, key) DO NOTHING;

-- name: replace_payload
UPDATE millpond_job SET payload = :payload, meta = :meta, codec = :codec,
  charged_bytes = :bytes WHERE id = :job;

-- name: first_due_and_rank
UPDATE millpond_job SET first_due = :due, rank = :rank WHERE id = :job;

-- name: again_due
UPDATE millpond_again SET due = :due WHERE id = :job;

-- name: read_capacity
SELECT n_jobs + n_held, n_bytes + n_held_bytes, max_jobs, max_bytes
  FROM millpond_workload WHERE id = :workload;

-- name: add_job
INSERT INTO millpond_job (id, lane, rank, priority, created_at, first_due, max_attempts, lease_ms,
  charged_bytes, operation_id, codec, payload, tenant, timeout_ms, key, coalesce_key, limit_key,
  origin, parent, batch, traceparent, meta)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: add_plain_job
-- The same for a job that has nothing of what follows the payload: what is NULL is not bound.
INSERT INTO millpond_job (id, lane, rank, priority, created_at, first_due, max_attempts, lease_ms,
  charged_bytes, operation_id, codec, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: add_ready
INSERT INTO millpond_ready (lane, rank, id, due) VALUES (?, ?, ?, ?);

-- name: add_scheduled
INSERT INTO millpond_scheduled (due, id) VALUES (?1, ?2);

-- name: add_ready_range
-- Ids of one enqueue are consecutive: the rows just inserted are read back in key order.
INSERT INTO millpond_ready (lane, rank, id, due)
SELECT lane, rank, id, first_due FROM millpond_job
 WHERE id BETWEEN :first AND :last AND first_due <= :now;

-- name: add_scheduled_range
INSERT INTO millpond_scheduled (due, id)
SELECT first_due, id FROM millpond_job WHERE id BETWEEN :first AND :last AND first_due > :now;

-- name: count_accepted
UPDATE millpond_lane SET n_ready = n_ready + :ready, n_scheduled = n_scheduled + :scheduled,
  total_accepted = total_accepted + :ready + :scheduled WHERE id = :lane;

-- name: take_capacity
UPDATE millpond_workload SET n_jobs = n_jobs + :jobs, n_bytes = n_bytes + :bytes
 WHERE id = :workload;

-- name: take_tenant
INSERT INTO millpond_tenant_use (queue, tenant, n_jobs, n_bytes)
VALUES (:queue, :tenant, :jobs, :bytes)
ON CONFLICT (queue, tenant) DO UPDATE SET n_jobs = n_jobs + excluded.n_jobs,
  n_bytes = n_bytes + excluded.n_bytes;

-- name: job_with_operation
SELECT 1 FROM millpond_job WHERE id = :job AND operation_id = :operation_id;

-- name: savepoint
SAVEPOINT millpond_enqueue;

-- name: rollback_savepoint
ROLLBACK TO millpond_enqueue;

-- name: release_savepoint
RELEASE millpond_enqueue;
