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

-- insert_payload_of: the same for a job of some id
INSERT INTO ergon_job_payloads (seq, args, kwargs)
SELECT seq, ?2, ?3 FROM ergon_jobs WHERE id = ?1;

-- insert_label: what a job of some id can be found by
INSERT INTO ergon_job_tags (tag, job) SELECT ?1, seq FROM ergon_jobs WHERE id = ?2;

-- payload: large arguments
SELECT args, kwargs FROM ergon_job_payloads WHERE seq = ?;

-- has_id: whether there is such a job
SELECT 1 FROM ergon_jobs WHERE id = ?;

-- key_holder: who holds a unique key until it ends
SELECT seq, id, status, fence, attempts, deliveries, excused, queue
FROM ergon_jobs WHERE unique_key = ? AND stage > 0;

-- key_taker: who took a unique key last, of the others, and how long it holds the key
SELECT seq, id, status, fence, attempts, deliveries, excused, queue, states, until
FROM ergon_job_keys JOIN ergon_jobs ON seq = job
WHERE key = ? AND status <> 'unreadable';

-- take_key: a job of some id has taken a unique key
INSERT OR REPLACE INTO ergon_job_keys (key, job, states, until)
SELECT ?2, seq, ?3, ?4 FROM ergon_jobs WHERE id = ?1;

-- take_key_back: the same for a job that was put in, unless another took the key after it was added
INSERT INTO ergon_job_keys (key, job, states, until)
SELECT ?2, seq, ?3, ?4 FROM ergon_jobs WHERE id = ?1
ON CONFLICT (key) DO UPDATE SET
    job = excluded.job, states = excluded.states, until = excluded.until
WHERE (SELECT created_at FROM ergon_jobs WHERE seq = ergon_job_keys.job)
    <= (SELECT created_at FROM ergon_jobs WHERE seq = excluded.job);

-- other_holder: whether another job holds the unique key of one that has ended: until it ends itself,
-- or while it waits
SELECT 1 FROM (
    SELECT seq, coalesce(
        unique_key,
        CASE WHEN json_valid(options) THEN json_extract(options, '$.waiting_key') END
    ) AS key
    FROM ergon_jobs WHERE seq = ? AND stage = 0
) AS ended
WHERE ended.key IS NOT NULL AND (
    EXISTS (SELECT 1 FROM ergon_jobs AS other WHERE other.unique_key = ended.key AND other.stage > 0)
    OR EXISTS (
        SELECT 1 FROM ergon_job_keys AS taken JOIN ergon_jobs AS other ON other.seq = taken.job
        WHERE taken.key = ended.key AND taken.until IS NULL
            AND other.seq <> ended.seq AND other.stage > 1
    )
);

-- waiting_key: the unique key that a job has while it waits
SELECT CASE WHEN json_valid(options) THEN json_extract(options, '$.waiting_key') END
FROM ergon_jobs WHERE seq = ?;

-- extend: let a job that waits do so for longer, with other arguments
UPDATE ergon_jobs SET
    run_at = ?2,
    stage = CASE WHEN stage > 4 THEN stage WHEN ?2 > ?3 THEN 3 WHEN stage = 3 THEN 2 ELSE stage END,
    changed_at = ?3, expires_at = ?4, args = ?5, kwargs = ?6
WHERE seq = ?1;

-- due_at: when a job that waits is due
SELECT run_at, id, handler FROM ergon_jobs WHERE seq = ?;

-- drop_payload: arguments that are large no more
DELETE FROM ergon_job_payloads WHERE seq = ?;

-- renew: prolong a lease; the attempt is charged once
UPDATE ergon_jobs SET
    lease_expires_at = ?1,
    attempts = attempts + (?2 AND NOT is_charged),
    is_charged = is_charged OR ?2
WHERE seq = ?3 AND id = ?4 AND fence = ?5 AND stage = 1;

-- held: of these jobs, whose numbers come as a JSON list, those that run
SELECT seq, CAST(id AS BLOB), fence FROM ergon_jobs
WHERE seq IN (SELECT value FROM json_each(?)) AND +stage = 1;

-- renew_many: the same for many jobs that were found to be held; their numbers come as a JSON list
UPDATE ergon_jobs SET
    lease_expires_at = ?1,
    attempts = attempts + (?2 AND NOT is_charged),
    is_charged = is_charged OR ?2
WHERE seq IN (SELECT value FROM json_each(?3));

-- overdue: running jobs that nobody renewed
SELECT * FROM ergon_jobs
WHERE stage = 1 AND lease_expires_at <= ?
ORDER BY lease_expires_at, seq LIMIT ?;

-- find: one job
SELECT * FROM ergon_jobs WHERE id = ?;

-- by_seq: one job
SELECT * FROM ergon_jobs WHERE seq = ?;

-- raw: what can be said of a row that cannot be read
SELECT CAST(id AS BLOB), CAST(queue AS BLOB), CAST(status AS BLOB), CAST(why AS BLOB), changed_at
FROM ergon_jobs WHERE seq = ?;

-- set_aside: take a row that cannot be read out of everybody's way; it is never purged
UPDATE ergon_jobs SET stage = 0, status = 'unreadable', why = ?, changed_at = ?, purge_at = NULL
WHERE seq = ? AND NOT (stage = 0 AND status = 'unreadable');

-- aside: the rows that were set aside
SELECT seq FROM ergon_jobs INDEXED BY ergon_jobs_dead
WHERE stage = 0 AND status <> 'completed' AND status = 'unreadable' ORDER BY seq DESC LIMIT ?;

-- is_aside: whether a row was set aside
SELECT CAST(why AS BLOB) FROM ergon_jobs WHERE seq = ? AND stage = 0 AND status = 'unreadable';

-- live: all rows that have not ended
SELECT seq FROM ergon_jobs WHERE stage <> 0;

-- ended: all that have, but were not set aside
SELECT seq FROM ergon_jobs WHERE stage = 0 AND status <> 'unreadable';

-- put_back: a row that was set aside is where it was; a step waits for what it waited for
UPDATE ergon_jobs SET
    stage = CASE
        WHEN ?1 = 2 AND join_id IS NOT NULL THEN 5 WHEN ?1 = 2 AND signal IS NOT NULL THEN 6
        WHEN ?1 = 2 AND run_at > ?4 THEN 3
        ELSE ?1
    END,
    status = ?2, why = ''
WHERE seq = ?3;

-- discard: a row that was set aside is gone for good
DELETE FROM ergon_jobs WHERE seq = ? AND stage = 0 AND status = 'unreadable';

-- any_later: whether a lease ends after some instant
SELECT 1 FROM ergon_jobs WHERE stage = 1 AND lease_expires_at > ? LIMIT 1;

-- shorten: leases that end later than they could; how long each worker claims for comes as JSON
UPDATE ergon_jobs SET lease_expires_at = ?2 + coalesce(
    (SELECT value FROM json_each(?1) WHERE key = worker), ?3
)
WHERE stage = 1 AND lease_expires_at > ?2 + coalesce(
    (SELECT value FROM json_each(?1) WHERE key = worker), ?3
);

-- any_wait_from_later: whether a job went back to the queue after some instant
SELECT 1 FROM ergon_jobs WHERE stage = 3 AND deliveries > 0 AND changed_at > ? LIMIT 1;

-- shorten_waits: such jobs wait from now on, for as long as was decided
UPDATE ergon_jobs SET run_at = run_at - changed_at + ?1, changed_at = ?1
WHERE stage = 3 AND deliveries > 0 AND changed_at > ?2;
