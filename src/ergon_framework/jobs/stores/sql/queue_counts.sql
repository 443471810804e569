-- Names of queues and counts of their jobs, by looks into indexes whose number has a bound. A count of
-- one queue ends one job above `most`: then there are more.
-- A text that leaves a bounded subquery is copied for each row of it, which takes longer than reading
-- the index: what is compared is compared inside, and a number or NULL leaves.

-- next_due_executor: the first executor after another that due jobs name
SELECT executor FROM ergon_jobs
WHERE stage = 2 AND executor > ? ORDER BY executor LIMIT 1;

-- first_due_executor: the first of all, which may be the empty one
SELECT executor FROM ergon_jobs WHERE stage = 2 AND executor >= '' ORDER BY executor LIMIT 1;

-- names_due: queues with due jobs of one executor, from one to the next
WITH RECURSIVE found (name, number) AS (
    SELECT (
        SELECT queue FROM ergon_jobs
        WHERE stage = 2 AND executor = ?1 AND queue {from} ?2 ORDER BY queue LIMIT 1
    ), 1
    UNION ALL
    SELECT (
        SELECT queue FROM ergon_jobs
        WHERE stage = 2 AND executor = ?1 AND queue > name ORDER BY queue LIMIT 1
    ), number + 1 FROM found WHERE name IS NOT NULL AND number < ?3
)
SELECT name FROM found WHERE name IS NOT NULL;

-- names_running: queues with running jobs
WITH RECURSIVE found (name, number) AS (
    SELECT (
        SELECT queue FROM ergon_jobs WHERE stage = 1 AND queue {from} ?1 ORDER BY queue LIMIT 1
    ), 1
    UNION ALL
    SELECT (
        SELECT queue FROM ergon_jobs WHERE stage = 1 AND queue > name ORDER BY queue LIMIT 1
    ), number + 1 FROM found WHERE name IS NOT NULL AND number < ?2
)
SELECT name FROM found WHERE name IS NOT NULL;

-- names_ended: queues with jobs that have ended
WITH RECURSIVE found (name, number) AS (
    SELECT (
        SELECT queue FROM ergon_jobs WHERE stage = 0 AND queue {from} ?1 ORDER BY queue LIMIT 1
    ), 1
    UNION ALL
    SELECT (
        SELECT queue FROM ergon_jobs WHERE stage = 0 AND queue > name ORDER BY queue LIMIT 1
    ), number + 1 FROM found WHERE name IS NOT NULL AND number < ?2
)
SELECT name FROM found WHERE name IS NOT NULL;

-- names_set: queues with settings
SELECT name FROM ergon_queues WHERE name {from} ?1 ORDER BY name LIMIT ?2;

-- names_later: queues of so many jobs that wait for their time
SELECT DISTINCT queue FROM (SELECT queue FROM ergon_jobs WHERE stage = 3 LIMIT ?2)
WHERE queue {from} ?1;

-- names_late: queues of so many jobs whose time came and that nobody has asked for since
SELECT DISTINCT queue FROM (
    SELECT queue FROM ergon_jobs WHERE stage = 3 AND run_at <= ?3 LIMIT ?2
) WHERE queue {from} ?1;

-- names_blocked: queues of so many jobs that wait for their limit key
SELECT DISTINCT queue FROM (SELECT queue FROM ergon_jobs WHERE stage = 4 LIMIT ?2)
WHERE queue {from} ?1;

-- names_joining: queues of so many steps that wait for others
SELECT DISTINCT queue FROM (
    SELECT queue FROM ergon_jobs INDEXED BY ergon_jobs_join
    WHERE join_id IS NOT NULL AND stage = 5 LIMIT ?2
) WHERE queue {from} ?1;

-- names_signalling: queues of so many steps that wait for signals
SELECT DISTINCT queue FROM (
    SELECT queue FROM ergon_jobs INDEXED BY ergon_jobs_signal
    WHERE signal IS NOT NULL AND stage = 6 LIMIT ?2
) WHERE queue {from} ?1;

-- told_apart: of one queue, the jobs whose state an index of queues has
SELECT
    (SELECT count(*) FROM (
        SELECT 1 FROM ergon_jobs
        WHERE stage = 0 AND queue = ?1 AND status = 'completed' LIMIT ?2
    )),
    (SELECT count(*) FROM (
        SELECT 1 FROM ergon_jobs WHERE stage = 0 AND queue = ?1 AND status = 'failed' LIMIT ?2
    )),
    (SELECT count(*) FROM (
        SELECT 1 FROM ergon_jobs
        WHERE stage = 0 AND queue = ?1 AND status = 'cancelled' LIMIT ?2
    )),
    (SELECT count(*) FROM (
        SELECT 1 FROM ergon_jobs
        WHERE stage = 0 AND queue = ?1 AND status = 'unreadable' LIMIT ?2
    )),
    (SELECT count(*) FROM (SELECT 1 FROM ergon_jobs WHERE stage = 1 AND queue = ?1 LIMIT ?2));

-- due: of one executor and queue
SELECT count(*) FROM (
    SELECT 1 FROM ergon_jobs WHERE stage = 2 AND executor = ? AND queue = ? LIMIT ?
);

-- oldest_due: of one executor and queue, from one priority to the next
WITH RECURSIVE firsts (priority, number) AS (
    SELECT (
        SELECT priority FROM ergon_jobs
        WHERE stage = 2 AND executor = ?1 AND queue = ?2 ORDER BY priority DESC LIMIT 1
    ), 1
    UNION ALL
    SELECT (
        SELECT j.priority FROM ergon_jobs AS j
        WHERE j.stage = 2 AND j.executor = ?1 AND j.queue = ?2 AND j.priority < f.priority
        ORDER BY j.priority DESC LIMIT 1
    ), number + 1 FROM firsts AS f WHERE f.priority IS NOT NULL AND number < ?3
)
SELECT min((
    SELECT j.run_at FROM ergon_jobs AS j
    WHERE j.stage = 2 AND j.executor = ?1 AND j.queue = ?2 AND j.priority = f.priority
    ORDER BY j.run_at LIMIT 1
)) FROM firsts AS f WHERE f.priority IS NOT NULL;

-- sample_later: of so many jobs that wait for their time, those that are due first, by queue
SELECT 'later', queue, count(*), min(run_at) FROM (
    SELECT queue, run_at FROM ergon_jobs WHERE stage = 3 ORDER BY run_at LIMIT ?1
) WHERE queue IN (SELECT value FROM json_each(?2)) GROUP BY queue;

-- sample_blocked: the same of those that wait for their limit key
SELECT 'blocked', queue, count(*), min(run_at) FROM (
    SELECT queue, run_at FROM ergon_jobs WHERE stage = 4 LIMIT ?1
) WHERE queue IN (SELECT value FROM json_each(?2)) GROUP BY queue;

-- sample_joining: the same of steps that wait for others
SELECT 'joining', queue, count(*), NULL FROM (
    SELECT queue FROM ergon_jobs INDEXED BY ergon_jobs_join
    WHERE join_id IS NOT NULL AND stage = 5 LIMIT ?1
) WHERE queue IN (SELECT value FROM json_each(?2)) GROUP BY queue;

-- sample_signalling: the same of steps that wait for signals
SELECT 'signalling', queue, count(*), NULL FROM (
    SELECT queue FROM ergon_jobs INDEXED BY ergon_jobs_signal
    WHERE signal IS NOT NULL AND stage = 6 LIMIT ?1
) WHERE queue IN (SELECT value FROM json_each(?2)) GROUP BY queue;

-- sample_retrying: the same of jobs that are tried again; they are among those that wait
SELECT 'retrying', queue, count(*), NULL FROM (
    SELECT queue FROM ergon_jobs INDEXED BY ergon_jobs_retrying
    WHERE stage > 1 AND status = 'retrying' LIMIT ?1
) WHERE queue IN (SELECT value FROM json_each(?2)) GROUP BY queue;

-- settings: of one queue
SELECT
    is_paused, max_active, rate, burst, full_at, key_max_active, key_rate, key_burst,
    pinned_version
FROM ergon_queues WHERE name = ?;

-- whole_dead: jobs of one state that have ended, but not well
SELECT count(*) FROM (
    SELECT 1 FROM ergon_jobs INDEXED BY ergon_jobs_dead
    WHERE stage = 0 AND status <> 'completed' AND status = ? LIMIT ?
);

-- whole_ended: of so many that have ended, those that did so well, and how many were looked at
SELECT count(done), count(*) FROM (
    SELECT CASE WHEN status = 'completed' THEN 1 END AS done FROM ergon_jobs WHERE stage = 0 LIMIT ?
);

-- whole_running: jobs that run
SELECT count(*) FROM (SELECT 1 FROM ergon_jobs WHERE stage = 1 LIMIT ?);

-- whole_due: jobs that could be claimed
SELECT count(*) FROM (SELECT 1 FROM ergon_jobs WHERE stage = 2 LIMIT ?);

-- whole_later: jobs that wait for their time
SELECT count(*) FROM (SELECT 1 FROM ergon_jobs WHERE stage = 3 LIMIT ?);

-- whole_blocked: jobs that wait for their limit key
SELECT count(*) FROM (SELECT 1 FROM ergon_jobs WHERE stage = 4 LIMIT ?);

-- whole_joining: steps that wait for others
SELECT count(*) FROM (
    SELECT 1 FROM ergon_jobs INDEXED BY ergon_jobs_join
    WHERE join_id IS NOT NULL AND stage = 5 LIMIT ?
);

-- whole_signalling: steps that wait for signals
SELECT count(*) FROM (
    SELECT 1 FROM ergon_jobs INDEXED BY ergon_jobs_signal
    WHERE signal IS NOT NULL AND stage = 6 LIMIT ?
);

-- whole_retrying: jobs that are tried again; they are among those that wait
SELECT count(*) FROM (
    SELECT 1 FROM ergon_jobs INDEXED BY ergon_jobs_retrying
    WHERE stage > 1 AND status = 'retrying' LIMIT ?
);

-- listed_ended: those of one queue that have ended in some way
SELECT seq FROM ergon_jobs WHERE stage = 0 AND queue = ? AND status = ? LIMIT ?;

-- listed_running: those of one queue that run
SELECT seq FROM ergon_jobs WHERE stage = 1 AND queue = ? LIMIT ?;

-- listed_due: those of one executor and queue that are due
SELECT seq FROM ergon_jobs WHERE stage = 2 AND executor = ? AND queue = ? LIMIT ?;

-- listed_later: of so many that wait for their time, those of one queue; how many there were
SELECT json_group_array(wanted) FILTER (WHERE wanted IS NOT NULL), count(*) FROM (
    SELECT CASE WHEN queue = ?1 THEN seq END AS wanted FROM ergon_jobs WHERE stage = 3 LIMIT ?2
);

-- listed_blocked: the same of those that wait for their limit key
SELECT json_group_array(wanted) FILTER (WHERE wanted IS NOT NULL), count(*) FROM (
    SELECT CASE WHEN queue = ?1 THEN seq END AS wanted FROM ergon_jobs WHERE stage = 4 LIMIT ?2
);

-- listed_joining: the same of steps that wait for others
SELECT json_group_array(wanted) FILTER (WHERE wanted IS NOT NULL), count(*) FROM (
    SELECT CASE WHEN queue = ?1 THEN seq END AS wanted FROM ergon_jobs INDEXED BY ergon_jobs_join
    WHERE join_id IS NOT NULL AND stage = 5 LIMIT ?2
);

-- listed_signalling: the same of steps that wait for signals
SELECT json_group_array(wanted) FILTER (WHERE wanted IS NOT NULL), count(*) FROM (
    SELECT CASE WHEN queue = ?1 THEN seq END AS wanted FROM ergon_jobs INDEXED BY ergon_jobs_signal
    WHERE signal IS NOT NULL AND stage = 6 LIMIT ?2
);
