-- compatible: 1
-- What jobs are found by: a tag, or key=value for an entry of the metadata. Jobs without any have no
-- row here. The values themselves stand in the options of the job.
CREATE TABLE ergon_job_tags (
    job bigint NOT NULL,
    tag text COLLATE "C" NOT NULL,
    PRIMARY KEY (tag, job)
);
CREATE INDEX ergon_job_tags_job ON ergon_job_tags (job);

-- The rows go with their jobs, also when an older program deletes these. One look for a statement,
-- however many jobs it deletes: a foreign key would look once for each.
CREATE OR REPLACE FUNCTION ergon_forget_tags() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM ergon_job_tags WHERE job IN (SELECT seq FROM gone);
    RETURN NULL;
END
$$;
CREATE TRIGGER ergon_forget_tags AFTER DELETE ON ergon_jobs
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION ergon_forget_tags();
