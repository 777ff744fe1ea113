-- The first schema. A job's state is where its id stands: scheduled, ready, blocked (shown as
-- ready), running or final, exactly one of them. Being in one of the first four is holding
-- capacity. Moments are wall-clock milliseconds; only *_mono columns are monotonic.
-- Hot tables check words with OR: a list of three or more costs two microseconds a row.

CREATE TABLE millpond_meta (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  store_id TEXT NOT NULL,
  generation INTEGER NOT NULL,      -- bumped by every change of names or settings: caches end
  state TEXT NOT NULL CHECK (state IN ('open', 'closed')),
  closed_to TEXT,                   -- where the jobs were moved, for those who still look here
  shared_file INTEGER NOT NULL CHECK (shared_file IN (0, 1)),  -- others enqueue in transactions of their own
  created_at INTEGER NOT NULL
) STRICT;

-- Ids come from here and never from rowids, which SQLite hands out again after a delete.
CREATE TABLE millpond_seq (
  name TEXT NOT NULL PRIMARY KEY,
  value INTEGER NOT NULL CHECK (value >= 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE millpond_setting (
  scope TEXT NOT NULL,              -- 'queue', 'workload', 'task', 'resource', 'store'
  which TEXT NOT NULL,
  name TEXT NOT NULL,
  code_value TEXT,                  -- what the code declares, JSON
  override TEXT,                    -- what an operator set instead, JSON; wins until reset
  override_by TEXT,
  override_at INTEGER,
  PRIMARY KEY (scope, which, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE millpond_task (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  settings TEXT,                    -- JSON; NULL until a process that has the code declares it
  settings_version INTEGER NOT NULL DEFAULT 0,
  served_at INTEGER                 -- when a live worker was last seen serving it
) STRICT;

CREATE TABLE millpond_task_resource (
  task INTEGER NOT NULL,
  resource TEXT NOT NULL,
  PRIMARY KEY (task, resource)
) STRICT, WITHOUT ROWID;

CREATE TABLE millpond_tenant (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE millpond_queue (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  ordering TEXT NOT NULL DEFAULT 'strict' CHECK (ordering IN ('strict', 'ageing', 'fair')),
  ageing_ms INTEGER NOT NULL DEFAULT 60000 CHECK (ageing_ms >= 0),
  paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
  intake_paused INTEGER NOT NULL DEFAULT 0 CHECK (intake_paused IN (0, 1)),
  max_jobs INTEGER NOT NULL DEFAULT 100000 CHECK (max_jobs >= 0),
  max_bytes INTEGER NOT NULL DEFAULT 1073741824 CHECK (max_bytes >= 0),
  max_running INTEGER CHECK (max_running >= 0),
  full_policy TEXT NOT NULL DEFAULT 'reject',
  pressure TEXT,                    -- thresholds of its modes, JSON; NULL is the defaults
  vtime INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The capacity of a workload: n_* is in use by jobs, n_held_* by reservations not yet spent.
CREATE TABLE millpond_workload (
  id INTEGER PRIMARY KEY,
  queue INTEGER NOT NULL,
  name TEXT NOT NULL,
  paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
  strict INTEGER NOT NULL DEFAULT 0 CHECK (strict IN (0, 1)),
  weight INTEGER CHECK (weight > 0),
  borrow INTEGER NOT NULL DEFAULT 1 CHECK (borrow IN (0, 1)),
  full_policy TEXT,
  reserved_jobs INTEGER NOT NULL DEFAULT 0 CHECK (reserved_jobs >= 0),
  reserved_jobs_now INTEGER NOT NULL DEFAULT 0 CHECK (reserved_jobs_now >= 0),
  max_jobs INTEGER CHECK (max_jobs >= 0),
  reserved_bytes INTEGER NOT NULL DEFAULT 0 CHECK (reserved_bytes >= 0),
  reserved_bytes_now INTEGER NOT NULL DEFAULT 0 CHECK (reserved_bytes_now >= 0),
  max_bytes INTEGER CHECK (max_bytes >= 0),
  n_jobs INTEGER NOT NULL DEFAULT 0 CHECK (n_jobs >= 0),
  n_held INTEGER NOT NULL DEFAULT 0 CHECK (n_held >= 0),
  n_bytes INTEGER NOT NULL DEFAULT 0 CHECK (n_bytes >= 0),
  n_held_bytes INTEGER NOT NULL DEFAULT 0 CHECK (n_held_bytes >= 0),
  max_running INTEGER CHECK (max_running >= 0),
  effect TEXT CHECK (effect IN ('critical', 'user', 'routine', 'sheddable')),  -- NULL: by name
  deadline_ms INTEGER CHECK (deadline_ms >= 0),   -- NULL: that of the effect; 0: never late
  UNIQUE (queue, name),
  CHECK (reserved_jobs_now <= reserved_jobs),
  CHECK (reserved_bytes_now <= reserved_bytes)
) STRICT;

-- Under how much pressure a queue is, and why; written only when that changes.
CREATE TABLE millpond_mode (
  queue INTEGER PRIMARY KEY,
  mode TEXT NOT NULL CHECK (mode IN ('normal', 'elevated', 'critical')),
  since INTEGER NOT NULL,
  signal TEXT NOT NULL,             -- what changed it: utilisation, age, drain, disk, health, calm
  cause TEXT NOT NULL CHECK (
    cause IN ('steady', 'spike', 'sustained', 'failure', 'recovering')),
  cause_since INTEGER NOT NULL,
  detail TEXT NOT NULL,
  figures TEXT NOT NULL,            -- what was seen at the last change, JSON
  epoch INTEGER NOT NULL
) STRICT;

-- The last look at a queue that is in use; what is older than 15 s binds nobody.
CREATE TABLE millpond_pulse (
  queue INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  memory TEXT NOT NULL              -- rates and how long what has been seen, JSON
) STRICT;

-- How fast a workload may come in, and how fast room appears for it; rates in jobs a second.
CREATE TABLE millpond_flow (
  workload INTEGER PRIMARY KEY,
  line REAL,                        -- its control line; NULL slows nothing
  room REAL,                        -- NULL: never measured
  tat_us INTEGER NOT NULL DEFAULT 0,      -- when the line's bucket is full again
  ghost_us INTEGER NOT NULL DEFAULT 0     -- the end of the line of refused callers
) STRICT;

-- How many jobs were turned away, and why; it only grows. Told late, by those who said no.
CREATE TABLE millpond_refusal (
  workload INTEGER NOT NULL,
  reason TEXT NOT NULL,
  n INTEGER NOT NULL CHECK (n >= 0),
  PRIMARY KEY (workload, reason)
) STRICT, WITHOUT ROWID;

CREATE TABLE millpond_share (
  queue INTEGER NOT NULL,
  workload INTEGER NOT NULL,
  pass INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (queue, workload)
) STRICT, WITHOUT ROWID;

CREATE TABLE millpond_lane (
  id INTEGER PRIMARY KEY,
  queue INTEGER NOT NULL,
  workload INTEGER NOT NULL,
  task INTEGER NOT NULL,
  again INTEGER NOT NULL CHECK (again IN (0, 1)),   -- a claim of the job was charged before
  n_scheduled INTEGER NOT NULL DEFAULT 0 CHECK (n_scheduled >= 0),
  n_ready INTEGER NOT NULL DEFAULT 0 CHECK (n_ready >= 0),
  n_blocked INTEGER NOT NULL DEFAULT 0 CHECK (n_blocked >= 0),
  n_running INTEGER NOT NULL DEFAULT 0 CHECK (n_running >= 0),
  total_accepted INTEGER NOT NULL DEFAULT 0,
  total_claimed INTEGER NOT NULL DEFAULT 0,
  total_completed INTEGER NOT NULL DEFAULT 0,
  total_failed INTEGER NOT NULL DEFAULT 0,
  total_cancelled INTEGER NOT NULL DEFAULT 0,
  total_retried INTEGER NOT NULL DEFAULT 0,
  total_snoozed INTEGER NOT NULL DEFAULT 0,
  total_released INTEGER NOT NULL DEFAULT 0,
  total_lost INTEGER NOT NULL DEFAULT 0,
  UNIQUE (queue, workload, task, again)
) STRICT;
CREATE INDEX millpond_lane_ready ON millpond_lane (id) WHERE n_ready > 0;
CREATE INDEX millpond_lane_running ON millpond_lane (id) WHERE n_running > 0;

CREATE TABLE millpond_tenant_use (
  queue INTEGER NOT NULL,
  tenant INTEGER NOT NULL,
  n_jobs INTEGER NOT NULL DEFAULT 0 CHECK (n_jobs >= 0),
  n_bytes INTEGER NOT NULL DEFAULT 0 CHECK (n_bytes >= 0),
  finish INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (queue, tenant)
) STRICT, WITHOUT ROWID;

-- Written once and deleted once; only a coalesce-replace and a requeue rewrite a row.
CREATE TABLE millpond_job (
  id INTEGER PRIMARY KEY,
  lane INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  tenant INTEGER,
  priority INTEGER NOT NULL CHECK (priority BETWEEN -32768 AND 32767),
  created_at INTEGER NOT NULL,
  first_due INTEGER NOT NULL,
  max_attempts INTEGER NOT NULL CHECK (max_attempts >= 1),
  lease_ms INTEGER NOT NULL CHECK (lease_ms > 0),
  timeout_ms INTEGER CHECK (timeout_ms > 0),
  charged_bytes INTEGER NOT NULL CHECK (charged_bytes >= 0),
  operation_id TEXT NOT NULL,
  key TEXT,
  coalesce_key TEXT,
  limit_key TEXT,
  origin TEXT,
  parent INTEGER,
  batch TEXT,
  schedule TEXT,
  fire_at INTEGER,
  traceparent TEXT,
  meta BLOB,
  codec TEXT NOT NULL,
  payload BLOB,
  payload_ref TEXT,
  first_attempts INTEGER CHECK (first_attempts >= 1)   -- max_attempts before a requeue raised it
) STRICT;
CREATE INDEX millpond_job_operation ON millpond_job (operation_id);
-- Tells when a limit has no job left; costs nothing for jobs without one.
CREATE INDEX millpond_job_limit ON millpond_job (limit_key) WHERE limit_key IS NOT NULL;

-- What changed since the job was accepted, once a claim was charged.
CREATE TABLE millpond_again (
  id INTEGER PRIMARY KEY,
  lane INTEGER NOT NULL,
  due INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  attempts INTEGER NOT NULL CHECK (attempts >= 0),
  crashes INTEGER NOT NULL CHECK (crashes >= 0 AND crashes <= attempts)
) STRICT;

CREATE TABLE millpond_scheduled (
  due INTEGER NOT NULL,
  id INTEGER NOT NULL,
  PRIMARY KEY (due, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE millpond_ready (
  lane INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  id INTEGER NOT NULL,
  due INTEGER NOT NULL,
  PRIMARY KEY (lane, rank, id)
) STRICT, WITHOUT ROWID;

-- Due, but its limit key or tenant runs as many as it may; outside the range a claim reads.
CREATE TABLE millpond_blocked (
  kind TEXT NOT NULL CHECK (kind IN ('limit', 'tenant')),
  ref TEXT NOT NULL,
  lane INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  id INTEGER NOT NULL,
  due INTEGER NOT NULL,
  PRIMARY KEY (kind, ref, lane, rank, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE millpond_gate (
  kind TEXT NOT NULL CHECK (kind IN ('limit', 'tenant')),
  ref TEXT NOT NULL,
  n INTEGER NOT NULL DEFAULT 0 CHECK (n >= 0),       -- running jobs that count against it
  max INTEGER CHECK (max >= 0),                      -- the limit in force; NULL is none
  override INTEGER,
  kept INTEGER NOT NULL DEFAULT 0 CHECK (kept IN (0, 1)),   -- set by people: stays without jobs
  PRIMARY KEY (kind, ref)
) STRICT, WITHOUT ROWID;

CREATE TABLE millpond_running (
  id INTEGER PRIMARY KEY,
  claim INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  worker INTEGER NOT NULL,
  due INTEGER NOT NULL,
  claimed_at INTEGER NOT NULL,
  claimed_mono INTEGER NOT NULL,
  lease_ms INTEGER NOT NULL CHECK (lease_ms > 0),
  cancel_at INTEGER,
  cancel_by TEXT,
  tenant INTEGER,
  size INTEGER NOT NULL
) STRICT;

CREATE TABLE millpond_final (
  id INTEGER PRIMARY KEY,
  state TEXT NOT NULL CHECK (
    state = 'completed' OR state = 'failed' OR state = 'cancelled'),
  finished_at INTEGER NOT NULL,
  queue INTEGER NOT NULL,
  task INTEGER NOT NULL,
  reason TEXT,
  fingerprint TEXT
) STRICT;
CREATE INDEX millpond_final_state ON millpond_final (state, finished_at, id);
-- Failures are grouped without a look at the rows, which lie far apart among completed ones.
CREATE INDEX millpond_final_failed ON millpond_final (finished_at, id, fingerprint, queue, task)
 WHERE state = 'failed';

-- One row per ended attempt. number is the charged ordinal, NULL where none was charged.
CREATE TABLE millpond_attempt (
  job INTEGER NOT NULL,
  claim INTEGER NOT NULL,
  number INTEGER CHECK (number >= 1),
  worker INTEGER NOT NULL,
  claimed_at INTEGER NOT NULL,
  started_at INTEGER,
  ended_at INTEGER NOT NULL,
  outcome TEXT NOT NULL CHECK (
    outcome = 'completed' OR outcome = 'failed' OR outcome = 'retried' OR outcome = 'snoozed'
    OR outcome = 'released' OR outcome = 'cancelled' OR outcome = 'timed_out'
    OR outcome = 'lease_lost' OR outcome = 'crashed'),
  error_type TEXT,
  message TEXT,
  fingerprint TEXT,
  signal INTEGER,
  late_at INTEGER,                  -- when its own worker reported, after the lease was lost
  PRIMARY KEY (job, claim)
) STRICT, WITHOUT ROWID;

CREATE TABLE millpond_traceback (
  job INTEGER NOT NULL,
  claim INTEGER NOT NULL,
  text TEXT NOT NULL,
  PRIMARY KEY (job, claim)
) STRICT, WITHOUT ROWID;

-- expires_at is NULL while the job is outstanding. It outlives the job until it expires.
CREATE TABLE millpond_dedup (
  queue INTEGER NOT NULL,
  task INTEGER NOT NULL,
  key TEXT NOT NULL,
  job INTEGER NOT NULL,
  operation_id TEXT NOT NULL,
  ttl_ms INTEGER NOT NULL,
  expires_at INTEGER,
  PRIMARY KEY (queue, task, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX millpond_dedup_job ON millpond_dedup (job);
CREATE INDEX millpond_dedup_expires ON millpond_dedup (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE millpond_coalesce (
  queue INTEGER NOT NULL,
  task INTEGER NOT NULL,
  key TEXT NOT NULL,
  job INTEGER NOT NULL,
  PRIMARY KEY (queue, task, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE millpond_result (
  job INTEGER PRIMARY KEY,
  operation_id TEXT NOT NULL,
  task INTEGER NOT NULL,
  body BLOB NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT;
CREATE INDEX millpond_result_operation ON millpond_result (operation_id);
CREATE INDEX millpond_result_expires ON millpond_result (expires_at);

CREATE TABLE millpond_memo (
  operation_id TEXT NOT NULL,
  task INTEGER NOT NULL,
  value BLOB NOT NULL,
  saved_at INTEGER NOT NULL,
  PRIMARY KEY (operation_id, task)
) STRICT, WITHOUT ROWID;

CREATE TABLE millpond_progress (
  job INTEGER PRIMARY KEY,
  claim INTEGER NOT NULL,
  value BLOB NOT NULL,
  at INTEGER NOT NULL
) STRICT;

CREATE TABLE millpond_reservation (
  id INTEGER PRIMARY KEY,
  workload INTEGER NOT NULL,
  n INTEGER NOT NULL CHECK (n >= 0),
  bytes INTEGER NOT NULL CHECK (bytes >= 0),
  expires_at INTEGER NOT NULL,
  path TEXT
) STRICT;
CREATE INDEX millpond_reservation_expires ON millpond_reservation (expires_at);

CREATE TABLE millpond_event (
  id INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  who TEXT,
  what TEXT NOT NULL,
  which TEXT,
  note TEXT,
  before TEXT,
  after TEXT
) STRICT;
CREATE INDEX millpond_event_which ON millpond_event (which);

-- A beat renews every lease the worker holds: an expiry is the later of claim and beat, plus
-- the job's lease length.
CREATE TABLE millpond_worker (
  id INTEGER PRIMARY KEY,
  domain TEXT NOT NULL,             -- whose monotonic clock beat_mono is
  host TEXT NOT NULL,
  pid INTEGER NOT NULL,
  wake TEXT,
  marks TEXT,
  version TEXT NOT NULL,
  slots INTEGER NOT NULL,
  queues TEXT NOT NULL,
  interval_ms INTEGER NOT NULL CHECK (interval_ms > 0),
  started_at INTEGER NOT NULL,
  beat_at INTEGER NOT NULL,
  beat_mono INTEGER NOT NULL,
  ended_at INTEGER                  -- it said goodbye; the row stays as long as history names it
) STRICT;

CREATE TABLE millpond_worker_task (
  task INTEGER NOT NULL,
  worker INTEGER NOT NULL,
  PRIMARY KEY (task, worker)
) STRICT, WITHOUT ROWID;

INSERT INTO millpond_seq (name, value) VALUES
  ('job', 0), ('claim', 0), ('worker', 0), ('event', 0), ('reservation', 0);

-- For people who open the file with a SQLite shell.
CREATE VIEW millpond_jobs_view AS
SELECT
  j.id,
  t.name AS task,
  q.name AS queue,
  w.name AS workload,
  n.name AS tenant,
  CASE
    WHEN f.id IS NOT NULL THEN f.state
    WHEN r.id IS NOT NULL THEN 'running'
    WHEN s.id IS NOT NULL THEN 'scheduled'
    ELSE 'ready'
  END AS state,
  j.priority,
  j.created_at,
  coalesce(s.due, r.due, a.due, j.first_due) AS due_at,
  coalesce(r.claimed_at, (SELECT e.started_at FROM millpond_attempt e
    WHERE e.job = j.id ORDER BY e.claim DESC LIMIT 1)) AS started_at,
  f.finished_at,
  coalesce((SELECT max(e.number) FROM millpond_attempt e WHERE e.job = j.id), 0)
    + (r.id IS NOT NULL) AS attempts,
  j.max_attempts,
  k.host || ':' || k.pid AS lease_owner,
  r.claim AS lease_claim,
  CASE WHEN r.id IS NOT NULL THEN
    max(r.claimed_at, k.beat_at) + r.lease_ms
  END AS lease_expires_at,
  (SELECT coalesce(e.error_type || ': ', '') || coalesce(e.message, '')
     FROM millpond_attempt e
    WHERE e.job = j.id AND e.outcome NOT IN ('completed', 'released', 'snoozed')
    ORDER BY e.claim DESC LIMIT 1) AS last_error,
  j.operation_id,
  j.key,
  CAST(j.payload AS TEXT) AS payload
FROM millpond_job j
JOIN millpond_lane l ON l.id = j.lane
JOIN millpond_task t ON t.id = l.task
JOIN millpond_queue q ON q.id = l.queue
JOIN millpond_workload w ON w.id = l.workload
LEFT JOIN millpond_tenant n ON n.id = j.tenant
LEFT JOIN millpond_again a ON a.id = j.id
LEFT JOIN millpond_running r ON r.id = j.id
LEFT JOIN millpond_worker k ON k.id = r.worker
LEFT JOIN millpond_final f ON f.id = j.id
LEFT JOIN millpond_scheduled s ON s.due = coalesce(a.due, j.first_due) AND s.id = j.id;
