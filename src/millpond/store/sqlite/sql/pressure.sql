-- name: read_mode
SELECT p.at, m.mode, m.cause FROM millpond_pulse p LEFT JOIN millpond_mode m ON m.queue = p.queue
 WHERE p.queue = :queue;

-- name: read_flow
SELECT line, room, tat_us, ghost_us FROM millpond_flow WHERE workload = :workload;

-- name: move_tat
UPDATE millpond_flow SET tat_us = :tat_us WHERE workload = :workload;

-- name: move_ghost
INSERT INTO millpond_flow (workload, ghost_us) VALUES (:workload, :ghost_us)
ON CONFLICT (workload) DO UPDATE SET ghost_us = excluded.ghost_us;

-- name: add_refusal
INSERT INTO millpond_refusal (workload, reason, n) VALUES (:workload, :reason, :n)
ON CONFLICT (workload, reason) DO UPDATE SET n = n + excluded.n;

-- name: put_flow
INSERT INTO millpond_flow (workload, line, room) VALUES (:workload, :line, :room)
ON CONFLICT (workload) DO UPDATE SET line = excluded.line, room = excluded.room
 WHERE line IS NOT excluded.line OR room IS NOT excluded.room;

-- name: put_pulse
INSERT INTO millpond_pulse (queue, at, memory) VALUES (:queue, :now, :memory)
ON CONFLICT (queue) DO UPDATE SET at = excluded.at, memory = excluded.memory;

-- name: put_mode
INSERT INTO millpond_mode (queue, mode, since, signal, cause, cause_since, detail, figures, epoch)
VALUES (:queue, :mode, :since, :signal, :cause, :cause_since, :detail, :figures, :epoch)
ON CONFLICT (queue) DO UPDATE SET mode = excluded.mode, since = excluded.since,
  signal = excluded.signal, cause = excluded.cause, cause_since = excluded.cause_since,
  detail = excluded.detail, figures = excluded.figures, epoch = excluded.epoch;

-- name: add_change
INSERT INTO millpond_event (id, at, who, what, which, note, before, after)
VALUES (:id, :now, 'millpond', :what, :which, :note, :before, :after);

-- name: any_pressure
-- Whether a look could lead to anything: work waits or runs, a mode or cause must end, or a queue
-- is half full of what is due later.
SELECT EXISTS (SELECT 1 FROM millpond_lane l WHERE l.n_ready > 0
    AND NOT EXISTS (SELECT 1 FROM millpond_queue q WHERE q.id = l.queue AND q.paused))
    OR EXISTS (SELECT 1 FROM millpond_lane WHERE n_running > 0)
    OR EXISTS (SELECT 1 FROM millpond_scheduled WHERE due <= :now)
    OR EXISTS (SELECT 1 FROM millpond_mode WHERE mode <> 'normal' OR cause <> 'steady')
    OR EXISTS (SELECT 1 FROM millpond_workload w JOIN millpond_queue q ON q.id = w.queue
        GROUP BY q.id HAVING 2 * sum(w.n_jobs + w.n_held) >= q.max_jobs
          OR 2 * sum(w.n_bytes + w.n_held_bytes) >= q.max_bytes);

-- name: pressed_queues
SELECT q.id, q.name, q.max_jobs, q.max_bytes, q.paused, q.pressure, p.memory
  FROM millpond_queue q LEFT JOIN millpond_pulse p ON p.queue = q.id
 WHERE EXISTS (SELECT 1 FROM millpond_workload w WHERE w.queue = q.id AND w.n_jobs + w.n_held > 0)
    OR EXISTS (SELECT 1 FROM millpond_mode m
         WHERE m.queue = q.id AND (m.mode <> 'normal' OR m.cause <> 'steady'));

-- name: pressed_workloads
SELECT w.queue, w.id, w.name, w.effect, w.deadline_ms, w.paused, w.n_jobs + w.n_held,
  w.n_bytes + w.n_held_bytes,
  (SELECT coalesce(sum(n), 0) FROM millpond_refusal r WHERE r.workload = w.id)
  FROM millpond_workload w;

-- name: pressed_lanes
SELECT id, workload, again, n_ready, n_running, total_accepted, total_completed, total_failed,
  total_cancelled, total_retried FROM millpond_lane;

-- name: next_ready
SELECT rank, due FROM millpond_ready WHERE lane = :lane AND rank >= :rank ORDER BY rank LIMIT 1;

-- name: oldest_of_first
SELECT min(due) FROM (SELECT due FROM millpond_ready WHERE lane = :lane AND rank >= :rank
  ORDER BY rank LIMIT :limit);

-- name: overdue
-- Due and not promoted: nobody claims, or not yet.
SELECT j.lane, s.due FROM millpond_scheduled s JOIN millpond_job j ON j.id = s.id
 WHERE s.due <= :now ORDER BY s.due LIMIT :limit;

-- name: pressed_workers
SELECT slots, queues FROM millpond_worker
 WHERE ended_at IS NULL AND beat_at + :intervals * interval_ms >= :now;

-- name: pressure_settings
SELECT w.id, w.queue, w.name, w.effect, q.pressure
  FROM millpond_workload w JOIN millpond_queue q ON q.id = w.queue;

-- name: shown_pressure
SELECT q.name, p.at, m.mode, m.since, m.signal, m.cause, m.cause_since, m.detail, m.figures
  FROM millpond_pulse p JOIN millpond_queue q ON q.id = p.queue
  LEFT JOIN millpond_mode m ON m.queue = p.queue ORDER BY q.name;

-- name: shown_lines
SELECT q.name, w.name, f.line, f.room FROM millpond_flow f JOIN millpond_workload w
    ON w.id = f.workload JOIN millpond_queue q ON q.id = w.queue;
