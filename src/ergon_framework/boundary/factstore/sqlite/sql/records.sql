-- views: the zones that facts of a log went to
SELECT id, to_zone FROM ergon_boundary_views WHERE log = ? ORDER BY id;

-- first_run: the first run of a view that reaches an offset
SELECT first, last, rank, previous FROM ergon_boundary_runs
WHERE view = ? AND (last IS NULL OR last >= ?) ORDER BY first LIMIT 1;

-- facts: of all logs, after one of them
SELECT id, view, total, recorded_at, proof, envelope, fact
FROM ergon_boundary_facts WHERE id > ? ORDER BY id LIMIT ?;

-- items: whatever was set aside, after one of them
SELECT id, consumer, log, offset, reason, message, attempts, at, state, envelope, fact, is_served
FROM ergon_boundary_quarantine WHERE id > ? ORDER BY id LIMIT ?;

-- awaited: names that stand for nothing yet, after one of them
SELECT bucket, key FROM ergon_boundary_awaited
WHERE (bucket, key) > (?, ?) ORDER BY bucket, key LIMIT ?;

-- notes: what operators did, from a position on
SELECT at, action, details FROM ergon_boundary_journal ORDER BY id LIMIT ? OFFSET ?;

-- note_count: how many notes there are
SELECT count(*) FROM ergon_boundary_journal;

-- new_log: a log that has its number already
INSERT INTO ergon_boundary_logs (id, name) VALUES (?, ?);

-- rebase: where a log without facts goes on
UPDATE ergon_boundary_logs
SET first = ?, base_chain = ?, base_total = ?, sealed = ?, last_at = ?, last_view = NULL
WHERE id = ?;

-- put_gap: a recorded loss, unless it is there
INSERT INTO ergon_boundary_gaps (log, first, last, reason, at, source_first, source_last)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7 WHERE NOT EXISTS (
    SELECT 1 FROM ergon_boundary_gaps
    WHERE log = ?1 AND first = ?2 AND last = ?3 AND reason = ?4 AND at = ?5
);

-- drop_gap: a recorded loss that is another one by now
DELETE FROM ergon_boundary_gaps
WHERE log = ? AND first = ? AND last = ? AND reason = ? AND at = ?;

-- put_consumer: a consumer as it is elsewhere
INSERT OR REPLACE INTO ergon_boundary_consumers (
    name, log, cursor, to_zone, is_required, served, deliveries, holder, held_until, lease,
    created_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- put_item: something in quarantine as it is elsewhere
INSERT OR REPLACE INTO ergon_boundary_quarantine (
    id, consumer, log, offset, reason, message, attempts, at, state, envelope, fact, is_served
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- drop_item: something that is no longer in quarantine
DELETE FROM ergon_boundary_quarantine WHERE id = ?;

-- put_name: the name of an object as it is elsewhere
INSERT OR REPLACE INTO ergon_boundary_objects (bucket, key, digest, size, at, is_referenced)
VALUES (?, ?, ?, ?, ?, ?);

-- put_link: a link as it is elsewhere
INSERT OR REPLACE INTO ergon_boundary_links (peer, epoch, offset, chain, is_sealed, reason, at)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- drop_link: a link that is not there elsewhere
DELETE FROM ergon_boundary_links WHERE peer = ?;

-- put_zone: which store this is from now on
UPDATE ergon_boundary_store SET epoch = ?, created_at = ?;

-- mark: what was written down about a move into this store
SELECT mark FROM ergon_boundary_moves;

-- set_mark: write something down
INSERT INTO ergon_boundary_moves (one, mark) VALUES (1, ?)
ON CONFLICT (one) DO UPDATE SET mark = excluded.mark;

-- unmark: forget it
DELETE FROM ergon_boundary_moves;
