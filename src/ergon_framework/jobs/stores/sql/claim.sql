-- promote: those whose time has come may be claimed
UPDATE ergon_jobs SET stage = 2 WHERE seq IN (
    SELECT seq FROM ergon_jobs WHERE stage = 3 AND run_at <= ? ORDER BY run_at LIMIT ?
);

-- outlook: what there is besides, which is mostly nothing; the columns are those of `Outlook`
SELECT
    EXISTS (SELECT 1 FROM ergon_flow_work),
    (SELECT run_at <= ?1 FROM ergon_jobs WHERE stage = 3 ORDER BY run_at LIMIT 1),
    (SELECT executor FROM ergon_jobs WHERE stage = 2 ORDER BY executor DESC LIMIT 1),
    (
        SELECT expires_at FROM ergon_jobs
        WHERE stage > 1 AND expires_at IS NOT NULL ORDER BY expires_at LIMIT 1
    ),
    (
        SELECT wakes_at FROM ergon_queue_keys WHERE wakes_at IS NOT NULL ORDER BY wakes_at LIMIT 1
    );

-- next_executor: the first executor after another that a due job names
SELECT executor FROM ergon_jobs WHERE stage = 2 AND executor > ? ORDER BY executor LIMIT 1;

-- next_lane: the same within bounds, of which the second is left out
SELECT executor FROM ergon_jobs
WHERE stage = 2 AND executor > ? AND executor < ? ORDER BY executor LIMIT 1;

-- next_queue: the first queue after another with due jobs for an executor
SELECT queue FROM ergon_jobs
WHERE stage = 2 AND executor = ? AND queue > ? ORDER BY queue LIMIT 1;

-- end_queues: the first and the last queue with due jobs for an executor, mostly the same
SELECT
    (SELECT queue FROM ergon_jobs WHERE stage = 2 AND executor = ?1 ORDER BY queue LIMIT 1),
    (SELECT queue FROM ergon_jobs WHERE stage = 2 AND executor = ?1 ORDER BY queue DESC LIMIT 1);

-- next_open_queue: the first queue after another, as above, without paused ones, of which there may be very many
WITH RECURSIVE walk (name) AS (
    SELECT (
        SELECT queue FROM ergon_jobs
        WHERE stage = 2 AND executor = ?1 AND queue > ?2 ORDER BY queue LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT queue FROM ergon_jobs
        WHERE stage = 2 AND executor = ?1 AND queue > walk.name ORDER BY queue LIMIT 1
    ) FROM walk CROSS JOIN ergon_queues AS q WHERE q.name = walk.name AND q.is_paused <> 0
)
SELECT name FROM (SELECT max(name) AS name FROM walk) AS last
WHERE name IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM ergon_queues AS q WHERE q.name = last.name AND q.is_paused <> 0);

-- has_lane: whether a queue has due jobs for an executor
SELECT 1 FROM ergon_jobs WHERE stage = 2 AND executor = ? AND queue = ? LIMIT 1;

-- candidates: the due jobs of one queue for one executor, in the order in which they go
SELECT
    seq, fence, id, handler, executor, args, kwargs, attempts, deliveries, excused, is_solo,
    created_at, options, status, expires_at, limit_key, key_limit, priority, run_at, feeds
FROM ergon_jobs
WHERE stage = 2 AND executor = ? AND queue = ?
ORDER BY priority DESC, run_at, seq LIMIT ?;

-- next_due_key: the first limit key after another with due jobs of one queue for one executor
SELECT limit_key FROM ergon_jobs
WHERE stage = 2 AND executor = ? AND queue = ? AND limit_key > ? ORDER BY limit_key LIMIT 1;

-- candidates_of_key: the due jobs of one limit key of a queue for one executor
SELECT
    seq, fence, id, handler, executor, args, kwargs, attempts, deliveries, excused, is_solo,
    created_at, options, status, expires_at, limit_key, key_limit, priority, run_at, feeds
FROM ergon_jobs
WHERE stage = 2 AND executor = ? AND queue = ? AND limit_key = ?
ORDER BY priority DESC, run_at, seq LIMIT ?;

-- block_key: some due jobs of a limit key wait for it from now on
UPDATE ergon_jobs SET stage = 4 WHERE seq IN (
    SELECT seq FROM ergon_jobs WHERE stage = 2 AND executor = ? AND queue = ? AND limit_key = ?
    ORDER BY priority DESC, run_at, seq LIMIT ?
);

-- places: where the first due jobs of a queue for one executor stand, and which have no limit key
SELECT priority, run_at, seq, limit_key IS NULL FROM ergon_jobs
WHERE stage = 2 AND executor = ? AND queue = ? ORDER BY priority DESC, run_at, seq LIMIT ?;

-- places_beside: the same after a place, of its priority
SELECT priority, run_at, seq, limit_key IS NULL FROM ergon_jobs
WHERE stage = 2 AND executor = ? AND queue = ? AND priority = ? AND (run_at, seq) > (?, ?)
ORDER BY run_at, seq LIMIT ?;

-- places_below: the same after a place, of lower priorities
SELECT priority, run_at, seq, limit_key IS NULL FROM ergon_jobs
WHERE stage = 2 AND executor = ? AND queue = ? AND priority < ?
ORDER BY priority DESC, run_at, seq LIMIT ?;

-- candidate: one due job
SELECT
    seq, fence, id, handler, executor, args, kwargs, attempts, deliveries, excused, is_solo,
    created_at, options, status, expires_at, limit_key, key_limit, priority, run_at, feeds
FROM ergon_jobs WHERE seq = ?;

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
SELECT
    is_paused, max_active, rate, burst, full_at, key_max_active, key_rate, key_burst,
    pinned_version
FROM ergon_queues WHERE name = ?;

-- set_full_at: tokens were taken
UPDATE ergon_queues SET full_at = ? WHERE name = ?;

-- running_in_queue: how many jobs of a queue run
SELECT count(*) FROM ergon_jobs WHERE stage = 1 AND queue = ?;

-- soonest: the next jobs that wait for their time
SELECT run_at, queue FROM ergon_jobs WHERE stage = 3 ORDER BY run_at LIMIT ?;

-- keys_to_wake: limit keys that have tokens again, and the limits of each key of their queues
SELECT
    k.queue, k.limit_key, k.full_at,
    q.is_paused, q.max_active, q.rate, q.burst, q.full_at, q.key_max_active, q.key_rate, q.key_burst
FROM ergon_queue_keys AS k LEFT JOIN ergon_queues AS q ON q.name = k.queue
WHERE k.wakes_at <= ? ORDER BY k.wakes_at LIMIT ?;

-- woken: nobody waits for a token of this key any more
UPDATE ergon_queue_keys SET wakes_at = NULL WHERE queue = ? AND limit_key = ?;

-- key: when the bucket of a limit key will be full
SELECT full_at FROM ergon_queue_keys WHERE queue = ? AND limit_key = ?;

-- set_key: tokens of a limit key were taken, or jobs wait for one
INSERT INTO ergon_queue_keys (queue, limit_key, full_at, wakes_at) VALUES (?, ?, ?, ?)
ON CONFLICT (queue, limit_key) DO UPDATE SET
    full_at = excluded.full_at, wakes_at = excluded.wakes_at;

-- running_of_key_in: how many jobs of a limit key run in one queue
SELECT count(*) FROM ergon_jobs
WHERE stage = 1 AND limit_key IS NOT NULL AND limit_key = ? AND queue = ?;

-- has_blocked: whether jobs of a queue wait for a limit key
SELECT 1 FROM ergon_jobs WHERE stage = 4 AND limit_key = ? AND queue = ? LIMIT 1;

-- next_blocked: the first limit key, queue and executor after others where somebody waits for it
-- (compared column by column: for a comparison of rows, SQLite walks past all jobs of the last lane)
SELECT * FROM (
    SELECT limit_key, queue, executor FROM ergon_jobs
    WHERE stage = 4 AND limit_key = ?1 AND queue = ?2 AND executor > ?3
    ORDER BY executor LIMIT 1
)
UNION ALL
SELECT * FROM (
    SELECT limit_key, queue, executor FROM ergon_jobs
    WHERE stage = 4 AND limit_key = ?1 AND queue > ?2 ORDER BY queue, executor LIMIT 1
)
UNION ALL
SELECT * FROM (
    SELECT limit_key, queue, executor FROM ergon_jobs
    WHERE stage = 4 AND limit_key > ?1 ORDER BY limit_key, queue, executor LIMIT 1
)
LIMIT 1;
