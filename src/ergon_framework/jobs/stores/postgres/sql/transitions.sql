-- Steps of flows are passed over: flows.sql has the statements for those.
-- A job is looked up by its number and nothing else: `status` stands in no index of running jobs,
-- so that the planner is not tempted by those.

-- complete: the usual end of running jobs
UPDATE ergon_jobs AS j SET
    stage = 0, status = 'completed', attempts = s.attempts, excused = s.excused,
    is_charged = false, is_solo = false, why = '', result = s.result,
    purge_at = t.now + s.keep, changed_at = t.now,
    lease_expires_at = NULL, claimed_at = NULL, worker = NULL,
    history = CASE
        WHEN j.history IS NULL THEN s.entry ELSE j.history || chr(10) || s.entry
    END
FROM (SELECT {now} AS now) AS t, unnest(
    %(seqs)s::bigint[], %(ids)s::text[], %(fences)s::bigint[], %(attempts)s::int[],
    %(excuses)s::int[], %(results)s::bytea[], %(keeps)s::float8[], %(entries)s::text[]
) AS s (seq, id, fence, attempts, excused, result, keep, entry)
WHERE j.seq = s.seq AND j.id = s.id AND j.fence = s.fence AND j.status = 'active'
    AND j.feeds IS NULL
RETURNING
    j.seq, j.limit_key, NULL,
    (SELECT EXISTS (SELECT 1 FROM ergon_queues WHERE max_active IS NOT NULL));

-- move: any move of any jobs; one that had ended does not come back while its key is held, and one
-- whose cancellation was requested while it ran does not wait again
WITH moved AS (
    UPDATE ergon_jobs AS j SET
        stage = s.stage, status = s.status, attempts = s.attempts, excused = s.excused,
        is_charged = false, is_solo = s.is_solo, why = s.why, result = s.result,
        executor = coalesce(s.lane, j.executor),
        run_at = CASE WHEN s.stage = 0 THEN j.run_at ELSE t.now + s.delay END,
        purge_at = t.now + s.keep, changed_at = t.now,
        lease_expires_at = NULL, claimed_at = NULL, worker = NULL,
        deliveries = CASE WHEN s.is_reset THEN 0 ELSE j.deliveries END,
        expires_at = CASE WHEN s.is_reset THEN NULL ELSE j.expires_at END,
        last_error = CASE WHEN s.is_reset THEN s.failure ELSE coalesce(s.failure, j.last_error) END,
        history = coalesce(j.history || chr(10), '') || s.entry
    FROM (SELECT {now} AS now) AS t, unnest(
        %(seqs)s::bigint[], %(ids)s::text[], %(fences)s::bigint[], %(expected)s::text[],
        %(rescues)s::bool[], %(stages)s::int[], %(statuses)s::text[], %(attempts)s::int[],
        %(excuses)s::int[], %(solos)s::bool[], %(whys)s::text[], %(delays)s::float8[],
        %(results)s::bytea[], %(keeps)s::float8[], %(failures)s::text[], %(entries)s::text[],
        %(resets)s::bool[], %(lanes)s::text[]
    ) AS s (
        seq, id, fence, expected, is_rescue, stage, status, attempts, excused, is_solo, why, delay,
        result, keep, failure, entry, is_reset, lane
    )
    WHERE j.seq = s.seq AND j.id = s.id AND j.fence = s.fence AND j.status = s.expected
        AND j.feeds IS NULL
        AND (NOT s.is_rescue OR j.lease_expires_at <= t.now)
        AND (s.stage = 0 OR s.expected <> 'active' OR j.why = '')
        AND NOT (
            s.expected IN ('completed', 'failed', 'cancelled') AND j.unique_key IS NOT NULL
            AND EXISTS (
                SELECT 1 FROM ergon_jobs AS h
                WHERE h.unique_key = j.unique_key AND h.unique_key IS NOT NULL AND h.stage > 0
            )
        )
        AND NOT (
            s.expected IN ('completed', 'failed', 'cancelled') AND EXISTS (
                SELECT 1 FROM ergon_job_keys AS k JOIN ergon_jobs AS h ON h.seq = k.job
                WHERE k.key = coalesce(j.unique_key, {waiting_key})
                    AND k.until IS NULL AND h.stage > 1 AND h.seq <> j.seq
            )
        )
        AND NOT (
            s.expected IN ('completed', 'failed', 'cancelled') AND j.unique_key IS NULL
            AND EXISTS (
                SELECT 1 FROM ergon_jobs AS h
                WHERE h.unique_key = {waiting_key} AND h.unique_key IS NOT NULL AND h.stage > 0
            )
        )
    RETURNING j.seq, j.limit_key, {long_history} AS history
)
SELECT
    seq, limit_key, history,
    EXISTS (SELECT 1 FROM ergon_queues WHERE max_active IS NOT NULL)
FROM moved;

-- take_keys_back: jobs that came back have the unique keys again that they hold while they wait
INSERT INTO ergon_job_keys (key, job, states, until)
SELECT {waiting_key}, j.seq, '[]', NULL FROM ergon_jobs AS j
WHERE j.seq = ANY(%(seqs)s::bigint[]) AND j.stage > 1 AND {waiting_key} IS NOT NULL
ON CONFLICT (key) DO UPDATE SET job = excluded.job, states = excluded.states, until = NULL
WHERE NOT EXISTS (SELECT 1 FROM ergon_jobs AS h WHERE h.seq = ergon_job_keys.job AND h.stage > 1);

-- request_cancel: note that a running job is to be cancelled; the first request stays
UPDATE ergon_jobs SET why = CASE WHEN why = '' THEN %(note)s ELSE why END
WHERE seq = %(seq)s AND id = %(id)s AND fence = %(fence)s AND status = 'active'
RETURNING seq;

-- cancel_requests: of these claims
SELECT j.id, j.why FROM unnest(
    %(seqs)s::bigint[], %(ids)s::text[], %(fences)s::bigint[]
) AS c (seq, id, fence)
CROSS JOIN LATERAL (
    SELECT id, why FROM ergon_jobs AS j
    WHERE j.seq = c.seq AND j.id = c.id AND j.fence = c.fence AND j.status = 'active'
        AND j.why <> ''
) AS j;

-- set_history: the shortened one, unless the job was moved since
UPDATE ergon_jobs SET history = %(history)s
WHERE seq = %(seq)s AND history = %(long)s;

-- were_applied: which of these moves stand in their jobs' histories, with the limit keys
SELECT s.place, j.limit_key FROM unnest(
    %(seqs)s::bigint[], %(ids)s::text[], %(entries)s::text[]
) WITH ORDINALITY AS s (seq, id, entry, place)
CROSS JOIN LATERAL (
    SELECT limit_key FROM ergon_jobs AS j
    WHERE j.seq = s.seq AND j.id = s.id
        AND position(chr(10) || s.entry || chr(10) IN chr(10) || j.history || chr(10)) > 0
) AS j;

-- lock_keys: whoever wakes jobs of these limit keys, and will not come back to it, waits here for
-- the others; the order is the same for all
SELECT pg_advisory_xact_lock(%(class)s::int, number) FROM (
    SELECT DISTINCT hashtext(key) AS number
    FROM unnest(%(keys)s::text[]) AS k (key) ORDER BY number
) AS k;

-- try_keys: those of these limit keys that nobody else holds; they are held until this transaction
-- ends
SELECT key FROM unnest(%(keys)s::text[]) AS k (key)
WHERE pg_try_advisory_xact_lock(%(class)s::int, hashtext(key));

-- wake: of each lane the first jobs that a limit key lets go; where the queue limits its keys itself,
-- those are to be judged by a claim, unless they wait for a token
WITH RECURSIVE keys (key, freed, running) AS MATERIALIZED (
    SELECT k.key, k.freed, (
        SELECT count(*) FROM (
            SELECT 1 FROM ergon_jobs
            WHERE stage = 1 AND limit_key IS NOT NULL AND limit_key BETWEEN k.key AND k.key
            ORDER BY limit_key
        ) AS r
    )
    FROM unnest(%(keys)s::text[], %(freed)s::int[]) AS k (key, freed)
), lanes (key, freed, running, queue, executor) AS (
    SELECT k.*, n.* FROM keys AS k CROSS JOIN LATERAL (
        SELECT queue, executor FROM ergon_jobs WHERE stage = 4 AND limit_key = k.key
        ORDER BY queue, executor LIMIT 1
    ) AS n
    UNION ALL
    SELECT l.key, l.freed, l.running, n.* FROM lanes AS l CROSS JOIN LATERAL (
        SELECT queue, executor FROM ergon_jobs
        WHERE stage = 4 AND limit_key = l.key AND (queue, executor) > (l.queue, l.executor)
        ORDER BY queue, executor LIMIT 1
    ) AS n
), firsts AS MATERIALIZED (
    SELECT f.spot FROM lanes AS l
    LEFT JOIN ergon_queues AS q
        ON q.name = l.queue AND (q.key_max_active IS NOT NULL OR q.key_rate IS NOT NULL)
    LEFT JOIN ergon_queue_keys AS w ON w.queue = q.name AND w.limit_key = l.key
        AND w.wakes_at > {now} AND w.wakes_at <= {now} + 1.0 / q.key_rate
    CROSS JOIN LATERAL (
        SELECT ctid AS spot FROM ergon_jobs
        WHERE stage = 4 AND limit_key = l.key AND queue = l.queue AND executor = l.executor
            AND (key_limit > l.running OR q.name IS NOT NULL) AND w.queue IS NULL
        ORDER BY priority DESC, run_at, seq LIMIT l.freed FOR NO KEY UPDATE SKIP LOCKED
    ) AS f
)
UPDATE ergon_jobs SET stage = 2 WHERE ctid = ANY(ARRAY(SELECT spot FROM firsts))
RETURNING seq;

-- blocked_keys: the first limit keys after another that somebody waits for
WITH RECURSIVE keys (key, n) AS (
    (
        SELECT limit_key, 1 FROM ergon_jobs
        WHERE stage = 4 AND limit_key > %(after)s ORDER BY limit_key LIMIT 1
    )
    UNION ALL
    SELECT n.limit_key, k.n + 1 FROM keys AS k CROSS JOIN LATERAL (
        SELECT limit_key FROM ergon_jobs
        WHERE stage = 4 AND limit_key > k.key ORDER BY limit_key LIMIT 1
    ) AS n
    WHERE k.n < %(limit)s
)
SELECT key FROM keys;
