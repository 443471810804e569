-- compatible: 1
-- Limits of each limit key of a queue. A program of an earlier version does not keep them: it starts
-- jobs of a key by their own limits.
ALTER TABLE ergon_queues ADD COLUMN key_max_active integer;
ALTER TABLE ergon_queues ADD COLUMN key_rate double precision;
ALTER TABLE ergon_queues ADD COLUMN key_burst integer NOT NULL DEFAULT 1;

-- Limit keys of which tokens were taken: one whose bucket is full needs no row.
CREATE TABLE ergon_queue_keys (
    queue text COLLATE "C" NOT NULL,
    limit_key text COLLATE "C" NOT NULL,
    full_at double precision NOT NULL,  -- when its bucket of tokens will be full
    wakes_at double precision,  -- when jobs that wait for a token are due again; NULL: none waits for one
    PRIMARY KEY (queue, limit_key)
);
CREATE INDEX ergon_queue_keys_wakes ON ergon_queue_keys (wakes_at) WHERE wakes_at IS NOT NULL;
CREATE INDEX ergon_queue_keys_full ON ergon_queue_keys (full_at) WHERE wakes_at IS NULL;
-- For taking turns: the next key with due jobs, and the first jobs of a key.
CREATE INDEX ergon_jobs_due_keys ON ergon_jobs (
    executor, queue, limit_key, priority DESC, run_at, seq
) WHERE stage = 2 AND limit_key IS NOT NULL;
