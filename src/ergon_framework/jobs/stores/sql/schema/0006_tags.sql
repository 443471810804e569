-- What jobs are found by: a tag, or key=value for an entry of the metadata. Jobs without any have no
-- row here. The values themselves stand in the options of the job.
CREATE TABLE ergon_job_tags (
    tag TEXT NOT NULL,
    job INTEGER NOT NULL REFERENCES ergon_jobs (seq) ON DELETE CASCADE,
    PRIMARY KEY (tag, job)
) WITHOUT ROWID;
-- For the cascade, which looks for the rows of every job that is deleted.
CREATE INDEX ergon_job_tags_job ON ergon_job_tags (job);
