-- all: by name
SELECT name, cron, zone, misfire, job, next_at, last_at, is_paused, source, jitter, ends_at
FROM ergon_schedules ORDER BY name;

-- next: those that fire next
SELECT name, cron, zone, misfire, job, next_at, last_at, is_paused, source, jitter, ends_at
FROM ergon_schedules
WHERE NOT is_paused AND next_at IS NOT NULL
ORDER BY next_at, name
LIMIT %(limit)s;

-- put: add or replace one
INSERT INTO ergon_schedules (
    name, cron, zone, misfire, job, next_at, last_at, is_paused, source, jitter, ends_at
)
VALUES (
    %(name)s, %(cron)s, %(zone)s, %(misfire)s, %(job)s, %(next_at)s, %(last_at)s, %(is_paused)s,
    %(source)s, %(jitter)s, %(ends_at)s
)
ON CONFLICT (name) DO UPDATE SET
    cron = excluded.cron, zone = excluded.zone, misfire = excluded.misfire, job = excluded.job,
    next_at = excluded.next_at, last_at = excluded.last_at, is_paused = excluded.is_paused,
    source = excluded.source, jitter = excluded.jitter, ends_at = excluded.ends_at;

-- drop: remove one
DELETE FROM ergon_schedules WHERE name = %(name)s;

-- advance: it has fired
UPDATE ergon_schedules SET next_at = %(next_at)s, last_at = %(expected)s
WHERE name = %(name)s AND next_at = %(expected)s;
