-- Reads for people and dashboards; optional filters are allowed here and nowhere else.

-- name: get_job
SELECT j.id, t.name AS task, q.name AS queue, w.name AS workload, n.name AS tenant, j.priority,
  CASE WHEN :with_payload THEN j.payload END, j.meta, j.created_at, j.first_due, j.max_attempts,
  j.operation_id, j.key, j.coalesce_key, j.limit_key, j.charged_bytes,
  a.due, coalesce(a.attempts, 0), coalesce(a.crashes, 0),
  r.claim, r.worker, r.due, r.claimed_at, r.claimed_mono, r.lease_ms, r.cancel_at,
  f.state, f.finished_at, f.reason,
  coalesce(a.lane, j.lane), coalesce(a.rank, j.rank), l.queue, j.tenant,
  CASE WHEN :with_payload THEN
    (SELECT body FROM millpond_result x WHERE x.job = j.id) END,
  (SELECT value FROM millpond_progress p WHERE p.job = j.id)
  FROM millpond_job j
  CROSS JOIN millpond_lane l ON l.id = j.lane
  CROSS JOIN millpond_task t ON t.id = l.task
  CROSS JOIN millpond_queue q ON q.id = l.queue
  CROSS JOIN millpond_workload w ON w.id = l.workload
  LEFT JOIN millpond_tenant n ON n.id = j.tenant
  LEFT JOIN millpond_again a ON a.id = j.id
  LEFT JOIN millpond_running r ON r.id = j.id
  LEFT JOIN millpond_final f ON f.id = j.id
 WHERE j.id = :id;

-- name: is_scheduled
SELECT 1 FROM millpond_scheduled WHERE due = :due AND id = :id;

-- name: job_exists
SELECT 1 FROM millpond_job WHERE id = :id;

-- name: ready_due
SELECT due FROM millpond_ready WHERE lane = :lane AND rank = :rank AND id = :id;

-- name: last_attempt
SELECT number, started_at, claimed_at, error_type, message FROM millpond_attempt
 WHERE job = :job ORDER BY claim DESC LIMIT 1;

-- name: last_error
SELECT error_type, message FROM millpond_attempt
 WHERE job = :job AND outcome NOT IN ('completed', 'released', 'snoozed')
 ORDER BY claim DESC LIMIT 1;

-- name: charged_number
SELECT max(number), sum(outcome = 'crashed') FROM millpond_attempt WHERE job = :job;

-- name: worker_row
SELECT host, pid, domain, beat_at, beat_mono, interval_ms FROM millpond_worker WHERE id = :worker;

-- name: attempts_of
SELECT a.job, a.claim, a.number, a.worker, w.host, w.pid, a.claimed_at, a.started_at, a.ended_at,
  a.outcome, a.error_type, a.message, b.text, a.fingerprint, a.signal, a.late_at
  FROM millpond_attempt a
  LEFT JOIN millpond_worker w ON w.id = a.worker
  LEFT JOIN millpond_traceback b ON b.job = a.job AND b.claim = a.claim
 WHERE a.job = :job ORDER BY a.claim;

-- name: newest_jobs
SELECT id FROM millpond_job WHERE id < :before ORDER BY id DESC LIMIT :limit;

-- name: newest_final
-- Of one state and nothing besides, the :scan that ended last: the index tells all of it.
SELECT id FROM (SELECT id FROM millpond_final INDEXED BY millpond_final_state
    WHERE state = :state AND id < :before ORDER BY finished_at DESC, id DESC LIMIT :scan)
 ORDER BY id DESC LIMIT :limit;

-- name: find_failed
-- The :scan that failed last; they lie far apart in their table, and side by side in the index.
SELECT id FROM (SELECT id, queue, task, fingerprint
    FROM millpond_final INDEXED BY millpond_final_failed
    WHERE state = 'failed' AND id < :before ORDER BY finished_at DESC, id DESC LIMIT :scan)
 WHERE (:queue IS NULL OR queue = :queue) AND (:task IS NULL OR task = :task)
   AND (:fingerprint IS NULL OR fingerprint = :fingerprint)
 ORDER BY id DESC LIMIT :limit;

-- name: find_final
-- Of one state, the :scan that ended last.
SELECT f.id FROM (SELECT id FROM millpond_final INDEXED BY millpond_final_state
    WHERE state = :state AND id < :before ORDER BY finished_at DESC, id DESC LIMIT :scan) c
  CROSS JOIN millpond_final f ON f.id = c.id
 WHERE (:queue IS NULL OR f.queue = :queue) AND (:task IS NULL OR f.task = :task)
   AND (:reason IS NULL OR f.reason = :reason)
   AND (:fingerprint IS NULL OR f.fingerprint = :fingerprint)
 ORDER BY f.id DESC LIMIT :limit;

-- name: count_places
SELECT coalesce(sum(CASE :state WHEN 'scheduled' THEN n_scheduled WHEN 'running' THEN n_running
  ELSE n_ready + n_blocked END), 0) FROM millpond_lane;

-- name: find_placed
-- Of one state that is not final: from the places, which hold nothing else.
SELECT j.id FROM (
    SELECT id FROM millpond_scheduled WHERE :state = 'scheduled'
    UNION ALL SELECT id FROM millpond_ready WHERE :state = 'ready'
    UNION ALL SELECT id FROM millpond_blocked WHERE :state = 'ready'
    UNION ALL SELECT id FROM millpond_running WHERE :state = 'running') p
  CROSS JOIN millpond_job j ON j.id = p.id
  CROSS JOIN millpond_lane l ON l.id = j.lane
 WHERE j.id < :before
   AND (:queue IS NULL OR l.queue = :queue)
   AND (:workload IS NULL OR l.workload IN (SELECT id FROM millpond_workload WHERE name = :workload))
   AND (:task IS NULL OR l.task = :task)
   AND (:tenant IS NULL OR j.tenant = (SELECT id FROM millpond_tenant WHERE name = :tenant))
   AND (:key IS NULL OR j.key = :key)
 ORDER BY j.id DESC LIMIT :limit;

-- name: scan_jobs
-- Newest first, at most :scan rows looked at. They come in the order of the inner query, which the
-- CROSS JOINs keep, so that it ends with the last row wanted: an ORDER BY would wait for all.
SELECT j.id FROM (SELECT id, lane, tenant, key, operation_id, created_at FROM millpond_job
    WHERE id < :before ORDER BY id DESC LIMIT :scan) j
  CROSS JOIN millpond_lane l ON l.id = j.lane
  LEFT JOIN millpond_final f ON f.id = j.id
 WHERE (:queue IS NULL OR l.queue = :queue)
   AND (:workload IS NULL OR l.workload IN (SELECT id FROM millpond_workload WHERE name = :workload))
   AND (:task IS NULL OR l.task = :task)
   AND (:tenant IS NULL OR j.tenant = (SELECT id FROM millpond_tenant WHERE name = :tenant))
   AND (:key IS NULL OR j.key = :key)
   AND (:reason IS NULL OR f.reason = :reason)
   AND (:fingerprint IS NULL OR f.fingerprint = :fingerprint)
   AND (:created_after IS NULL OR j.created_at >= :created_after)
   AND (:created_before IS NULL OR j.created_at <= :created_before)
   AND (:finished_after IS NULL OR f.finished_at >= :finished_after)
   AND (:finished_before IS NULL OR f.finished_at <= :finished_before)
   AND (:error IS NULL OR f.state IS NOT 'completed' AND instr(lower(coalesce(
     (SELECT coalesce(t.error_type || ': ', '') || coalesce(t.message, '')
        FROM millpond_attempt t
       WHERE t.job = j.id AND t.outcome NOT IN ('completed', 'released', 'snoozed')
       ORDER BY t.claim DESC LIMIT 1), f.reason, '')), lower(:error)) > 0)
   AND (:state IS NULL
     OR (:state IN ('completed', 'failed', 'cancelled') AND f.state = :state)
     OR (:state = 'running' AND EXISTS (SELECT 1 FROM millpond_running r WHERE r.id = j.id))
     OR (:state = 'scheduled' AND f.id IS NULL AND EXISTS (SELECT 1 FROM millpond_job x
          LEFT JOIN millpond_again a ON a.id = x.id
          JOIN millpond_scheduled s ON s.due = coalesce(a.due, x.first_due) AND s.id = x.id
          WHERE x.id = j.id))
     OR (:state = 'ready' AND f.id IS NULL
          AND NOT EXISTS (SELECT 1 FROM millpond_running r WHERE r.id = j.id)
          AND NOT EXISTS (SELECT 1 FROM millpond_job x
            LEFT JOIN millpond_again a ON a.id = x.id
            JOIN millpond_scheduled s ON s.due = coalesce(a.due, x.first_due) AND s.id = x.id
            WHERE x.id = j.id)))
 LIMIT :limit;

-- name: find_operation
SELECT j.id FROM millpond_job j LEFT JOIN millpond_final f ON f.id = j.id
 WHERE j.operation_id = :operation_id AND j.id < :before
   AND (:reason IS NULL OR f.reason = :reason)
   AND (:fingerprint IS NULL OR f.fingerprint = :fingerprint)
 ORDER BY j.id DESC LIMIT :limit;

-- name: result_of
SELECT r.body FROM millpond_result r JOIN millpond_task t ON t.id = r.task
 WHERE r.operation_id = :operation_id AND (:task IS NULL OR t.name = :task)
   AND r.expires_at > :now ORDER BY r.job DESC LIMIT 1;

-- name: lane_status
SELECT l.id, l.queue, l.workload, l.task, l.again, l.n_scheduled, l.n_ready, l.n_blocked,
  l.n_running, l.total_completed, l.total_failed, l.total_cancelled, l.total_retried,
  (SELECT min(due) FROM (SELECT due FROM millpond_ready r WHERE r.lane = l.id
     ORDER BY r.rank, r.id LIMIT 1))
  FROM millpond_lane l;

-- name: workload_status
SELECT q.name, w.name, w.n_jobs, w.n_bytes FROM millpond_workload w
  JOIN millpond_queue q ON q.id = w.queue;

-- name: worker_status
SELECT w.id, w.host, w.pid, w.version, w.slots, w.beat_at, w.started_at, w.interval_ms, w.queues,
  (SELECT count(*) FROM millpond_running r WHERE r.worker = w.id),
  (SELECT group_concat(t.name, char(31)) FROM millpond_worker_task k
     JOIN millpond_task t ON t.id = k.task WHERE k.worker = w.id),
  (SELECT min(max(r.claimed_at, w.beat_at) + r.lease_ms) FROM millpond_running r
    WHERE r.worker = w.id)
  FROM millpond_worker w WHERE w.ended_at IS NULL AND w.beat_at >= :since
 ORDER BY w.beat_at DESC, w.id DESC;

-- name: count_expired
SELECT count(*) FROM millpond_running r CROSS JOIN millpond_worker w ON w.id = r.worker
 WHERE w.domain = :domain AND max(r.claimed_mono, w.beat_mono) + r.lease_ms <= :mono;

-- name: any_expired
SELECT EXISTS (SELECT 1 FROM millpond_running r CROSS JOIN millpond_worker w ON w.id = r.worker
 WHERE w.domain = :domain AND max(r.claimed_mono, w.beat_mono) + r.lease_ms <= :mono);

-- name: worker_beats
SELECT w.id, w.domain, w.beat_mono, w.host, w.pid, w.marks,
  (SELECT max(r.claim) FROM millpond_running r WHERE r.worker = w.id)
  FROM millpond_worker w WHERE w.id IN (SELECT worker FROM millpond_running);

-- name: known_tasks
SELECT name, settings FROM millpond_task;

-- name: read_shared
SELECT shared_file FROM millpond_meta WHERE id = 1;
