-- One row per fact that waits for the node, or that the node refused. Rows go in the order of `seq`,
-- which is the order of commits.
CREATE TABLE ergon_outbox (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice
    is_refused INTEGER NOT NULL DEFAULT 0,
    from_zone TEXT NOT NULL,
    message_id TEXT NOT NULL,
    digest BLOB NOT NULL,  -- the identity digest
    size INTEGER NOT NULL,  -- bytes of envelope, fact and copied files
    added_at REAL NOT NULL,
    envelope BLOB NOT NULL,  -- JSON, as is fact
    fact BLOB NOT NULL,
    files TEXT,  -- JSON: what goes to the node before the fact
    refused_at REAL,
    refusal TEXT  -- JSON: what the node said
);

CREATE UNIQUE INDEX ergon_outbox_ids ON ergon_outbox (from_zone, message_id);
CREATE INDEX ergon_outbox_line ON ergon_outbox (is_refused, seq);

-- Counting the rows would take longer the more there are.
CREATE TABLE ergon_outbox_figures (
    is_refused INTEGER PRIMARY KEY,
    items INTEGER NOT NULL,
    bytes INTEGER NOT NULL
);
INSERT INTO ergon_outbox_figures VALUES (0, 0, 0), (1, 0, 0);

CREATE TRIGGER ergon_outbox_came AFTER INSERT ON ergon_outbox BEGIN
    UPDATE ergon_outbox_figures SET items = items + 1, bytes = bytes + NEW.size
    WHERE is_refused = NEW.is_refused;
END;

CREATE TRIGGER ergon_outbox_went AFTER DELETE ON ergon_outbox BEGIN
    UPDATE ergon_outbox_figures SET items = items - 1, bytes = bytes - OLD.size
    WHERE is_refused = OLD.is_refused;
END;

CREATE TRIGGER ergon_outbox_turned AFTER UPDATE OF is_refused ON ergon_outbox BEGIN
    UPDATE ergon_outbox_figures SET items = items - 1, bytes = bytes - OLD.size
    WHERE is_refused = OLD.is_refused;
    UPDATE ergon_outbox_figures SET items = items + 1, bytes = bytes + NEW.size
    WHERE is_refused = NEW.is_refused;
END;
