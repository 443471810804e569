-- compatible: 1
-- Who took a unique key last, of jobs that do not simply hold theirs until they end: any other job has
-- no row here. Whether the key is still held is decided when somebody asks, by the state of the job.
CREATE TABLE ergon_job_keys (
    key text COLLATE "C" PRIMARY KEY,
    job bigint NOT NULL,
    states text NOT NULL,  -- the ends after which the job holds its key, as a JSON list
    until float8  -- from then on it holds nothing once it has ended; NULL: it does only while it waits
);
CREATE INDEX ergon_job_keys_job ON ergon_job_keys (job);

-- The rows go with their jobs, also when an older program deletes these.
CREATE OR REPLACE FUNCTION ergon_forget_keys() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM ergon_job_keys) THEN
        DELETE FROM ergon_job_keys WHERE job IN (SELECT seq FROM gone);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER ergon_forget_keys AFTER DELETE ON ergon_jobs
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION ergon_forget_keys();
