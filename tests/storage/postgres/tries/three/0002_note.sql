-- compatible: 1
ALTER TABLE ergon_tries ADD COLUMN note text;
