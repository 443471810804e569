-- step: what a settlement needs to know of a job that is a step
SELECT flow_id, feeds, join_id, signal, stage FROM ergon_jobs
WHERE seq = ? AND feeds IS NOT NULL;

-- steps: the same of many jobs, whose numbers come as a JSON list
SELECT seq, flow_id, feeds, join_id, signal, stage FROM ergon_jobs
WHERE seq IN (SELECT value FROM json_each(?)) AND feeds IS NOT NULL;

-- wait_step: a step goes back to its queue, unless its cancellation was requested while it ran
UPDATE ergon_jobs SET
    stage = ?, status = ?, attempts = ?, excused = ?, is_charged = 0, is_solo = ?, why = ?,
    run_at = ?, changed_at = ?, lease_expires_at = NULL, claimed_at = NULL, worker = NULL,
    last_error = coalesce(?, last_error),
    history = coalesce(history || char(10), '') || ?
WHERE seq = ? AND id = ? AND fence = ? AND status = ? AND (? OR lease_expires_at <= ?)
    AND (stage <> 1 OR why = '');

-- restart_step: the same as if nothing had happened; a signal that came early is kept
UPDATE ergon_jobs SET
    stage = ?1, status = ?2, attempts = ?3, excused = ?4, is_charged = 0, is_solo = ?5, why = ?6,
    run_at = CASE WHEN ?1 = 5 THEN created_at ELSE ?7 END, changed_at = ?8,
    lease_expires_at = NULL, claimed_at = NULL, worker = NULL,
    last_error = ?9, deliveries = 0, purge_at = NULL, expires_at = NULL,
    result = CASE WHEN signal IS NOT NULL THEN result END,
    history = coalesce(history || char(10), '') || ?10
WHERE seq = ?11 AND id = ?12 AND fence = ?13 AND status = ?14 AND (?15 OR lease_expires_at <= ?16);

-- end_step: any end of a step; it is kept as long as its flow. A signal that came before a step was
-- reached stays with the step, which may be retried
UPDATE ergon_jobs SET
    stage = 0, status = ?, attempts = ?, excused = ?, is_charged = 0, is_solo = ?, why = ?,
    result = coalesce(?, CASE WHEN signal IS NOT NULL THEN result END),
    purge_at = NULL, changed_at = ?,
    lease_expires_at = NULL, claimed_at = NULL, worker = NULL,
    last_error = coalesce(?, last_error),
    history = coalesce(history || char(10), '') || ?, feeds = ?
WHERE seq = ? AND id = ? AND fence = ? AND status = ? AND (? OR lease_expires_at <= ?);

-- complete_step: the usual end of a running step that counts where it did when it was read
UPDATE ergon_jobs SET
    stage = 0, status = 'completed', attempts = ?1, excused = ?2, is_charged = 0, is_solo = 0,
    why = '', result = ?3, purge_at = NULL, changed_at = ?4,
    lease_expires_at = NULL, claimed_at = NULL, worker = NULL,
    history = CASE WHEN history IS NULL THEN ?5 ELSE history || char(10) || ?5 END, feeds = '[]'
WHERE seq = ?6 AND id = ?7 AND fence = ?8 AND stage = 1 AND feeds = ?9;

-- complete_steps: the same for many; the values are repeated
UPDATE ergon_jobs SET
    stage = 0, status = 'completed', attempts = v.column1, excused = v.column2, is_charged = 0,
    is_solo = 0, why = '', result = v.column3, purge_at = NULL, changed_at = v.column4,
    lease_expires_at = NULL, claimed_at = NULL, worker = NULL,
    history = CASE WHEN history IS NULL THEN v.column5 ELSE history || char(10) || v.column5 END,
    feeds = '[]'
FROM (VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)) AS v
WHERE ergon_jobs.seq = v.column6 AND ergon_jobs.id = v.column7 AND ergon_jobs.fence = v.column8
    AND stage = 1 AND feeds = v.column9;

-- released: a step that came back waits at no join any more; a signal is waited for anew
UPDATE ergon_jobs SET join_id = NULL, expires_at = CASE WHEN signal IS NOT NULL THEN ?1 + wait END
WHERE seq = ?2
RETURNING seq, id, status, fence, attempts, deliveries, excused, queue, result;

-- position: what is needed to settle a step
SELECT seq, id, status, fence, attempts, deliveries, excused, queue FROM ergon_jobs WHERE seq = ?;

-- insert_step: a new step
INSERT INTO ergon_jobs (
    stage, status, fence, changed_at, created_at, run_at, queue, executor, priority, id, handler,
    args, kwargs, expires_at, unique_key, limit_key, key_limit, options,
    flow_id, join_id, feeds, wait, signal
) VALUES (
    ?1, 'pending', ?2, ?3, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18,
    ?19, ?20, ?21
);

-- insert_plain_step: a new step that asks for nothing special; an empty join is none
INSERT INTO ergon_jobs (
    stage, status, fence, changed_at, created_at, run_at, queue, executor, priority, id, handler,
    args, kwargs, options, flow_id, join_id, feeds
) VALUES (
    ?1, 'pending', ?2, ?3, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, nullif(?14, ''), ?15
);

-- flow: one flow
SELECT
    id, on_failure, status, unfinished, completed, failed, cancelled, uncounted, keep, purge_at,
    name, created_at, changed_at, plan
FROM ergon_flows WHERE id = ?;

-- flows_of_steps: those of these ids, which come as a JSON list
SELECT
    id, on_failure, status, unfinished, completed, failed, cancelled, uncounted, keep, purge_at,
    name, created_at, changed_at, ''
FROM ergon_flows WHERE id IN (SELECT value FROM json_each(?));

-- flows: the newest
SELECT
    id, on_failure, status, unfinished, completed, failed, cancelled, uncounted, keep, purge_at,
    name, created_at, changed_at, plan, seq
FROM ergon_flows WHERE seq < ? ORDER BY seq DESC LIMIT ?;

-- flows_in: the newest of one status
SELECT
    id, on_failure, status, unfinished, completed, failed, cancelled, uncounted, keep, purge_at,
    name, created_at, changed_at, plan, seq
FROM ergon_flows WHERE status = ? AND seq < ? ORDER BY seq DESC LIMIT ?;

-- insert_flow: a new one
INSERT INTO ergon_flows (
    id, on_failure, status, unfinished, completed, failed, cancelled, uncounted, keep, purge_at,
    name, created_at, changed_at, plan
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- update_flow: where it stands
UPDATE ergon_flows SET
    status = ?, unfinished = ?, completed = ?, failed = ?, cancelled = ?, uncounted = ?, keep = ?,
    purge_at = ?, changed_at = ?
WHERE id = ?;

-- insert_join: a new one
INSERT INTO ergon_flow_joins (id, flow_id, remaining, members) VALUES (?1, ?2, ?3, ?4);

-- joins: of a flow
SELECT id, flow_id, remaining, members FROM ergon_flow_joins WHERE flow_id = ? ORDER BY seq;

-- count_at: so many predecessors have counted at each of these joins, which come as a JSON list
UPDATE ergon_flow_joins SET remaining = remaining - ?1
WHERE id IN (SELECT value FROM json_each(?2)) RETURNING id, remaining;

-- open_joins: nobody is left to wait for
SELECT id FROM ergon_flow_joins WHERE flow_id = ? AND remaining = 0 ORDER BY seq;

-- is_closed: whether somebody is left to wait for at a join
SELECT 1 FROM ergon_flow_joins WHERE id = ? AND remaining > 0;

-- release: the first steps that wait at joins. A due time that nobody asked for is when the step was
-- added, and must not keep it where the clock ran ahead then
UPDATE ergon_jobs SET
    stage = CASE
        WHEN signal IS NOT NULL THEN 6
        WHEN (run_at <= ?1 OR run_at <= created_at) AND coalesce(wait, 0) <= 0 THEN 2
        ELSE 3
    END,
    run_at = CASE
        WHEN signal IS NULL AND run_at > created_at THEN max(run_at, ?1 + coalesce(wait, 0))
        WHEN signal IS NULL THEN ?1 + coalesce(wait, 0)
        ELSE ?1
    END,
    expires_at = CASE WHEN signal IS NOT NULL THEN ?1 + wait ELSE expires_at END,
    join_id = NULL, changed_at = ?1
WHERE seq IN (
    SELECT j.seq FROM json_each(?2) AS n CROSS JOIN ergon_jobs AS j
    WHERE j.join_id IS NOT NULL AND j.join_id = n.value AND j.stage = 5 LIMIT ?3
)
RETURNING CASE WHEN signal IS NOT NULL AND result IS NOT NULL THEN seq END;

-- signalled: steps whose signal came before they were released; their numbers come as a JSON list
SELECT seq, id, status, fence, attempts, deliveries, excused, queue, result FROM ergon_jobs
WHERE seq IN (SELECT value FROM json_each(?)) ORDER BY seq;

-- waiting: steps that have not ended and do not run
SELECT seq, id, status, fence, attempts, deliveries, excused, queue FROM ergon_jobs
WHERE flow_id IS NOT NULL AND flow_id = ? AND seq > ? AND stage > 1 ORDER BY seq LIMIT ?;

-- ended_badly: steps that failed or were cancelled
SELECT seq, id, status, fence, attempts, deliveries, excused, queue, why, feeds FROM ergon_jobs
WHERE flow_id IS NOT NULL AND flow_id = ? AND seq > ? AND stage = 0
    AND status IN ('failed', 'cancelled')
ORDER BY seq LIMIT ?;

-- set_feeds: where its end counts
UPDATE ergon_jobs SET feeds = ? WHERE seq = ?;

-- predecessors: the jobs of these ids, which come as a JSON list
SELECT seq, id, status, flow_id, feeds, why FROM ergon_jobs
WHERE id IN (SELECT value FROM json_each(?)) AND status <> 'unreadable' ORDER BY seq;

-- adopt: a job is a step from now on
UPDATE ergon_jobs SET flow_id = ?, feeds = ?, purge_at = NULL WHERE seq = ?;

-- signals: the steps that wait for a signal or will, each with its limit and with what is kept for it
SELECT seq, id, status, fence, attempts, deliveries, excused, queue, stage = 6, expires_at, result
FROM ergon_jobs
WHERE signal IS NOT NULL AND flow_id = ? AND signal = ? AND stage IN (5, 6) ORDER BY seq;

-- keep_signal: for a step that has not been reached
UPDATE ergon_jobs SET result = ? WHERE seq = ?;

-- results: of jobs whose ids come as a JSON list
SELECT id, result FROM ergon_jobs
WHERE id IN (SELECT value FROM json_each(?)) AND status = 'completed' AND result IS NOT NULL;

-- first_work: something that is left to be done
SELECT target, kind, after FROM ergon_flow_work ORDER BY seq LIMIT 1;

-- work_of: what is left to be done to the steps at a join or of a flow
SELECT target, kind, after FROM ergon_flow_work WHERE target = ?;

-- any_stopping: whether the steps of a flow are being cancelled
SELECT 1 FROM ergon_flow_work WHERE kind = 'cancel' LIMIT 1;

-- stopped: of these jobs, whose numbers come as a JSON list, the steps of flows that stop
SELECT seq, id, status, fence, attempts, deliveries, excused, queue FROM ergon_jobs
WHERE seq IN (SELECT value FROM json_each(?)) AND +flow_id IN (
    SELECT target FROM ergon_flow_work WHERE kind = 'cancel'
);

-- still_due: of these jobs, whose numbers come as a JSON list, those that can be claimed
SELECT seq FROM ergon_jobs WHERE seq IN (SELECT value FROM json_each(?)) AND +stage = 2;

-- put_work: how far it has come; other work has its turn first
INSERT OR REPLACE INTO ergon_flow_work (target, kind, after) VALUES (?, ?, ?);

-- drop_work: nothing is left there
DELETE FROM ergon_flow_work WHERE target = ?;

-- flows_kept_long_enough: whose steps may go
SELECT id FROM ergon_flows WHERE purge_at IS NOT NULL AND purge_at <= ? ORDER BY purge_at LIMIT ?;

-- prunable_flows: the same, whole
SELECT
    id, on_failure, status, unfinished, completed, failed, cancelled, uncounted, keep, purge_at,
    name, created_at, changed_at, plan
FROM ergon_flows WHERE purge_at IS NOT NULL AND purge_at <= ? ORDER BY purge_at LIMIT ?;

-- purge_steps: some steps of a flow
DELETE FROM ergon_jobs WHERE seq IN (
    SELECT seq FROM ergon_jobs WHERE flow_id IS NOT NULL AND flow_id = ? ORDER BY seq LIMIT ?
);

-- purge_joins: those of a flow
DELETE FROM ergon_flow_joins WHERE flow_id = ?;

-- purge_flow: a flow without steps
DELETE FROM ergon_flows WHERE id = ?;
