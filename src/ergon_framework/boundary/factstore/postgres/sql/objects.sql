-- object: what a name stands for; bound while a fact that refers to it came in, it is awaited
SELECT bucket, key, digest, size, at, is_referenced OR EXISTS (
    SELECT FROM {zone}.awaited AS wanted
    WHERE wanted.bucket = objects.bucket AND wanted.key = objects.key
)
FROM {zone}.objects WHERE bucket = $1 AND key = $2 {locked};

-- named: what several names stand for, and nobody takes them away
SELECT bucket, key, digest, size
FROM {zone}.objects
WHERE (bucket, key) IN (SELECT * FROM unnest($1::text[], $2::text[]))
ORDER BY bucket, key FOR UPDATE;

-- objects: names in order
SELECT bucket, key, digest, size, at, is_referenced OR EXISTS (
    SELECT FROM {zone}.awaited AS wanted
    WHERE wanted.bucket = objects.bucket AND wanted.key = objects.key
)
FROM {zone}.objects WHERE (bucket, key) > ($1, $2) ORDER BY bucket, key LIMIT $3;

-- objects_in: names of one bucket in order
SELECT bucket, key, digest, size, at, is_referenced OR EXISTS (
    SELECT FROM {zone}.awaited AS wanted
    WHERE wanted.bucket = objects.bucket AND wanted.key = objects.key
)
FROM {zone}.objects WHERE bucket = $1 AND (bucket, key) > ($2, $3)
ORDER BY bucket, key LIMIT $4;

-- orphans: names that no fact has referred to
SELECT bucket, key, digest, size, at, is_referenced
FROM {zone}.objects WHERE NOT is_referenced AND at < $1 AND NOT EXISTS (
    SELECT FROM {zone}.awaited AS wanted
    WHERE wanted.bucket = objects.bucket AND wanted.key = objects.key
) ORDER BY at, bucket, key LIMIT $2;

-- renew: a name that was given again
UPDATE {zone}.objects SET at = $1 WHERE bucket = $2 AND key = $3;

-- totals: how many names, and how many bytes they stand for
SELECT count(*), coalesce(sum(size), 0)::bigint FROM {zone}.objects;

-- bind: a new name
INSERT INTO {zone}.objects (bucket, key, digest, size, at, is_referenced)
VALUES ($1, $2, $3, $4, $5, $6);

-- unbind: a name less
DELETE FROM {zone}.objects WHERE bucket = $1 AND key = $2;

-- refer: a fact refers to it
UPDATE {zone}.objects SET is_referenced = true WHERE bucket = $1 AND key = $2;

-- refer_all: facts refer to these names
UPDATE {zone}.objects SET is_referenced = true
WHERE (bucket, key) IN (SELECT * FROM unnest($1::text[], $2::text[])) AND NOT is_referenced;

-- is_bound: whether any name stands for these bytes
SELECT 1 FROM {zone}.objects WHERE digest = $1 LIMIT 1;

-- await_all: facts refer to names, of which some may stand for nothing yet
INSERT INTO {zone}.awaited (bucket, key)
SELECT bucket, key FROM unnest($1::text[], $2::text[]) AS name (bucket, key)
WHERE NOT EXISTS (
    SELECT FROM {zone}.objects AS found
    WHERE found.bucket = name.bucket AND found.key = name.key
) ON CONFLICT DO NOTHING;

-- await: a fact refers to a name that stands for nothing yet
INSERT INTO {zone}.awaited (bucket, key) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- arrived: whether a fact has been waiting for this name
DELETE FROM {zone}.awaited WHERE bucket = $1 AND key = $2;
