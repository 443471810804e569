-- consumer: one by name
SELECT name, log, cursor, to_zone, is_required, served, deliveries, holder, held_until,
    lease, created_at
FROM ergon_boundary_consumers WHERE name = ?;

-- consumers: all of them
SELECT name, log, cursor, to_zone, is_required, served, deliveries, holder, held_until,
    lease, created_at
FROM ergon_boundary_consumers ORDER BY name;

-- create: a new one
INSERT INTO ergon_boundary_consumers
    (name, log, cursor, to_zone, is_required, served, created_at)
VALUES (?, ?, ?, ?, ?, 0, ?);

-- delete: forget it
DELETE FROM ergon_boundary_consumers WHERE name = ?;

-- served: what was given out, and to whom
UPDATE ergon_boundary_consumers
SET served = max(served, ?), deliveries = ?, holder = ?, held_until = ?, lease = ?
WHERE name = ?;

-- renew: the holder shows that it is alive
UPDATE ergon_boundary_consumers SET held_until = ? + lease WHERE name = ? AND holder = ?;

-- shorten: a lease that a clock made too long
UPDATE ergon_boundary_consumers SET held_until = ? WHERE name = ? AND held_until > ?;

-- move: the cursor moves on, and what follows it has not been given out
UPDATE ergon_boundary_consumers
SET cursor = ?2, deliveries = 0, served = max(served, ?2) WHERE name = ?1;

-- drop_lease: the holder lets go
UPDATE ergon_boundary_consumers SET holder = NULL, held_until = 0, deliveries = 0
WHERE name = ? AND holder = ?;

-- seek: the cursor is put elsewhere, which gives nothing out
UPDATE ergon_boundary_consumers
SET cursor = ?, deliveries = 0, holder = NULL, held_until = 0 WHERE name = ?;
