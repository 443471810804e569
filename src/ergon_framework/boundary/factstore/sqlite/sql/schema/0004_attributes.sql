-- Texts that were written down about this very store, say that what its facts refer to is marked.
CREATE TABLE ergon_boundary_attributes (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
