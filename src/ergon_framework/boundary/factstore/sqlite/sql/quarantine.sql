-- item: one by its number
SELECT id, consumer, log, offset, reason, message, attempts, at, state, envelope, fact
FROM ergon_boundary_quarantine WHERE id = ?;

-- items: what was set aside, oldest first
SELECT id, consumer, log, offset, reason, message, attempts, at, state, envelope, fact
FROM ergon_boundary_quarantine
WHERE (?1 IS NULL OR consumer = ?1) AND (?2 IS NULL OR state = ?2) ORDER BY id;

-- released: what is to be delivered again, of a stretch
SELECT id, offset FROM ergon_boundary_quarantine
WHERE consumer = ? AND state = 'released' AND offset > ? AND offset <= ?
ORDER BY offset, id LIMIT ?;

-- open_at: an item that nobody has settled
SELECT id, state FROM ergon_boundary_quarantine
WHERE consumer = ? AND state IN ('quarantined', 'released') AND offset = ?;

-- delivered: released items become settled once they were given out and confirmed
UPDATE ergon_boundary_quarantine SET state = 'settled', is_served = 0
WHERE consumer = ? AND state = 'released' AND offset <= ? AND is_served;

-- same: whether a fact that could not enter is here already
SELECT 1 FROM ergon_boundary_quarantine
WHERE consumer = ? AND log = ? AND offset = ? AND envelope = ? AND fact = ?;

-- add: set something aside
INSERT INTO ergon_boundary_quarantine
    (consumer, log, offset, reason, message, attempts, at, envelope, fact)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- again: a released item failed once more
UPDATE ergon_boundary_quarantine
SET state = 'quarantined', is_served = 0, reason = ?, message = ?, attempts = ? WHERE id = ?;

-- undeliverable: a released item can no longer be delivered
UPDATE ergon_boundary_quarantine
SET state = 'quarantined', is_served = 0, reason = 'corrupted' WHERE id = ?;

-- mark_served: a released item was given out
UPDATE ergon_boundary_quarantine SET is_served = 1 WHERE id = ?;

-- settle: an item changes its state
UPDATE ergon_boundary_quarantine SET state = ?, is_served = 0 WHERE id = ?;

-- forget: all items of a consumer
DELETE FROM ergon_boundary_quarantine WHERE consumer = ?;
