-- log: one log by name, with its last fact
SELECT log.id, log.name, log.first, log.base_chain, log.base_total, log.sealed, log.last_at,
    log.last_view, fact.id, fact.total, substr(fact.proof, 5, 32), fact.recorded_at, fact.view
FROM ergon_boundary_logs AS log LEFT JOIN ergon_boundary_facts AS fact ON fact.id = (
    SELECT max(id) FROM ergon_boundary_facts
    WHERE id BETWEEN log.id << 40 AND (log.id << 40) + 1099511627775
) WHERE log.name = ?;

-- log_of: one log by its number, with its last fact
SELECT log.id, log.name, log.first, log.base_chain, log.base_total, log.sealed, log.last_at,
    log.last_view, fact.id, fact.total, substr(fact.proof, 5, 32), fact.recorded_at, fact.view
FROM ergon_boundary_logs AS log LEFT JOIN ergon_boundary_facts AS fact ON fact.id = (
    SELECT max(id) FROM ergon_boundary_facts
    WHERE id BETWEEN log.id << 40 AND (log.id << 40) + 1099511627775
) WHERE log.id = ?;

-- logs: the names of all, outbound first
SELECT name FROM ergon_boundary_logs ORDER BY id <> 1, name;

-- state: how often things have changed, and the last fact of a log with its chain
SELECT changes.generations, changes.logs, fact.id, substr(fact.proof, 5, 32)
FROM ergon_boundary_changes AS changes LEFT JOIN ergon_boundary_facts AS fact ON fact.id = (
    SELECT max(id) FROM ergon_boundary_facts WHERE id BETWEEN ? AND ?
);

-- was_shortened: a log's row changes
UPDATE ergon_boundary_changes SET logs = logs + 1;

-- new_log: a log without facts
INSERT INTO ergon_boundary_logs (name) VALUES (?);

-- shortened: a log after payloads were dropped
UPDATE ergon_boundary_logs
SET first = ?, base_chain = ?, base_total = ?, last_at = ?, last_view = ? WHERE id = ?;

-- view: the facts of a log to one zone
SELECT id FROM ergon_boundary_views WHERE log = ? AND to_zone = ?;

-- zone_of: where the facts of a view go
SELECT to_zone FROM ergon_boundary_views WHERE id = ?;

-- new_view: the first fact of a log to a zone is about to come
INSERT INTO ergon_boundary_views (log, to_zone) VALUES (?, ?);

-- last_run: the newest run of a view
SELECT first, last, rank, previous
FROM ergon_boundary_runs WHERE view = ? ORDER BY first DESC LIMIT 1;

-- run_at: the run that an offset lies in
SELECT first, last, rank, previous
FROM ergon_boundary_runs WHERE view = ? AND first <= ? ORDER BY first DESC LIMIT 1;

-- run_after: the run that the next fact of a view lies in
SELECT first, last, rank, previous FROM ergon_boundary_runs
WHERE view = ?1 AND first >= coalesce(
    (SELECT max(first) FROM ergon_boundary_runs WHERE view = ?1 AND first <= ?2 + 1), 0
) AND coalesce(last, ?3) > ?2
ORDER BY first LIMIT 1;

-- new_run: facts to another zone begin
INSERT INTO ergon_boundary_runs (view, first, last, rank, previous) VALUES (?, ?, ?, ?, ?);

-- end_run: facts to another zone have begun
UPDATE ergon_boundary_runs SET last = ? WHERE view = ? AND first = ?;

-- drop_runs: runs that lie below what is kept; the newest of each view stays
DELETE FROM ergon_boundary_runs
WHERE view IN (SELECT id FROM ergon_boundary_views WHERE log = ?1) AND first < ?2 AND last < ?2 AND first < (
    SELECT max(first) FROM ergon_boundary_runs AS other
    WHERE other.view = ergon_boundary_runs.view
);

-- insert_fact: one more fact
INSERT INTO ergon_boundary_facts (
    id, view, total, recorded_at, proof, envelope, fact
) VALUES (?, ?, ?, ?, ?, ?, ?);

-- write_back: a damaged fact as it was
UPDATE ergon_boundary_facts
SET view = ?, total = ?, recorded_at = ?, proof = ?, envelope = ?, fact = ? WHERE id = ?;

-- identity: what is needed to answer a repeated append
SELECT substr(proof, 37, 32), envelope FROM ergon_boundary_facts WHERE id = ?;

-- ids: what the ledger is made of
SELECT id, proof
FROM ergon_boundary_facts WHERE id > ? AND id <= ? ORDER BY id;

-- chain: the hash chain at a fact, and the log's bytes up to it
SELECT substr(proof, 5, 32), total, recorded_at, view FROM ergon_boundary_facts WHERE id = ?;

-- recorded_at: when a fact was recorded
SELECT recorded_at FROM ergon_boundary_facts WHERE id = ?;

-- fact: one fact
SELECT id, view, total, recorded_at, proof, envelope, fact
FROM ergon_boundary_facts WHERE id = ?;

-- facts: a stretch of a log
SELECT id, view, total, recorded_at, proof, envelope, fact
FROM ergon_boundary_facts WHERE id > ? AND id <= ? ORDER BY id LIMIT ?;

-- facts_of_view: a stretch of a log, as one zone sees it; told to order by the facts' numbers too,
-- SQLite would read and sort whole runs, though it walks along them anyway
SELECT fact.id, fact.view, total, recorded_at, proof, envelope, fact, run.first, run.previous
FROM ergon_boundary_runs AS run CROSS JOIN ergon_boundary_facts AS fact
WHERE run.view = ?1 AND run.first >= coalesce(
    (SELECT max(first) FROM ergon_boundary_runs WHERE view = ?1 AND first <= ?3 + 1), 0
) AND fact.id > ?2 + ?3
AND fact.id >= ?2 + run.first AND fact.id <= ?2 + coalesce(run.last, ?4)
ORDER BY run.first LIMIT ?5;

-- younger: the first fact of a stretch that was recorded at or after an instant
SELECT id FROM ergon_boundary_facts
WHERE id > ? AND id <= ? AND recorded_at >= ? ORDER BY id LIMIT 1;

-- drop: remove the payloads of a stretch
DELETE FROM ergon_boundary_facts WHERE id BETWEEN ? AND ?;

-- needed: the lowest cursor that retention waits for, and the lowest offset set aside for those
SELECT min(reader.cursor), min(item.offset)
FROM ergon_boundary_consumers AS reader
LEFT JOIN ergon_boundary_quarantine AS item
    ON item.consumer = reader.name AND item.state IN ('quarantined', 'released')
WHERE reader.log = ? AND reader.is_required;

-- slowest: the lowest cursor of all
SELECT min(cursor) FROM ergon_boundary_consumers WHERE log = ?;

-- add_gap: a recorded loss
INSERT INTO ergon_boundary_gaps (log, first, last, reason, at) VALUES (?, ?, ?, ?, ?);

-- add_peer_gap: a loss of a peer, where its marker lies
INSERT INTO ergon_boundary_gaps (log, first, last, reason, at, source_first, source_last)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- widen_gap: the loss goes on
UPDATE ergon_boundary_gaps SET last = ?, at = ?
WHERE log = ? AND last = ? AND reason = ? AND source_first IS NULL;

-- gaps: recorded losses of a log that reach into a stretch
SELECT first, last, reason, at, source_first, source_last
FROM ergon_boundary_gaps WHERE log = ? AND last > ? AND first <= ? ORDER BY first, id;

-- markers: offsets after a place that no fact has, since a peer lost something there
SELECT first FROM ergon_boundary_gaps
WHERE log = ? AND last > ? AND source_first IS NOT NULL ORDER BY first;
