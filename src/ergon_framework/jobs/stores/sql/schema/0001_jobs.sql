-- One row per job. `stage` says what the machinery has to do with it, and `status` what people read:
--   0 ended, 1 running, 2 due and free to be claimed, 3 waits for its time, 4 waits for its limit key
-- Each stage has partial indexes of its own, so that a job costs nothing where it does not matter.
-- What changes often stands first: SQLite reads a row from its beginning.
CREATE TABLE ergon_jobs (
    seq INTEGER PRIMARY KEY,  -- also the order of adding
    stage INTEGER NOT NULL,
    status TEXT NOT NULL,
    fence INTEGER NOT NULL,
    deliveries INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    excused INTEGER NOT NULL DEFAULT 0,
    is_charged INTEGER NOT NULL DEFAULT 0,
    is_solo INTEGER NOT NULL DEFAULT 0,
    changed_at REAL NOT NULL,
    lease_expires_at REAL,
    claimed_at REAL,
    worker TEXT,
    why TEXT NOT NULL DEFAULT '',
    purge_at REAL,
    queue TEXT NOT NULL,
    executor TEXT NOT NULL,
    priority INTEGER NOT NULL,
    run_at REAL NOT NULL,
    expires_at REAL,
    unique_key TEXT,
    limit_key TEXT,
    key_limit INTEGER NOT NULL DEFAULT 1,
    id TEXT NOT NULL,
    handler TEXT NOT NULL,
    created_at REAL NOT NULL,
    options TEXT,  -- what only the worker reads, as JSON; NULL: all as the worker's settings
    args BLOB,  -- NULL: both are in ergon_job_payloads
    kwargs BLOB,
    last_error TEXT,  -- JSON
    result BLOB,
    history TEXT  -- JSON objects, one per line, the oldest first
);

CREATE UNIQUE INDEX ergon_jobs_id ON ergon_jobs (id);
-- The stage stands in the indexes too: SQLite would look it up in the table otherwise. Conditions
-- are checked with every change of a job, the first one first: it is the one that seldom holds.
CREATE INDEX ergon_jobs_due ON ergon_jobs (stage, executor, queue, priority DESC, run_at)
    WHERE stage = 2;
CREATE INDEX ergon_jobs_later ON ergon_jobs (stage, run_at, queue)
    WHERE stage = 3;
CREATE INDEX ergon_jobs_running ON ergon_jobs (stage, queue, lease_expires_at)
    WHERE stage = 1;
CREATE INDEX ergon_jobs_running_keys ON ergon_jobs (stage, limit_key)
    WHERE limit_key IS NOT NULL AND stage = 1;
CREATE INDEX ergon_jobs_blocked ON ergon_jobs (
    stage, limit_key, queue, executor, priority DESC, run_at
) WHERE stage = 4;
CREATE INDEX ergon_jobs_ended ON ergon_jobs (stage, queue, status, purge_at)
    WHERE stage = 0;
CREATE INDEX ergon_jobs_expiring ON ergon_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND stage > 1;
CREATE UNIQUE INDEX ergon_jobs_unique ON ergon_jobs (unique_key)
    WHERE unique_key IS NOT NULL AND stage > 0;
CREATE INDEX ergon_jobs_dead ON ergon_jobs (stage, status, seq)
    WHERE stage = 0 AND status <> 'completed';
CREATE INDEX ergon_jobs_retrying ON ergon_jobs (status, seq, queue, stage)
    WHERE stage > 1 AND status = 'retrying';

-- Arguments too large to be written anew with every change of their job.
CREATE TABLE ergon_job_payloads (
    seq INTEGER PRIMARY KEY REFERENCES ergon_jobs (seq) ON DELETE CASCADE,
    args BLOB NOT NULL,
    kwargs BLOB NOT NULL
);

-- Queues with settings; a queue without a row has none.
CREATE TABLE ergon_queues (
    name TEXT PRIMARY KEY,
    is_paused INTEGER NOT NULL DEFAULT 0,
    max_active INTEGER,
    rate REAL,
    burst INTEGER NOT NULL DEFAULT 1,
    full_at REAL NOT NULL DEFAULT 0  -- when the bucket of tokens will be full
) WITHOUT ROWID;

CREATE TABLE ergon_workers (
    id TEXT PRIMARY KEY,
    seen_at REAL NOT NULL,
    record BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE ergon_schedules (
    name TEXT PRIMARY KEY,
    cron TEXT NOT NULL,
    zone TEXT NOT NULL,
    misfire TEXT NOT NULL,
    job BLOB NOT NULL,
    next_at REAL,
    last_at REAL,
    is_paused INTEGER NOT NULL DEFAULT 0,
    source TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
