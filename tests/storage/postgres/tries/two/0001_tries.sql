CREATE TABLE ergon_tries (
    name text PRIMARY KEY,
    touched integer NOT NULL DEFAULT 0
);
