"""Who holds an idempotency key, decided without I/O and alike by all provider stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import msgspec

from ergon_framework.errors import StoreError
from ergon_framework.ports.providerstore import ClaimState, KeyClaimResult, ResultNote


class KeyStatus(StrEnum):
    """What has become of the call under a key. The values are what the tables hold."""

    IN_PROGRESS = "in_progress"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(slots=True)
class KeyRecord:
    """A key as it is kept."""

    fingerprint: str
    status: str
    owner: str
    lease_expires_at: float
    expires_at: float
    result: bytes | str | None = None
    reason_code: str | None = None
    error_message: str | None = None
    """The error's message; for a call that succeeded, the note on its result."""
    written_at: float = 0.0
    """When its holder last asked for it, or freed it."""


_MAX_CLOCK_SKEW = 1.0
"""Seconds by which the clocks of two processes may differ, although none was set."""

_MARKERS = frozenset(
    f'{{"_ergon_result":"{reason}"}}'
    for reason in ("too_large", "has_secrets", "not_json", "too_deep")
)
"""What earlier versions kept in the place of a result."""


def decide_claim(
    found: KeyRecord | None, fingerprint: str, owner: str, now: float
) -> KeyClaimResult | None:
    """Why a key cannot be had; None when it can, since it is new, forgotten, ours or left alone."""
    if found is None or found.expires_at <= now:
        return None
    if found.fingerprint != fingerprint:
        return KeyClaimResult(ClaimState.CONFLICT)
    if found.status == KeyStatus.SUCCEEDED:
        return _replay(found)
    if found.status == KeyStatus.FAILED:
        return KeyClaimResult(
            ClaimState.FAILED, reason_code=found.reason_code, error_message=found.error_message
        )
    if found.lease_expires_at <= now or found.owner in ("", owner):
        return None
    return KeyClaimResult(ClaimState.RUNNING, lease_expires_at=found.lease_expires_at)


def after_clock_set_back(found: KeyRecord | None, now: float) -> KeyRecord | None:
    """A key that was written after ``now``, so before the clock was set back, with its times as
    they count from now on: for as long as was asked. None when there is nothing to heal.
    """
    if found is None or found.written_at <= now + _MAX_CLOCK_SKEW:
        return None
    lease = max(0.0, found.lease_expires_at - found.written_at)
    memory = max(0.0, found.expires_at - found.written_at)
    return replace(found, lease_expires_at=now + lease, expires_at=now + memory, written_at=now)


LeaseLeft = Callable[[str], float]
"""Seconds that the lease of an owner still lasts by a clock that cannot be set; 0 if it is over, or
if the owner is not known to live.
"""


def after_clock_set_forward(
    found: KeyRecord | None, owner: str, now: float, lease_left: LeaseLeft
) -> KeyRecord | None:
    """A key whose lease is over by the store's clock, and whose holder lives and has time left:
    with a lease that lasts for the rest of that time. None when there is nothing to heal.
    """
    if found is None or not _is_held(found) or found.owner == owner:
        return None
    if now < min(found.lease_expires_at, found.expires_at):
        return None
    left = lease_left(found.owner)
    if left <= 0:
        return None
    ends_at = now + left
    remembered_until = max(ends_at, found.expires_at)
    return replace(found, lease_expires_at=ends_at, expires_at=remembered_until, written_at=now)


def holder_of(found: KeyRecord | None, fingerprint: str, owner: str) -> str:
    """The owner that a key without an outcome is taken from; empty if there is none, or for another
    call.
    """
    if found is None or not _is_held(found) or found.fingerprint != fingerprint:
        return ""
    return "" if found.owner == owner else found.owner


def _is_held(found: KeyRecord) -> bool:
    return found.status == KeyStatus.IN_PROGRESS and bool(found.owner)


def _replay(found: KeyRecord) -> KeyClaimResult:
    """A success with its result, or with the reason why there is none."""
    text = found.result.decode() if isinstance(found.result, bytes) else found.result
    if text in _MARKERS:
        return KeyClaimResult(ClaimState.REPLAY, result_note=ResultNote.EARLIER)
    try:
        note = None if found.error_message is None else ResultNote(found.error_message)
        return KeyClaimResult(ClaimState.REPLAY, result=from_json(text), result_note=note)
    except (ValueError, RecursionError):  # msgspec's are ValueErrors
        return KeyClaimResult(ClaimState.REPLAY, result_note=ResultNote.UNREADABLE)


def status_after(reason_code: str | None, *, may_run_again: bool) -> KeyStatus:
    """What a key says after its call has ended."""
    if may_run_again:
        return KeyStatus.IN_PROGRESS  # under a lease that is over
    return KeyStatus.SUCCEEDED if reason_code is None else KeyStatus.FAILED


def to_json(value: dict[str, Any] | None, what: str) -> str | None:
    """A value as stored JSON. ``StoreError`` if it cannot be encoded."""
    if value is None:
        return None
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise StoreError(
            f"the {what} cannot be kept as JSON: {error}",
            remedy="use dicts, lists, texts, numbers, true, false and null alone",
        ) from error


def from_json(text: bytes | str | None) -> dict[str, Any] | None:
    """What :func:`to_json` was given."""
    return None if text is None else msgspec.json.decode(text, type=dict[str, Any])
