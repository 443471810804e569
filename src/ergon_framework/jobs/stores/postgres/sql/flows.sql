-- The steps of a flow and those that wait at a join are asked for in the order of an index of theirs:
-- a plan for an empty table would otherwise walk through all jobs by number.

-- lock_flows_of: the flows of these jobs; nobody else changes them until this transaction ends
SELECT
    id, on_failure, status, unfinished, completed, failed, cancelled, uncounted, keep, purge_at,
    name, created_at, changed_at, ''::bytea
FROM ergon_flows
WHERE id = ANY(ARRAY(
    SELECT j.flow_id FROM ergon_jobs AS j
    WHERE j.seq = ANY(%(seqs)s::bigint[]) AND j.feeds IS NOT NULL
))
ORDER BY id FOR NO KEY UPDATE;

-- lock_steps: these jobs, each of which nobody else changes until this transaction ends; in the order
-- of their numbers, as every transaction that changes several jobs does
SELECT
    j.seq, j.id, j.status, j.fence, j.attempts, j.deliveries, j.excused, j.queue, j.stage,
    j.flow_id, j.feeds, j.join_id, j.signal, CASE WHEN j.signal IS NOT NULL THEN j.result END,
    coalesce(j.unique_key, {waiting_key}),
    j.stage = 0 AND (
        EXISTS (
            SELECT 1 FROM ergon_jobs AS h
            WHERE h.unique_key = coalesce(j.unique_key, {waiting_key})
                AND h.unique_key IS NOT NULL AND h.stage > 0
        ) OR EXISTS (
            SELECT 1 FROM ergon_job_keys AS k JOIN ergon_jobs AS h ON h.seq = k.job
            WHERE k.key = coalesce(j.unique_key, {waiting_key})
                AND k.until IS NULL AND h.stage > 1 AND h.seq <> j.seq
        )
    ),
    coalesce(j.lease_expires_at <= {now}, false), j.stage = 1 AND j.why <> '', {now}
FROM ergon_jobs AS j WHERE j.seq = ANY(%(seqs)s::bigint[])
ORDER BY j.seq FOR NO KEY UPDATE;

-- closed_joins: those of these joins that have predecessors left
SELECT id FROM ergon_flow_joins WHERE id = ANY(%(ids)s::text[]) AND remaining > 0;

-- move_steps: transitions of steps that were read and locked before. A signal that came before a step
-- was reached stays with the step, also while that is cancelled
WITH moved AS (
    UPDATE ergon_jobs AS j SET
        stage = s.stage, status = s.status, attempts = s.attempts, excused = s.excused,
        is_charged = false, is_solo = s.is_solo, why = s.why,
        result = coalesce(s.result, CASE WHEN j.signal IS NOT NULL THEN j.result END),
        run_at = CASE
            WHEN s.stage = 0 THEN j.run_at
            WHEN s.is_back AND s.stage = 5 THEN j.created_at
            ELSE %(now)s::float8 + s.delay
        END,
        purge_at = NULL, changed_at = %(now)s::float8,
        lease_expires_at = NULL, claimed_at = NULL, worker = NULL,
        deliveries = CASE WHEN s.is_back THEN 0 ELSE j.deliveries END,
        expires_at = CASE
            WHEN NOT s.is_back THEN j.expires_at
            WHEN s.stage = 6 THEN %(now)s::float8 + j.wait
        END,
        last_error = CASE WHEN s.is_back THEN s.failure ELSE coalesce(s.failure, j.last_error) END,
        history = coalesce(j.history || chr(10), '') || s.entry,
        feeds = s.feeds, executor = coalesce(s.lane, j.executor),
        join_id = CASE WHEN s.is_back AND s.stage <> 5 THEN NULL ELSE j.join_id END
    FROM unnest(
        %(seqs)s::bigint[], %(stages)s::int[], %(statuses)s::text[], %(attempts)s::int[],
        %(excuses)s::int[], %(solos)s::bool[], %(whys)s::text[], %(delays)s::float8[],
        %(results)s::bytea[], %(failures)s::text[], %(entries)s::text[], %(backs)s::bool[],
        %(feeds)s::text[], %(lanes)s::text[]
    ) AS s (
        seq, stage, status, attempts, excused, is_solo, why, delay, result, failure, entry, is_back,
        feeds, lane
    )
    WHERE j.seq = s.seq
    RETURNING j.seq, j.limit_key, {long_history} AS history
)
SELECT
    seq, limit_key, history,
    EXISTS (SELECT 1 FROM ergon_queues WHERE max_active IS NOT NULL)
FROM moved;

-- insert_steps: new steps, in the order given. One that waits for others is due from its release on.
INSERT INTO ergon_jobs (
    stage, status, created_at, changed_at, run_at, queue, executor, priority, id, handler, args,
    kwargs, expires_at, unique_key, limit_key, key_limit, options, flow_id, join_id, feeds, wait,
    signal
)
SELECT
    CASE
        WHEN n.join_id IS NOT NULL THEN 5
        WHEN n.signal IS NOT NULL THEN 6
        WHEN coalesce(n.run_at, t.now + n.delay) <= t.now THEN 2
        ELSE 3
    END,
    'pending', t.now, t.now,
    coalesce(n.run_at, CASE WHEN n.join_id IS NULL THEN t.now + n.delay ELSE t.now END),
    n.queue, n.executor, n.priority, n.id, n.handler, n.args, n.kwargs,
    CASE
        WHEN n.signal IS NULL THEN n.expires_at WHEN n.join_id IS NULL THEN t.now + n.wait
    END,
    n.unique_key, n.limit_key, n.key_limit, n.options, n.flow_id, n.join_id, n.feeds,
    CASE
        WHEN n.signal IS NULL AND n.join_id IS NOT NULL THEN nullif(n.delay, 0) ELSE n.wait
    END,
    n.signal
FROM (SELECT {now} AS now) AS t, unnest(
    %(delays)s::float8[], %(run_ats)s::float8[], %(queues)s::text[], %(executors)s::text[],
    %(priorities)s::int[], %(ids)s::text[], %(handlers)s::text[], %(args)s::bytea[],
    %(kwargs)s::bytea[], %(expiries)s::float8[], %(unique_keys)s::text[], %(limit_keys)s::text[],
    %(limits)s::int[], %(options)s::text[], %(flow_ids)s::text[], %(join_ids)s::text[],
    %(feeds)s::text[], %(waits)s::float8[], %(signals)s::text[]
) AS n (
    delay, run_at, queue, executor, priority, id, handler, args, kwargs, expires_at, unique_key,
    limit_key, key_limit, options, flow_id, join_id, feeds, wait, signal
);

-- flow: one flow
SELECT {flow_columns}
FROM ergon_flows WHERE id = %(id)s;

-- lock_flow: the same, and nobody else changes it until this transaction ends
SELECT {flow_columns}
FROM ergon_flows WHERE id = %(id)s FOR NO KEY UPDATE;

-- flows: the newest
SELECT {flow_columns}, seq
FROM ergon_flows WHERE seq < %(below)s ORDER BY seq DESC LIMIT %(limit)s;

-- flows_in: the newest of each of these statuses
SELECT f.* FROM unnest(%(statuses)s::text[]) AS s (status) CROSS JOIN LATERAL (
    SELECT {flow_columns}, seq
    FROM ergon_flows WHERE status = s.status AND seq < %(below)s ORDER BY seq DESC LIMIT %(limit)s
) AS f;

-- insert_flow: a new one
INSERT INTO ergon_flows ({flow_columns}) VALUES ({flow_values});

-- update_flow: where it stands
UPDATE ergon_flows SET
    status = %(status)s, unfinished = %(unfinished)s, completed = %(completed)s,
    failed = %(failed)s, cancelled = %(cancelled)s, uncounted = %(uncounted)s, keep = %(keep)s,
    purge_at = %(purge_at)s, changed_at = %(changed_at)s
WHERE id = %(id)s;

-- update_flows: the same of many
UPDATE ergon_flows AS f SET
    status = n.status, unfinished = n.unfinished, completed = n.completed, failed = n.failed,
    cancelled = n.cancelled, uncounted = n.uncounted, keep = n.keep, purge_at = n.purge_at,
    changed_at = n.changed_at
FROM unnest(
    %(ids)s::text[], %(statuses)s::text[], %(unfinished)s::bigint[], %(completed)s::bigint[],
    %(failed)s::bigint[], %(cancelled)s::bigint[], %(uncounted)s::bigint[], %(keeps)s::float8[],
    %(purges)s::float8[], %(changes)s::float8[]
) AS n (
    id, status, unfinished, completed, failed, cancelled, uncounted, keep, purge_at, changed_at
)
WHERE f.id = n.id;

-- insert_joins: new ones, in the order given
INSERT INTO ergon_flow_joins (id, flow_id, remaining, members)
SELECT n.id, n.flow_id, n.remaining, n.members FROM unnest(
    %(ids)s::text[], %(flow_ids)s::text[], %(remaining)s::bigint[], %(members)s::bytea[]
) AS n (id, flow_id, remaining, members);

-- joins: of a flow
SELECT id, flow_id, remaining, members FROM ergon_flow_joins
WHERE flow_id = %(flow_id)s ORDER BY seq;

-- count_at: predecessors have counted
UPDATE ergon_flow_joins AS j SET remaining = j.remaining - c.number
FROM unnest(%(ids)s::text[], %(numbers)s::bigint[]) AS c (id, number)
WHERE j.id = c.id RETURNING j.id, j.remaining;

-- open_joins: nobody is left to wait for
SELECT id FROM ergon_flow_joins WHERE flow_id = %(flow_id)s AND remaining = 0 ORDER BY seq;

-- release: the first steps that wait at joins. A due time that nobody asked for is when the step was
-- added, and must not keep it where the clock ran ahead then
UPDATE ergon_jobs AS j SET
    stage = CASE
        WHEN j.signal IS NOT NULL THEN 6
        WHEN greatest(
            CASE WHEN j.run_at > j.created_at THEN j.run_at END, %(now)s::float8 + coalesce(j.wait, 0)
        ) <= %(now)s::float8 THEN 2
        ELSE 3
    END,
    run_at = CASE
        WHEN j.signal IS NULL THEN greatest(
            CASE WHEN j.run_at > j.created_at THEN j.run_at END, %(now)s::float8 + coalesce(j.wait, 0)
        )
        ELSE %(now)s::float8
    END,
    expires_at = CASE WHEN j.signal IS NULL THEN j.expires_at ELSE %(now)s::float8 + j.wait END,
    join_id = NULL, changed_at = %(now)s::float8
WHERE j.ctid = ANY(ARRAY(
    SELECT s.ctid FROM unnest(%(joins)s::text[]) AS n (id) CROSS JOIN LATERAL (
        SELECT ctid FROM ergon_jobs
        WHERE stage = 5 AND (join_id, seq) > (n.id, 0) AND join_id <= n.id
        ORDER BY join_id, seq LIMIT %(limit)s FOR NO KEY UPDATE
    ) AS s LIMIT %(limit)s
))
RETURNING j.seq, j.id, j.status, j.fence, j.attempts, j.deliveries, j.excused, j.queue, j.signal,
    CASE WHEN j.signal IS NOT NULL THEN j.result END;

-- waiting: steps that have not ended and do not run; nobody claims them until this transaction ends
SELECT seq, id, status, fence, attempts, deliveries, excused, queue FROM ergon_jobs
WHERE flow_id IS NOT NULL AND (flow_id, seq) > (%(flow_id)s, %(after)s) AND flow_id <= %(flow_id)s
    AND stage > 1
ORDER BY flow_id, seq LIMIT %(limit)s FOR NO KEY UPDATE;

-- ended_badly: steps that failed or were cancelled
SELECT seq, id, status, fence, attempts, deliveries, excused, queue, why, feeds FROM ergon_jobs
WHERE flow_id IS NOT NULL AND (flow_id, seq) > (%(flow_id)s, %(after)s) AND flow_id <= %(flow_id)s
    AND stage = 0 AND status IN ('failed', 'cancelled')
ORDER BY flow_id, seq LIMIT %(limit)s;

-- set_feeds: where its end counts
UPDATE ergon_jobs SET feeds = %(feeds)s WHERE seq = %(seq)s;

-- predecessors: the jobs of these ids; nobody else changes them until this transaction ends
SELECT seq, id, status, flow_id, feeds, why FROM ergon_jobs
WHERE seq = ANY(ARRAY(SELECT j.seq FROM ergon_jobs AS j WHERE j.id = ANY(%(ids)s::text[])))
    AND status <> 'unreadable'
ORDER BY seq FOR NO KEY UPDATE;

-- adopt: a job is a step from now on
UPDATE ergon_jobs SET flow_id = %(flow_id)s, feeds = %(feeds)s, purge_at = NULL
WHERE seq = %(seq)s;

-- signals: the steps that wait for a signal or will, each with its limit and with what is kept for it
SELECT seq, id, status, fence, attempts, deliveries, excused, queue, stage = 6, expires_at, result
FROM ergon_jobs
WHERE stage > 4 AND signal IS NOT NULL
    AND (flow_id, signal, seq) > (%(flow_id)s, %(name)s, 0)
    AND (flow_id, signal) <= (%(flow_id)s, %(name)s)
ORDER BY flow_id, signal, seq FOR NO KEY UPDATE;

-- keep_signal: for a step that has not been reached
UPDATE ergon_jobs SET result = %(value)s WHERE seq = %(seq)s;

-- results: of jobs
SELECT id, result FROM ergon_jobs
WHERE id = ANY(%(ids)s::text[]) AND status = 'completed' AND result IS NOT NULL;

-- first_work: something that is left to be done, to a flow that nobody else changes now
SELECT w.target, w.kind, w.after
FROM ergon_flow_work AS w JOIN ergon_flows AS f ON f.id = w.flow_id
ORDER BY w.seq LIMIT 1 FOR NO KEY UPDATE OF f SKIP LOCKED;

-- work_of: what is left to be done to the steps at a join or of a flow
SELECT target, kind, after FROM ergon_flow_work WHERE target = %(target)s;

-- drop_work: nothing is left there
DELETE FROM ergon_flow_work WHERE target = %(target)s;

-- put_work: how far it has come; other work has its turn first
INSERT INTO ergon_flow_work (target, flow_id, kind, after)
VALUES (%(target)s, %(flow_id)s, %(kind)s, %(after)s);

-- kept_long_enough: flows whose steps may go, and which nobody else changes now
SELECT id FROM ergon_flows WHERE purge_at IS NOT NULL AND purge_at <= {now}
ORDER BY purge_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED;

-- prunable_flows: flows whose steps may go, whole
SELECT {flow_columns}
FROM ergon_flows WHERE purge_at IS NOT NULL AND purge_at <= {now}
ORDER BY purge_at LIMIT %(limit)s;

-- purge_steps: some steps of a flow
DELETE FROM ergon_jobs WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM ergon_jobs
    WHERE flow_id IS NOT NULL AND (flow_id, seq) > (%(flow_id)s, 0) AND flow_id <= %(flow_id)s
    ORDER BY flow_id, seq LIMIT %(limit)s FOR UPDATE
));

-- purge_joins: those of a flow
DELETE FROM ergon_flow_joins WHERE flow_id = %(flow_id)s;

-- purge_work: what is left to be done to a flow
DELETE FROM ergon_flow_work WHERE flow_id = %(flow_id)s;

-- purge_flow: a flow without steps
DELETE FROM ergon_flows WHERE id = %(flow_id)s;


-- now: what time it is
SELECT {now};

-- step_holders: the steps that hold these unique keys
SELECT seq FROM ergon_jobs
WHERE unique_key = ANY(%(keys)s::text[]) AND unique_key IS NOT NULL AND stage > 0
    AND feeds IS NOT NULL;

-- lock_flows_of_holders: the flows whose steps hold these unique keys; nobody else changes them until
-- this transaction ends
SELECT id FROM ergon_flows
WHERE id = ANY(ARRAY(
    SELECT j.flow_id FROM ergon_jobs AS j
    WHERE j.unique_key = ANY(%(keys)s::text[]) AND j.unique_key IS NOT NULL AND j.stage > 0
        AND j.feeds IS NOT NULL
))
ORDER BY id FOR NO KEY UPDATE;
