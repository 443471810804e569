-- standing: how a lane stands
SELECT breaker_state, consecutive_failures, open_until, breaker_detail, cooldown_until,
    state_version, updated_at
FROM provider_health_states
WHERE tenant_id = :tenant_id AND provider_name = :provider_name AND capability = :capability;

-- first_swap: write a circuit for the first time, whether the lane has a row or not; with
-- the failure that changed it, if one did (else both are NULL), unless a later one is known
INSERT INTO provider_health_states (
    id, tenant_id, provider_name, capability, breaker_state, consecutive_failures, open_until,
    breaker_detail, last_error_code, last_error_at, state_version, updated_at
) VALUES (
    :id, :tenant_id, :provider_name, :capability, :breaker_state, :consecutive_failures,
    :open_until, :breaker_detail, :error_code, :error_at, 1, :now
)
ON CONFLICT (tenant_id, provider_name, capability) DO UPDATE SET
    breaker_state = excluded.breaker_state,
    consecutive_failures = excluded.consecutive_failures,
    open_until = excluded.open_until,
    breaker_detail = excluded.breaker_detail,
    last_error_code = CASE
        WHEN provider_health_states.last_error_at IS NULL OR excluded.last_error_at >= provider_health_states.last_error_at THEN excluded.last_error_code
        ELSE provider_health_states.last_error_code
    END,
    last_error_at = CASE
        WHEN provider_health_states.last_error_at IS NULL OR excluded.last_error_at >= provider_health_states.last_error_at THEN excluded.last_error_at
        ELSE provider_health_states.last_error_at
    END,
    state_version = 1,
    updated_at = excluded.updated_at
WHERE provider_health_states.state_version = 0;

-- swap: write a circuit that is still as it was read; its failure as above
UPDATE provider_health_states SET
    breaker_state = :breaker_state,
    consecutive_failures = :consecutive_failures,
    open_until = :open_until,
    breaker_detail = :breaker_detail,
    last_error_code = CASE
        WHEN last_error_at IS NULL OR :error_at >= last_error_at THEN :error_code
        ELSE last_error_code
    END,
    last_error_at = CASE
        WHEN last_error_at IS NULL OR :error_at >= last_error_at THEN :error_at
        ELSE last_error_at
    END,
    state_version = state_version + 1,
    updated_at = :now
WHERE tenant_id = :tenant_id AND provider_name = :provider_name AND capability = :capability
    AND state_version = :version;

-- cool: let no call pass before an instant; a later one stays
INSERT INTO provider_health_states (
    id, tenant_id, provider_name, capability, cooldown_until, updated_at
) VALUES (:id, :tenant_id, :provider_name, :capability, :until, :now)
ON CONFLICT (tenant_id, provider_name, capability) DO UPDATE SET
    cooldown_until = CASE
        WHEN provider_health_states.cooldown_until > excluded.cooldown_until
        THEN provider_health_states.cooldown_until
        ELSE excluded.cooldown_until
    END,
    updated_at = excluded.updated_at
RETURNING cooldown_until;

-- uncool: end a pause earlier, unless it has changed since it was read
UPDATE provider_health_states SET cooldown_until = :until, updated_at = :now
WHERE tenant_id = :tenant_id AND provider_name = :provider_name AND capability = :capability
    AND cooldown_until = :known;
