-- When a worker last had an executor of that name; under the empty name, since when that is noted.
CREATE TABLE ergon_executors (
    name TEXT PRIMARY KEY,
    seen_at REAL NOT NULL
) WITHOUT ROWID;
