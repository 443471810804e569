-- wait: back to the queue, unless its cancellation was requested while it ran
UPDATE ergon_jobs SET
    stage = ?, status = ?, attempts = ?, excused = ?, is_charged = 0, is_solo = ?, why = ?,
    run_at = ?, changed_at = ?, lease_expires_at = NULL, claimed_at = NULL, worker = NULL,
    last_error = coalesce(?, last_error),
    history = coalesce(history || char(10), '') || ?
WHERE seq = ? AND id = ? AND fence = ? AND status = ? AND (? OR lease_expires_at <= ?)
    AND feeds IS NULL AND (stage <> 1 OR why = '');

-- set_lane: from now on it waits for a worker that has its handler
UPDATE ergon_jobs SET executor = ? WHERE seq = ?;

-- restart: back to the queue as if nothing had happened, an expiry that passed included
UPDATE ergon_jobs SET
    stage = ?, status = ?, attempts = ?, excused = ?, is_charged = 0, is_solo = ?, why = ?,
    run_at = ?, changed_at = ?, lease_expires_at = NULL, claimed_at = NULL, worker = NULL,
    last_error = ?, deliveries = 0, result = NULL, purge_at = NULL, expires_at = NULL,
    history = coalesce(history || char(10), '') || ?
WHERE seq = ? AND id = ? AND fence = ? AND status = ? AND (? OR lease_expires_at <= ?)
    AND feeds IS NULL;

-- complete: the usual end of a running job
UPDATE ergon_jobs SET
    stage = 0, status = 'completed', attempts = ?1, excused = ?2, is_charged = 0, is_solo = 0,
    why = '', result = ?3, purge_at = ?4, changed_at = ?5,
    lease_expires_at = NULL, claimed_at = NULL, worker = NULL,
    history = CASE WHEN history IS NULL THEN ?6 ELSE history || char(10) || ?6 END
WHERE seq = ?7 AND id = ?8 AND fence = ?9 AND stage = 1 AND feeds IS NULL;

-- complete_many: the same for many, in three quarters of the time; the values are repeated
UPDATE ergon_jobs SET
    stage = 0, status = 'completed', attempts = v.column1, excused = v.column2, is_charged = 0,
    is_solo = 0, why = '', result = v.column3, purge_at = v.column4, changed_at = v.column5,
    lease_expires_at = NULL, claimed_at = NULL, worker = NULL,
    history = CASE WHEN history IS NULL THEN v.column6 ELSE history || char(10) || v.column6 END
FROM (VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)) AS v
WHERE ergon_jobs.seq = v.column7 AND ergon_jobs.id = v.column8 AND ergon_jobs.fence = v.column9
    AND stage = 1 AND feeds IS NULL;

-- end: any end of a job
UPDATE ergon_jobs SET
    stage = 0, status = ?, attempts = ?, excused = ?, is_charged = 0, is_solo = ?, why = ?,
    result = ?, purge_at = ?, changed_at = ?,
    lease_expires_at = NULL, claimed_at = NULL, worker = NULL,
    last_error = coalesce(?, last_error),
    history = coalesce(history || char(10), '') || ?
WHERE seq = ? AND id = ? AND fence = ? AND status = ? AND (? OR lease_expires_at <= ?)
    AND feeds IS NULL;

-- request_cancel: note that a running job is to be cancelled; the first request stays
UPDATE ergon_jobs SET why = CASE WHEN why = '' THEN ?1 ELSE why END
WHERE seq = ?2 AND id = ?3 AND fence = ?4 AND stage = 1;

-- cancel_request: of one claim
SELECT why FROM ergon_jobs
WHERE seq = ? AND id = ? AND fence = ? AND stage = 1 AND why <> '';

-- cancel_requests: of many jobs that run, by their numbers
SELECT seq, id, fence, why FROM ergon_jobs
WHERE seq IN (SELECT value FROM json_each(?)) AND +stage = 1 AND why <> '';

-- long_history: for shortening it
SELECT history FROM ergon_jobs WHERE seq = ? AND (
    length(history) > ? OR length(history) - length(replace(history, char(10), '')) > ?
);

-- set_history: the shortened one
UPDATE ergon_jobs SET history = ? WHERE seq = ?;

-- any_blocked: whether anybody waits for a limit key
SELECT 1 FROM ergon_jobs WHERE stage = 4 LIMIT 1;

-- any_max_active: whether any queue limits how many run
SELECT 1 FROM ergon_queues WHERE max_active IS NOT NULL LIMIT 1;

-- limit_key: of one job
SELECT limit_key FROM ergon_jobs WHERE seq = ?;

-- running_of_key: how many jobs of a limit key run
SELECT count(*) FROM ergon_jobs WHERE stage = 1 AND limit_key IS NOT NULL AND limit_key = ?;

-- next_lane_of_key: the first queue and executor after others whose jobs wait for a limit key
-- (compared column by column: for a comparison of rows, SQLite walks past all jobs of the last lane)
SELECT * FROM (
    SELECT queue, executor FROM ergon_jobs
    WHERE stage = 4 AND limit_key = ?1 AND queue = ?2 AND executor > ?3
    ORDER BY executor LIMIT 1
)
UNION ALL
SELECT * FROM (
    SELECT queue, executor FROM ergon_jobs
    WHERE stage = 4 AND limit_key = ?1 AND queue > ?2 ORDER BY queue, executor LIMIT 1
)
LIMIT 1;

-- wake: the next job of one lane that a limit key lets go
UPDATE ergon_jobs SET stage = 2 WHERE seq = (
    SELECT seq FROM ergon_jobs
    WHERE stage = 4 AND limit_key = ? AND queue = ? AND executor = ? AND key_limit > ?
    ORDER BY priority DESC, run_at, seq LIMIT 1
);

-- wake_some: the next jobs of one lane of a queue that limits its keys itself
UPDATE ergon_jobs SET stage = 2 WHERE seq IN (
    SELECT seq FROM ergon_jobs
    WHERE stage = 4 AND limit_key = ? AND queue = ? AND executor = ?
    ORDER BY priority DESC, run_at, seq LIMIT ?
);

-- key_waits: whether a queue limits its keys itself, and until when jobs of one wait for a token
SELECT k.wakes_at, q.key_rate FROM ergon_queues AS q
LEFT JOIN ergon_queue_keys AS k ON k.queue = q.name AND k.limit_key = ?
WHERE q.name = ? AND (q.key_max_active IS NOT NULL OR q.key_rate IS NOT NULL);

-- next_blocked_key: the first limit key after another that somebody waits for
SELECT limit_key FROM ergon_jobs WHERE stage = 4 AND limit_key > ? ORDER BY limit_key LIMIT 1;

-- block: wait for the limit key
UPDATE ergon_jobs SET stage = 4 WHERE seq = ?;
