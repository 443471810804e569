-- The tables that the storage tests work with; a semicolon in a comment; means nothing.
CREATE TABLE ergon_item (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE ergon_half (side TEXT, name TEXT);
