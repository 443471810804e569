-- all: by name
SELECT name, cron, zone, misfire, job, next_at, last_at, is_paused, source
FROM ergon_schedules ORDER BY name;

-- put: add or replace one
INSERT OR REPLACE INTO ergon_schedules
    (name, cron, zone, misfire, job, next_at, last_at, is_paused, source)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- drop: remove one
DELETE FROM ergon_schedules WHERE name = ?;

-- advance: it has fired
UPDATE ergon_schedules SET next_at = ?1, last_at = ?2 WHERE name = ?3 AND next_at = ?2;
