-- name: add_worker
INSERT INTO millpond_worker (id, domain, host, pid, wake, marks, version, slots, queues,
  interval_ms, started_at, beat_at, beat_mono)
VALUES (:id, :domain, :host, :pid, :wake, :marks, :version, :slots, :queues, :interval_ms,
  :now, :now, :mono);

-- name: add_worker_task
INSERT INTO millpond_worker_task (task, worker) VALUES (?1, ?2);

-- name: worker_exists
SELECT 1 FROM millpond_worker WHERE id = :worker AND ended_at IS NULL;

-- name: end_worker
-- A keeper that ended: it is not woken and serves nothing any more, but what it still holds,
-- and the history of what it ran, name it.
UPDATE millpond_worker SET wake = NULL, ended_at = :now WHERE id = :worker AND ended_at IS NULL;

-- name: end_silent_workers
-- By both clocks, as a step of the wall clock makes nobody silent.
UPDATE millpond_worker SET wake = NULL, ended_at = :now
 WHERE ended_at IS NULL AND beat_at < :before AND NOT (domain = :domain AND beat_mono >= :since)
   AND NOT EXISTS (SELECT 1 FROM millpond_running r WHERE r.worker = millpond_worker.id);

-- name: forget_workers
-- No history that is kept can name them any more.
DELETE FROM millpond_worker WHERE beat_at < :before
   AND NOT (domain = :domain AND beat_mono >= :since AND ended_at IS NULL)
   AND NOT EXISTS (SELECT 1 FROM millpond_running r WHERE r.worker = millpond_worker.id);

-- name: drop_worker_tasks
DELETE FROM millpond_worker_task WHERE worker NOT IN (
  SELECT id FROM millpond_worker WHERE ended_at IS NULL);

-- name: drop_worker_tasks_of
DELETE FROM millpond_worker_task WHERE worker = :worker;

-- name: note_served
-- A worker of this clock domain is judged by its monotonic beat too: a step of the wall clock
-- must not make it look silent.
UPDATE millpond_task SET served_at = :now WHERE id IN (
  SELECT k.task FROM millpond_worker_task k JOIN millpond_worker w ON w.id = k.worker
   WHERE w.ended_at IS NULL AND (w.beat_at + 4 * w.interval_ms >= :now
      OR (w.domain = :domain AND w.beat_mono + 4 * w.interval_ms >= :mono)));

-- name: unserved_lanes
SELECT l.id, l.task, t.served_at FROM millpond_lane l
  JOIN millpond_task t ON t.id = l.task
 WHERE (l.n_ready > 0 OR l.n_scheduled > 0 OR l.n_blocked > 0)
   AND NOT EXISTS (SELECT 1 FROM millpond_worker_task k JOIN millpond_worker w ON w.id = k.worker
     WHERE k.task = l.task AND w.ended_at IS NULL AND (w.beat_at + 4 * w.interval_ms >= :now
        OR (w.domain = :domain AND w.beat_mono + 4 * w.interval_ms >= :mono)));

-- name: waiting_in_lane
SELECT id FROM millpond_ready WHERE lane = :lane AND due <= :before LIMIT :limit;

-- name: blocked_in_lane
-- Reads all that is blocked, if the lane has such jobs at all: nobody waits for the answer.
SELECT b.id FROM millpond_lane l CROSS JOIN millpond_blocked b ON b.lane = l.id
 WHERE l.id = :lane AND l.n_blocked > 0 AND b.due <= :before LIMIT :limit;
