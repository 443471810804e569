-- compatible: 1
-- When a worker last had an executor of that name; under the empty name, since when that is noted.
CREATE TABLE ergon_executors (
    name text COLLATE "C" PRIMARY KEY,
    seen_at double precision NOT NULL
);
