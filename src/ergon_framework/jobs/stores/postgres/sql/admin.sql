-- A search is put together from what it wants, where it looks, and what must match.

-- jobs: want the jobs
SELECT {columns}

-- in_all: look everywhere
FROM ergon_jobs WHERE true

-- in_ids: look at some jobs
FROM ergon_jobs WHERE id = ANY(%(ids)s::text[])

-- in_seqs: look at rows by their numbers
FROM ergon_jobs WHERE seq = ANY(%(seqs)s::bigint[])

-- in_flow: look at the steps of one flow, as their index has them
FROM ergon_jobs WHERE flow_id IS NOT NULL
    AND (flow_id, seq) < (%(flow)s, %(below)s) AND flow_id >= %(flow)s

-- in_tag: look at those with a tag, as the index of tags has them
FROM ergon_job_tags JOIN ergon_jobs ON seq = job WHERE tag = %(label)s

-- in_due: look at those that could be claimed, and have not failed before
FROM ergon_jobs WHERE stage = 2 AND status = 'pending'

-- in_later: the same for those that wait for their time
FROM ergon_jobs WHERE stage = 3 AND status = 'pending'

-- in_blocked: the same for those that wait for their limit key
FROM ergon_jobs WHERE stage = 4 AND status = 'pending'

-- in_joining: the same for steps that wait for others
FROM ergon_jobs WHERE stage = 5 AND status = 'pending'

-- in_signalling: the same for steps that wait for a signal
FROM ergon_jobs WHERE stage = 6 AND signal IS NOT NULL AND status = 'pending'

-- in_completed: look at those that have ended well
FROM ergon_jobs WHERE stage = 0 AND status = 'completed'

-- in_running: look at those that run
FROM ergon_jobs WHERE stage = 1

-- in_failed: look at dead letters, as their index has them
FROM ergon_jobs WHERE stage = 0 AND status <> 'completed'
    AND (status, seq) < ('failed', %(below)s) AND status >= 'failed'

-- in_cancelled: the same for those that were cancelled
FROM ergon_jobs WHERE stage = 0 AND status <> 'completed'
    AND (status, seq) < ('cancelled', %(below)s) AND status >= 'cancelled'

-- in_retrying: look at those that failed and are tried again
FROM ergon_jobs WHERE stage > 1 AND status = 'retrying'

-- by_below: older than some job
AND seq < %(below)s

-- by_statuses: some states
AND status = ANY(%(statuses)s::text[])

-- not_aside: no row that was set aside
AND status <> 'unreadable'

-- by_queue: one queue
AND queue = %(queue)s

-- by_handler: one handler
AND handler = %(handler)s

-- by_flow: the steps of one flow
AND flow_id = %(flow)s

-- by_is_released: waiting for no step of its flow
AND join_id IS NULL

-- by_before: not moved for so long
AND changed_at < %(before)s

-- by_since: added then or later
AND created_at >= %(since)s

-- by_until: added before then
AND created_at < %(until)s

-- by_labels: with other tags
AND NOT EXISTS (
    SELECT FROM unnest(%(others)s::text[]) AS wanted (tag) WHERE NOT EXISTS (
        SELECT FROM ergon_job_tags AS has WHERE has.tag = wanted.tag AND has.job = seq
    )
)

-- by_below_tag: older than some job
AND job < %(below)s

-- by_few: only where all of them can be sorted, …
AND (SELECT is_so FROM few)

-- by_many: … or only where they cannot
AND NOT (SELECT is_so FROM few)

-- by_code: one code of the last failure, as it is written: JSON that is none must not end a search
AND strpos(replace(last_error, '\u0000', '�'), %(code)s) > 0

-- by_error: the same, or one kind of it
AND (
    strpos(replace(last_error, '\u0000', '�'), %(error_code)s) > 0
    OR strpos(last_error, %(error_kind)s) > 0
)

-- newest_tagged_first: one page in the order of the tags
ORDER BY job DESC LIMIT %(limit)s

-- newest_first: one page
ORDER BY seq DESC LIMIT %(limit)s

-- newest_dead_first: the same in an order that only their own index has
ORDER BY status DESC, seq DESC LIMIT %(limit)s

-- newest_step_first: the same for steps
ORDER BY flow_id DESC, seq DESC LIMIT %(limit)s

-- look_first: before anything is searched, whether these places hold few jobs
WITH few (is_so) AS MATERIALIZED (SELECT

-- few: a place holds few
(SELECT count(*) FROM (SELECT FROM ergon_jobs WHERE stage = {stage} LIMIT %(few)s + 1) AS s) <= %(few)s

-- then_find: the same as the next, after that
), found AS MATERIALIZED (

-- find_first: few are found before they are put in order, so that no index of all is tempting
WITH found AS MATERIALIZED (

-- then_newest: one page of what was found
)
SELECT {columns} FROM (
    SELECT place FROM found WHERE place < %(below)s ORDER BY place DESC LIMIT %(limit)s
) AS f JOIN ergon_jobs ON seq = place
ORDER BY place DESC

-- purge: jobs that have ended and were not moved since
DELETE FROM ergon_jobs AS j USING unnest(
    %(seqs)s::bigint[], %(ids)s::text[], %(fences)s::bigint[], %(statuses)s::text[],
    %(finished)s::float8[]
) AS d (seq, id, fence, status, finished_at)
WHERE j.seq = d.seq AND j.id = d.id AND j.fence = d.fence AND j.status = d.status
    AND j.changed_at = d.finished_at AND d.status IN ('completed', 'failed', 'cancelled')
    AND j.feeds IS NULL;

-- any_keys: whether any job may hold its unique key after its end
SELECT 1 FROM ergon_job_keys LIMIT 1;

-- ended_groups: the queues and states in which jobs have ended, from one to the next in their index
WITH RECURSIVE groups (queue, status) AS (
    (SELECT queue, status FROM ergon_jobs WHERE stage = 0 ORDER BY queue, status LIMIT 1)
    UNION ALL
    SELECT n.* FROM groups AS g CROSS JOIN LATERAL (
        SELECT queue, status FROM ergon_jobs
        WHERE stage = 0 AND (queue, status) > (g.queue, g.status) ORDER BY queue, status LIMIT 1
    ) AS n
)

-- kept_long_enough: of each of them the jobs whose retention is over
{ended_groups}, due AS MATERIALIZED (
    SELECT d.spot FROM groups AS g CROSS JOIN LATERAL (
        SELECT ctid AS spot FROM ergon_jobs
        WHERE stage = 0 AND queue = g.queue AND status = g.status AND purge_at <= {now}
        ORDER BY purge_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS d LIMIT %(limit)s
)

-- holds_its_key: whether the ended job j holds its unique key; where no job does, it is asked once
(SELECT EXISTS (SELECT 1 FROM ergon_job_keys)) AND EXISTS (
    SELECT 1 FROM ergon_job_keys AS k
    WHERE k.job = j.seq AND k.until > {now}
        AND position('"' || j.status || '"' IN k.states) > 0
)

-- keep_holders: of these, those that hold their unique keys are kept until they do so no more
{kept_long_enough}
UPDATE ergon_jobs AS j SET purge_at = k.until FROM ergon_job_keys AS k
WHERE j.ctid = ANY(ARRAY(SELECT spot FROM due)) AND k.job = j.seq AND k.until > {now}
    AND position('"' || j.status || '"' IN k.states) > 0;

-- erase: what jobs tell that have ended and were not moved since; how many
WITH erased AS (
    UPDATE ergon_jobs AS j SET
        args = '[]'::bytea, kwargs = '{}'::bytea, result = NULL, last_error = d.failure,
        history = d.history, options = d.options, unique_key = NULL, limit_key = NULL
    FROM unnest(
        %(seqs)s::bigint[], %(ids)s::text[], %(fences)s::bigint[], %(statuses)s::text[],
        %(finished)s::float8[], %(failures)s::text[], %(histories)s::text[], %(options)s::text[]
    ) AS d (seq, id, fence, status, finished_at, failure, history, options)
    WHERE j.seq = d.seq AND j.id = d.id AND j.fence = d.fence AND j.status = d.status
        AND j.changed_at = d.finished_at AND d.status IN ('completed', 'failed', 'cancelled')
    RETURNING j.seq
), untagged AS (
    DELETE FROM ergon_job_tags WHERE job = ANY(ARRAY(SELECT seq FROM erased))
), freed AS (
    DELETE FROM ergon_job_keys WHERE job = ANY(ARRAY(SELECT seq FROM erased))
)
SELECT count(*) FROM erased;

-- purge_due: those that have been kept long enough, and hold no unique key
{kept_long_enough}
DELETE FROM ergon_jobs AS j
WHERE ctid = ANY(ARRAY(SELECT spot FROM due)) AND NOT (
    {holds_its_key}
);

-- prunable: the same jobs with all that they have
{ended_groups}
SELECT d.* FROM groups AS g CROSS JOIN LATERAL (
    SELECT {columns} FROM ergon_jobs AS j
    WHERE stage = 0 AND queue = g.queue AND status = g.status AND purge_at <= {now} AND NOT (
        {holds_its_key}
    )
    ORDER BY purge_at LIMIT %(limit)s
) AS d LIMIT %(limit)s;

-- outdated: those that were not started in time; nobody moves them before this transaction ends
SELECT seq, id, status, fence, attempts, deliveries, excused, queue, {now} FROM ergon_jobs
WHERE stage > 1 AND expires_at IS NOT NULL AND expires_at <= {now}
ORDER BY expires_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED;

-- count_due: by queue, with the oldest
SELECT queue, 'waiting', count(*), min(run_at) FROM ergon_jobs WHERE stage = 2 GROUP BY queue;

-- count_later: by queue, with the oldest
SELECT queue, 'waiting', count(*), min(run_at) FROM ergon_jobs WHERE stage = 3 GROUP BY queue;

-- count_blocked: by queue, with the oldest
SELECT queue, 'waiting', count(*), min(run_at) FROM ergon_jobs WHERE stage = 4 GROUP BY queue;

-- count_joining: by queue; they wait for other steps
SELECT queue, 'waiting', count(*), NULL::float8 FROM ergon_jobs WHERE stage = 5 GROUP BY queue;

-- count_signalling: by queue; they wait for signals
SELECT queue, 'waiting', count(*), NULL::float8 FROM ergon_jobs
WHERE stage = 6 AND signal IS NOT NULL GROUP BY queue;

-- count_running: by queue
SELECT queue, 'active', count(*), NULL::float8 FROM ergon_jobs WHERE stage = 1 GROUP BY queue;

-- count_ended: by queue and status
SELECT queue, status, count(*), NULL::float8 FROM ergon_jobs WHERE stage = 0 GROUP BY queue, status;

-- count_retrying: by queue; they are among those that wait
SELECT queue, status, count(*), NULL::float8 FROM ergon_jobs
WHERE stage > 1 AND status = 'retrying' GROUP BY queue, status;

-- queues: those with settings
SELECT
    name, is_paused, max_active, rate, burst, full_at, key_max_active, key_rate, key_burst,
    pinned_version
FROM ergon_queues;

-- pinned_queues: the versions that queues are pinned to
SELECT name, pinned_version FROM ergon_queues WHERE pinned_version IS NOT NULL;

-- queue: the settings of one; nobody else changes them before this transaction ends
SELECT
    is_paused, max_active, rate, burst, full_at, key_max_active, key_rate, key_burst,
    pinned_version, {now}
FROM ergon_queues WHERE name = %(name)s FOR UPDATE;

-- touch_queue: there is a row for it, which can be locked
INSERT INTO ergon_queues (name) VALUES (%(name)s) ON CONFLICT (name) DO NOTHING;

-- set_queue: the settings of one
UPDATE ergon_queues SET
    is_paused = %(is_paused)s, max_active = %(max_active)s, rate = %(rate)s, burst = %(burst)s,
    full_at = %(full_at)s, key_max_active = %(key_max_active)s, key_rate = %(key_rate)s,
    key_burst = %(key_burst)s, pinned_version = %(pinned_version)s
WHERE name = %(name)s;

-- drop_keys: the limit keys of a queue have no rate any more
DELETE FROM ergon_queue_keys WHERE queue = %(name)s;

-- forget_keys: limit keys whose buckets are full again
DELETE FROM ergon_queue_keys WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM ergon_queue_keys WHERE wakes_at IS NULL AND full_at <= {now}
    ORDER BY full_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
));

-- unset_queue: it has no settings any more
DELETE FROM ergon_queues WHERE name = %(name)s;

-- tell: a worker lives
INSERT INTO ergon_workers (id, seen_at, record) VALUES (%(id)s, {now}, %(record)s)
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, record = excluded.record;

-- tell_executors: a worker has these; the empty name is kept as it is
INSERT INTO ergon_executors (name, seen_at)
SELECT n.name, {now} FROM unnest(%(names)s::text[]) AS n (name) ORDER BY n.name
ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at WHERE ergon_executors.name <> '';

-- seen_executors: when each was last seen
SELECT name, seen_at FROM ergon_executors;

-- named: the executors that due jobs name, and the queues of these jobs
WITH RECURSIVE lanes (executor, queue) AS (
    (
        SELECT executor, queue FROM ergon_jobs WHERE stage = 2 AND executor > ''
        ORDER BY executor, queue LIMIT 1
    )
    UNION ALL
    SELECT n.executor, n.queue FROM lanes AS l CROSS JOIN LATERAL (
        SELECT executor, queue FROM ergon_jobs
        WHERE stage = 2 AND (executor, queue) > (l.executor, l.queue)
        ORDER BY executor, queue LIMIT 1
    ) AS n
)
SELECT executor, queue FROM lanes;

-- waiting_for: due jobs for one executor that have waited for long
SELECT {columns} FROM ergon_jobs
WHERE stage = 2 AND executor = %(executor)s AND run_at < %(due_before)s::float8
ORDER BY queue, priority DESC, run_at, seq LIMIT %(limit)s;

-- gone: a worker has left
DELETE FROM ergon_workers WHERE id = %(id)s;

-- workers: all of them
SELECT id, seen_at, record FROM ergon_workers ORDER BY id;

-- forget_workers: those that have not been heard of for long
DELETE FROM ergon_workers WHERE seen_at < {now} - %(age)s::float8;

-- key_wakes_at: when jobs that wait for a token of a limit key are due again
SELECT wakes_at FROM ergon_queue_keys WHERE queue = %(queue)s AND limit_key = %(limit_key)s;
