-- Rows that limit keys and tenants leave behind.

-- name: look_at_gates
-- The next limits that jobs have brought along, and whether one has no job left, final ones included.
SELECT g.ref, g.n = 0 AND g.kept = 0 AND g.override IS NULL AND NOT EXISTS (
    SELECT 1 FROM millpond_job j INDEXED BY millpond_job_limit WHERE j.limit_key = g.ref)
  FROM millpond_gate g WHERE g.kind = 'limit' AND g.ref > :after ORDER BY g.ref LIMIT :limit;

-- name: drop_gates
DELETE FROM millpond_gate WHERE kind = 'limit' AND ref IN (SELECT value FROM json_each(:refs));

-- name: look_at_uses
SELECT queue, tenant, n_jobs = 0 AND n_bytes = 0 FROM millpond_tenant_use
 WHERE (queue, tenant) > (:queue, :tenant) ORDER BY queue, tenant LIMIT :limit;

-- name: drop_uses
DELETE FROM millpond_tenant_use WHERE (queue, tenant) IN (
  SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:uses));

-- name: keep_gate
UPDATE millpond_gate SET kept = 1 WHERE kind = :kind AND ref = :ref AND kept = 0;
