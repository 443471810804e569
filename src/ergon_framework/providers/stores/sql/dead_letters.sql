-- find: dead letters, the newest first
SELECT dead_letter_id, tenant_id, campaign_id, task_name, provider_name, capability, operation,
    idempotency_key, correlation_id, reason_code, error_type, error_message, attempts, occurred_at,
    http_status, retryable, traceparent, redrive_count, payload_json, has_secrets, status,
    published_at, redriven_at
FROM provider_dead_letters
WHERE {condition}
ORDER BY occurred_at {order}, dead_letter_id {order}
LIMIT :limit;

-- move: change a letter's status if it is one of some
UPDATE provider_dead_letters SET
    status = :status,
    published_at = coalesce(:published_at, published_at),
    redriven_at = coalesce(:redriven_at, redriven_at)
WHERE dead_letter_id = :id AND status IN ({statuses});

-- delete: letters for good
DELETE FROM provider_dead_letters WHERE dead_letter_id IN ({ids});

-- prune: letters that wait for nothing
DELETE FROM provider_dead_letters WHERE dead_letter_id IN (
    SELECT dead_letter_id FROM provider_dead_letters
    WHERE occurred_at < :before AND status IN ('published', 'redriven', 'discarded')
    LIMIT :limit
);
