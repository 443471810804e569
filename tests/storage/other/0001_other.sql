CREATE TABLE ergon_other (id INTEGER);
