-- lock: takes the write lock of a transaction that has only read so far
UPDATE ergon_jobs SET seq = seq WHERE 0;

-- insert_plain: a new job that asks for nothing special
INSERT INTO ergon_jobs (
    stage, status, fence, changed_at, created_at, run_at, queue, executor, priority, id, handler,
    args, kwargs
) VALUES (?1, 'pending', ?2, ?3, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11);

-- insert: any new job
INSERT INTO ergon_jobs (
    stage, status, fence, changed_at, created_at, run_at, queue, executor, priority, id, handler,
    args, kwargs, expires_at, unique_key, limit_key, key_limit, options
) VALUES (?1, 'pending', ?2, ?3, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16);

-- insert_payload: large arguments
INSERT INTO ergon_job_payloads (seq, args, kwargs) VALUES (?, ?, ?);

-- payload: large arguments
SELECT args, kwargs FROM ergon_job_payloads WHERE seq = ?;

-- has_id: whether there is such a job
SELECT 1 FROM ergon_jobs WHERE id = ?;

-- key_holder: who holds a unique key
SELECT seq, id, status, fence, attempts, deliveries, excused
FROM ergon_jobs WHERE unique_key = ? AND stage > 0;

-- renew: prolong a lease; the attempt is charged once
UPDATE ergon_jobs SET
    lease_expires_at = ?1,
    attempts = attempts + (?2 AND NOT is_charged),
    is_charged = is_charged OR ?2
WHERE seq = ?3 AND id = ?4 AND fence = ?5 AND stage = 1;

-- overdue: running jobs that nobody renewed
SELECT * FROM ergon_jobs
WHERE stage = 1 AND lease_expires_at <= ?
ORDER BY lease_expires_at, seq LIMIT ?;

-- find: one job
SELECT * FROM ergon_jobs WHERE id = ?;
