-- all: by name
SELECT name, cron, zone, misfire, job, next_at, last_at, is_paused, source, jitter, ends_at
FROM ergon_schedules ORDER BY name;

-- next: those that fire next
SELECT name, cron, zone, misfire, job, next_at, last_at, is_paused, source, jitter, ends_at
FROM ergon_schedules WHERE is_paused = 0 AND next_at IS NOT NULL ORDER BY next_at, name LIMIT ?;

-- put: add or replace one
INSERT OR REPLACE INTO ergon_schedules
    (name, cron, zone, misfire, job, next_at, last_at, is_paused, source, jitter, ends_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- drop: remove one
DELETE FROM ergon_schedules WHERE name = ?;

-- advance: it has fired
UPDATE ergon_schedules SET next_at = ?1, last_at = ?2 WHERE name = ?3 AND next_at = ?2;
