"""Turns a fact into a transaction, and a transaction into a fact."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from ergon_framework.boundary.client.artifacts import Artifact, FileContent
from ergon_framework.boundary.client.publish_effects import check_object, fact_of
from ergon_framework.boundary.facts.schema import MAX_LABELS, MAX_NOTE
from ergon_framework.boundary.facts.validation import validate_fact
from ergon_framework.boundary.model import Delivery, Fact
from ergon_framework.boundary.settings import LimitSettings
from ergon_framework.connector.base import Delivered, difference
from ergon_framework.connector.boundary.window import WindowEntry
from ergon_framework.errors import EnvelopeError, FactInvalidError, PayloadError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry.propagation import extract, outgoing, read, written

_TRACE = ("traceparent", "tracestate")
_FIELDS = ("to_zone", "causation_id", "object_media_type", "object_schema", "produced_at_unix_ms")
"""The fields of the envelope that a transaction's metadata may set."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The node decides how large a fact may be.
_LIMITS = LimitSettings(fact_bytes=1 << 40)


class DeliveredFact(Delivered):
    """A delivered fact with its place in the log."""

    __slots__ = ("entry",)

    entry: WindowEntry


@dataclass(frozen=True, slots=True)
class Message:
    """The message to publish for one transaction."""

    envelope: dict[str, Any]
    fact: Fact
    files: tuple[Artifact, ...] = ()

    @property
    def id(self) -> str:
        """The id of the transaction and of the fact."""
        return str(self.envelope["message_id"])


# ---- to a transaction ----


def delivered(
    entry: WindowEntry, delivery: Delivery, owner: object, source: str | None
) -> DeliveredFact:
    """The transaction to hand out for a fact: a copy, so that a redelivery finds
    nothing changed.
    """
    envelope, fact = delivery.envelope, delivery.fact
    labels = envelope.labels or {}
    found = read(labels)
    made = DeliveredFact(
        envelope.message_id,
        {
            "subject": fact.subject,
            "predicate": fact.predicate,
            "object_json": copy.deepcopy(fact.object_json),
        },
        _metadata(delivery),
        correlation_id=envelope.correlation_id,
        trace_id=None if found is None else f"{found.trace_id:032x}",
        created_at=_instant(envelope.produced_at_unix_ms),
        source=source,
        parent_id=envelope.causation_id,
    )
    made.belongs_to(owner, entry=entry)
    return made


def _metadata(delivery: Delivery) -> dict[str, Any]:
    envelope, labels = delivery.envelope, delivery.envelope.labels or {}
    about = {
        "offset": delivery.offset,
        "from_zone": envelope.from_zone,
        "correlation_id": envelope.correlation_id,
        "causation_id": envelope.causation_id,
        "object_media_type": envelope.object_media_type,
        "object_schema": envelope.object_schema,
        "labels": {k: v for k, v in labels.items() if k not in _TRACE} or None,
        **{name: labels.get(name) for name in _TRACE},
    }
    return {name: value for name, value in about.items() if value is not None}


def _instant(milliseconds: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:  # Valid for a node, but beyond the year 9999.
        return None


# ---- to a fact ----


def message_of(
    transaction: Transaction,
    zones: tuple[str | None, str | None],
    trace: Mapping[str, str] | None,
    *,
    strict_ids: bool,
) -> Message:
    """The fact that a transaction becomes, checked; nothing is sent.

    Its envelope is the same whenever the same transaction is dispatched: the instant is that of the
    transaction. ``trace`` is that of an earlier dispatch whose outcome is unknown.
    """
    if not isinstance(transaction, Transaction):
        raise EnvelopeError(
            f"dispatch_transactions takes Transactions, not {type(transaction).__name__}",
            remedy="wrap the payload: Transaction(transaction_id=..., payload=...)",
        )
    try:
        fact = _fact(transaction.payload)
        files = _files(transaction.metadata.get("artifacts"))
        check_object(fact, files)
        envelope = _envelope(transaction, zones, trace_of(transaction) if trace is None else trace)
        valid = validate_fact(envelope, fact, _LIMITS, strict_ids=strict_ids)
        _check_round_trip(fact, valid.new_fact.fact)
    except FactInvalidError as error:
        raise PayloadError(
            f"transaction {transaction.transaction_id!r} cannot become a fact: {error.message}",
            remedy=error.remedy,
            details={"transaction_id": transaction.transaction_id, **error.details},
        ) from error
    return Message(envelope, fact, files)


def _check_round_trip(fact: Fact, stored: bytes) -> None:
    """Refuse values that would arrive changed at a reader of the fact, such as a tuple."""
    read_back = msgspec.json.decode(stored).get("object_json")
    found = difference(fact.object_json, read_back, "fact.object_json")
    if found is not None:
        path, problem = found
        raise FactInvalidError(
            f"{path} {problem}",
            reason="type",
            remedy="use a list instead of a tuple, and plain JSON values throughout",
            details={"field": path},
        )


def trace_of(transaction: Transaction) -> dict[str, str]:
    """The trace that the fact belongs to: that of the publishing code, or the one that
    it carries.
    """
    found = outgoing() or extract(transaction)
    return {} if found is None else written(found)


def _fact(payload: Any) -> Fact:
    if not isinstance(payload, Fact | Mapping):
        raise FactInvalidError(
            f"the payload is {type(payload).__name__}",
            reason="type",
            remedy='give {"subject": "kind:id", "predicate": "happened", "object_json": ...}',
            details={"field": "fact"},
        )
    found = fact_of(payload)
    # A copy: what the caller changes while it is on its way must not change it.
    return Fact(
        subject=found.subject,
        predicate=found.predicate,
        object_json=_copied(found.object_json),
    )


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise FactInvalidError(
            "fact.object_json holds something that is no data",
            reason="type",
            remedy="pass text, numbers, true or false, None, and lists and dicts of these",
            details={"field": "fact.object_json"},
        ) from error


def _envelope(
    transaction: Transaction, zones: tuple[str | None, str | None], trace: Mapping[str, str]
) -> dict[str, Any]:
    metadata = transaction.metadata
    labels = metadata.get("labels")
    if labels is not None and not isinstance(labels, Mapping):
        raise FactInvalidError(
            f"metadata['labels'] is {type(labels).__name__}",
            reason="type",
            remedy="give a mapping of text to text",
            details={"field": "envelope.labels"},
        )
    fields: dict[str, Any] = {
        "causation_id": transaction.parent_id,
        "produced_at_unix_ms": round(transaction.created_at.timestamp() * 1000),
        **{name: metadata[name] for name in _FIELDS if metadata.get(name) is not None},
        "message_id": transaction.transaction_id,
        "correlation_id": transaction.correlation_id,
        "labels": _labelled(labels or {}, trace) or None,
    }
    from_zone, to_zone = zones
    fields["from_zone"] = from_zone
    fields["to_zone"] = to_zone or fields.get("to_zone")
    return {name: value for name, value in fields.items() if value is not None}


def _labelled(labels: Mapping[str, str], trace: Mapping[str, str]) -> dict[str, str]:
    """The labels with the trace, if there is room for it. No fact is refused because of
    its trace.
    """
    fitting = {name: value for name, value in trace.items() if len(value) <= MAX_NOTE}
    if len({**labels, **fitting}) > MAX_LABELS:
        return dict(labels)
    return {**labels, **fitting}


def _files(
    given: Mapping[str, FileContent] | Sequence[Artifact | FileContent] | None,
) -> tuple[Artifact, ...]:
    if given is None:
        return ()
    if isinstance(given, Mapping):
        return tuple(Artifact(blob, file_name=name) for name, blob in given.items())
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise FactInvalidError(
            f"metadata['artifacts'] is {type(given).__name__}",
            reason="type",
            remedy="give a list of files, or a mapping of names to bytes or paths",
            details={"field": "artifacts"},
        )
    return tuple(each if isinstance(each, Artifact) else Artifact(each) for each in given)
