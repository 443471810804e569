"""What an outcome of the store means to the producer: a receipt or a refusal."""

from __future__ import annotations

from typing import Any

import msgspec

from ergon_framework.boundary.facts.schema import spelled
from ergon_framework.boundary.model import Receipt
from ergon_framework.errors import (
    ArtifactError,
    BoundaryError,
    BufferFullError,
    ConflictingDuplicateError,
    NodeUnavailableError,
    StoreBrokenError,
    StoreError,
    StoreFullError,
)
from ergon_framework.ports.factstore import Appended, Conflict, Full, NewFact, Outcome, Unfounded

TRACE_LABELS = ("traceparent", "tracestate")
FULL_RETRY = 1.0
"""Seconds after which a producer may ask a full log again."""


def answer(fact: NewFact, outcome: Outcome, *, strict_envelope: bool) -> Receipt | BoundaryError:
    """The answer to one append."""
    if isinstance(outcome, Appended):
        if strict_envelope and differs(fact, outcome):
            return _other_envelope(fact, outcome.offset)
        return receipt(fact, outcome)
    match outcome:
        case Conflict():
            return _conflict(fact, outcome)
        case Unfounded():
            return _unfounded(outcome)
        case Full(size=size):
            return BufferFullError(
                f"the outbound log holds {size} bytes and takes no more for now",
                remedy="wait until the peers have confirmed and retention has made room, or raise"
                " capacity_bytes",
                retry_after=FULL_RETRY,
            )


def receipt(fact: NewFact, outcome: Appended) -> Receipt:
    """The answer to an append of what is in the log."""
    return Receipt(
        offset=outcome.offset, duplicate=outcome.is_duplicate, digest=spelled(fact.digest)
    )


def differs(fact: NewFact, outcome: Outcome) -> bool:
    """Whether a duplicate came with other advisory fields than the fact that was first.

    Another trace is no difference: each telling of an event may be part of its own.
    """
    first = outcome.envelope if isinstance(outcome, Appended) else None
    if first is None or first == fact.envelope:
        return False
    return _untraced(first) != _untraced(fact.envelope)


def _untraced(envelope: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(envelope)
    labels = found.pop("labels", None) or {}
    return {**found, "labels": {key: labels[key] for key in labels if key not in TRACE_LABELS}}


def store_trouble(error: StoreError) -> BoundaryError:
    """The answer when the store itself is in trouble: the outcome is not known to be good."""
    if isinstance(error, StoreFullError):
        return BufferFullError(error.message, remedy=error.remedy, retry_after=FULL_RETRY)
    is_latched = isinstance(error, StoreBrokenError)
    return NodeUnavailableError(
        error.message,
        reason="read_only" if is_latched else "store_unavailable",
        remedy=error.remedy,
    )


def _conflict(fact: NewFact, outcome: Conflict) -> ConflictingDuplicateError:
    is_whole = len(outcome.digest) == len(fact.digest)
    original = spelled(outcome.digest) if is_whole else f"sha256:{outcome.digest.hex()}…"
    return ConflictingDuplicateError(
        f"message_id {fact.message_id!r} of zone {fact.from_zone!r} stands for other content,"
        f" at offset {outcome.offset}",
        remedy="send a correction as a new fact with an id of its own",
        details={
            "field": "envelope.message_id",
            "offset": outcome.offset,
            "original_digest": original,
            "digest": spelled(fact.digest),
        },
    )


def _other_envelope(fact: NewFact, offset: int) -> ConflictingDuplicateError:
    return ConflictingDuplicateError(
        f"message_id {fact.message_id!r} of zone {fact.from_zone!r} came before, at offset"
        f" {offset}, with another envelope, and strict_envelope is on",
        remedy="repeat a fact with the very same envelope",
        details={"field": "envelope", "offset": offset, "digest": spelled(fact.digest)},
    )


def _unfounded(outcome: Unfounded) -> ArtifactError:
    wanted, found = outcome.reference, outcome.found
    name = f"{wanted.bucket}/{wanted.key}"
    details = {
        "bucket": wanted.bucket,
        "key": wanted.key,
        "digest": spelled(wanted.digest),
        "size": wanted.size,
    }
    if found is None:
        return ArtifactError(
            f"the artifact {name} is not there",
            remedy="put it first, wait for the answer, then append the fact",
            details=details,
        )
    return ArtifactError(
        f"the artifact {name} is another one than the fact says",
        reason="artifact_mismatch",
        remedy="refer to it with the digest and size that the put answered",
        details={**details, "found_digest": spelled(found.digest), "found_size": found.size},
    )
