-- What many processes told, kept for a while. AUTOINCREMENT: a number is never given twice, so that
-- a reader who goes on after the last one misses nothing when old rows are swept meanwhile.

CREATE TABLE ergon_entries (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    name TEXT NOT NULL,
    source TEXT NOT NULL,
    unit TEXT NOT NULL,
    trace_id TEXT NOT NULL,
    fields TEXT NOT NULL
);

CREATE INDEX ergon_entries_at ON ergon_entries (at);
CREATE INDEX ergon_entries_unit ON ergon_entries (unit) WHERE unit <> '';
CREATE INDEX ergon_entries_trace ON ergon_entries (trace_id) WHERE trace_id <> '';

CREATE TABLE ergon_spans (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    trace_id TEXT NOT NULL,
    span_id TEXT NOT NULL,
    parent_id TEXT NOT NULL,
    name TEXT NOT NULL,
    source TEXT NOT NULL,
    unit TEXT NOT NULL,
    began_at REAL NOT NULL,
    ended_at REAL NOT NULL,
    failure TEXT NOT NULL,
    attributes TEXT NOT NULL,
    UNIQUE (trace_id, span_id)
);

CREATE INDEX ergon_spans_ended_at ON ergon_spans (ended_at);
CREATE INDEX ergon_spans_unit ON ergon_spans (unit) WHERE unit <> '';
