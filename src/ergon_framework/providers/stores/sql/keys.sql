-- find: a key as it is, for changing it
SELECT fingerprint, status, owner, lease_expires_at, expires_at, updated_at, result_json,
    reason_code, error_message
FROM provider_idempotency_records
WHERE tenant_id = :tenant_id AND idempotency_key = :key
FOR UPDATE;

-- add: take a key that is free
INSERT INTO provider_idempotency_records (
    tenant_id, idempotency_key, fingerprint, status, owner, lease_expires_at, created_at,
    updated_at, expires_at
) VALUES (
    :tenant_id, :key, :fingerprint, 'in_progress', :owner, :lease_expires_at, :now, :now,
    :expires_at
)
ON CONFLICT (tenant_id, idempotency_key) DO NOTHING;

-- take_over: take a key that is forgotten, or whose holder's lease is over
UPDATE provider_idempotency_records SET
    fingerprint = :fingerprint, status = 'in_progress', owner = :owner,
    lease_expires_at = :lease_expires_at, expires_at = :expires_at, updated_at = :now,
    result_json = NULL, reason_code = NULL, error_message = NULL
WHERE tenant_id = :tenant_id AND idempotency_key = :key AND owner = :holder
    AND status = :status;

-- restate: the times of a key from before the clock was set, counted from now on
UPDATE provider_idempotency_records SET
    lease_expires_at = :lease_expires_at, expires_at = :expires_at, updated_at = :now
WHERE tenant_id = :tenant_id AND idempotency_key = :key AND owner = :holder
    AND status = :status;

-- finish: the end of a call whose key is still its own
UPDATE provider_idempotency_records SET
    status = :status, owner = :holder, lease_expires_at = :now, updated_at = :now,
    result_json = :result, reason_code = :reason_code, error_message = :error_message
WHERE tenant_id = :tenant_id AND idempotency_key = :key AND owner = :owner
    AND status = 'in_progress';

-- prune: keys that were to be remembered until then
DELETE FROM provider_idempotency_records WHERE (tenant_id, idempotency_key) IN (
    SELECT tenant_id, idempotency_key FROM provider_idempotency_records
    WHERE expires_at < :before LIMIT :limit
);
