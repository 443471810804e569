-- Which store this is. `opened_at` is written at each opening: that sync also covers what a process
-- wrote that died before its own.
CREATE TABLE ergon_boundary_store (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    zone TEXT NOT NULL,
    epoch TEXT NOT NULL,
    created_at REAL NOT NULL,
    opened_at REAL NOT NULL,
    is_backup INTEGER NOT NULL DEFAULT 0
);

-- A log's head, its size and its chain are those of its last fact, so that an append need not write
-- here. What lies below the first kept fact is told by `base_chain` and `base_total`; `last_at` and
-- `last_view` are of the last fact when none is kept. `sealed`: up to there the ledger has the ids.
CREATE TABLE ergon_boundary_logs (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    first INTEGER NOT NULL DEFAULT 1,
    base_chain BLOB NOT NULL DEFAULT (zeroblob(32)),
    base_total INTEGER NOT NULL DEFAULT 0,
    sealed INTEGER NOT NULL DEFAULT 0,
    last_at REAL,
    last_view INTEGER
);

INSERT INTO ergon_boundary_logs (id, name) VALUES (1, 'outbound');

-- `id` is the log's id and the offset in one number, `total` the bytes of the log up to here.
-- `proof` has 4 bytes of checksum over the whole row, the hash chain (32), the identity digest (32),
-- the source offset (8, -1: none), and from_zone and message_id with a NUL between them.
CREATE TABLE ergon_boundary_facts (
    id INTEGER PRIMARY KEY,
    view INTEGER NOT NULL,
    total INTEGER NOT NULL,
    recorded_at REAL NOT NULL,
    proof BLOB NOT NULL,
    envelope BLOB NOT NULL,
    fact BLOB NOT NULL
);

-- The facts of a log that go to one zone are a view, and lie in runs: stretches of the log without
-- a fact to anybody else. `rank` is the number of the run's first fact in the view, `previous` the
-- offset of the fact before it there. The run at the head has no `last` yet.
CREATE TABLE ergon_boundary_views (
    id INTEGER PRIMARY KEY,
    log INTEGER NOT NULL,
    to_zone TEXT NOT NULL,
    UNIQUE (log, to_zone)
);

CREATE TABLE ergon_boundary_runs (
    view INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER,
    rank INTEGER NOT NULL,
    previous INTEGER NOT NULL,
    PRIMARY KEY (view, first)
) WITHOUT ROWID;

-- Every id that was ever appended, for ever: a key, which stands for log, from_zone and message_id,
-- with half a digest and an offset. The youngest ids are in the rows of their facts only; from time
-- to time they are written down here in the order of their keys, as one generation, and generations
-- are merged into larger ones. The keys' space is cut into 1 << `bits` parts, of which `parts` have
-- been written; a generation is growing, live or dying.
CREATE TABLE ergon_boundary_generations (
    id INTEGER PRIMARY KEY,
    level INTEGER NOT NULL,
    bits INTEGER NOT NULL,
    count INTEGER NOT NULL,
    parts INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL DEFAULT 'growing'
);

-- `id` is the generation and the part in one number; `bloom` tells quickly which ids are not there.
CREATE TABLE ergon_boundary_ledger (
    id INTEGER PRIMARY KEY,
    bloom BLOB NOT NULL,
    ids BLOB NOT NULL
);

-- How often the set of live generations has changed, and how often a log was shortened: what a
-- process remembers may be old.
CREATE TABLE ergon_boundary_changes (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    generations INTEGER NOT NULL,
    logs INTEGER NOT NULL
);

INSERT INTO ergon_boundary_changes (one, generations, logs) VALUES (1, 0, 0);

CREATE TABLE ergon_boundary_gaps (
    id INTEGER PRIMARY KEY,
    log INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    reason TEXT NOT NULL,
    at REAL NOT NULL
);

CREATE INDEX ergon_boundary_gaps_log ON ergon_boundary_gaps (log, last);

CREATE TABLE ergon_boundary_consumers (
    name TEXT PRIMARY KEY,
    log INTEGER NOT NULL,
    cursor INTEGER NOT NULL,
    to_zone TEXT,
    is_required INTEGER NOT NULL,
    served INTEGER NOT NULL,
    deliveries INTEGER NOT NULL DEFAULT 0,
    holder TEXT,
    held_until REAL NOT NULL DEFAULT 0,
    lease REAL NOT NULL DEFAULT 0,
    created_at REAL NOT NULL
) WITHOUT ROWID;

-- The envelope and the fact are here when the fact could not enter the log; otherwise it lies there.
CREATE TABLE ergon_boundary_quarantine (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer TEXT NOT NULL,
    log TEXT NOT NULL,
    offset INTEGER NOT NULL,
    reason TEXT NOT NULL,
    message TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    at REAL NOT NULL,
    state TEXT NOT NULL DEFAULT 'quarantined',
    is_served INTEGER NOT NULL DEFAULT 0,
    envelope BLOB NOT NULL DEFAULT x'',
    fact BLOB NOT NULL DEFAULT x''
);

CREATE INDEX ergon_boundary_quarantine_consumer
    ON ergon_boundary_quarantine (consumer, state, offset);

CREATE TABLE ergon_boundary_objects (
    bucket TEXT NOT NULL,
    key TEXT NOT NULL,
    digest BLOB NOT NULL,
    size INTEGER NOT NULL,
    at REAL NOT NULL,
    is_referenced INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (bucket, key)
) WITHOUT ROWID;

CREATE INDEX ergon_boundary_objects_digest ON ergon_boundary_objects (digest);
CREATE INDEX ergon_boundary_objects_orphan ON ergon_boundary_objects (at)
    WHERE is_referenced = 0;

-- Names that a fact refers to before anybody gave them to bytes.
CREATE TABLE ergon_boundary_awaited (
    bucket TEXT NOT NULL,
    key TEXT NOT NULL,
    PRIMARY KEY (bucket, key)
) WITHOUT ROWID;

CREATE TABLE ergon_boundary_links (
    peer TEXT PRIMARY KEY,
    epoch TEXT,
    offset INTEGER NOT NULL DEFAULT 0,
    last INTEGER NOT NULL DEFAULT 0,
    chain BLOB NOT NULL DEFAULT x'',
    is_sealed INTEGER NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT '',
    at REAL NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE ergon_boundary_journal (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    action TEXT NOT NULL,
    details TEXT NOT NULL
);
