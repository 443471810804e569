-- Names of queues and counts of their jobs, by looks into indexes whose number has a bound. A count of
-- one queue ends one job above a bound: `most` is that one job, too.

-- due_executors: those that due jobs name, from one to the next
executors (executor) AS (
    (SELECT executor FROM ergon_jobs WHERE stage = 2 ORDER BY executor, queue LIMIT 1)
    UNION ALL
    SELECT n.executor FROM executors AS e CROSS JOIN LATERAL (
        SELECT executor FROM ergon_jobs WHERE stage = 2 AND executor > e.executor
        ORDER BY executor, queue LIMIT 1
    ) AS n
)

-- due_names: of each of them the queues with due jobs
{due_executors}, due (executor, name, number) AS (
    SELECT e.executor, n.queue, 1 FROM executors AS e CROSS JOIN LATERAL (
        SELECT queue FROM ergon_jobs
        WHERE stage = 2 AND executor = e.executor AND queue {from} %(first)s
        ORDER BY executor, queue LIMIT 1
    ) AS n
    UNION ALL
    SELECT d.executor, n.queue, d.number + 1 FROM due AS d CROSS JOIN LATERAL (
        SELECT queue FROM ergon_jobs
        WHERE stage = 2 AND executor = d.executor AND queue > d.name
        ORDER BY executor, queue LIMIT 1
    ) AS n WHERE d.number < %(limit)s
)

-- names_due: queues with jobs that are due, or wait for more than their time was
WITH RECURSIVE {due_names}
SELECT name FROM due
UNION
SELECT queue FROM (
    SELECT queue FROM ergon_jobs WHERE stage = 3 AND run_at <= {now}
    ORDER BY run_at LIMIT %(sample)s
) AS s
UNION
SELECT queue FROM (
    SELECT queue FROM ergon_jobs WHERE stage = 4 AND run_at <= {now} LIMIT %(sample)s
) AS s;

-- names: queues that have jobs or settings
WITH RECURSIVE {due_names}, running (name, number) AS (
    (
        SELECT queue, 1 FROM ergon_jobs WHERE stage = 1 AND queue {from} %(first)s
        ORDER BY queue LIMIT 1
    )
    UNION ALL
    SELECT n.queue, r.number + 1 FROM running AS r CROSS JOIN LATERAL (
        SELECT queue FROM ergon_jobs WHERE stage = 1 AND queue > r.name ORDER BY queue LIMIT 1
    ) AS n WHERE r.number < %(limit)s
), ended (name, number) AS (
    (
        SELECT queue, 1 FROM ergon_jobs WHERE stage = 0 AND queue {from} %(first)s
        ORDER BY queue, status LIMIT 1
    )
    UNION ALL
    SELECT n.queue, e.number + 1 FROM ended AS e CROSS JOIN LATERAL (
        SELECT queue FROM ergon_jobs WHERE stage = 0 AND queue > e.name
        ORDER BY queue, status LIMIT 1
    ) AS n WHERE e.number < %(limit)s
), kept AS (
    SELECT name FROM ergon_queues WHERE name {from} %(first)s ORDER BY name LIMIT %(limit)s
)
SELECT name FROM due
UNION SELECT name FROM running
UNION SELECT name FROM ended
UNION SELECT name FROM kept
UNION SELECT queue FROM (
    SELECT queue FROM ergon_jobs WHERE stage = 3 ORDER BY run_at LIMIT %(sample)s
) AS s
UNION SELECT queue FROM (
    SELECT queue FROM ergon_jobs WHERE stage = 4 LIMIT %(sample)s
) AS s
UNION SELECT queue FROM (
    SELECT queue FROM ergon_jobs WHERE stage = 5 LIMIT %(sample)s
) AS s
UNION SELECT queue FROM (
    SELECT queue FROM ergon_jobs WHERE stage = 6 AND signal IS NOT NULL LIMIT %(sample)s
) AS s;

-- of_status: how many jobs of a queue have ended in some way
(
    SELECT count(*) FROM (
        SELECT FROM ergon_jobs WHERE stage = 0 AND queue = q.name AND status = {status}
        ORDER BY purge_at LIMIT %(most)s
    ) AS s
)

-- told_apart: of some queues, the jobs whose state an index of queues has
SELECT q.name, {completed}, {failed}, {cancelled}, {unreadable}, (
    SELECT count(*) FROM (
        SELECT FROM ergon_jobs WHERE stage = 1 AND queue = q.name
        ORDER BY lease_expires_at LIMIT %(most)s
    ) AS s
) FROM unnest(%(names)s::text[]) AS q (name);

-- due: of each executor and some queues, with the oldest, from one priority to the next
WITH RECURSIVE {due_executors}
SELECT q.name, (
    SELECT count(*) FROM (
        SELECT FROM ergon_jobs WHERE stage = 2 AND executor = e.executor AND queue = q.name
        ORDER BY priority DESC, run_at LIMIT %(most)s
    ) AS s
), (
    WITH RECURSIVE firsts (priority, run_at, number) AS (
        (
            SELECT priority, run_at, 1 FROM ergon_jobs
            WHERE stage = 2 AND executor = e.executor AND queue = q.name
            ORDER BY priority DESC, run_at LIMIT 1
        )
        UNION ALL
        SELECT n.priority, n.run_at, f.number + 1 FROM firsts AS f CROSS JOIN LATERAL (
            SELECT priority, run_at FROM ergon_jobs
            WHERE stage = 2 AND executor = e.executor AND queue = q.name
                AND priority < f.priority
            ORDER BY priority DESC, run_at LIMIT 1
        ) AS n WHERE f.number < %(priorities)s
    )
    SELECT min(run_at) FROM firsts
) FROM executors AS e CROSS JOIN unnest(%(names)s::text[]) AS q (name);

-- samples: jobs that wait for anything but a worker, and those that are tried again, by queue
SELECT 'later', queue, count(*), min(run_at) FROM (
    SELECT queue, run_at FROM ergon_jobs WHERE stage = 3 ORDER BY run_at LIMIT %(sample)s
) AS s GROUP BY queue
UNION ALL
SELECT 'blocked', queue, count(*), min(run_at) FROM (
    SELECT queue, run_at FROM ergon_jobs WHERE stage = 4 LIMIT %(sample)s
) AS s GROUP BY queue
UNION ALL
SELECT 'joining', queue, count(*), NULL::float8 FROM (
    SELECT queue FROM ergon_jobs WHERE stage = 5 LIMIT %(sample)s
) AS s GROUP BY queue
UNION ALL
SELECT 'signalling', queue, count(*), NULL::float8 FROM (
    SELECT queue FROM ergon_jobs WHERE stage = 6 AND signal IS NOT NULL LIMIT %(sample)s
) AS s GROUP BY queue
UNION ALL
SELECT 'retrying', queue, count(*), NULL::float8 FROM (
    SELECT queue FROM ergon_jobs WHERE stage > 1 AND status = 'retrying' LIMIT %(sample)s
) AS s GROUP BY queue;

-- settings: of some queues
SELECT
    name, is_paused, max_active, rate, burst, full_at, key_max_active, key_rate, key_burst,
    pinned_version
FROM ergon_queues WHERE name = ANY(%(names)s::text[]);

-- whole: jobs of all queues that run, have not ended well, wait in some way, and are tried again
SELECT
    (SELECT count(*) FROM (SELECT FROM ergon_jobs WHERE stage = 1 LIMIT %(most)s) AS s),
    (SELECT count(*) FROM (
        SELECT FROM ergon_jobs WHERE stage = 0 AND status <> 'completed' AND status = 'failed'
        ORDER BY seq LIMIT %(most)s
    ) AS s),
    (SELECT count(*) FROM (
        SELECT FROM ergon_jobs WHERE stage = 0 AND status <> 'completed' AND status = 'cancelled'
        ORDER BY seq LIMIT %(most)s
    ) AS s),
    (SELECT count(*) FROM (
        SELECT FROM ergon_jobs WHERE stage = 0 AND status <> 'completed' AND status = 'unreadable'
        ORDER BY seq LIMIT %(most)s
    ) AS s),
    (SELECT count(*) FROM (SELECT FROM ergon_jobs WHERE stage = 2 LIMIT %(most)s) AS s),
    (SELECT count(*) FROM (SELECT FROM ergon_jobs WHERE stage = 3 LIMIT %(most)s) AS s),
    (SELECT count(*) FROM (SELECT FROM ergon_jobs WHERE stage = 4 LIMIT %(most)s) AS s),
    (SELECT count(*) FROM (SELECT FROM ergon_jobs WHERE stage = 5 LIMIT %(most)s) AS s),
    (SELECT count(*) FROM (
        SELECT FROM ergon_jobs WHERE stage = 6 AND signal IS NOT NULL LIMIT %(most)s
    ) AS s),
    (SELECT count(*) FROM (
        SELECT FROM ergon_jobs WHERE stage > 1 AND status = 'retrying' LIMIT %(most)s
    ) AS s);

-- whole_ended: of so many that have ended, those that did so well, and how many were looked at
SELECT count(*) FILTER (WHERE status = 'completed'), count(*) FROM (
    SELECT status FROM ergon_jobs WHERE stage = 0 ORDER BY queue, status LIMIT %(bound)s
) AS s;

-- listed_ended: those of one queue that have ended in some way
SELECT seq FROM ergon_jobs WHERE stage = 0 AND queue = %(queue)s AND status = %(status)s
ORDER BY purge_at LIMIT %(most)s;

-- listed_running: those of one queue that run
SELECT seq FROM ergon_jobs WHERE stage = 1 AND queue = %(queue)s
ORDER BY lease_expires_at LIMIT %(most)s;

-- listed_due: those of one queue that are due
WITH RECURSIVE {due_executors}
SELECT j.seq FROM executors AS e CROSS JOIN LATERAL (
    SELECT seq FROM ergon_jobs
    WHERE stage = 2 AND executor = e.executor AND queue = %(queue)s
    ORDER BY priority DESC, run_at LIMIT %(most)s
) AS j LIMIT %(most)s;

-- listed_waiting: of so many that wait in each other way, those of one queue; how many there were
SELECT array_agg(seq) FILTER (WHERE queue = %(queue)s), count(*) FROM (
    SELECT seq, queue FROM ergon_jobs WHERE stage = 3 ORDER BY run_at LIMIT %(most)s
) AS s
UNION ALL
SELECT array_agg(seq) FILTER (WHERE queue = %(queue)s), count(*) FROM (
    SELECT seq, queue FROM ergon_jobs WHERE stage = 4 LIMIT %(most)s
) AS s
UNION ALL
SELECT array_agg(seq) FILTER (WHERE queue = %(queue)s), count(*) FROM (
    SELECT seq, queue FROM ergon_jobs WHERE stage = 5 LIMIT %(most)s
) AS s
UNION ALL
SELECT array_agg(seq) FILTER (WHERE queue = %(queue)s), count(*) FROM (
    SELECT seq, queue FROM ergon_jobs WHERE stage = 6 AND signal IS NOT NULL LIMIT %(most)s
) AS s;
