-- Whoever reads the state of a key to start jobs of it holds the lock of its queue's row.
-- A key is named as a range from itself to itself, and what is found is ordered by it: only the index
-- by key has that order. The other index of the same jobs, by queue, looks as good to the planner while
-- the table is empty or was never analyzed, and the plan made then stays. It reads all jobs of the queue.

-- gates: the buckets of limit keys of queues, and how many jobs of each run there
SELECT k.queue, k.key, coalesce(s.full_at, 0.0), (
    SELECT count(*) FROM (
        SELECT 1 FROM ergon_jobs AS j
        WHERE j.stage = 1 AND j.limit_key IS NOT NULL AND j.limit_key BETWEEN k.key AND k.key
            AND j.queue = k.queue
        ORDER BY j.limit_key
    ) AS r
)
FROM unnest(%(queues)s::text[], %(keys)s::text[]) AS k (queue, key)
LEFT JOIN ergon_queue_keys AS s ON s.queue = k.queue AND s.limit_key = k.key;

-- save: tokens were taken, or jobs wait for one
INSERT INTO ergon_queue_keys (queue, limit_key, full_at, wakes_at)
SELECT s.queue, s.key, s.full_at, w.wakes_at
FROM unnest(
    %(queues)s::text[], %(keys)s::text[], %(full_at)s::float8[], %(wakes_at)s::float8[],
    %(blocked)s::bool[], %(used)s::bool[]
) AS s (queue, key, full_at, wakes_at, is_blocked, is_used)
CROSS JOIN LATERAL (
    SELECT CASE
        WHEN s.is_blocked OR EXISTS (
            SELECT 1 FROM ergon_jobs AS j
            WHERE j.stage = 4 AND j.limit_key = s.key AND j.queue = s.queue
        ) THEN s.wakes_at
    END
) AS w (wakes_at)
WHERE s.is_used OR w.wakes_at IS NOT NULL
ORDER BY s.queue, s.key
ON CONFLICT (queue, limit_key) DO UPDATE SET
    full_at = excluded.full_at, wakes_at = excluded.wakes_at;

-- due: limit keys that have tokens again, with the limits of their queues and how many jobs run
SELECT
    k.queue, k.limit_key, k.full_at, {now}, (
        SELECT count(*) FROM (
            SELECT 1 FROM ergon_jobs AS j
            WHERE j.stage = 1 AND j.limit_key IS NOT NULL
                AND j.limit_key BETWEEN k.limit_key AND k.limit_key AND j.queue = k.queue
            ORDER BY j.limit_key
        ) AS r
    ),
    q.key_max_active, q.key_rate, coalesce(q.key_burst, 1)
FROM ergon_queue_keys AS k LEFT JOIN ergon_queues AS q ON q.name = k.queue
WHERE k.wakes_at <= {now} ORDER BY k.wakes_at LIMIT %(most)s FOR NO KEY UPDATE OF k SKIP LOCKED;

-- woken: nobody waits for a token of these keys any more
UPDATE ergon_queue_keys AS k SET wakes_at = NULL
FROM unnest(%(queues)s::text[], %(keys)s::text[]) AS w (queue, key)
WHERE k.queue = w.queue AND k.limit_key = w.key;

-- wake: of each executor the first jobs of some limit keys, so many of each
WITH RECURSIVE keys (key, queue, most) AS MATERIALIZED (
    SELECT * FROM unnest(%(keys)s::text[], %(queues)s::text[], %(most)s::int[])
), lanes (key, queue, most, executor) AS (
    SELECT k.*, n.executor FROM keys AS k CROSS JOIN LATERAL (
        SELECT executor FROM ergon_jobs
        WHERE stage = 4 AND limit_key = k.key AND queue = k.queue ORDER BY executor LIMIT 1
    ) AS n
    UNION ALL
    SELECT l.key, l.queue, l.most, n.executor FROM lanes AS l CROSS JOIN LATERAL (
        SELECT executor FROM ergon_jobs
        WHERE stage = 4 AND limit_key = l.key AND queue = l.queue AND executor > l.executor
        ORDER BY executor LIMIT 1
    ) AS n
), firsts AS MATERIALIZED (
    SELECT f.spot FROM lanes AS l CROSS JOIN LATERAL (
        SELECT ctid AS spot FROM ergon_jobs
        WHERE stage = 4 AND limit_key = l.key AND queue = l.queue AND executor = l.executor
        ORDER BY priority DESC, run_at, seq LIMIT l.most FOR NO KEY UPDATE SKIP LOCKED
    ) AS f
)
UPDATE ergon_jobs SET stage = 2 WHERE ctid = ANY(ARRAY(SELECT spot FROM firsts))
RETURNING seq;

-- next_keys: limit keys with due jobs for some executors: those after one of them, then, unless these are
-- enough, the first of all
WITH RECURSIVE later (executor, key, n) AS (
    SELECT l.executor, k.limit_key, 1
    FROM unnest(%(executors)s::text[]) AS l (executor) CROSS JOIN LATERAL (
        SELECT limit_key FROM ergon_jobs
        WHERE stage = 2 AND limit_key IS NOT NULL AND executor = l.executor
            AND queue = %(queue)s::text AND limit_key > %(after)s::text
        ORDER BY limit_key LIMIT 1
    ) AS k
    UNION ALL
    SELECT l.executor, k.limit_key, l.n + 1 FROM later AS l CROSS JOIN LATERAL (
        SELECT limit_key FROM ergon_jobs
        WHERE stage = 2 AND limit_key IS NOT NULL AND executor = l.executor
            AND queue = %(queue)s::text AND limit_key > l.key
        ORDER BY limit_key LIMIT 1
    ) AS k
    WHERE l.n < %(most)s::int
), sooner (executor, key, n) AS (
    SELECT l.executor, k.limit_key, 1
    FROM unnest(%(executors)s::text[]) AS l (executor) CROSS JOIN LATERAL (
        SELECT limit_key FROM ergon_jobs
        WHERE stage = 2 AND limit_key IS NOT NULL AND executor = l.executor
            AND queue = %(queue)s::text AND limit_key <= %(after)s::text
        ORDER BY limit_key LIMIT 1
    ) AS k
    WHERE NOT EXISTS (SELECT 1 FROM later AS f WHERE f.n = %(most)s::int)
    UNION ALL
    SELECT l.executor, k.limit_key, l.n + 1 FROM sooner AS l CROSS JOIN LATERAL (
        SELECT limit_key FROM ergon_jobs
        WHERE stage = 2 AND limit_key IS NOT NULL AND executor = l.executor
            AND queue = %(queue)s::text AND limit_key > l.key AND limit_key <= %(after)s::text
        ORDER BY limit_key LIMIT 1
    ) AS k
    WHERE l.n < %(most)s::int
)
SELECT key FROM later UNION ALL SELECT key FROM sooner;

-- heads: the first due jobs of some limit keys, held until this transaction ends
SELECT c.* FROM unnest(%(executors)s::text[], %(keys)s::text[]) AS l (executor, key)
CROSS JOIN LATERAL (
    SELECT {candidate_columns}
    FROM ergon_jobs
    WHERE stage = 2 AND limit_key IS NOT NULL AND executor = l.executor
        AND queue = %(queue)s::text AND limit_key BETWEEN l.key AND l.key
        AND (flow_id IS NULL OR flow_id <> ALL(ARRAY(
            SELECT target FROM ergon_flow_work WHERE kind = 'cancel'
        )))
    ORDER BY limit_key, priority DESC, run_at, seq LIMIT %(most)s FOR NO KEY UPDATE SKIP LOCKED
) AS c;

-- places: where due jobs of one lane stand after a place, and which of them have no limit key
SELECT * FROM (
    (
        SELECT priority, run_at, seq, limit_key IS NULL FROM ergon_jobs
        WHERE stage = 2 AND executor = %(executor)s AND queue = %(queue)s
            AND %(priority)s::int IS NULL
        ORDER BY priority DESC, run_at, seq LIMIT %(most)s
    )
    UNION ALL
    (
        SELECT priority, run_at, seq, limit_key IS NULL FROM ergon_jobs
        WHERE stage = 2 AND executor = %(executor)s AND queue = %(queue)s
            AND priority = %(priority)s::int
            AND (run_at, seq) > (%(run_at)s::float8, %(seq)s::bigint)
        ORDER BY run_at, seq LIMIT %(most)s
    )
    UNION ALL
    (
        SELECT priority, run_at, seq, limit_key IS NULL FROM ergon_jobs
        WHERE stage = 2 AND executor = %(executor)s AND queue = %(queue)s
            AND priority < %(priority)s::int
        ORDER BY priority DESC, run_at, seq LIMIT %(most)s
    )
) AS p LIMIT %(most)s;

-- free: some due jobs, held until this transaction ends
SELECT {candidate_columns}
FROM ergon_jobs
WHERE seq = ANY(%(seqs)s::bigint[]) AND stage = 2
    AND (flow_id IS NULL OR flow_id <> ALL(ARRAY(
        SELECT target FROM ergon_flow_work WHERE kind = 'cancel'
    )))
FOR NO KEY UPDATE SKIP LOCKED;

-- block_rest: some due jobs of limit keys wait for them from now on
UPDATE ergon_jobs SET stage = 4 WHERE ctid = ANY(ARRAY(
    SELECT f.spot FROM unnest(
        %(executors)s::text[], %(queues)s::text[], %(keys)s::text[]
    ) AS l (executor, queue, key) CROSS JOIN LATERAL (
        SELECT ctid AS spot FROM ergon_jobs
        WHERE stage = 2 AND limit_key IS NOT NULL AND executor = l.executor AND queue = l.queue
            AND limit_key BETWEEN l.key AND l.key
        ORDER BY limit_key, priority DESC, run_at, seq LIMIT %(most)s
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS f
))
RETURNING seq;
