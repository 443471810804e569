-- A loss of a peer lies in the inbound log: it takes one offset there, where the facts table has a
-- marker, and `source_first` to `source_last` is what the peer gave up in its own log.
ALTER TABLE ergon_boundary_gaps ADD COLUMN source_first INTEGER;
ALTER TABLE ergon_boundary_gaps ADD COLUMN source_last INTEGER;

-- Nobody ever read it.
ALTER TABLE ergon_boundary_links DROP COLUMN last;
