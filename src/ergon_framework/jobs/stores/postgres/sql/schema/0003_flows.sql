-- compatible: 1
-- Jobs that are steps of flows have these; of any other job all of them are NULL. Two more stages:
--   5 waits at a join, for other steps, 6 waits for a signal
-- `feeds` is a JSON list of joins, and empty once the step has counted there: a job is a step if it
-- is not NULL.
ALTER TABLE ergon_jobs
    ADD COLUMN flow_id text COLLATE "C",
    ADD COLUMN join_id text COLLATE "C",  -- NULL once the step has been released
    ADD COLUMN feeds text COLLATE "C",
    ADD COLUMN wait double precision,
    ADD COLUMN signal text COLLATE "C";

-- An older program would end a step without counting it, and what follows would wait for ever. Its
-- statements fail here: it keeps a step for a time of its own, or leaves a completed one uncounted.
-- NOT VALID: the rows that are there have no steps among them, and are not read for this.
ALTER TABLE ergon_jobs ADD CONSTRAINT ergon_steps_need_a_newer_program CHECK (
    feeds IS NULL OR (purge_at IS NULL AND (status <> 'completed' OR feeds = '[]'))
) NOT VALID;

CREATE INDEX ergon_jobs_flow ON ergon_jobs (flow_id, seq) WHERE flow_id IS NOT NULL;
CREATE INDEX ergon_jobs_join ON ergon_jobs (join_id, seq) WHERE stage = 5;
CREATE INDEX ergon_jobs_signal ON ergon_jobs (flow_id, signal, seq)
    WHERE stage > 4 AND signal IS NOT NULL;

-- Flows and joins change with every settled batch: there is room for that beside each row.
CREATE TABLE ergon_flows (
    seq bigint GENERATED ALWAYS AS IDENTITY,  -- also the order of adding
    created_at double precision NOT NULL,
    changed_at double precision NOT NULL,
    purge_at double precision,
    keep double precision,  -- the longest that one of its steps asks for; NULL: for ever
    unfinished bigint NOT NULL,
    completed bigint NOT NULL,
    failed bigint NOT NULL,
    cancelled bigint NOT NULL,
    uncounted bigint NOT NULL,
    id text COLLATE "C" PRIMARY KEY,
    on_failure text NOT NULL,
    status text COLLATE "C" NOT NULL,
    name text NOT NULL,
    plan bytea NOT NULL
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX ergon_flows_seq ON ergon_flows (seq);
CREATE INDEX ergon_flows_status ON ergon_flows (status, seq);
CREATE INDEX ergon_flows_purge ON ergon_flows (purge_at) WHERE purge_at IS NOT NULL;

CREATE TABLE ergon_flow_joins (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    remaining bigint NOT NULL,
    id text COLLATE "C" PRIMARY KEY,
    flow_id text COLLATE "C" NOT NULL,
    members bytea NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX ergon_flow_joins_flow ON ergon_flow_joins (flow_id, seq);

-- What is done in slices: to the steps at a join or of a flow. Empty most of the time.
CREATE TABLE ergon_flow_work (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    after bigint NOT NULL,
    target text COLLATE "C" PRIMARY KEY,
    flow_id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL
);
CREATE INDEX ergon_flow_work_seq ON ergon_flow_work (seq);
CREATE INDEX ergon_flow_work_stopping ON ergon_flow_work (target) WHERE kind = 'cancel';
