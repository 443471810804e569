-- store: which store this is
SELECT zone, epoch, created_at, is_backup FROM ergon_boundary_store;

-- found: a fresh store
INSERT INTO ergon_boundary_store (one, zone, epoch, created_at, opened_at)
VALUES (1, ?1, ?2, ?3, ?3);

-- opened: somebody opens it, or opens a copy of it
UPDATE ergon_boundary_store SET epoch = ?, opened_at = ?, is_backup = 0;

-- is_backup: this is a copy
UPDATE ergon_boundary_store SET is_backup = 1;

-- note: what an operator did
INSERT INTO ergon_boundary_journal (at, action, details) VALUES (?, ?, ?);

-- journal: what operators did
SELECT at, action, details FROM ergon_boundary_journal ORDER BY id DESC LIMIT ?;

-- links: all of them
SELECT peer, epoch, offset, chain, is_sealed, reason, at
FROM ergon_boundary_links ORDER BY peer;

-- link: one of them
SELECT peer, epoch, offset, chain, is_sealed, reason, at
FROM ergon_boundary_links WHERE peer = ?;

-- move: how far a peer's facts are here
INSERT INTO ergon_boundary_links (peer, epoch, offset, chain, at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (peer) DO UPDATE SET
    epoch = excluded.epoch, offset = excluded.offset, chain = excluded.chain, at = excluded.at;

-- seal: shut or open a link
INSERT INTO ergon_boundary_links (peer, is_sealed, reason, at) VALUES (?, ?, ?, ?)
ON CONFLICT (peer) DO UPDATE SET
    is_sealed = excluded.is_sealed, reason = excluded.reason, at = excluded.at;

-- attribute: a text that was written down about the store
SELECT value FROM ergon_boundary_attributes WHERE name = ?;

-- set_attribute: write one down
INSERT INTO ergon_boundary_attributes (name, value) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;
