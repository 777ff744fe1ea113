-- name: read_meta
-- Differs from PostgreSQL: one row of the file itself, read under the write lock.
SELECT generation, state, closed_to FROM millpond_meta WHERE id = 1;

-- name: bump_generation
UPDATE millpond_meta SET generation = generation + 1 WHERE id = 1 RETURNING generation;

-- name: share_file
UPDATE millpond_meta SET shared_file = 1, generation = generation + 1 WHERE id = 1 AND shared_file = 0;

-- name: make_meta
INSERT OR IGNORE INTO millpond_meta (id, store_id, generation, state, shared_file, created_at)
VALUES (1, :store_id, 1, 'open', 0, :now);

-- name: take_seq
UPDATE millpond_seq SET value = value + :n WHERE name = :name RETURNING value;

-- name: all_queues
SELECT id, name, ordering, ageing_ms, paused, max_running FROM millpond_queue;

-- name: all_workloads
SELECT id, queue, name, paused, strict, max_running FROM millpond_workload;

-- name: all_tasks
SELECT id, name, settings FROM millpond_task;

-- name: all_lanes
SELECT id, queue, workload, task, again FROM millpond_lane;

-- name: any_gate
SELECT EXISTS (SELECT 1 FROM millpond_gate);

-- name: wake_paths
-- Workers that serve each task; the live ones are told by their beat when somebody looks.
SELECT k.task, w.wake, w.beat_at, w.interval_ms
  FROM millpond_worker_task k JOIN millpond_worker w ON w.id = k.worker
 WHERE w.wake IS NOT NULL ORDER BY k.task, w.beat_at DESC;

-- name: add_queue
INSERT INTO millpond_queue (name) VALUES (:name) ON CONFLICT (name) DO NOTHING;

-- name: queue_id
SELECT id FROM millpond_queue WHERE name = :name;

-- name: add_workload
INSERT INTO millpond_workload (queue, name, strict) VALUES (:queue, :name, :strict)
ON CONFLICT (queue, name) DO NOTHING;

-- name: workload_id
SELECT id FROM millpond_workload WHERE queue = :queue AND name = :name;

-- name: add_task
INSERT INTO millpond_task (name) VALUES (:name) ON CONFLICT (name) DO NOTHING;

-- name: task_id
SELECT id FROM millpond_task WHERE name = :name;

-- name: add_lane
INSERT INTO millpond_lane (queue, workload, task, again) VALUES (:queue, :workload, :task, :again)
ON CONFLICT (queue, workload, task, again) DO NOTHING;

-- name: add_tenant
INSERT INTO millpond_tenant (name) VALUES (:name) ON CONFLICT (name) DO NOTHING;

-- name: tenant_id
SELECT id FROM millpond_tenant WHERE name = :name;

-- name: put_queue
INSERT INTO millpond_queue (name, ordering, ageing_ms, max_jobs, max_bytes, max_running,
  full_policy, pressure)
VALUES (:name, :ordering, :ageing_ms, :max_jobs, :max_bytes, :max_running, :full_policy, :pressure)
ON CONFLICT (name) DO UPDATE SET ordering = excluded.ordering, ageing_ms = excluded.ageing_ms,
  max_jobs = excluded.max_jobs, max_bytes = excluded.max_bytes,
  max_running = excluded.max_running, full_policy = excluded.full_policy,
  pressure = excluded.pressure;

-- name: queue_settings
SELECT id, ordering, ageing_ms, max_jobs, max_bytes, max_running, full_policy, pressure
  FROM millpond_queue WHERE name = :name;

-- name: put_workload
INSERT INTO millpond_workload (queue, name, strict, weight, borrow, full_policy, reserved_jobs,
  reserved_bytes, max_jobs, max_bytes, max_running, effect, deadline_ms)
VALUES (:queue, :name, :strict, :weight, :borrow, :full_policy, :reserved_jobs,
  :reserved_bytes, :max_jobs, :max_bytes, :max_running, :effect, :deadline_ms)
ON CONFLICT (queue, name) DO UPDATE SET strict = excluded.strict, weight = excluded.weight,
  borrow = excluded.borrow, full_policy = excluded.full_policy,
  reserved_jobs = excluded.reserved_jobs,
  reserved_jobs_now = min(reserved_jobs_now, excluded.reserved_jobs),
  reserved_bytes = excluded.reserved_bytes,
  reserved_bytes_now = min(reserved_bytes_now, excluded.reserved_bytes),
  max_jobs = excluded.max_jobs, max_bytes = excluded.max_bytes,
  max_running = excluded.max_running, effect = excluded.effect,
  deadline_ms = excluded.deadline_ms;

-- name: workload_settings
SELECT strict, weight, borrow, full_policy, reserved_jobs, reserved_bytes, max_jobs, max_bytes,
  max_running, effect, deadline_ms FROM millpond_workload WHERE queue = :queue AND name = :name;

-- name: put_task
UPDATE millpond_task SET settings = :settings, settings_version = :version
 WHERE id = :id AND (settings IS NOT :settings) AND settings_version <= :version;

-- name: pause_queue
UPDATE millpond_queue SET paused = :paused WHERE name = :name RETURNING id;

-- name: add_event
INSERT INTO millpond_event (id, at, who, what, which, note, before, after)
VALUES (:id, :now, :who, :what, :which, :note, :before, :after);

-- name: rerank_jobs
-- Under :ordering a rank is what policy.ordering says; the same formula, for all rows at once.
-- From the places, which hold what is outstanding: final jobs may be a hundred times as many.
UPDATE millpond_job SET rank = CASE :ordering
    WHEN 'strict' THEN (priority << 47) + first_due
    ELSE first_due + priority * :ageing_ms END
 WHERE id IN (SELECT id FROM millpond_scheduled UNION ALL SELECT id FROM millpond_ready
    UNION ALL SELECT id FROM millpond_blocked UNION ALL SELECT id FROM millpond_running)
   AND +lane IN (SELECT id FROM millpond_lane WHERE queue = :queue);

-- name: rerank_again
UPDATE millpond_again SET rank = (SELECT rank FROM millpond_job j WHERE j.id = millpond_again.id)
 WHERE id IN (SELECT id FROM millpond_scheduled UNION ALL SELECT id FROM millpond_ready
    UNION ALL SELECT id FROM millpond_blocked UNION ALL SELECT id FROM millpond_running)
   AND +lane IN (SELECT id FROM millpond_lane WHERE queue = :queue);

-- name: rerank_ready
UPDATE millpond_ready SET rank = (SELECT rank FROM millpond_job j WHERE j.id = millpond_ready.id)
 WHERE lane IN (SELECT id FROM millpond_lane WHERE queue = :queue);

-- name: rerank_blocked
UPDATE millpond_blocked
   SET rank = (SELECT rank FROM millpond_job j WHERE j.id = millpond_blocked.id)
 WHERE lane IN (SELECT id FROM millpond_lane WHERE queue = :queue);

-- name: outstanding_of_queue
SELECT coalesce(sum(n_jobs), 0) FROM millpond_workload WHERE queue = :queue;
