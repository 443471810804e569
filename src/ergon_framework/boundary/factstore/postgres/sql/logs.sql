-- log: one log by name, with its last fact
SELECT id, name, first, base_chain, base_total, head, last_at, last_view,
    (id::bigint << 40) + head, total, chain, last_at, last_view
FROM {zone}.logs WHERE name = $1 {locked};

-- log_of: one log by its number, with its last fact
SELECT id, name, first, base_chain, base_total, head, last_at, last_view,
    (id::bigint << 40) + head, total, chain, last_at, last_view
FROM {zone}.logs WHERE id = $1;

-- logs: the names of all, outbound first
SELECT name FROM {zone}.logs ORDER BY id <> 1, name;

-- heads: where every log ends
SELECT name, head FROM {zone}.logs;

-- new_log: a log without facts, unless somebody was faster
INSERT INTO {zone}.logs (name) VALUES ($1) ON CONFLICT (name) DO NOTHING;

-- hold: keep everybody else from appending to a log; where it stands, and which store it is in
SELECT name, head, chain, cuts, (SELECT epoch FROM {zone}.store),
    CASE WHEN current_setting('synchronous_commit') IN ('on', 'remote_apply') THEN ''
    ELSE set_config('synchronous_commit', 'on', true) END
FROM {zone}.logs WHERE name = ANY($1) ORDER BY name FOR UPDATE;

-- append: take a log further that stands where it is believed to stand, with ids that are all new;
-- what is believed and is not so makes it fail
WITH taken AS (
    UPDATE {zone}.logs SET head = $2, total = $3, chain = $4, last_at = $5, last_view = $6
    WHERE id = $1 AND head = $7 AND chain = $8 AND cuts = $9
    AND (first = 1 OR NOT EXISTS (SELECT FROM {zone}.ledger WHERE key = ANY($14::bytea[])))
    RETURNING CASE WHEN current_setting('synchronous_commit') IN ('on', 'remote_apply') THEN ''
        ELSE set_config('synchronous_commit', 'on', true) END
), entered AS (
    INSERT INTO {zone}.facts (id, view, total, recorded_at, key, proof, envelope, fact)
    SELECT fact.* FROM taken CROSS JOIN unnest(
        $10::bigint[], $11::integer[], $12::bigint[], $13::float8[],
        $14::bytea[], $15::bytea[], $16::bytea[], $17::bytea[]
    ) AS fact
)
SELECT 1 / count(*) FROM taken;

-- known: what the ledger knows about keys, with the envelopes of facts that are kept
SELECT key, id, substring(proof FROM 37 FOR 32), envelope FROM {zone}.facts WHERE key = ANY($1)
UNION ALL
SELECT key, id, digest, NULL FROM {zone}.ledger WHERE key = ANY($1);

-- known_rows: the same with whole rows
SELECT key, id, substring(proof FROM 37 FOR 32), view, total, recorded_at, proof, envelope, fact
FROM {zone}.facts WHERE key = ANY($1)
UNION ALL
SELECT key, id, digest, NULL, NULL, NULL, NULL, NULL, NULL FROM {zone}.ledger WHERE key = ANY($1);

-- write_back: a damaged fact as it was
UPDATE {zone}.facts
SET view = $1, total = $2, recorded_at = $3, proof = $4, envelope = $5, fact = $6 WHERE id = $7;

-- ids: what the ledger knows about keys
SELECT key, substring(proof FROM 37 FOR 16), id FROM {zone}.facts WHERE key = ANY($1)
UNION ALL
SELECT key, digest, id FROM {zone}.ledger WHERE key = ANY($1);

-- enter: write facts
INSERT INTO {zone}.facts (id, view, total, recorded_at, key, proof, envelope, fact)
SELECT * FROM unnest(
    $1::bigint[], $2::integer[], $3::bigint[], $4::float8[],
    $5::bytea[], $6::bytea[], $7::bytea[], $8::bytea[]
);

-- reach: a log after facts were written
UPDATE {zone}.logs SET head = $2, total = $3, chain = $4, last_at = $5, last_view = $6
WHERE id = $1;

-- announce: tell other processes that there are new facts
SELECT pg_notify($1, $2);

-- shortened: a log after payloads were dropped; what its last fact was stays known here anyway
UPDATE {zone}.logs SET first = $1, base_chain = $2, base_total = $3, cuts = cuts + 1,
    last_at = coalesce(last_at, $4), last_view = coalesce(last_view, $5)
WHERE id = $6;

-- view: the facts of a log to one zone
SELECT id FROM {zone}.views WHERE log = $1 AND to_zone = $2;

-- zone_of: where the facts of a view go
SELECT to_zone FROM {zone}.views WHERE id = $1;

-- new_view: the first fact of a log to a zone is about to come
INSERT INTO {zone}.views (log, to_zone) VALUES ($1, $2) RETURNING id;

-- last_run: the newest run of a view
SELECT first, last, rank, previous
FROM {zone}.runs WHERE view = $1 ORDER BY first DESC LIMIT 1;

-- run_at: the run that an offset lies in
SELECT first, last, rank, previous
FROM {zone}.runs WHERE view = $1 AND first <= $2 ORDER BY first DESC LIMIT 1;

-- run_after: the run that the next fact of a view lies in
SELECT first, last, rank, previous FROM {zone}.runs
WHERE view = $1 AND first >= coalesce(
    (SELECT max(first) FROM {zone}.runs WHERE view = $1 AND first <= $2::bigint + 1), 0
) AND coalesce(last, $3::bigint) > $2::bigint
ORDER BY first LIMIT 1;

-- new_run: facts to another zone began and ended before what is kept
INSERT INTO {zone}.runs (view, first, last, rank, previous) VALUES ($1, $2, $3, $4, $5);

-- new_runs: facts to other zones begin; a run that has not ended has a last of 0
INSERT INTO {zone}.runs (view, first, last, rank, previous)
SELECT run.view, run.first, nullif(run.last, 0), run.rank, run.previous
FROM unnest($1::integer[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
    AS run (view, first, last, rank, previous);

-- end_run: facts to another zone have begun
UPDATE {zone}.runs SET last = $1 WHERE view = $2 AND first = $3;

-- end_runs: facts to other zones have begun
UPDATE {zone}.runs AS run SET last = over.last
FROM unnest($1::bigint[], $2::integer[], $3::bigint[]) AS over (last, view, first)
WHERE run.view = over.view AND run.first = over.first;

-- drop_runs: runs that lie below what is kept; the newest of each view stays
DELETE FROM {zone}.runs AS run
WHERE view IN (SELECT id FROM {zone}.views WHERE log = $1) AND first < $2 AND last < $2 AND first < (
    SELECT max(first) FROM {zone}.runs AS other WHERE other.view = run.view
);

-- chain: the hash chain at a fact, and the log's bytes up to it
SELECT substring(proof FROM 5 FOR 32), total, recorded_at, view FROM {zone}.facts WHERE id = $1;

-- recorded_at: when a fact was recorded
SELECT recorded_at FROM {zone}.facts WHERE id = $1;

-- fact: one fact
SELECT id, view, total, recorded_at, proof, envelope, fact FROM {zone}.facts WHERE id = $1;

-- facts: a stretch of a log; -1 is all of it
SELECT id, view, total, recorded_at, proof, envelope, fact
FROM {zone}.facts WHERE id > $1 AND id <= $2 ORDER BY id LIMIT nullif($3::bigint, -1);

-- facts_of_view: a stretch of a log, as one zone sees it
SELECT fact.id, fact.view, total, recorded_at, proof, envelope, fact, run.first, run.previous
FROM {zone}.runs AS run CROSS JOIN LATERAL (
    SELECT * FROM {zone}.facts AS each
    WHERE each.id > $2::bigint + $3::bigint AND each.id >= $2::bigint + run.first
    AND each.id <= $2::bigint + coalesce(run.last, $4::bigint)
    ORDER BY each.id
) AS fact
WHERE run.view = $1 AND run.first >= coalesce(
    (SELECT max(first) FROM {zone}.runs WHERE view = $1 AND first <= $3::bigint + 1), 0
)
ORDER BY run.first, fact.id LIMIT nullif($5::bigint, -1);

-- younger: the first fact of a stretch that was recorded at or after an instant
SELECT id FROM {zone}.facts
WHERE id > $1 AND id <= $2 AND recorded_at >= $3 ORDER BY id LIMIT 1;

-- drop: remove the payloads of a stretch; the ids stay
WITH gone AS (
    DELETE FROM {zone}.facts WHERE id BETWEEN $1 AND $2
    RETURNING key, substring(proof FROM 37 FOR 16) AS digest, id
)
INSERT INTO {zone}.ledger (key, digest, id) SELECT key, digest, id FROM gone;

-- needed: the lowest cursor that retention waits for, and the lowest offset set aside for those
SELECT min(reader.cursor), min(item.position)
FROM {zone}.consumers AS reader
LEFT JOIN {zone}.quarantine AS item
    ON item.consumer = reader.name AND item.state IN ('quarantined', 'released')
WHERE reader.log = $1 AND reader.is_required;

-- slowest: the lowest cursor of all
SELECT min(cursor) FROM {zone}.consumers WHERE log = $1;

-- add_gap: a recorded loss
INSERT INTO {zone}.gaps (log, first, last, reason, at) VALUES ($1, $2, $3, $4, $5);

-- add_peer_gap: a loss of a peer, where its marker lies
INSERT INTO {zone}.gaps (log, first, last, reason, at, source_first, source_last)
VALUES ($1, $2, $3, $4, $5, $6, $7);

-- widen_gap: the loss goes on
UPDATE {zone}.gaps SET last = $1, at = $2
WHERE log = $3 AND last = $4 AND reason = $5 AND source_first IS NULL;

-- gaps: recorded losses of a log that reach into a stretch
SELECT first, last, reason, at, source_first, source_last
FROM {zone}.gaps WHERE log = $1 AND last > $2 AND first <= $3 ORDER BY first, id;

-- markers: offsets after a place that no fact has, since a peer lost something there
SELECT first FROM {zone}.gaps
WHERE log = $1 AND last > $2 AND source_first IS NOT NULL ORDER BY first;
