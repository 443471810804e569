-- A search is put together from what it wants, where it looks, and what must match.

-- jobs: want the jobs
SELECT *

-- number: want to know how many
SELECT count(*)

-- in_all: look everywhere
FROM ergon_jobs WHERE seq < :below

-- in_ids: look at some jobs
FROM ergon_jobs INDEXED BY ergon_jobs_id
WHERE id IN (SELECT value FROM json_each(:ids)) AND seq < :below

-- in_seqs: look at rows by their numbers
FROM ergon_jobs WHERE seq IN (SELECT value FROM json_each(:seqs))

-- in_flow: look at the steps of one flow
FROM ergon_jobs INDEXED BY ergon_jobs_flow
WHERE flow_id IS NOT NULL AND flow_id = :flow AND seq < :below

-- in_tag: look at those with a tag
FROM ergon_job_tags CROSS JOIN ergon_jobs ON seq = job
WHERE tag = :label AND job < :below

-- in_running: look at those that run
FROM ergon_jobs INDEXED BY ergon_jobs_running WHERE stage = 1 AND seq < :below

-- in_dead: look at those that have ended, but not well
FROM ergon_jobs INDEXED BY ergon_jobs_dead
WHERE stage = 0 AND status <> 'completed' AND status = :status AND seq < :below

-- in_retrying: look at those that failed and are tried again
FROM ergon_jobs INDEXED BY ergon_jobs_retrying
WHERE stage > 1 AND status = 'retrying' AND seq < :below

-- matching: every filter that is set, and no row that was set aside
AND status <> :aside
AND (:statuses IS NULL OR status IN (SELECT value FROM json_each(:statuses)))
AND (:queue IS NULL OR queue = :queue)
AND (:handler IS NULL OR handler = :handler)
AND (:flow IS NULL OR flow_id = :flow)
AND (NOT :is_released OR join_id IS NULL)
AND (:before IS NULL OR changed_at < :before)
AND (:since IS NULL OR created_at >= :since)
AND (:until IS NULL OR created_at < :until)
AND (:labels IS NULL OR NOT EXISTS (
    SELECT 1 FROM json_each(:labels) AS wanted WHERE NOT EXISTS (
        SELECT 1 FROM ergon_job_tags AS has WHERE has.tag = wanted.value AND has.job = seq
    )
))
AND (:code IS NULL OR CASE WHEN json_valid(last_error) THEN json_extract(last_error, '$.code') END
    = :code)
AND (:error IS NULL OR CASE WHEN json_valid(last_error) THEN
    :error IN (json_extract(last_error, '$.code'), json_extract(last_error, '$.kind')) END)

-- newest_first: one page
ORDER BY seq DESC LIMIT :limit

-- newest_tagged_first: the same in the order of the tags
ORDER BY job DESC LIMIT :limit

-- purge: one job that has ended and was not moved since
DELETE FROM ergon_jobs
WHERE seq = ? AND id = ? AND fence = ? AND status = ? AND stage = 0 AND changed_at = ?
    AND feeds IS NULL;

-- erase: what one job tells that has ended and was not moved since
UPDATE ergon_jobs SET
    args = ?, kwargs = ?, result = NULL, last_error = ?, history = ?, options = ?,
    unique_key = NULL, limit_key = NULL
WHERE seq = ? AND id = ? AND fence = ? AND status = ? AND stage = 0 AND changed_at = ?;

-- erase_payload: its arguments, if they are large
DELETE FROM ergon_job_payloads WHERE seq = ?;

-- erase_tags: what it is found by
DELETE FROM ergon_job_tags WHERE job = ?;

-- erase_key: the unique key that it may hold after its end
DELETE FROM ergon_job_keys WHERE job = ?;

-- next_ended_status: the first status after another in which jobs of a queue have ended. One
-- comparison of both columns would read every job that has the pair it starts from.
SELECT queue, status FROM ergon_jobs
WHERE stage = 0 AND queue = ? AND status > ? AND status <> 'unreadable' ORDER BY status LIMIT 1;

-- next_ended: the first queue after another with jobs that have ended, and the first status there
SELECT queue, status FROM ergon_jobs
WHERE stage = 0 AND queue > ? AND status <> 'unreadable' ORDER BY queue, status LIMIT 1;

-- kept_long_enough: those of one queue and status that may go
SELECT seq FROM ergon_jobs
WHERE stage = 0 AND queue = ? AND status = ? AND purge_at <= ? ORDER BY purge_at LIMIT ?;

-- any_unique_key: whether any job may hold its unique key after its end
SELECT 1 FROM ergon_job_keys LIMIT 1;

-- keep_holder: a job that holds its unique key is kept until it does so no more
UPDATE ergon_jobs SET purge_at = (SELECT until FROM ergon_job_keys WHERE job = seq)
WHERE seq = ?1 AND EXISTS (
    SELECT 1 FROM ergon_job_keys
    WHERE job = ?1 AND until > ?2
        AND status IN (SELECT value FROM json_each(ergon_job_keys.states))
);

-- prunable: those of one queue and status that may go and hold no unique key, with all that they have
SELECT * FROM ergon_jobs
WHERE stage = 0 AND queue = ?1 AND status = ?2 AND purge_at <= ?3 AND NOT EXISTS (
    SELECT 1 FROM ergon_job_keys
    WHERE job = seq AND until > ?3
        AND ergon_jobs.status IN (SELECT value FROM json_each(ergon_job_keys.states))
) ORDER BY purge_at LIMIT ?4;

-- delete: one job
DELETE FROM ergon_jobs WHERE seq = ?;

-- outdated: those that were not started in time
SELECT seq, id, status, fence, attempts, deliveries, excused, queue FROM ergon_jobs
WHERE stage > 1 AND expires_at IS NOT NULL AND expires_at <= ? ORDER BY expires_at LIMIT ?;

-- count_due: by executor and queue, with the oldest
SELECT queue, 'waiting', count(*), min(run_at) FROM ergon_jobs
WHERE stage = 2 GROUP BY executor, queue;

-- count_later: by queue, with the oldest
SELECT queue, 'waiting', count(*), min(run_at) FROM ergon_jobs WHERE stage = 3 GROUP BY queue;

-- count_blocked: by queue, with the oldest
SELECT queue, 'waiting', count(*), min(run_at) FROM ergon_jobs WHERE stage = 4 GROUP BY queue;

-- count_steps: by queue; they wait for other steps, or for signals
SELECT queue, 'waiting', count(*), NULL FROM ergon_jobs INDEXED BY ergon_jobs_join
WHERE join_id IS NOT NULL AND stage = 5 GROUP BY queue
UNION ALL
SELECT queue, 'waiting', count(*), NULL FROM ergon_jobs INDEXED BY ergon_jobs_signal
WHERE signal IS NOT NULL AND stage = 6 GROUP BY queue;

-- count_running: by queue
SELECT queue, 'active', count(*), NULL FROM ergon_jobs WHERE stage = 1 GROUP BY queue;

-- count_ended: by queue and status
SELECT queue, status, count(*), NULL FROM ergon_jobs WHERE stage = 0 GROUP BY queue, status;

-- count_retrying: by queue; they are among those that wait
SELECT queue, status, count(*), NULL FROM ergon_jobs
WHERE stage > 1 AND status = 'retrying' GROUP BY queue;

-- queues: those with settings
SELECT
    name, is_paused, max_active, rate, burst, full_at, key_max_active, key_rate, key_burst,
    pinned_version
FROM ergon_queues;

-- pinned_queues: the versions that queues are pinned to
SELECT name, pinned_version FROM ergon_queues WHERE typeof(pinned_version) = 'text';

-- set_queue: the settings of one
INSERT INTO ergon_queues (
    name, is_paused, max_active, rate, burst, full_at, key_max_active, key_rate, key_burst,
    pinned_version
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET
    is_paused = excluded.is_paused, max_active = excluded.max_active, rate = excluded.rate,
    burst = excluded.burst, full_at = excluded.full_at, key_max_active = excluded.key_max_active,
    key_rate = excluded.key_rate, key_burst = excluded.key_burst,
    pinned_version = excluded.pinned_version;

-- unset_queue: it has no settings any more
DELETE FROM ergon_queues WHERE name = ?;

-- tell: a worker lives
INSERT INTO ergon_workers (id, seen_at, record) VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, record = excluded.record;

-- tell_executors: a worker has these, whose names come as a JSON list; the empty one is kept as it is
INSERT INTO ergon_executors (name, seen_at) SELECT value, ? FROM json_each(?) WHERE true
ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at WHERE name <> '';

-- seen_executors: when each was last seen
SELECT name, seen_at FROM ergon_executors;

-- next_named_queue: the first queue after another with due jobs that name an executor
SELECT executor, queue FROM ergon_jobs
WHERE stage = 2 AND executor = ? AND queue > ? ORDER BY queue LIMIT 1;

-- next_named: the first executor after another that a due job names, and the first queue there
SELECT executor, queue FROM ergon_jobs
WHERE stage = 2 AND executor > ? ORDER BY executor, queue LIMIT 1;

-- waiting_for: due jobs for one executor that have waited for long
SELECT * FROM ergon_jobs
WHERE stage = 2 AND executor = ? AND run_at < ? ORDER BY queue, priority DESC, run_at LIMIT ?;

-- gone: a worker has left
DELETE FROM ergon_workers WHERE id = ?;

-- workers: all of them
SELECT id, seen_at, record FROM ergon_workers ORDER BY id;

-- forget_workers: those that have not been heard of for long
DELETE FROM ergon_workers WHERE seen_at < ?;

-- drop_keys: the limit keys of a queue have no rate any more
DELETE FROM ergon_queue_keys WHERE queue = ?;

-- forget_keys: limit keys whose buckets are full again
DELETE FROM ergon_queue_keys WHERE (queue, limit_key) IN (
    SELECT queue, limit_key FROM ergon_queue_keys
    WHERE wakes_at IS NULL AND full_at <= ? ORDER BY full_at LIMIT ?
);

-- key_wakes_at: when jobs that wait for a token of a limit key are due again
SELECT wakes_at FROM ergon_queue_keys WHERE queue = ? AND limit_key = ?;
