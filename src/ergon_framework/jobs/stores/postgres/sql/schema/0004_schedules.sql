-- Jobs of a fire that are spread over some seconds, and schedules with an end.
ALTER TABLE ergon_schedules
    ADD COLUMN jitter double precision NOT NULL DEFAULT 0,
    ADD COLUMN ends_at double precision;
CREATE INDEX ergon_schedules_next ON ergon_schedules (next_at, name)
    WHERE NOT is_paused AND next_at IS NOT NULL;
