-- item: one by its number
SELECT id, consumer, log, position, reason, message, attempts, at, state, envelope, fact
FROM {zone}.quarantine WHERE id = $1 {locked};

-- items: what was set aside, oldest first
SELECT id, consumer, log, position, reason, message, attempts, at, state, envelope, fact
FROM {zone}.quarantine
WHERE ($1::text IS NULL OR consumer = $1) AND ($2::text IS NULL OR state = $2) ORDER BY id;

-- released: what is to be delivered again, of a stretch
SELECT id, position FROM {zone}.quarantine
WHERE consumer = $1 AND state = 'released' AND position > $2 AND position <= $3
ORDER BY position, id LIMIT $4;

-- open_at: an item that nobody has settled
SELECT id, state FROM {zone}.quarantine
WHERE consumer = $1 AND state IN ('quarantined', 'released') AND position = $2 {locked};

-- delivered: released items become settled once they were given out and confirmed
UPDATE {zone}.quarantine SET state = 'settled', is_served = false
WHERE consumer = $1 AND state = 'released' AND position <= $2 AND is_served;

-- same: whether a fact that could not enter is here already
SELECT 1 FROM {zone}.quarantine
WHERE consumer = $1 AND log = $2 AND position = $3 AND envelope = $4 AND fact = $5;

-- add: set something aside
INSERT INTO {zone}.quarantine
    (consumer, log, position, reason, message, attempts, at, envelope, fact)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING id;

-- again: a released item failed once more
UPDATE {zone}.quarantine
SET state = 'quarantined', is_served = false, reason = $1, message = $2, attempts = $3
WHERE id = $4;

-- undeliverable: a released item can no longer be delivered
UPDATE {zone}.quarantine
SET state = 'quarantined', is_served = false, reason = 'corrupted' WHERE id = $1;

-- mark_served: a released item was given out
UPDATE {zone}.quarantine SET is_served = true WHERE id = $1;

-- settle: an item changes its state
UPDATE {zone}.quarantine SET state = $1, is_served = false WHERE id = $2;

-- forget: all items of a consumer
DELETE FROM {zone}.quarantine WHERE consumer = $1;
