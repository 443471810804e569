"""The spans of a fact: ``boundary.publish``, ``boundary.append``, ``boundary.pull``.

A fact carries its trace in the labels of its envelope, as the producer wrote them: they are
advisory, no part of its identity, and never changed on the way. So whatever handles the fact, in
whichever zone, hangs below its publication; and a duplicate keeps the trace of the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec
from opentelemetry.trace import Span

from ergon_framework.boundary.facts.schema import LONGEST_NOTE, MOST_LABELS
from ergon_framework.boundary.model import Delivery, Envelope, EnvelopeLike, Receipt
from ergon_framework.errors import BoundaryError
from ergon_framework.ports.factstore import NewFact
from ergon_framework.telemetry import outgoing_metadata
from ergon_framework.telemetry.tracing import SpanKind, crossed, edge, is_traced

_NAMES = ("message_id", "from_zone", "to_zone")
_MARK = b'"traceparent"'


class _Labels(msgspec.Struct):
    labels: dict[str, str] = {}


_labels = msgspec.json.Decoder(_Labels).decode


class Publishing:
    """One fact on its way: its envelope in the current trace, and its span."""

    __slots__ = ("_span", "envelope")

    def __init__(self, envelope: EnvelopeLike, span: Span) -> None:
        self.envelope = labelled(envelope)
        self._span = span

    def told(self, receipt: Receipt) -> Receipt:
        """What the node answered."""
        self._span.set_attribute("ergon.offset", receipt.offset)
        self._span.set_attribute("ergon.duplicate", receipt.duplicate)
        return receipt


@contextmanager
def publishing(envelope: EnvelopeLike, name: str = "boundary.publish") -> Iterator[Publishing]:
    """The span of one publication. All that is sent for it is made of its envelope, once."""
    labels = _field(envelope, "labels")
    given = labels if isinstance(labels, Mapping) else None
    with edge(name, SpanKind.PRODUCER, _about(envelope), given) as span:
        yield Publishing(envelope, span)


def publishing_many() -> AbstractContextManager[Span]:
    """The span of many facts, inside of a trace: they begin none, since they share nothing."""
    return edge("boundary.publish", SpanKind.PRODUCER, {}, begins=False)


def labelled(envelope: EnvelopeLike) -> EnvelopeLike:
    """The envelope with the current trace in its labels; a trace that it has already stays."""
    labels = _field(envelope, "labels") or {}
    if not isinstance(labels, Mapping) or "traceparent" in labels:
        return envelope
    added = outgoing_metadata()
    if len(added.get("tracestate", "")) > LONGEST_NOTE:
        del added["tracestate"]
    made = {**labels, **added}
    if not added or len(made) > MOST_LABELS:
        return envelope
    if isinstance(envelope, Envelope):
        return msgspec.structs.replace(envelope, labels=made)
    return {**envelope, "labels": made}


def appended(zone: str, new: NewFact, seconds: float, told: Receipt | BoundaryError) -> None:
    """A node has answered an append."""
    carrier = carrier_of(new)
    if carrier is None:
        return
    attributes: dict[str, Any] = {"ergon.zone": zone, "ergon.message_id": new.message_id}
    failure = None
    if isinstance(told, BoundaryError):
        failure = told.reason or told.code
    else:
        attributes |= {"ergon.offset": told.offset, "ergon.duplicate": told.duplicate}
    crossed("boundary.append", SpanKind.SERVER, carrier, seconds, attributes, failure)


def pulled(zone: str, peer: str, delivery: Delivery, seconds: float) -> None:
    """A fact of a peer is on disk here."""
    labels = delivery.envelope.labels
    if not labels or "traceparent" not in labels:
        return
    attributes = {
        "ergon.zone": zone,
        "ergon.peer": peer,
        "ergon.message_id": delivery.envelope.message_id,
        "ergon.source_offset": delivery.offset,
    }
    crossed("boundary.pull", SpanKind.CONSUMER, labels, seconds, attributes)


def carrier_of(new: NewFact) -> Mapping[str, str] | None:
    """The labels of a fact that came with a trace; None without one, or when nobody traces."""
    if not is_traced() or new.envelope.find(_MARK) < 0:
        return None
    try:
        return _labels(new.envelope).labels
    except msgspec.MsgspecError:
        return None


def _about(envelope: EnvelopeLike) -> dict[str, Any]:
    found = {f"ergon.{name}": _field(envelope, name) for name in _NAMES}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _field(envelope: Any, name: str) -> Any:
    if isinstance(envelope, Envelope):
        return getattr(envelope, name)
    return envelope.get(name) if isinstance(envelope, Mapping) else None
