"""The errors of calls that a gate refused: the provider was not called."""

from __future__ import annotations

from ergon_framework.core.guard import Stopped
from ergon_framework.core.quota import Account
from ergon_framework.ports.providerstore import LaneKey
from ergon_framework.providers.circuit_breaker import circuit_open
from ergon_framework.providers.errors import (
    ProviderDependencyError,
    ProviderError,
    ProviderQuotaExceededError,
    ProviderRateLimitError,
    ProviderTimeoutError,
)


def refusal(
    stop: Stopped | None, wait: float, account: Account | None, lane: LaneKey
) -> ProviderError:
    """Why no attempt was made, and for how many seconds that holds.

    ``account`` is the budget as last seen, if there is one.
    """
    error = _refusal(stop, wait, account)
    error.details["gate"] = f"{lane.provider_name}/{lane.capability}"
    return error


def _refusal(stop: Stopped | None, wait: float, account: Account | None) -> ProviderError:
    if stop is Stopped.CIRCUIT_OPEN:
        return circuit_open(wait)
    if stop is Stopped.QUOTA:
        return _no_quota(wait, 0 if account is None else account.remaining)
    if stop is Stopped.COOLDOWN:
        return _cooling(wait)
    if stop is Stopped.STORE:
        return _no_store()
    if stop is Stopped.ATTEMPTS_SPENT:
        return ProviderDependencyError(
            "all attempts had been made before this call; the provider was not called",
            never_sent=True,
        )
    return ProviderTimeoutError(
        "the deadline had passed before the provider could be called", never_sent=True
    )


def _no_quota(wait: float, left: int) -> ProviderQuotaExceededError:
    told = f"has only {left} left, too few for this call" if left else "is used up"
    return ProviderQuotaExceededError(
        f"the quota of this window {told}; the next begins in {wait:.1f} seconds",
        retry_after_seconds=wait,
        never_sent=True,
    )


def _cooling(wait: float) -> ProviderRateLimitError:
    return ProviderRateLimitError(
        f"the provider asked for a pause of another {wait:.1f} seconds; it was not called",
        retry_after_seconds=wait,
        never_sent=True,
    )


def _no_store() -> ProviderDependencyError:
    return ProviderDependencyError(
        "the store that keeps the quota does not answer; the provider was not called",
        never_sent=True,
        remedy="quota_fails_open=True would call it without a reservation",
    )
