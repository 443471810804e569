-- compatible: 1
-- The version of the program whose workers alone claim from a queue; NULL: those of any. Workers of
-- earlier versions of Ergon do not look at it.
ALTER TABLE ergon_queues ADD COLUMN pinned_version text;
