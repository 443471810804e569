-- compatible: 2
ALTER TABLE ergon_tries ALTER COLUMN note SET DEFAULT '';
