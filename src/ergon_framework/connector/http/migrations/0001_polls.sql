-- How far each consumer of a polled API is, and what of it is done.

CREATE TABLE ergon_poll_cursors (
    consumer TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,   -- grows each time that a process begins to read as this consumer
    position TEXT,            -- the first page that is not settled; NULL for the first of all
    etag TEXT,                -- of that page, when all that was on it is settled
    since TEXT,               -- JSON: what the pass under way asks from
    highest TEXT,             -- JSON: the highest value of settled pages in this pass
    pass INTEGER NOT NULL,    -- numbers the readings from the first page to the last
    updated_at REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE ergon_poll_marks (
    consumer TEXT NOT NULL,
    id TEXT NOT NULL,
    pass INTEGER NOT NULL,    -- the last one in which it was seen
    number INTEGER NOT NULL,  -- in the order in which they were done
    PRIMARY KEY (consumer, id)
) WITHOUT ROWID;

CREATE INDEX ergon_poll_marks_number ON ergon_poll_marks (consumer, number);

CREATE TABLE ergon_poll_dead (
    number INTEGER PRIMARY KEY,
    consumer TEXT NOT NULL,
    id TEXT NOT NULL,
    dead_at REAL NOT NULL,
    reason TEXT NOT NULL,
    item TEXT                 -- the item as JSON, unless it was too large
);

CREATE INDEX ergon_poll_dead_consumer ON ergon_poll_dead (consumer, number);
