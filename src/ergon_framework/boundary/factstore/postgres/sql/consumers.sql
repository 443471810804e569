-- consumer: one by name
SELECT name, log, cursor, to_zone, is_required, served, deliveries, holder, held_until,
    lease, created_at
FROM {zone}.consumers WHERE name = $1 {locked};

-- consumers: all of them
SELECT name, log, cursor, to_zone, is_required, served, deliveries, holder, held_until,
    lease, created_at
FROM {zone}.consumers ORDER BY name;

-- create: a new one
INSERT INTO {zone}.consumers (name, log, cursor, to_zone, is_required, served, created_at)
VALUES ($1, $2, $3, $4, $5, 0, $6);

-- delete: forget it
DELETE FROM {zone}.consumers WHERE name = $1;

-- served: what was given out, and to whom
UPDATE {zone}.consumers
SET served = greatest(served, $1), deliveries = $2, holder = $3, held_until = $4, lease = $5
WHERE name = $6;

-- renew: the holder shows that it is alive
UPDATE {zone}.consumers SET held_until = $1 + lease WHERE name = $2 AND holder = $3;

-- shorten: a lease that a clock made too long
UPDATE {zone}.consumers SET held_until = $1 WHERE name = $2 AND held_until > $3;

-- move: the cursor moves on, and what follows it has not been given out
UPDATE {zone}.consumers
SET cursor = $2, deliveries = 0, served = greatest(served, $2) WHERE name = $1;

-- drop_lease: the holder lets go
UPDATE {zone}.consumers SET holder = NULL, held_until = 0, deliveries = 0
WHERE name = $1 AND holder = $2;

-- seek: the cursor is put elsewhere, which gives nothing out
UPDATE {zone}.consumers
SET cursor = $1, deliveries = 0, holder = NULL, held_until = 0 WHERE name = $2;
