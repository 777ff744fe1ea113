-- Limits on how many jobs of one limit key or tenant run at once.

-- name: find_gate
SELECT n, max FROM millpond_gate WHERE kind = :kind AND ref = :ref;

-- name: declare_gate
-- An operator's override wins until it is reset.
UPDATE millpond_gate SET max = :max WHERE kind = :kind AND ref = :ref AND override IS NULL;

-- name: add_gate
INSERT INTO millpond_gate (kind, ref, n, max) VALUES (:kind, :ref, :n, :max);

-- name: count_limit
-- Running jobs under a limit key, for a limit that is set now: reads the running rows.
SELECT count(*) FROM millpond_running r CROSS JOIN millpond_job j ON j.id = r.id
 WHERE j.limit_key = :ref;

-- name: count_tenant
SELECT count(*) FROM millpond_running r CROSS JOIN millpond_lane l ON l.id = r.lane
 WHERE l.queue || '/' || r.tenant = :ref;

-- name: occupy_gate
UPDATE millpond_gate SET n = n + :by WHERE kind = :kind AND ref = :ref;

-- name: vacate_gate
UPDATE millpond_gate SET n = n - :by WHERE kind = :kind AND ref = :ref RETURNING n, max;

-- name: blocked_lanes
-- A loose index scan: one seek a lane that has jobs blocked on this key.
WITH RECURSIVE step(lane) AS (
  SELECT min(lane) FROM millpond_blocked WHERE kind = :kind AND ref = :ref
  UNION ALL
  SELECT (SELECT min(b.lane) FROM millpond_blocked b
           WHERE b.kind = :kind AND b.ref = :ref AND b.lane > step.lane)
    FROM step WHERE step.lane IS NOT NULL
)
SELECT lane FROM step WHERE lane IS NOT NULL;

-- name: return_heads
INSERT INTO millpond_ready (lane, rank, id, due)
SELECT lane, rank, id, due FROM millpond_blocked
 WHERE kind = :kind AND ref = :ref AND lane = :lane ORDER BY rank, id LIMIT :limit;

-- name: drop_returned
-- The same rows as return_heads took: the smallest of the same key.
DELETE FROM millpond_blocked WHERE (kind, ref, lane, rank, id) IN (
  SELECT kind, ref, lane, rank, id FROM millpond_blocked
   WHERE kind = :kind AND ref = :ref AND lane = :lane ORDER BY rank, id LIMIT :limit);

-- name: add_blocked
INSERT INTO millpond_blocked (kind, ref, lane, rank, id, due)
VALUES (:kind, :ref, :lane, :rank, :id, :due);

-- name: drop_blocked
DELETE FROM millpond_blocked
 WHERE kind = :kind AND ref = :ref AND lane = :lane AND rank = :rank AND id = :id;

-- name: drop_ready
DELETE FROM millpond_ready WHERE lane = :lane AND rank = :rank AND id = :id;

-- name: drop_scheduled
DELETE FROM millpond_scheduled WHERE due = :due AND id = :id;

-- name: move_counts
UPDATE millpond_lane SET n_scheduled = n_scheduled + :scheduled, n_ready = n_ready + :ready,
  n_blocked = n_blocked + :blocked WHERE id = :lane;
