"""What a zone reports: notices to listeners, counts, log lines, and the spans of a fact.

A count exists for each event; a notice is built only when there is a listener.

The spans are ``boundary.publish``, ``boundary.append`` and ``boundary.pull``. A fact carries its
trace in the labels of its envelope, as the producer wrote them: they are advisory, no part of its
identity, and never changed on the way. So whatever handles the fact, in whichever zone, hangs below
its publication; and a duplicate keeps the trace of the first.
"""

from __future__ import annotations

import bisect
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec
from opentelemetry.trace import Span

from ergon_framework.boundary.facts.schema import MAX_LABELS, MAX_NOTE
from ergon_framework.boundary.model import Delivery, Envelope, EnvelopeLike, Receipt
from ergon_framework.errors import BoundaryError, StoreError
from ergon_framework.ports.factstore import Appended, NewFact
from ergon_framework.ports.notice import Notice
from ergon_framework.telemetry import outgoing_metadata
from ergon_framework.telemetry.notices import NoticeDispatcher, has_listeners
from ergon_framework.telemetry.tracing import SpanKind, is_traced, record_span, span_at_edge

logger = logging.getLogger("ergon_framework.boundary")

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of the latency histogram, in seconds."""


REPEAT_INTERVAL = 60.0
"""Seconds after which a trouble that lasts is logged again."""
MAX_TROUBLES = 16
"""Distinct errors that are counted separately."""
SUMMARY_INTERVAL = 10.0
"""Seconds during which warnings of one kind are summed up in one log line."""
MAX_KINDS = 64
"""Distinct kinds of facts that are counted separately."""
SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


class Histogram:
    """Counts of values by upper bound. Used by one thread."""

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.total += value * times


class ZoneEvents:
    """The voice of one zone."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._sink = NoticeDispatcher(None, (), ())
        self._lock = threading.Lock()
        self.counts: Counter[tuple[str, str]] = Counter()
        """Counts by metric and label value; the value is empty for metrics without a label."""
        self.append_seconds = Histogram()
        self.commit_seconds = Histogram()
        self.commit_sizes = Histogram(SIZES)
        self._zone = ""
        self._troubles: dict[str, float] = {}
        """When each was logged last."""
        self._sums: dict[str, tuple[float, int, str]] = {}
        """For each kind of warning: when it was logged, how many came since, and the last text."""
        self._of_appends: set[str] = set()
        """The kinds of warnings that end when facts are committed again."""

    def count(self, what: str, label: str = "", times: int = 1) -> None:
        """Add to a counter, from any thread."""
        with self._lock:
            self.counts[what, label] += times

    def committed(self, facts: int, seconds: float) -> None:
        """A group of appends is on disk."""
        if self._of_appends:
            with self._lock:
                for text in self._of_appends:
                    self._troubles.pop(text, None)
                self._of_appends = set()
            logger.warning("the store of zone %s takes facts again", self._zone)
        self.commit_sizes.add(facts)
        self.commit_seconds.add(seconds)

    def tell(self, name: str, **fields: Any) -> None:
        """Send a notice to listeners."""
        if has_listeners():
            self._sink.emit(Notice(name, self._clock(), fields))

    def warn(self, name: str, text: str, **fields: Any) -> None:
        """A notice, and a line in the log for people."""
        logger.warning("%s", text)
        self.tell(name, **fields)

    def warn_in_sums(self, kind: str, name: str, text: str, **fields: Any) -> None:
        """A notice each time; in the log the first of a kind, and then how many more there were.

        A client that is refused may come back a thousand times a second.
        """
        now = self._clock()
        with self._lock:
            kind = kind if kind in self._sums or len(self._sums) < MAX_KINDS else "other"
            since, count, _last = self._sums.get(kind, (0.0, 0, ""))
            is_new = not 0 <= now - since < SUMMARY_INTERVAL
            self._sums[kind] = (now, 0, "") if is_new else (since, count + 1, text)
        if is_new:
            logger.warning("%s%s", text, _and_more(count))
        self.tell(name, **fields)

    def note_damage(self, log: str, message_id: str, outcome: Appended) -> None:
        """A duplicate of a damaged fact came: whether it is repaired now."""
        place = f"the fact at {outcome.offset} of {log}"
        fields = {"message_id": message_id, "log": log, "offset": outcome.offset}
        if outcome.is_repaired:
            text = f"{place} was damaged; a duplicate of it came, and it is repaired"
            self.warn_in_sums("repaired", "fact.repaired", text, **fields)
        elif outcome.is_damaged:
            text = (
                f"{place} is damaged, and the duplicate that came could not repair it: see what"
                " `ergon boundary verify` says, then restore a backup"
            )
            self.warn_in_sums("damaged", "fact.damaged", text, **fields)

    def tell_sums(self, *, is_last: bool = False) -> None:
        """Log what came since the first of each kind, when its time is over."""
        now, due = self._clock(), []
        with self._lock:
            for kind, (since, count, last) in list(self._sums.items()):
                if 0 <= now - since < SUMMARY_INTERVAL and not is_last:
                    continue
                del self._sums[kind]
                if count:
                    due.append((count, last))
        for count, last in due:
            logger.warning("%s%s", last, _and_more(count - 1))

    def note_store_error(self, zone: str, error: StoreError, *, is_append: bool) -> None:
        """A notice each time, and a line in the log when it begins and now and then: every producer
        and consumer that comes meanwhile meets the same.
        """
        text, now = str(error), self._clock()
        with self._lock:
            said_at = self._troubles.get(text)
            is_news = said_at is None or not said_at <= now < said_at + REPEAT_INTERVAL
            if is_news:
                kept = list(self._troubles.items())[-MAX_TROUBLES:]
                self._zone, self._troubles = zone, {**dict(kept), text: now}
            if is_append:
                self._of_appends = {*self._of_appends, text}
        if is_news:
            logger.warning("the store of zone %s: %s", zone, text)
        self.tell("zone.troubled", error=error)

    def note(self, name: str, text: str, **fields: Any) -> None:
        """A notice, and a line in the log at the level of information."""
        logger.info("%s", text)
        self.tell(name, **fields)


def _and_more(count: int) -> str:
    return f" ({count} more like it since)" if count else ""


_NAMES = ("message_id", "from_zone", "to_zone")
_MARK = b'"traceparent"'


class _Labels(msgspec.Struct):
    labels: dict[str, str] = {}


_labels = msgspec.json.Decoder(_Labels).decode


class Publishing:
    """The publication of one fact: its envelope in the current trace, and its span."""

    __slots__ = ("_span", "envelope")

    def __init__(self, envelope: EnvelopeLike, span: Span) -> None:
        self.envelope = labelled(envelope)
        self._span = span

    def told(self, receipt: Receipt) -> Receipt:
        """Record the node's answer in the span."""
        self._span.set_attribute("ergon.offset", receipt.offset)
        self._span.set_attribute("ergon.duplicate", receipt.duplicate)
        return receipt


@contextmanager
def traced_publishing(
    envelope: EnvelopeLike, name: str = "boundary.publish"
) -> Iterator[Publishing]:
    """The span of one publication. All that is sent for it is made of its envelope, once."""
    labels = _field(envelope, "labels")
    given = labels if isinstance(labels, Mapping) else None
    with span_at_edge(name, SpanKind.PRODUCER, _about(envelope), given) as span:
        yield Publishing(envelope, span)


def traced_publishing_many() -> AbstractContextManager[Span]:
    """The span of many facts, inside of a trace: they begin none, since they share nothing."""
    return span_at_edge("boundary.publish", SpanKind.PRODUCER, {}, begins=False)


def labelled(envelope: EnvelopeLike) -> EnvelopeLike:
    """The envelope with the current trace in its labels; a trace that it has already stays."""
    labels = _field(envelope, "labels") or {}
    if not isinstance(labels, Mapping) or "traceparent" in labels:
        return envelope
    added = outgoing_metadata()
    if len(added.get("tracestate", "")) > MAX_NOTE:
        del added["tracestate"]
    made = {**labels, **added}
    if not added or len(made) > MAX_LABELS:
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
    record_span("boundary.append", SpanKind.SERVER, carrier, seconds, attributes, failure)


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
    record_span("boundary.pull", SpanKind.CONSUMER, labels, seconds, attributes)


def carrier_of(new: NewFact) -> Mapping[str, str] | None:
    """The labels of a fact that came with a trace; None without one, or when tracing is off."""
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
