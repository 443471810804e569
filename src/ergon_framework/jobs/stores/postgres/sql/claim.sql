-- promote: those whose time has come may be claimed
UPDATE ergon_jobs SET stage = 2 WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM ergon_jobs WHERE stage = 3 AND run_at <= {now}
    ORDER BY run_at LIMIT %(most)s FOR NO KEY UPDATE SKIP LOCKED
));

-- claim: the first jobs of some lanes, without those that need a closer look and without the steps of
-- flows that stop, which a sweep is going to cancel; of lanes with the
-- same number, those of one queue, the first of all together
WITH lane AS MATERIALIZED (
    SELECT l.* FROM unnest(
        %(executors)s::text[], %(queues)s::text[], %(most)s::int[], %(numbers)s::int[]
    ) AS l (executor, queue, most, number)
    WHERE NOT EXISTS (SELECT 1 FROM ergon_queues AS q WHERE q.name = l.queue)
), picked AS MATERIALIZED (
    SELECT c.spot, c.is_plain, l.number, l.most, row_number() OVER (
        PARTITION BY l.number ORDER BY c.priority DESC, c.run_at, c.seq
    ) AS place
    FROM lane AS l CROSS JOIN LATERAL (
        SELECT
            j.ctid AS spot, j.seq, j.priority, j.run_at,
            j.limit_key IS NULL AND (j.expires_at IS NULL OR j.expires_at > {now}) AS is_plain
        FROM ergon_jobs AS j
        WHERE j.stage = 2 AND j.executor = l.executor AND j.queue = l.queue
            AND (j.flow_id IS NULL OR j.flow_id <> ALL(ARRAY(
                SELECT target FROM ergon_flow_work WHERE kind = 'cancel'
            )))
        ORDER BY j.priority DESC, j.run_at, j.seq LIMIT l.most FOR NO KEY UPDATE SKIP LOCKED
    ) AS c
), leased AS (
    UPDATE ergon_jobs AS j SET
        stage = 1, status = 'active', fence = greatest(j.fence + 1, t.stamp),
        deliveries = j.deliveries + 1,
        is_charged = false, why = '', changed_at = t.now, claimed_at = t.now,
        lease_expires_at = t.now + %(lease)s::float8, worker = %(worker)s
    FROM (SELECT {now} AS now, {stamp} AS stamp) AS t
    WHERE j.ctid = ANY(ARRAY(SELECT spot FROM picked WHERE place <= most AND is_plain))
    RETURNING
        j.seq, j.fence, j.id, j.handler, j.executor, j.queue, j.args, j.kwargs, j.attempts,
        j.deliveries, j.excused, j.is_solo, j.created_at, j.options, j.claimed_at, j.priority,
        j.run_at
)
SELECT c.numbers, l.* FROM (
    SELECT array_agg(DISTINCT number) AS numbers FROM picked WHERE place <= most AND NOT is_plain
) AS c LEFT JOIN leased AS l ON true;

-- lock_gates: the settings of queues; nobody else claims from those with limits until this ends
SELECT
    name, is_paused, max_active, rate, burst, full_at, key_max_active, key_rate, key_burst,
    pinned_version
FROM ergon_queues WHERE name = ANY(%(queues)s::text[])
ORDER BY name FOR NO KEY UPDATE;

-- running_in_queues: how many jobs run in queues that limit it
SELECT q.name, (SELECT count(*) FROM ergon_jobs WHERE stage = 1 AND queue = q.name)
FROM ergon_queues AS q WHERE q.name = ANY(%(queues)s::text[]) AND q.max_active IS NOT NULL;

-- set_full_at: tokens were taken
UPDATE ergon_queues SET full_at = %(full_at)s WHERE name = %(name)s;

-- now: what time it is, and the least fence to give out
SELECT {now}, {stamp};

-- candidates: the first jobs of some lanes, held until this transaction ends
SELECT l.number, c.* FROM unnest(
    %(executors)s::text[], %(queues)s::text[], %(most)s::int[], %(numbers)s::int[]
) AS l (executor, queue, most, number)
CROSS JOIN LATERAL (
    SELECT {candidate_columns}
    FROM ergon_jobs
    WHERE stage = 2 AND executor = l.executor AND queue = l.queue
        AND (flow_id IS NULL OR flow_id <> ALL(ARRAY(
            SELECT target FROM ergon_flow_work WHERE kind = 'cancel'
        )))
    ORDER BY priority DESC, run_at, seq LIMIT l.most FOR NO KEY UPDATE SKIP LOCKED
) AS c;

-- candidates_past: the same without jobs of some limit keys, among so many in front of each lane;
-- those that others hold count, but do not come
SELECT l.number, c.* FROM unnest(
    %(executors)s::text[], %(queues)s::text[], %(most)s::int[], %(numbers)s::int[]
) AS l (executor, queue, most, number)
CROSS JOIN LATERAL (
    SELECT
        j.seq, fence, id, handler, executor, queue, args, kwargs, attempts, deliveries, excused,
        is_solo, created_at, options, claimed_at, priority, run_at, status, expires_at, limit_key,
        key_limit
    FROM (
        SELECT seq FROM (
            SELECT seq, limit_key, flow_id FROM ergon_jobs
            WHERE stage = 2 AND executor = l.executor AND queue = l.queue
            ORDER BY priority DESC, run_at, seq LIMIT %(depth)s
        ) AS d
        WHERE (limit_key IS NULL OR limit_key <> ALL(%(passed)s::text[]))
            AND (flow_id IS NULL OR flow_id <> ALL(ARRAY(
                SELECT target FROM ergon_flow_work WHERE kind = 'cancel'
            )))
        LIMIT l.most
    ) AS f JOIN ergon_jobs AS j ON j.seq = f.seq
    WHERE j.stage = 2
    FOR NO KEY UPDATE OF j SKIP LOCKED
) AS c;

-- running_of_keys: how many jobs of limit keys run; ordered, so that no other index can be used (see
-- key_limits.sql)
SELECT k.key, (
    SELECT count(*) FROM (
        SELECT 1 FROM ergon_jobs
        WHERE stage = 1 AND limit_key IS NOT NULL AND limit_key BETWEEN k.key AND k.key
        ORDER BY limit_key
    ) AS r
) FROM unnest(%(keys)s::text[]) AS k (key);

-- lease: a worker holds them from now on
UPDATE ergon_jobs SET
    stage = 1, status = 'active', fence = greatest(fence + 1, %(stamp)s::bigint),
    deliveries = deliveries + 1,
    is_charged = false, why = '', changed_at = %(now)s::float8, claimed_at = %(now)s::float8,
    lease_expires_at = %(now)s::float8 + %(lease)s::float8, worker = %(worker)s
WHERE seq = ANY(%(seqs)s::bigint[]);

-- block: wait for the limit key
UPDATE ergon_jobs SET stage = 4 WHERE seq = ANY(%(seqs)s::bigint[]);

-- lanes: where due jobs stand, after a place, and what their queues allow. What was claimed stays in
-- the index until the next vacuum, in front of what waits. In the lane that was claimed from last,
-- it is not walked past if there is a job behind the last one that was taken.
WITH RECURSIVE lanes (executor, queue, n) AS (
    SELECT %(executor)s::text COLLATE "C", %(queue)s::text COLLATE "C", 0
    UNION ALL
    SELECT n.executor, n.queue, l.n + 1 FROM lanes AS l CROSS JOIN LATERAL (
        (
            SELECT executor, queue FROM ergon_jobs
            WHERE stage = 2 AND (executor, queue) > (l.executor, l.queue)
                AND (executor, queue) < (%(last_executor)s::text, %(last_queue)s::text)
            ORDER BY executor, queue LIMIT 1
        )
        UNION ALL
        (
            SELECT executor, queue FROM ergon_jobs
            WHERE stage = 2 AND executor = %(last_executor)s::text AND queue = %(last_queue)s::text
                AND priority = %(last_priority)s::int
                AND (run_at, seq) > (%(last_run_at)s::float8, %(last_seq)s::bigint)
                AND (%(last_executor)s::text, %(last_queue)s::text) > (l.executor, l.queue)
                AND NOT EXISTS (
                    SELECT 1 FROM ergon_jobs AS b
                    WHERE b.stage = 2 AND (b.executor, b.queue) > (l.executor, l.queue)
                        AND (b.executor, b.queue) < (%(last_executor)s::text, %(last_queue)s::text)
                )
            ORDER BY run_at, seq LIMIT 1
        )
        UNION ALL
        (
            SELECT executor, queue FROM ergon_jobs
            WHERE stage = 2 AND (executor, queue) > (l.executor, l.queue)
            ORDER BY executor, queue LIMIT 1
        )
        LIMIT 1
    ) AS n
    WHERE l.n < %(most)s
)
SELECT
    l.executor, l.queue, q.is_paused OR coalesce(q.pinned_version <> %(version)s::text, false),
    q.name IS NOT NULL
FROM lanes AS l LEFT JOIN ergon_queues AS q ON q.name = l.queue
WHERE l.n > 0;

-- lanes_in: the same, of some queues
WITH RECURSIVE executors (name) AS (
    (SELECT executor FROM ergon_jobs WHERE stage = 2 ORDER BY executor LIMIT 1)
    UNION ALL
    SELECT n.executor FROM executors AS e CROSS JOIN LATERAL (
        SELECT executor FROM ergon_jobs WHERE stage = 2 AND executor > e.name
        ORDER BY executor LIMIT 1
    ) AS n
)
SELECT
    e.name, a.queue, q.is_paused OR coalesce(q.pinned_version <> %(version)s::text, false),
    q.name IS NOT NULL
FROM executors AS e CROSS JOIN unnest(%(queues)s::text[]) AS a (queue)
CROSS JOIN LATERAL (
    SELECT 1 FROM ergon_jobs AS j
    WHERE j.stage = 2 AND j.executor = e.name AND j.queue = a.queue LIMIT 1
) AS f
LEFT JOIN ergon_queues AS q ON q.name = a.queue;

-- soonest: when the next job is due that waits for its time; where many others come first, when
-- to look again. Whether something of flows is left to be done, the first expiry of what waits, and
-- when jobs that wait for a token of their limit key are due again.
SELECT coalesce(
    min(s.run_at) FILTER (WHERE NOT s.is_left),
    CASE WHEN count(*) = %(most)s THEN max(s.run_at) END
), EXISTS (SELECT 1 FROM ergon_flow_work), (
    SELECT expires_at FROM ergon_jobs
    WHERE stage > 1 AND expires_at IS NOT NULL ORDER BY expires_at LIMIT 1
), (
    SELECT wakes_at FROM ergon_queue_keys WHERE wakes_at IS NOT NULL ORDER BY wakes_at LIMIT 1
)
FROM (
    SELECT
        j.run_at,
        coalesce(q.is_paused, false) OR coalesce(q.pinned_version <> %(version)s::text, false)
        OR NOT j.queue = ANY(coalesce(%(queues)s::text[], ARRAY[j.queue]))
        AS is_left
    FROM (
        SELECT run_at, queue FROM ergon_jobs WHERE stage = 3 ORDER BY run_at LIMIT %(most)s
    ) AS j LEFT JOIN ergon_queues AS q ON q.name = j.queue
) AS s;

-- blocked: where jobs wait for limit keys, without paused queues, and whether there may be more places
WITH RECURSIVE lanes (limit_key, queue, executor, n) AS (
    (
        SELECT limit_key, queue, executor, 1 FROM ergon_jobs WHERE stage = 4
        ORDER BY limit_key, queue, executor LIMIT 1
    )
    UNION ALL
    SELECT n.*, l.n + 1 FROM lanes AS l CROSS JOIN LATERAL (
        SELECT limit_key, queue, executor FROM ergon_jobs
        WHERE stage = 4 AND (limit_key, queue, executor) > (l.limit_key, l.queue, l.executor)
        ORDER BY limit_key, queue, executor LIMIT 1
    ) AS n
    WHERE l.n < %(most)s
)
SELECT
    l.executor, l.queue, q.is_paused OR coalesce(q.pinned_version <> %(version)s::text, false),
    l.n = %(most)s
FROM lanes AS l LEFT JOIN ergon_queues AS q ON q.name = l.queue;
