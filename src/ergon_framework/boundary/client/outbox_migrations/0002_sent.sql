-- What the node has, kept for a time so that it can be told again after the node was restored from a
-- backup. The rows of `ergon_outbox` as they were.
CREATE TABLE ergon_outbox_sent (
    seq INTEGER PRIMARY KEY,
    from_zone TEXT NOT NULL,
    message_id TEXT NOT NULL,
    digest BLOB NOT NULL,
    size INTEGER NOT NULL,
    added_at REAL NOT NULL,
    envelope BLOB NOT NULL,
    fact BLOB NOT NULL,
    files TEXT,
    sent_at REAL NOT NULL
);
CREATE INDEX ergon_outbox_sent_at ON ergon_outbox_sent (sent_at);
