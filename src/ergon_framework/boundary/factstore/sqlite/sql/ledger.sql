-- changes: how often the set of live generations has changed
SELECT generations FROM ergon_boundary_changes;

-- changed: it changes now
UPDATE ergon_boundary_changes SET generations = generations + 1;

-- generations: all of them
SELECT id, level, bits, count, state FROM ergon_boundary_generations ORDER BY id;

-- grow: a new one, with nothing in it
INSERT INTO ergon_boundary_generations (level, bits, count) VALUES (?, ?, ?);

-- grown: one more part of it is written
UPDATE ergon_boundary_generations
SET parts = parts + 1 WHERE id = ? AND parts = ? AND state = 'growing';

-- live: it is complete
UPDATE ergon_boundary_generations SET state = 'live' WHERE id = ?;

-- die: it is no longer needed
UPDATE ergon_boundary_generations SET state = 'dying' WHERE id = ?;

-- gone: nothing is left of it
DELETE FROM ergon_boundary_generations WHERE id = ?;

-- add: one part of a generation
INSERT INTO ergon_boundary_ledger (id, bloom, ids) VALUES (?, ?, ?);

-- blooms: the filters of a generation
SELECT id, bloom FROM ergon_boundary_ledger WHERE id BETWEEN ? AND ?;

-- ids: the ids of one part
SELECT ids FROM ergon_boundary_ledger WHERE id = ?;

-- drop: some parts of a generation
DELETE FROM ergon_boundary_ledger WHERE id IN (
    SELECT id FROM ergon_boundary_ledger WHERE id BETWEEN ? AND ? LIMIT ?
);

-- sealed: up to where a log's ids are in generations
UPDATE ergon_boundary_logs SET sealed = max(sealed, ?) WHERE id = ?;
