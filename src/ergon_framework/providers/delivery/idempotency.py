"""Idempotency keys: how a key is made of a request, and which delivery may make the call under it.

This is no promise of exactly once: a process may die after the provider did its work and before the
result was stored. Providers that take an idempotency key themselves find it in
``context.idempotency_key``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from ergon_framework.core.failure import Kind
from ergon_framework.ports.providerstore import (
    ClaimState,
    KeyClaimResult,
    KeyEnding,
    ProviderStore,
    ResultNote,
)
from ergon_framework.providers.decisions import Decision
from ergon_framework.providers.delivery.owner_locks import new_owner
from ergon_framework.providers.errors import (
    ERROR_OF,
    ProviderBadRequestError,
    ProviderError,
    Reason,
)
from ergon_framework.storage.failpoints import declare, failpoint

MAX_KEY = 255  # characters that the tables of calls take

declare("providers.claim.after", "providers.finish.before", "providers.finish.after")


def check_key(key: Any) -> str:
    """A key that a caller gave, or a bad request that says what is wrong with it."""
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY or not key.isprintable():
        raise ProviderBadRequestError(
            f"idempotency_key must be a text of 1 to {MAX_KEY} printable characters",
            never_sent=True,
            details={"path": "idempotency_key"},
            remedy="leave it out to have one made of the request",
        )
    return key


def message_key(fingerprint: str, message: str) -> str:
    """The key of a request that is meant once for each message it comes in."""
    return hashlib.sha256(f"{fingerprint}\n{message}".encode()).hexdigest()


def may_run_again(decision: Decision, reason_code: str) -> bool:
    """Whether a call that failed so may be made again under its key.

    It may when it had no effect and a later call can succeed: after an outage, when a gate opens,
    or when credentials are corrected on our side.
    """
    is_curable = decision.kind is Kind.HELD or reason_code == Reason.AUTH_FAILED
    return decision.retries or is_curable


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """One delivery that wants a key. ``owner`` is its own; ``message`` is that of all of them."""

    store: ProviderStore
    tenant_id: str
    key: str
    fingerprint: str
    owner: str
    message: str

    def claim(self, lease: float, keep: float) -> KeyClaimResult:
        """Ask for the key. The lease outlasts the longest call, so that it needs no renewal.

        The store asks this machine about the holder of a key before it takes the key over: a clock
        that is set forward does not end the lease of a holder that lives here.
        """
        answer = self.store.claim(
            self.tenant_id, self.key, self.fingerprint, self.owner, lease, keep
        )
        failpoint("providers.claim.after")
        return answer

    def claim_after(self, dead: str, lease: float, keep: float) -> KeyClaimResult:
        """The same after an owner that is known to be dead: its lease need not run out."""
        # In the name of the dead: if another delivery has taken the key over meanwhile, this ends
        # nothing, and the claim below finds the key held.
        self.store.finish(self.tenant_id, self.key, dead, None, None, may_run_again=True)
        return self.claim(lease, keep)

    def succeeded(self, kept: dict[str, Any] | None, note: ResultNote | None = None) -> KeyEnding:
        """The ending that answers every later delivery with the result."""
        return KeyEnding(self.tenant_id, self.key, self.owner, kept, result_note=note)

    def failed(self, reason_code: str, message: str) -> KeyEnding:
        """The ending that answers every later delivery with the failure."""
        return KeyEnding(self.tenant_id, self.key, self.owner, None, reason_code, message)

    def freed(self, reason_code: str | None = None) -> KeyEnding:
        """The ending that lets the next delivery try."""
        return KeyEnding(
            self.tenant_id, self.key, self.owner, None, reason_code, may_run_again=True
        )

    def finish(self, ending: KeyEnding) -> bool:
        """Write an ending under the key; whether the key was still ours."""
        if not ending.is_success:
            return ending.write_to(self.store)
        failpoint("providers.finish.before")
        is_ours = ending.write_to(self.store)
        failpoint("providers.finish.after")
        return is_ours

    def count_redelivery(self, most: int, keep: float) -> str | None:
        """Count a message that came back; None when it came back too often.

        Every try leaves a mark under a name of its own, because a name can be taken only once, and
        takes it away when it has ended: what is left are the tries whose worker was lost.
        """
        mark = hashlib.sha256(f"{self.key}\n{self.message}".encode()).hexdigest()
        for number in range(1, most + 1):
            name = f"redelivery {number} of {mark}"
            # The lease is as long as the mark is kept: one that ended with its worker could be
            # taken again, and the try that killed the worker would not count.
            found = self.store.claim(self.tenant_id, name, mark, self.owner, keep, keep)
            if found.state is ClaimState.MINE:
                return name
        return None

    def uncount_redelivery(self, name: str) -> None:
        """Take a mark away."""
        self.store.finish(self.tenant_id, name, self.owner, None, None, may_run_again=True)

    @property
    def name(self) -> str:
        """Under which the call is held while it is made."""
        return _held_name(self.tenant_id, self.key, self.message)


def new_claim(
    store: ProviderStore, tenant_id: str, key: str, fingerprint: str, message: str
) -> KeyClaim:
    """A claim with a new owner, whose name leads to the lock file that shows whether it is
    alive.
    """
    owner = new_owner(_held_name(tenant_id, key, message))
    return KeyClaim(store, tenant_id, key, fingerprint, owner, message)


def _held_name(tenant_id: str, key: str, message: str) -> str:
    return f"{tenant_id}\n{key}\n{message}"


def earlier_failure(claim: KeyClaimResult) -> ProviderError:
    """The error that ended an earlier call under the same key."""
    kind = ERROR_OF.get(claim.reason_code or "", ERROR_OF[Reason.INTERNAL_ERROR.value])
    return kind(claim.error_message or "an earlier call under this idempotency key failed")


def conflict() -> ProviderBadRequestError:
    """The key was used for another request."""
    return ProviderBadRequestError(
        "this idempotency key was used for another request",
        never_sent=True,
        details={"path": "idempotency_key"},
        remedy="one key belongs to one request: give each its own",
    )
