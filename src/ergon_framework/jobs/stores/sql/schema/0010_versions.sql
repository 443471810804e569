-- The version of the program whose workers alone claim from a queue; NULL: those of any.
ALTER TABLE ergon_queues ADD COLUMN pinned_version TEXT;
