-- One row per job. `stage` says what the machinery has to do with it, and `status` what people read:
--   0 ended, 1 running, 2 due and free to be claimed, 3 waits for its time, 4 waits for its limit key
-- Each stage has partial indexes of its own. Every change of stage writes a row anew, and an entry
-- in each index that holds it: there are as few as there can be for the two changes of most jobs.
CREATE TABLE ergon_jobs (
    seq bigint GENERATED ALWAYS AS IDENTITY,  -- also the order of adding
    fence bigint NOT NULL DEFAULT 0,
    created_at double precision NOT NULL,
    run_at double precision NOT NULL,
    changed_at double precision NOT NULL,
    claimed_at double precision,
    lease_expires_at double precision,
    expires_at double precision,
    purge_at double precision,
    priority integer NOT NULL,
    deliveries integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    excused integer NOT NULL DEFAULT 0,
    key_limit integer NOT NULL DEFAULT 1,
    stage smallint NOT NULL,
    is_charged boolean NOT NULL DEFAULT false,
    is_solo boolean NOT NULL DEFAULT false,
    status text COLLATE "C" NOT NULL,
    why text NOT NULL DEFAULT '',
    worker text,
    queue text COLLATE "C" NOT NULL,
    executor text COLLATE "C" NOT NULL,
    unique_key text COLLATE "C",
    limit_key text COLLATE "C",
    id text COLLATE "C" NOT NULL,
    handler text NOT NULL,
    args bytea NOT NULL,
    kwargs bytea NOT NULL,
    result bytea,
    options text,  -- what only the worker reads, as JSON; NULL: all as the worker's settings
    last_error text,  -- JSON
    history text,  -- JSON objects, one per line, the oldest first
    PRIMARY KEY (seq) WITH (fillfactor = 40)
) WITH (
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.0,
    autovacuum_vacuum_insert_threshold = 200000,
    autovacuum_analyze_scale_factor = 0.0,
    autovacuum_analyze_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0
);

-- A job comes into the two indexes that hold all jobs three times, each time beside itself: there is
-- room for that from the beginning.
CREATE UNIQUE INDEX ergon_jobs_id ON ergon_jobs (id) WITH (fillfactor = 40);
CREATE INDEX ergon_jobs_due ON ergon_jobs (executor, queue, priority DESC, run_at, seq)
    WHERE stage = 2;
CREATE INDEX ergon_jobs_later ON ergon_jobs (run_at, queue)
    WHERE stage = 3;
CREATE INDEX ergon_jobs_running ON ergon_jobs (queue, lease_expires_at, seq)
    WHERE stage = 1;
CREATE INDEX ergon_jobs_running_keys ON ergon_jobs (limit_key)
    WHERE stage = 1 AND limit_key IS NOT NULL;
CREATE INDEX ergon_jobs_blocked ON ergon_jobs (
    limit_key, queue, executor, priority DESC, run_at, seq
) WHERE stage = 4;
CREATE INDEX ergon_jobs_ended ON ergon_jobs (queue, status, purge_at)
    WHERE stage = 0;
CREATE INDEX ergon_jobs_expiring ON ergon_jobs (expires_at)
    WHERE stage > 1 AND expires_at IS NOT NULL;
CREATE UNIQUE INDEX ergon_jobs_unique ON ergon_jobs (unique_key)
    WHERE stage > 0 AND unique_key IS NOT NULL;
CREATE INDEX ergon_jobs_dead ON ergon_jobs (status, seq)
    WHERE stage = 0 AND status <> 'completed';
CREATE INDEX ergon_jobs_retrying ON ergon_jobs (seq, queue)
    WHERE stage > 1 AND status = 'retrying';

-- Queues with settings; a queue without a row has none.
CREATE TABLE ergon_queues (
    name text COLLATE "C" PRIMARY KEY,
    is_paused boolean NOT NULL DEFAULT false,
    max_active integer,
    rate double precision,
    burst integer NOT NULL DEFAULT 1,
    full_at double precision NOT NULL DEFAULT 0  -- when the bucket of tokens will be full
);

CREATE TABLE ergon_workers (
    id text COLLATE "C" PRIMARY KEY,
    seen_at double precision NOT NULL,
    record text NOT NULL
);

CREATE TABLE ergon_schedules (
    name text COLLATE "C" PRIMARY KEY,
    cron text NOT NULL,
    zone text NOT NULL,
    misfire text NOT NULL,
    job bytea NOT NULL,
    next_at double precision,
    last_at double precision,
    is_paused boolean NOT NULL DEFAULT false,
    source text NOT NULL DEFAULT ''
);

-- What a move into this store wrote down about itself.
CREATE TABLE ergon_job_moves (
    one smallint PRIMARY KEY CHECK (one = 1),
    mark bytea NOT NULL
);
