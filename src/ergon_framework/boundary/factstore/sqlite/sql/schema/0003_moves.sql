-- What was written down about a move into this store.
CREATE TABLE ergon_boundary_moves (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    mark BLOB NOT NULL
);
