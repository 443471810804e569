-- lock: takes the write lock of a transaction that has only read so far
UPDATE ergon_outbox SET seq = seq WHERE 0;

-- find: the row of an id
SELECT seq, digest, is_refused FROM ergon_outbox WHERE from_zone = ? AND message_id = ?;

-- insert: a fact behind all others
INSERT INTO ergon_outbox (from_zone, message_id, digest, size, added_at, envelope, fact, files)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- waiting: the front of the line
SELECT seq, is_refused, digest, size, envelope, fact, files FROM ergon_outbox
WHERE is_refused = 0 ORDER BY seq LIMIT ?;

-- all: the front of the line, with what was refused still in its place
SELECT seq, is_refused, digest, size, envelope, fact, files FROM ergon_outbox
ORDER BY seq LIMIT ?;

-- delete: what the node has
DELETE FROM ergon_outbox WHERE seq = ?;

-- refuse: set aside what the node will not have
UPDATE ergon_outbox SET is_refused = 1, refused_at = ?, refusal = ? WHERE seq = ?;

-- refused: everything that was set aside
SELECT seq, from_zone, message_id, added_at, refused_at, refusal, envelope, fact FROM ergon_outbox
WHERE is_refused = 1 ORDER BY seq;

-- retry: back to its place in the line
UPDATE ergon_outbox SET is_refused = 0, refused_at = NULL, refusal = NULL
WHERE seq = ? AND is_refused = 1;

-- discard: forget what was set aside
DELETE FROM ergon_outbox WHERE seq = ? AND is_refused = 1;

-- files_of: of one fact
SELECT files FROM ergon_outbox WHERE seq = ?;

-- all_files: of all facts
SELECT files FROM ergon_outbox WHERE files IS NOT NULL
UNION ALL SELECT files FROM ergon_outbox_sent WHERE files IS NOT NULL;

-- figures: how many wait and were refused, and their bytes
SELECT items, bytes FROM ergon_outbox_figures ORDER BY is_refused;

-- oldest: since when the first one waits
SELECT added_at FROM ergon_outbox WHERE is_refused = 0 ORDER BY seq LIMIT 1;

-- keep: what the node has, for a time
INSERT OR REPLACE INTO ergon_outbox_sent
    (seq, from_zone, message_id, digest, size, added_at, envelope, fact, files, sent_at)
SELECT seq, from_zone, message_id, digest, size, added_at, envelope, fact, files, ?
FROM ergon_outbox WHERE seq = ?;

-- outlived: what was kept for long enough, with its files
SELECT seq, files FROM ergon_outbox_sent WHERE sent_at < ? ORDER BY sent_at LIMIT ?;

-- forget: what was kept
DELETE FROM ergon_outbox_sent WHERE seq = ?;

-- resend: what was sent since an instant goes back to its place in the line
INSERT OR IGNORE INTO ergon_outbox
    (seq, from_zone, message_id, digest, size, added_at, envelope, fact, files)
SELECT seq, from_zone, message_id, digest, size, added_at, envelope, fact, files
FROM ergon_outbox_sent WHERE sent_at >= ? ORDER BY seq;

-- resent: what is in the line again
DELETE FROM ergon_outbox_sent WHERE seq IN (SELECT seq FROM ergon_outbox);

-- kept: how many, and their bytes
SELECT count(*), coalesce(sum(size), 0), min(sent_at), max(sent_at) FROM ergon_outbox_sent;

-- line: what waits and what was refused, without contents
SELECT seq, is_refused, from_zone, message_id, size, added_at, refused_at, refusal
FROM ergon_outbox WHERE seq > ? AND is_refused >= ? ORDER BY seq LIMIT ?;
