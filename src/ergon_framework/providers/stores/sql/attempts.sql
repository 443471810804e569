-- known_tasks: which of the host's task executions there are
SELECT id FROM task_executions WHERE id IN ({ids});

-- rollup: one minute of a lane, for changing it
SELECT succeeded, failed, dead_lettered, histogram
FROM provider_metric_rollups
WHERE tenant_id = :tenant_id AND provider_name = :provider_name AND capability = :capability
    AND minute = :minute
FOR UPDATE;

-- add_rollup: a minute's first, unless another process inserted it first
INSERT INTO provider_metric_rollups (
    tenant_id, provider_name, capability, minute, succeeded, failed, dead_lettered, attempts,
    histogram, updated_at
) VALUES (
    :tenant_id, :provider_name, :capability, :minute, :succeeded, :failed, :dead_lettered,
    :attempts, :histogram, :now
)
ON CONFLICT (tenant_id, provider_name, capability, minute) DO NOTHING
RETURNING attempts;

-- set_rollup: a minute, with what was added to it
UPDATE provider_metric_rollups SET
    succeeded = :succeeded, failed = :failed, dead_lettered = :dead_lettered,
    attempts = :attempts, histogram = :histogram, updated_at = :now
WHERE tenant_id = :tenant_id AND provider_name = :provider_name AND capability = :capability
    AND minute = :minute;

-- note: what a lane last heard; a success does not erase the last error, nor the reverse
INSERT INTO provider_health_states (
    id, tenant_id, provider_name, capability, last_success_at, last_error_at, last_error_code,
    updated_at
) VALUES (
    :id, :tenant_id, :provider_name, :capability, :last_success_at, :last_error_at,
    :last_error_code, :now
)
ON CONFLICT (tenant_id, provider_name, capability) DO UPDATE SET
    last_success_at = CASE
        WHEN provider_health_states.last_success_at IS NULL
            OR excluded.last_success_at > provider_health_states.last_success_at
        THEN excluded.last_success_at
        ELSE provider_health_states.last_success_at
    END,
    last_error_code = CASE
        WHEN provider_health_states.last_error_at IS NULL
            OR excluded.last_error_at >= provider_health_states.last_error_at
        THEN excluded.last_error_code
        ELSE provider_health_states.last_error_code
    END,
    last_error_at = CASE
        WHEN provider_health_states.last_error_at IS NULL
            OR excluded.last_error_at >= provider_health_states.last_error_at
        THEN excluded.last_error_at
        ELSE provider_health_states.last_error_at
    END,
    updated_at = excluded.updated_at;

-- rates: the last hour, for readers of the table, not of the summary
UPDATE provider_health_states SET success_rate_1h = :success_rate, p95_latency_ms_1h = :p95
WHERE tenant_id = :tenant_id AND provider_name = :provider_name AND capability = :capability;

-- lane_minutes: the roll-ups of one lane
SELECT succeeded, failed, dead_lettered, histogram
FROM provider_metric_rollups
WHERE tenant_id = :tenant_id AND provider_name = :provider_name AND capability = :capability
    AND minute >= :since;

-- recent: the latest roll-ups of a tenant
SELECT provider_name, capability, minute, succeeded, failed, dead_lettered, histogram
FROM provider_metric_rollups
WHERE tenant_id = :tenant_id AND minute >= :since;

-- sums: how much there is in the older roll-ups of a tenant
SELECT count(*), coalesce(sum(attempts), 0)
FROM provider_metric_rollups
WHERE tenant_id = :tenant_id AND minute >= :since AND minute < :until;

-- lanes: the health of a tenant's lanes
SELECT provider_name, capability, breaker_state, consecutive_failures, open_until, cooldown_until,
    last_error_code, last_error_at, last_success_at, updated_at, breaker_detail
FROM provider_health_states
WHERE tenant_id = :tenant_id;

-- attempts_of: the attempts under one correlation id
SELECT id, tenant_id, task_execution_id, provider_name, capability, operation, idempotency_key,
    correlation_id, attempt_number, max_attempts, duration_ms, timeout_budget_ms, outcome,
    reason_code, retryable, http_status, created_at, campaign_id
FROM provider_execution_metrics
WHERE correlation_id = :correlation_id
ORDER BY created_at, attempt_number, id;

-- prune_attempts: lane by lane, since that is what there is an index for
DELETE FROM provider_execution_metrics WHERE id IN (
    SELECT old.id FROM provider_health_states AS lane
    JOIN provider_execution_metrics AS old ON old.tenant_id = lane.tenant_id
        AND old.provider_name = lane.provider_name AND old.capability = lane.capability
    WHERE old.created_at < :before
    LIMIT :limit
);

-- prune_rollups: minutes that are too old for any summary
DELETE FROM provider_metric_rollups WHERE (tenant_id, provider_name, capability, minute) IN (
    SELECT old.tenant_id, old.provider_name, old.capability, old.minute
    FROM provider_health_states AS lane
    JOIN provider_metric_rollups AS old ON old.tenant_id = lane.tenant_id
        AND old.provider_name = lane.provider_name AND old.capability = lane.capability
    WHERE old.minute < :before
    LIMIT :limit
);
