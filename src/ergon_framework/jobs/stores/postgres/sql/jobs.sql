-- insert: new jobs, in the order given; a single statement, all of them or none
INSERT INTO ergon_jobs (
    stage, status, created_at, changed_at, run_at, queue, executor, priority, id, handler,
    args, kwargs, expires_at, unique_key, limit_key, key_limit, options
)
SELECT
    CASE WHEN coalesce(n.run_at, t.now + n.delay) <= t.now THEN 2 ELSE 3 END, 'pending',
    t.now, t.now, coalesce(n.run_at, t.now + n.delay),
    n.queue, n.executor, n.priority, n.id, n.handler, n.args, n.kwargs,
    n.expires_at, n.unique_key, n.limit_key, n.key_limit, n.options
FROM (SELECT {now} AS now) AS t, unnest(
    %(delays)s::float8[], %(run_ats)s::float8[], %(queues)s::text[], %(executors)s::text[],
    %(priorities)s::int[], %(ids)s::text[], %(handlers)s::text[], %(args)s::bytea[],
    %(kwargs)s::bytea[], %(expiries)s::float8[], %(unique_keys)s::text[], %(limit_keys)s::text[],
    %(limits)s::int[], %(options)s::text[]
) AS n (
    delay, run_at, queue, executor, priority, id, handler, args, kwargs, expires_at, unique_key,
    limit_key, key_limit, options
);

-- insert_plain: the same for jobs that ask for nothing special
INSERT INTO ergon_jobs (
    stage, status, created_at, changed_at, run_at, queue, executor, priority, id, handler,
    args, kwargs
)
SELECT
    CASE WHEN coalesce(n.run_at, t.now + n.delay) <= t.now THEN 2 ELSE 3 END, 'pending',
    t.now, t.now, coalesce(n.run_at, t.now + n.delay),
    n.queue, n.executor, n.priority, n.id, n.handler, n.args, n.kwargs
FROM (SELECT {now} AS now) AS t, unnest(
    %(delays)s::float8[], %(run_ats)s::float8[], %(queues)s::text[], %(executors)s::text[],
    %(priorities)s::int[], %(ids)s::text[], %(handlers)s::text[], %(args)s::bytea[],
    %(kwargs)s::bytea[]
) AS n (delay, run_at, queue, executor, priority, id, handler, args, kwargs);

-- then_index: what the jobs of an insertion around it can be found by
INSERT INTO ergon_job_tags (tag, job)
SELECT l.tag, a.seq FROM unnest(%(label_ids)s::text[], %(labels)s::text[]) AS l (id, tag)
JOIN added AS a ON a.id = l.id;

-- index: the same for jobs that are there
INSERT INTO ergon_job_tags (tag, job)
SELECT l.tag, j.seq FROM unnest(%(label_ids)s::text[], %(labels)s::text[]) AS l (id, tag)
JOIN ergon_jobs AS j ON j.id = l.id;

-- taken_ids: which of these ids are there
SELECT id FROM ergon_jobs WHERE id = ANY(%(ids)s::text[]);

-- key_holders: who holds these unique keys
SELECT unique_key, seq, id, status, fence, attempts, deliveries, excused, queue, {now}
FROM ergon_jobs
WHERE unique_key = ANY(%(keys)s::text[]) AND unique_key IS NOT NULL AND stage > 0;

-- lock_holders: the same, and nobody moves them before this transaction ends
SELECT unique_key, seq, id, status, fence, attempts, deliveries, excused, queue, {now}
FROM ergon_jobs
WHERE unique_key = ANY(%(keys)s::text[]) AND unique_key IS NOT NULL AND stage > 0
ORDER BY unique_key FOR NO KEY UPDATE;

-- key_takers: who took these unique keys last, of jobs with a rule, and how long each holds its key
SELECT
    k.key, j.seq, j.id, j.status, j.fence, j.attempts, j.deliveries, j.excused, j.queue, {now},
    k.states, k.until
FROM ergon_job_keys AS k JOIN ergon_jobs AS j ON j.seq = k.job
WHERE k.key = ANY(%(keys)s::text[]) AND j.status <> 'unreadable';

-- lock_takers: the same, and nobody moves them before this transaction ends
SELECT
    k.key, j.seq, j.id, j.status, j.fence, j.attempts, j.deliveries, j.excused, j.queue, {now},
    k.states, k.until
FROM ergon_job_keys AS k JOIN ergon_jobs AS j ON j.seq = k.job
WHERE k.key = ANY(%(keys)s::text[]) AND j.status <> 'unreadable'
ORDER BY k.key FOR NO KEY UPDATE OF j;

-- lock_waiting_takers: those that wait, and hold their keys only while they do; they do not begin
-- before this transaction ends
SELECT 1 FROM ergon_job_keys AS k JOIN ergon_jobs AS j ON j.seq = k.job
WHERE k.key = ANY(%(keys)s::text[]) AND k.until IS NULL AND j.stage > 1
ORDER BY k.key FOR NO KEY UPDATE OF j;

-- take_free_keys: these jobs have taken keys that nobody has
INSERT INTO ergon_job_keys (key, job, states, until)
SELECT n.key, j.seq, n.states, j.created_at + n.period
FROM unnest(%(ids)s::text[], %(keys)s::text[], %(states)s::text[], %(periods)s::float8[])
    AS n (id, key, states, period)
JOIN ergon_jobs AS j ON j.id = n.id;

-- take_over_keys: the same, also from whoever has them
{take_free_keys}
ON CONFLICT (key) DO UPDATE SET job = excluded.job, states = excluded.states, until = excluded.until

-- take_keys: the same, not from another job than the one that was seen with it
{take_over_keys}
WHERE ergon_job_keys.job = ANY(%(seen)s::bigint[])
RETURNING key;

-- load_keys: the same for jobs that were put in, unless others took their keys after they were added
{take_over_keys}
WHERE (SELECT created_at FROM ergon_jobs WHERE seq = ergon_job_keys.job)
    <= (SELECT created_at FROM ergon_jobs WHERE seq = excluded.job);

-- due_at: when a job that waits is due
SELECT run_at, id, handler FROM ergon_jobs WHERE seq = %(seq)s;

-- extend: let a job that waits do so for longer, with other arguments
UPDATE ergon_jobs SET
    run_at = %(run_at)s::float8,
    stage = CASE
        WHEN stage > 4 THEN stage
        WHEN %(run_at)s::float8 > %(at)s::float8 THEN 3
        WHEN stage = 3 THEN 2
        ELSE stage
    END,
    changed_at = %(at)s::float8, expires_at = %(expires_at)s::float8,
    args = %(args)s, kwargs = %(kwargs)s
WHERE seq = %(seq)s
RETURNING limit_key;

-- renew: prolong leases; an attempt is charged once
UPDATE ergon_jobs AS j SET
    lease_expires_at = t.now + %(lease)s::float8,
    attempts = j.attempts + (h.is_charged AND NOT j.is_charged)::int,
    is_charged = j.is_charged OR h.is_charged
FROM (SELECT {now} AS now) AS t, (
    SELECT seq, id, fence, bool_or(is_charged) AS is_charged
    FROM unnest(
        %(seqs)s::bigint[], %(ids)s::text[], %(fences)s::bigint[], %(charges)s::bool[]
    ) AS u (seq, id, fence, is_charged)
    GROUP BY seq, id, fence ORDER BY seq
) AS h
WHERE j.seq = h.seq AND j.id = h.id AND j.fence = h.fence AND j.status = 'active'
RETURNING j.seq, j.id, j.fence;

-- overdue: running jobs that nobody renewed; of each queue the first, then of all
WITH RECURSIVE queues (name) AS (
    (SELECT queue FROM ergon_jobs WHERE stage = 1 ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT n.queue FROM queues AS q CROSS JOIN LATERAL (
        SELECT queue FROM ergon_jobs WHERE stage = 1 AND queue > q.name ORDER BY queue LIMIT 1
    ) AS n
)
SELECT j.* FROM queues AS q CROSS JOIN LATERAL (
    SELECT {columns} FROM ergon_jobs
    WHERE stage = 1 AND queue = q.name AND lease_expires_at <= {now}
    ORDER BY lease_expires_at, seq LIMIT %(limit)s
) AS j
ORDER BY j.lease_expires_at, j.seq LIMIT %(limit)s;

-- find: one job
SELECT {columns} FROM ergon_jobs WHERE id = %(id)s;

-- synced_later: what this transaction commits is a promise to nobody
SET LOCAL synchronous_commit = off;

-- notify: wake who listens
SELECT pg_notify(%(channel)s, '');

-- by_seq: one job
SELECT {columns} FROM ergon_jobs WHERE seq = %(seq)s;

-- set_aside: take rows that cannot be read out of everybody's way, as they are, but for a claim that
-- has just been made; they are never purged
UPDATE ergon_jobs AS j SET
    stage = 0, status = 'unreadable', changed_at = {now}, purge_at = NULL,
    deliveries = j.deliveries - o.is_claimed::int,
    why = json_build_object('status', CASE
        WHEN NOT o.is_claimed THEN j.status WHEN j.attempts > 0 THEN 'retrying' ELSE 'pending'
    END, 'problem', o.problem)::text
FROM unnest(%(seqs)s::bigint[], %(problems)s::text[], %(claimed)s::bool[])
    AS o (seq, problem, is_claimed)
WHERE j.seq = o.seq AND NOT (j.stage = 0 AND j.status = 'unreadable')
RETURNING j.seq;

-- aside: the rows that were set aside
SELECT {columns} FROM ergon_jobs
WHERE stage = 0 AND status <> 'completed' AND status = 'unreadable'
ORDER BY status DESC, seq DESC LIMIT %(limit)s;

-- lock_aside: one of them, which nobody else changes until this ends
SELECT {columns} FROM ergon_jobs
WHERE seq = %(seq)s AND stage = 0 AND status = 'unreadable' FOR NO KEY UPDATE;

-- put_back: a row that was set aside is where it was; a step waits for what it waited for
UPDATE ergon_jobs SET
    stage = CASE
        WHEN %(stage)s::int = 2 AND join_id IS NOT NULL THEN 5
        WHEN %(stage)s::int = 2 AND signal IS NOT NULL THEN 6
        WHEN %(stage)s::int = 2 AND run_at > {now} THEN 3
        ELSE %(stage)s::int
    END,
    status = %(status)s, why = ''
WHERE seq = %(seq)s;

-- discard: a row that was set aside is gone for good
DELETE FROM ergon_jobs WHERE seq = %(seq)s AND stage = 0 AND status = 'unreadable';

-- any_later: whether a lease ends later than any could that is renewed now
SELECT 1 FROM ergon_jobs
WHERE stage = 1 AND lease_expires_at > {now} + %(least)s::float8 LIMIT 1;

-- shorten: leases that end later than they could
UPDATE ergon_jobs AS j SET lease_expires_at = {now} + coalesce(
    (%(leases)s::float8[])[array_position(%(workers)s::text[], j.worker)], %(others)s::float8
)
WHERE j.stage = 1 AND j.lease_expires_at > {now} + coalesce(
    (%(leases)s::float8[])[array_position(%(workers)s::text[], j.worker)], %(others)s::float8
);

-- any_wait_from_later: whether a job went back to the queue at an instant that is yet to come
SELECT 1 FROM ergon_jobs
WHERE stage = 3 AND deliveries > 0 AND changed_at > {now} + %(skew)s::float8 LIMIT 1;

-- shorten_waits: such jobs wait from now on, for as long as was decided
UPDATE ergon_jobs SET run_at = run_at - changed_at + {now}, changed_at = {now}
WHERE stage = 3 AND deliveries > 0 AND changed_at > {now} + %(skew)s::float8;
