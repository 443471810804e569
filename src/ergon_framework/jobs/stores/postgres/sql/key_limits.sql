-- Whoever reads the state of a key to start jobs of it holds the lock of its queue's row.

-- gates: the buckets of limit keys of queues, and how many jobs of each run there
SELECT k.queue, k.key, coalesce(s.full_at, 0.0), (
    SELECT count(*) FROM ergon_jobs AS j
    WHERE j.stage = 1 AND j.limit_key IS NOT NULL AND j.limit_key = k.key AND j.queue = k.queue
)
FROM unnest(%(queues)s::text[], %(keys)s::text[]) AS k (queue, key)
LEFT JOIN ergon_queue_keys AS s ON s.queue = k.queue AND s.limit_key = k.key;

-- save: tokens were taken, or jobs wait for one
INSERT INTO ergon_queue_keys (queue, limit_key, full_at, wakes_at)
SELECT s.queue, s.key, s.full_at, CASE
    WHEN s.is_blocked OR EXISTS (
        SELECT 1 FROM ergon_jobs AS j
        WHERE j.stage = 4 AND j.limit_key = s.key AND j.queue = s.queue
    ) THEN s.wakes_at
END
FROM unnest(
    %(queues)s::text[], %(keys)s::text[], %(full_at)s::float8[], %(wakes_at)s::float8[],
    %(blocked)s::bool[]
) AS s (queue, key, full_at, wakes_at, is_blocked)
ORDER BY s.queue, s.key
ON CONFLICT (queue, limit_key) DO UPDATE SET
    full_at = excluded.full_at, wakes_at = excluded.wakes_at;

-- due: limit keys that have tokens again, with the limits of their queues and how many jobs run
SELECT
    k.queue, k.limit_key, k.full_at, {now}, (
        SELECT count(*) FROM ergon_jobs AS j
        WHERE j.stage = 1 AND j.limit_key IS NOT NULL AND j.limit_key = k.limit_key
            AND j.queue = k.queue
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
