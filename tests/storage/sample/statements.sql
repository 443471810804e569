-- Statements for the tests of the loader.

-- add: put an item in
INSERT INTO ergon_item (name, value)
-- a remark inside is kept
VALUES (:name, :value);

-- count: how many there are
SELECT count(*) FROM ergon_item
