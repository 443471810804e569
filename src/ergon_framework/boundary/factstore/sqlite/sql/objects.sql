-- object: what a name stands for
SELECT bucket, key, digest, size, at, is_referenced
FROM ergon_boundary_objects WHERE bucket = ? AND key = ?;

-- objects: names in order
SELECT bucket, key, digest, size, at, is_referenced
FROM ergon_boundary_objects WHERE (bucket, key) > (?, ?) ORDER BY bucket, key LIMIT ?;

-- objects_in: names of one bucket in order
SELECT bucket, key, digest, size, at, is_referenced
FROM ergon_boundary_objects WHERE bucket = ? AND (bucket, key) > (?, ?)
ORDER BY bucket, key LIMIT ?;

-- orphans: names that no fact has referred to
SELECT bucket, key, digest, size, at, is_referenced
FROM ergon_boundary_objects WHERE is_referenced = 0 AND at < ? ORDER BY at, bucket, key LIMIT ?;

-- renew: a name that was given again
UPDATE ergon_boundary_objects SET at = ? WHERE bucket = ? AND key = ?;

-- totals: how many names, and how many bytes they stand for
SELECT count(*), coalesce(sum(size), 0) FROM ergon_boundary_objects;

-- bind: a new name
INSERT INTO ergon_boundary_objects (bucket, key, digest, size, at, is_referenced)
VALUES (?, ?, ?, ?, ?, ?);

-- unbind: a name less
DELETE FROM ergon_boundary_objects WHERE bucket = ? AND key = ?;

-- refer: a fact refers to it
UPDATE ergon_boundary_objects SET is_referenced = 1 WHERE bucket = ? AND key = ?;

-- is_bound: whether any name stands for these bytes
SELECT 1 FROM ergon_boundary_objects WHERE digest = ? LIMIT 1;

-- await: a fact refers to a name that stands for nothing yet
INSERT OR IGNORE INTO ergon_boundary_awaited (bucket, key) VALUES (?, ?);

-- arrived: whether a fact has been waiting for this name
DELETE FROM ergon_boundary_awaited WHERE bucket = ? AND key = ?;
