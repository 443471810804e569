-- Jobs of a fire that are spread over some seconds, and schedules with an end.
ALTER TABLE ergon_schedules ADD COLUMN jitter REAL NOT NULL DEFAULT 0.0;
ALTER TABLE ergon_schedules ADD COLUMN ends_at REAL;
CREATE INDEX ergon_schedules_next ON ergon_schedules (next_at, name)
    WHERE is_paused = 0 AND next_at IS NOT NULL;
