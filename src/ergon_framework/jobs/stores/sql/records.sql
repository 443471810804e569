-- places: jobs in the order of adding, with what their payloads weigh
SELECT seq, changed_at, coalesce(
        length(args) + length(kwargs),
        (SELECT length(large.args) + length(large.kwargs)
            FROM ergon_job_payloads AS large WHERE large.seq = ergon_jobs.seq)
    ) + coalesce(length(result), 0) + coalesce(length(history), 0)
FROM ergon_jobs WHERE seq > ? ORDER BY seq LIMIT ?;

-- stretch: the jobs between two places
SELECT * FROM ergon_jobs WHERE seq > ? AND seq <= ? ORDER BY seq;

-- standing: where a job stands, and since when
SELECT seq, created_at FROM ergon_jobs WHERE id = ?;

-- remove: one job, in whatever state
DELETE FROM ergon_jobs WHERE id = ?;

-- put: a whole job, where it stood or behind all others
INSERT INTO ergon_jobs (
    seq, stage, status, fence, deliveries, attempts, excused, is_charged, is_solo, changed_at,
    lease_expires_at, claimed_at, worker, why, purge_at, queue, executor, priority, run_at,
    expires_at, unique_key, limit_key, key_limit, id, handler, created_at, options, args, kwargs,
    last_error, result, history, flow_id, join_id, feeds, wait, signal
) VALUES (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    ?, ?, ?, ?, ?
);

-- buckets: when those of queues with a rate will be full
SELECT name, full_at FROM ergon_queues WHERE rate IS NOT NULL;

-- fill_bucket: when one will be full
UPDATE ergon_queues SET full_at = ? WHERE name = ? AND rate IS NOT NULL;

-- mark: what was written down about a move into this store
SELECT mark FROM ergon_job_moves;

-- set_mark: write something down
INSERT INTO ergon_job_moves (one, mark) VALUES (1, ?)
ON CONFLICT (one) DO UPDATE SET mark = excluded.mark;

-- unmark: forget it
DELETE FROM ergon_job_moves;

-- flow_ids: flows by id
SELECT id FROM ergon_flows WHERE id > ? ORDER BY id LIMIT ?;

-- flow_work: all that is left to be done in flows
SELECT target, kind, after FROM ergon_flow_work ORDER BY seq;

-- remove_flow_work: what is left to be done in one flow
DELETE FROM ergon_flow_work
WHERE target = ?1 OR target IN (SELECT id FROM ergon_flow_joins WHERE flow_id = ?1);

-- frame_flow: what never changes in the store that a flow was added to
UPDATE ergon_flows SET on_failure = ?, name = ?, created_at = ?, plan = ? WHERE id = ?;

-- made_at: when the tables were made, or brought up to date
SELECT applied_at FROM ergon_schema WHERE part = 'jobs';

-- key_buckets: when the bucket of each limit key will be full
SELECT queue, limit_key, full_at FROM ergon_queue_keys ORDER BY queue, limit_key;

-- fill_key_bucket: say when
INSERT INTO ergon_queue_keys (queue, limit_key, full_at) VALUES (?, ?, ?)
ON CONFLICT (queue, limit_key) DO UPDATE SET full_at = excluded.full_at;
