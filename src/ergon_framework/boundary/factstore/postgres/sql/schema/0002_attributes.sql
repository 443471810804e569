-- Texts that were written down about this very store, say that what its facts refer to is marked.
-- Programs that left such a mark out when they checked no references are shut out.
CREATE TABLE attributes (
    name text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);
