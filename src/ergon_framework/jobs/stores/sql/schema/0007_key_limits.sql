-- Limits of each limit key of a queue.
ALTER TABLE ergon_queues ADD COLUMN key_max_active INTEGER;
ALTER TABLE ergon_queues ADD COLUMN key_rate REAL;
ALTER TABLE ergon_queues ADD COLUMN key_burst INTEGER NOT NULL DEFAULT 1;

-- Limit keys of which tokens were taken: one whose bucket is full needs no row.
CREATE TABLE ergon_queue_keys (
    queue TEXT NOT NULL,
    limit_key TEXT NOT NULL,
    full_at REAL NOT NULL,  -- when its bucket of tokens will be full
    wakes_at REAL,  -- when jobs that wait for a token are due again; NULL: none waits for one
    PRIMARY KEY (queue, limit_key)
) WITHOUT ROWID;
CREATE INDEX ergon_queue_keys_wakes ON ergon_queue_keys (wakes_at) WHERE wakes_at IS NOT NULL;
CREATE INDEX ergon_queue_keys_full ON ergon_queue_keys (full_at) WHERE wakes_at IS NULL;
-- For taking turns: the next key with due jobs, and the first jobs of a key.
CREATE INDEX ergon_jobs_due_keys ON ergon_jobs (
    stage, executor, queue, limit_key, priority DESC, run_at
) WHERE limit_key IS NOT NULL AND stage = 2;
