-- store: which store this is, and whether somebody restored it here from a copy
SELECT zone, epoch, created_at, place <> {place} FROM {zone}.store;

-- found: a fresh store
INSERT INTO {zone}.store (one, zone, epoch, created_at, opened_at, place)
VALUES (1, $1, $2, $3, $3, {place});

-- opened: somebody opens it, or opens a copy of it
UPDATE {zone}.store SET epoch = $1, opened_at = $2, place = {place};

-- note: what an operator did
INSERT INTO {zone}.journal (at, action, details) VALUES ($1, $2, $3);

-- journal: what operators did
SELECT at, action, details FROM {zone}.journal ORDER BY id DESC LIMIT $1;

-- links: all of them
SELECT peer, epoch, position, chain, is_sealed, reason, at FROM {zone}.links ORDER BY peer;

-- link: one of them
SELECT peer, epoch, position, chain, is_sealed, reason, at FROM {zone}.links WHERE peer = $1;

-- move: how far a peer's facts are here
INSERT INTO {zone}.links (peer, epoch, position, chain, at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (peer) DO UPDATE SET epoch = excluded.epoch, position = excluded.position,
    chain = excluded.chain, at = excluded.at;

-- seal: shut or open a link
INSERT INTO {zone}.links (peer, is_sealed, reason, at) VALUES ($1, $2, $3, $4)
ON CONFLICT (peer) DO UPDATE SET
    is_sealed = excluded.is_sealed, reason = excluded.reason, at = excluded.at;

-- attribute: a text that was written down about the store
SELECT value FROM {zone}.attributes WHERE name = $1;

-- set_attribute: write one down
INSERT INTO {zone}.attributes (name, value) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;
