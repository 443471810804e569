-- spend: units of a window that is known, if it has so many left and no newer one counts
UPDATE provider_quota_states SET
    limit_count = :limit,
    used_count = used_count + :units,
    remaining_count = :limit - used_count - :units,
    updated_at = :now
WHERE tenant_id = :tenant_id AND provider_name = :provider_name AND capability = :capability
    AND window_start = :start AND used_count + :units <= :limit AND NOT EXISTS (
        SELECT 1 FROM provider_quota_states AS newer
        WHERE newer.tenant_id = :tenant_id AND newer.provider_name = :provider_name
            AND newer.capability = :capability AND newer.window_start > :start
            AND newer.window_start <= :latest
    )
RETURNING used_count;

-- take: the first units of a window, or more units if another process opened it first
INSERT INTO provider_quota_states (
    id, tenant_id, provider_name, capability, window_start, window_end, limit_count, used_count,
    remaining_count, updated_at
)
SELECT CAST(:id AS varchar), CAST(:tenant_id AS varchar), CAST(:provider_name AS varchar),
    CAST(:capability AS varchar), :start, :end, :limit, :units, :limit - :units, :now
WHERE :units <= :limit AND NOT EXISTS (
    SELECT 1 FROM provider_quota_states
    WHERE tenant_id = :tenant_id AND provider_name = :provider_name AND capability = :capability
        AND window_start > :start AND window_start <= :latest
)
ON CONFLICT (tenant_id, provider_name, capability, window_start) DO UPDATE SET
    limit_count = excluded.limit_count,
    used_count = provider_quota_states.used_count + excluded.used_count,
    remaining_count =
        excluded.limit_count - provider_quota_states.used_count - excluded.used_count,
    updated_at = excluded.updated_at
WHERE provider_quota_states.used_count + excluded.used_count <= excluded.limit_count
RETURNING used_count;

-- newest: the latest window of a lane that counts
SELECT window_start, window_end, used_count
FROM provider_quota_states
WHERE tenant_id = :tenant_id AND provider_name = :provider_name AND capability = :capability
    AND window_start <= :latest
ORDER BY window_start DESC LIMIT 1;

-- refuse: mark that a window has nothing left, once in a while, and what its limit is now
INSERT INTO provider_quota_states (
    id, tenant_id, provider_name, capability, window_start, window_end, limit_count, used_count,
    remaining_count, updated_at
) VALUES (
    :id, :tenant_id, :provider_name, :capability, :start, :end, :limit, 0, :limit, :now
)
ON CONFLICT (tenant_id, provider_name, capability, window_start) DO UPDATE SET
    limit_count = excluded.limit_count,
    remaining_count = CASE
        WHEN excluded.limit_count > provider_quota_states.used_count
        THEN excluded.limit_count - provider_quota_states.used_count
        ELSE 0
    END,
    last_exhausted_at = CASE
        WHEN excluded.limit_count <= provider_quota_states.used_count THEN excluded.updated_at
        ELSE provider_quota_states.last_exhausted_at
    END,
    updated_at = excluded.updated_at
WHERE provider_quota_states.limit_count <> excluded.limit_count
    OR excluded.limit_count <= provider_quota_states.used_count AND (
        provider_quota_states.last_exhausted_at IS NULL
        OR provider_quota_states.last_exhausted_at <= :lately
        OR provider_quota_states.last_exhausted_at > excluded.updated_at
    );

-- refund: give units back to their own window
UPDATE provider_quota_states SET
    used_count = CASE WHEN used_count > :units THEN used_count - :units ELSE 0 END,
    remaining_count = CASE
        WHEN used_count <= :units THEN limit_count
        WHEN limit_count > used_count - :units THEN limit_count - used_count + :units
        ELSE 0
    END,
    updated_at = :now
WHERE tenant_id = :tenant_id AND provider_name = :provider_name AND capability = :capability
    AND window_start = :start;

-- running: the windows of a tenant that have not ended; of each lane only its latest counts
SELECT provider_name, capability, window_start, window_end, limit_count, used_count, updated_at
FROM provider_quota_states AS own
WHERE tenant_id = :tenant_id AND window_end > :now AND window_start <= :latest AND NOT EXISTS (
    SELECT 1 FROM provider_quota_states AS newer
    WHERE newer.tenant_id = own.tenant_id AND newer.provider_name = own.provider_name
        AND newer.capability = own.capability AND newer.window_start > own.window_start
        AND newer.window_start <= :latest
);

-- prune: windows that are over and not the latest of their lane
DELETE FROM provider_quota_states WHERE id IN (
    SELECT old.id FROM provider_quota_states AS old
    WHERE old.window_end < :before AND EXISTS (
        SELECT 1 FROM provider_quota_states AS newer
        WHERE newer.tenant_id = old.tenant_id AND newer.provider_name = old.provider_name
            AND newer.capability = old.capability AND newer.window_start > old.window_start
    )
    LIMIT :limit
);
