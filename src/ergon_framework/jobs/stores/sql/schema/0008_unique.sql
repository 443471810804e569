-- Who took a unique key last, of jobs that do not simply hold theirs until they end: any other job has
-- no row here. Whether the key is still held is decided when somebody asks, by the state of the job.
CREATE TABLE ergon_job_keys (
    key TEXT PRIMARY KEY,
    job INTEGER NOT NULL REFERENCES ergon_jobs (seq) ON DELETE CASCADE,
    states TEXT NOT NULL,  -- the ends after which the job holds its key, as a JSON list
    until REAL  -- from then on it holds nothing once it has ended; NULL: it does only while it waits
) WITHOUT ROWID;
-- For the cascade, which looks for the row of every job that is deleted.
CREATE INDEX ergon_job_keys_job ON ergon_job_keys (job);
