-- views: the zones that facts of a log went to
SELECT id, to_zone FROM {zone}.views WHERE log = $1 ORDER BY id;

-- first_run: the first run of a view that reaches an offset
SELECT first, last, rank, previous FROM {zone}.runs
WHERE view = $1 AND (last IS NULL OR last >= $2) ORDER BY first LIMIT 1;

-- facts: of all logs, after one of them
SELECT id, view, total, recorded_at, proof, envelope, fact
FROM {zone}.facts WHERE id > $1 ORDER BY id LIMIT $2;

-- ids: every id after a key, those of kept facts included
(SELECT key, substring(proof FROM 37 FOR 16), id FROM {zone}.facts
WHERE key > $1 ORDER BY key LIMIT $2)
UNION ALL
(SELECT key, digest, id FROM {zone}.ledger WHERE key > $1 ORDER BY key LIMIT $2)
ORDER BY key LIMIT $2;

-- put_ids: ids of facts that are not kept, unless they are known
INSERT INTO {zone}.ledger (key, digest, id)
SELECT each.key, each.digest, each.id
FROM unnest($1::bytea[], $2::bytea[], $3::bigint[]) AS each (key, digest, id)
WHERE NOT EXISTS (SELECT FROM {zone}.facts AS fact WHERE fact.key = each.key)
ON CONFLICT (key) DO NOTHING;

-- drop_ids: of facts that are kept from now on, and know their ids themselves
DELETE FROM {zone}.ledger AS known WHERE key = ANY($1::bytea[])
AND EXISTS (SELECT FROM {zone}.facts AS fact WHERE fact.key = known.key);

-- items: whatever was set aside, after one of them
SELECT id, consumer, log, position, reason, message, attempts, at, state, envelope, fact, is_served
FROM {zone}.quarantine WHERE id > $1 ORDER BY id LIMIT $2;

-- awaited: names that stand for nothing yet, after one of them
SELECT bucket, key FROM {zone}.awaited
WHERE (bucket, key) > ($1, $2) ORDER BY bucket, key LIMIT $3;

-- notes: what operators did, from a position on
SELECT at, action, details FROM {zone}.journal ORDER BY id LIMIT $1 OFFSET $2;

-- note_count: how many notes there are
SELECT count(*) FROM {zone}.journal;

-- new_log: a log that has its number already; others get higher ones
WITH made AS (INSERT INTO {zone}.logs (id, name) VALUES ($1, $2) RETURNING id)
SELECT setval(
    pg_get_serial_sequence('{zone}.logs', 'id'),
    greatest(made.id, (SELECT max(id) FROM {zone}.logs))
) FROM made;

-- rebase: where a log without facts goes on
UPDATE {zone}.logs SET first = $1, base_chain = $2, base_total = $3, head = $4, last_at = $5,
    total = $3, chain = $2, last_view = NULL, cuts = cuts + 1
WHERE id = $6;

-- put_gap: a recorded loss, unless it is there
INSERT INTO {zone}.gaps (log, first, last, reason, at, source_first, source_last)
SELECT $1, $2, $3, $4::text, $5, $6, $7 WHERE NOT EXISTS (
    SELECT FROM {zone}.gaps
    WHERE log = $1 AND first = $2 AND last = $3 AND reason = $4::text AND at = $5
);

-- drop_gap: a recorded loss that is another one by now
DELETE FROM {zone}.gaps
WHERE log = $1 AND first = $2 AND last = $3 AND reason = $4 AND at = $5;

-- put_consumer: a consumer as it is elsewhere
INSERT INTO {zone}.consumers (
    name, log, cursor, to_zone, is_required, served, deliveries, holder, held_until, lease,
    created_at
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (name) DO UPDATE SET log = excluded.log, cursor = excluded.cursor,
    to_zone = excluded.to_zone, is_required = excluded.is_required, served = excluded.served,
    deliveries = excluded.deliveries, holder = excluded.holder,
    held_until = excluded.held_until, lease = excluded.lease, created_at = excluded.created_at;

-- put_item: something in quarantine as it is elsewhere; others get higher numbers
WITH made AS (
    INSERT INTO {zone}.quarantine (
        id, consumer, log, position, reason, message, attempts, at, state, envelope, fact,
        is_served
    ) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
    ON CONFLICT (id) DO UPDATE SET consumer = excluded.consumer, log = excluded.log,
        position = excluded.position, reason = excluded.reason, message = excluded.message,
        attempts = excluded.attempts, at = excluded.at, state = excluded.state,
        envelope = excluded.envelope, fact = excluded.fact, is_served = excluded.is_served
    RETURNING id
)
SELECT setval(
    pg_get_serial_sequence('{zone}.quarantine', 'id'),
    greatest(made.id, (SELECT max(id) FROM {zone}.quarantine))
) FROM made;

-- drop_item: something that is no longer in quarantine
DELETE FROM {zone}.quarantine WHERE id = $1;

-- put_name: the name of an object as it is elsewhere
INSERT INTO {zone}.objects (bucket, key, digest, size, at, is_referenced)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (bucket, key) DO UPDATE SET digest = excluded.digest, size = excluded.size,
    at = excluded.at, is_referenced = excluded.is_referenced;

-- put_link: a link as it is elsewhere
INSERT INTO {zone}.links (peer, epoch, position, chain, is_sealed, reason, at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (peer) DO UPDATE SET epoch = excluded.epoch, position = excluded.position,
    chain = excluded.chain, is_sealed = excluded.is_sealed, reason = excluded.reason,
    at = excluded.at;

-- drop_link: a link that is not there elsewhere
DELETE FROM {zone}.links WHERE peer = $1;

-- put_zone: which store this is from now on
UPDATE {zone}.store SET epoch = $1, created_at = $2;

-- mark: what was written down about a move into this store
SELECT mark FROM {zone}.moves;

-- set_mark: write something down
INSERT INTO {zone}.moves (one, mark) VALUES (1, $1)
ON CONFLICT (one) DO UPDATE SET mark = excluded.mark;

-- unmark: forget it
DELETE FROM {zone}.moves;
