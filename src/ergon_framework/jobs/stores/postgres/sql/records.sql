-- places: jobs in the order of adding, with what their payloads weigh
SELECT
    seq, changed_at,
    length(args) + length(kwargs) + coalesce(length(result), 0) + coalesce(length(history), 0)
FROM ergon_jobs WHERE seq > %(after)s ORDER BY seq LIMIT %(limit)s;

-- stretch: the jobs between two places
SELECT {columns} FROM ergon_jobs WHERE seq > %(after)s AND seq <= %(last)s ORDER BY seq;

-- standing: where jobs stand, and since when
SELECT id, seq, created_at FROM ergon_jobs WHERE id = ANY(%(ids)s::text[]);

-- remove: jobs in whatever state
DELETE FROM ergon_jobs WHERE id = ANY(%(ids)s::text[]);

-- put: whole jobs, where they stood or behind all others
INSERT INTO ergon_jobs (
    seq, stage, status, fence, deliveries, attempts, excused, is_charged, is_solo, changed_at,
    lease_expires_at, claimed_at, worker, why, purge_at, queue, executor, priority, run_at,
    expires_at, unique_key, limit_key, key_limit, id, handler, created_at, options, args, kwargs,
    last_error, result, history, flow_id, join_id, feeds, wait, signal
) OVERRIDING SYSTEM VALUE
SELECT
    coalesce(n.seq, nextval(pg_get_serial_sequence('ergon_jobs', 'seq'))),
    CASE
        WHEN n.status IN ('completed', 'failed', 'cancelled') THEN 0
        WHEN n.status = 'active' THEN 1
        WHEN n.join_id IS NOT NULL THEN 5
        WHEN n.signal IS NOT NULL THEN 6
        WHEN n.run_at <= {now} THEN 2
        ELSE 3
    END,
    n.status, n.fence, n.deliveries, n.attempts, n.excused, n.is_charged, n.is_solo, n.changed_at,
    n.lease_expires_at, n.claimed_at, n.worker, n.why, n.purge_at, n.queue, n.executor,
    n.priority, n.run_at, n.expires_at, n.unique_key, n.limit_key, n.key_limit, n.id, n.handler,
    n.created_at, n.options, n.args, n.kwargs, n.last_error, n.result, n.history,
    n.flow_id, n.join_id, n.feeds, n.wait, n.signal
FROM unnest(
    %(seq)s::bigint[], %(status)s::text[], %(fence)s::bigint[], %(deliveries)s::int[],
    %(attempts)s::int[], %(excused)s::int[], %(is_charged)s::bool[], %(is_solo)s::bool[],
    %(changed_at)s::float8[], %(lease_expires_at)s::float8[], %(claimed_at)s::float8[],
    %(worker)s::text[], %(why)s::text[], %(purge_at)s::float8[], %(queue)s::text[],
    %(executor)s::text[], %(priority)s::int[], %(run_at)s::float8[], %(expires_at)s::float8[],
    %(unique_key)s::text[], %(limit_key)s::text[], %(limit)s::int[], %(id)s::text[],
    %(handler)s::text[], %(created_at)s::float8[], %(options)s::text[], %(args)s::bytea[],
    %(kwargs)s::bytea[], %(last_error)s::text[], %(result)s::bytea[], %(history)s::text[],
    %(flow_id)s::text[], %(join_id)s::text[], %(feeds)s::text[], %(wait)s::float8[],
    %(signal)s::text[]
) WITH ORDINALITY AS n (
    seq, status, fence, deliveries, attempts, excused, is_charged, is_solo, changed_at,
    lease_expires_at, claimed_at, worker, why, purge_at, queue, executor, priority, run_at,
    expires_at, unique_key, limit_key, key_limit, id, handler, created_at, options, args, kwargs,
    last_error, result, history, flow_id, join_id, feeds, wait, signal, place
)
ORDER BY n.place;

-- buckets: when those of queues with a rate will be full
SELECT name, full_at FROM ergon_queues WHERE rate IS NOT NULL;

-- fill_bucket: when one will be full
UPDATE ergon_queues SET full_at = %(full_at)s WHERE name = %(name)s AND rate IS NOT NULL;

-- flow_sizes: flows by id, with what their plans and joins weigh
SELECT f.id, length(f.plan) + coalesce((
    SELECT sum(length(j.members)) FROM ergon_flow_joins AS j WHERE j.flow_id = f.id
), 0)::bigint
FROM ergon_flows AS f WHERE f.id > %(after)s ORDER BY f.id LIMIT %(limit)s;

-- flows: these flows
SELECT {flow_columns}
FROM ergon_flows WHERE id = ANY(%(ids)s::text[]) ORDER BY id;

-- flow_joins: the joins of these flows
SELECT id, flow_id, remaining, members FROM ergon_flow_joins
WHERE flow_id = ANY(%(ids)s::text[]) ORDER BY seq;

-- flow_work: what is left to be done in these flows
SELECT flow_id, target, kind FROM ergon_flow_work WHERE flow_id = ANY(%(ids)s::text[]);

-- put_flow: a whole flow, where it stood or behind all others
INSERT INTO ergon_flows ({flow_columns}) VALUES ({flow_values})
ON CONFLICT (id) DO UPDATE SET
    on_failure = excluded.on_failure, status = excluded.status, unfinished = excluded.unfinished,
    completed = excluded.completed, failed = excluded.failed, cancelled = excluded.cancelled,
    uncounted = excluded.uncounted, keep = excluded.keep, purge_at = excluded.purge_at,
    name = excluded.name, created_at = excluded.created_at, changed_at = excluded.changed_at,
    plan = excluded.plan;

-- remove_joins: of these flows
DELETE FROM ergon_flow_joins WHERE flow_id = ANY(%(ids)s::text[]);

-- remove_work: what is left to be done in these flows
DELETE FROM ergon_flow_work WHERE flow_id = ANY(%(ids)s::text[]);

-- remove_flows: without their steps
DELETE FROM ergon_flows WHERE id = ANY(%(ids)s::text[]);

-- mark: what was written down about a move into this store
SELECT mark FROM ergon_job_moves;

-- lock_mark: let nobody else write it down before this transaction has ended; it need not be there
LOCK TABLE ergon_job_moves IN SHARE ROW EXCLUSIVE MODE;

-- set_mark: write something down
INSERT INTO ergon_job_moves (one, mark) VALUES (1, %(mark)s)
ON CONFLICT (one) DO UPDATE SET mark = excluded.mark;

-- unmark: forget it
DELETE FROM ergon_job_moves;

-- key_buckets: when the bucket of each limit key will be full
SELECT queue, limit_key, full_at FROM ergon_queue_keys ORDER BY queue, limit_key;

-- fill_key_buckets: say when
INSERT INTO ergon_queue_keys (queue, limit_key, full_at)
SELECT %(queue)s, k.* FROM unnest(%(keys)s::text[], %(full_at)s::float8[]) AS k (key, full_at)
ON CONFLICT (queue, limit_key) DO UPDATE SET full_at = excluded.full_at;
