-- promote: those whose time has come may be claimed
UPDATE ergon_jobs SET stage = 2 WHERE seq IN (
    SELECT seq FROM ergon_jobs WHERE stage = 3 AND run_at <= ? ORDER BY run_at LIMIT ?
);

-- next_executor: the first executor after another that a due job names
SELECT executor FROM ergon_jobs WHERE stage = 2 AND executor > ? ORDER BY executor LIMIT 1;

-- next_queue: the first queue after another with due jobs for an executor
SELECT queue FROM ergon_jobs
WHERE stage = 2 AND executor = ? AND queue > ? ORDER BY queue LIMIT 1;

-- has_lane: whether a queue has due jobs for an executor
SELECT 1 FROM ergon_jobs WHERE stage = 2 AND executor = ? AND queue = ? LIMIT 1;

-- candidates: the due jobs of one queue for one executor, in the order in which they go
SELECT
    seq, fence, id, handler, executor, args, kwargs, attempts, deliveries, excused, is_solo,
    created_at, options, status, expires_at, limit_key, key_limit, priority, run_at
FROM ergon_jobs
WHERE stage = 2 AND executor = ? AND queue = ?
ORDER BY priority DESC, run_at, seq LIMIT ?;

-- lease: a worker holds it from now on
UPDATE ergon_jobs SET
    stage = 1, status = 'active', fence = fence + 1, deliveries = deliveries + 1, is_charged = 0,
    why = '', changed_at = ?1, claimed_at = ?1, lease_expires_at = ?2, worker = ?3
WHERE seq = ?4;

-- lease_many: the same for many, in half the time; their numbers come as a JSON list
UPDATE ergon_jobs SET
    stage = 1, status = 'active', fence = fence + 1, deliveries = deliveries + 1, is_charged = 0,
    why = '', changed_at = ?1, claimed_at = ?1, lease_expires_at = ?2, worker = ?3
WHERE seq IN (SELECT value FROM json_each(?4));

-- queue: the settings of one
SELECT is_paused, max_active, rate, burst, full_at FROM ergon_queues WHERE name = ?;

-- set_full_at: tokens were taken
UPDATE ergon_queues SET full_at = ? WHERE name = ?;

-- running_in_queue: how many jobs of a queue run
SELECT count(*) FROM ergon_jobs WHERE stage = 1 AND queue = ?;

-- soonest: the next jobs that wait for their time
SELECT run_at, queue FROM ergon_jobs WHERE stage = 3 ORDER BY run_at LIMIT ?;

-- first_expiry: that of any job that waits
SELECT expires_at FROM ergon_jobs
WHERE stage > 1 AND expires_at IS NOT NULL ORDER BY expires_at LIMIT 1;

-- next_blocked: the first limit key, queue and executor after others where somebody waits for it
SELECT limit_key, queue, executor FROM ergon_jobs
WHERE stage = 4 AND (limit_key, queue, executor) > (?, ?, ?)
ORDER BY limit_key, queue, executor LIMIT 1;
