-- Labels and unique keys go with their jobs by triggers instead of by foreign keys: a foreign key
-- looks for the rows of every job that is deleted, a trigger only in a store that has any. That halves
-- the cost of a purge where neither is used.
ALTER TABLE ergon_job_tags RENAME TO ergon_job_tags_before;
DROP INDEX ergon_job_tags_job;
CREATE TABLE ergon_job_tags (
    tag TEXT NOT NULL,
    job INTEGER NOT NULL,
    PRIMARY KEY (tag, job)
) WITHOUT ROWID;
INSERT INTO ergon_job_tags (tag, job) SELECT tag, job FROM ergon_job_tags_before ORDER BY tag, job;
DROP TABLE ergon_job_tags_before;
CREATE INDEX ergon_job_tags_job ON ergon_job_tags (job);
CREATE TRIGGER ergon_jobs_forget_tags AFTER DELETE ON ergon_jobs
WHEN EXISTS (SELECT 1 FROM ergon_job_tags) BEGIN
    DELETE FROM ergon_job_tags WHERE job = old.seq;
END;

ALTER TABLE ergon_job_keys RENAME TO ergon_job_keys_before;
DROP INDEX ergon_job_keys_job;
CREATE TABLE ergon_job_keys (
    key TEXT PRIMARY KEY,
    job INTEGER NOT NULL,
    states TEXT NOT NULL,
    until REAL
) WITHOUT ROWID;
INSERT INTO ergon_job_keys (key, job, states, until)
SELECT key, job, states, until FROM ergon_job_keys_before ORDER BY key;
DROP TABLE ergon_job_keys_before;
CREATE INDEX ergon_job_keys_job ON ergon_job_keys (job);
CREATE TRIGGER ergon_jobs_forget_keys AFTER DELETE ON ergon_jobs
WHEN EXISTS (SELECT 1 FROM ergon_job_keys) BEGIN
    DELETE FROM ergon_job_keys WHERE job = old.seq;
END;
