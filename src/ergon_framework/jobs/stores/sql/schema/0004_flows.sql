-- Jobs that are steps of flows have these; of any other job all of them are NULL. Two more stages:
--   5 waits at a join, for other steps, 6 waits for a signal
-- `feeds` is a JSON list of joins, and empty once the step has counted there: a job is a step if it
-- is not NULL.
ALTER TABLE ergon_jobs ADD COLUMN flow_id TEXT;
ALTER TABLE ergon_jobs ADD COLUMN join_id TEXT;  -- NULL once the step has been released
ALTER TABLE ergon_jobs ADD COLUMN feeds TEXT;
ALTER TABLE ergon_jobs ADD COLUMN wait REAL;
ALTER TABLE ergon_jobs ADD COLUMN signal TEXT;

CREATE INDEX ergon_jobs_flow ON ergon_jobs (flow_id, seq) WHERE flow_id IS NOT NULL;
CREATE INDEX ergon_jobs_join ON ergon_jobs (join_id, seq) WHERE join_id IS NOT NULL;
CREATE INDEX ergon_jobs_signal ON ergon_jobs (flow_id, signal) WHERE signal IS NOT NULL;

CREATE TABLE ergon_flows (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    on_failure TEXT NOT NULL,
    status TEXT NOT NULL,
    unfinished INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    uncounted INTEGER NOT NULL,
    keep REAL,
    purge_at REAL,
    created_at REAL NOT NULL,
    changed_at REAL NOT NULL,
    plan BLOB NOT NULL
);
CREATE INDEX ergon_flows_status ON ergon_flows (status, seq);
CREATE INDEX ergon_flows_purge ON ergon_flows (purge_at) WHERE purge_at IS NOT NULL;

CREATE TABLE ergon_flow_joins (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    flow_id TEXT NOT NULL,
    remaining INTEGER NOT NULL,
    members BLOB NOT NULL
);
CREATE INDEX ergon_flow_joins_flow ON ergon_flow_joins (flow_id, seq);

-- What is done in slices: to the steps at a join or of a flow. Empty most of the time.
CREATE TABLE ergon_flow_work (
    seq INTEGER PRIMARY KEY,
    target TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    after INTEGER NOT NULL
);
