"""The spans of facts: published, appended, pulled; and the trace in their labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.client.outbox import Outbox
from ergon_framework.boundary.facts.validation import validate_fact
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.settings import LimitSettings, ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import (
    ConflictingDuplicateError,
    FactInvalidError,
    NodeUnavailableError,
)
from ergon_framework.ports.journal import SpanRecord
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from ergon_framework.telemetry.tracing import SpanKind, span_at_edge
from ergon_framework.testing.clock import VirtualClock
from tests.boundary.client.scripted import (
    ENVELOPE,
    FACT,
    Colour,
    MemoryNode,
    ScriptedTransport,
    produce,
)
from tests.boundary.zones.test_puller import PulledPair, with_pulled_pair

pytestmark = pytest.mark.req("ONE:trace")

BOTH = pytest.mark.parametrize("colour", ["threads", "tasks"])
OK = b'{"offset":42,"duplicate":false,"digest":"sha256:00"}'
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def zone_of(settings: ZoneSettings) -> LocalZone:
    """A zone in memory."""
    return LocalZone("a", MemoryFactStore("a"), MemoryObjectStore(), settings)


def labels_of(transport: ScriptedTransport, call: int = -1) -> Any:
    """The labels of an envelope that was sent."""
    return json.loads(transport.calls[call][2])["envelope"].get("labels")


def traced(span: SpanRecord) -> dict[str, str]:
    """The labels of what hangs below a span."""
    return {"traceparent": f"00-{span.trace_id}-{span.span_id}-01"}


@BOTH
def test_publishing_begins_a_trace_that_the_fact_carries(
    colour: Colour, kept: list[SpanRecord]
) -> None:
    """The span says which fact it was and where it lies, and nothing of its content."""
    transport = ScriptedTransport(VirtualClock(), [OK])
    produce(
        colour, transport, lambda p: p.publish({**FACT, "object_json": "secret"}, envelope=ENVELOPE)
    )
    (span,) = kept
    assert (span.name, span.unit, span.parent_id) == (
        "boundary.publish",
        ENVELOPE["message_id"],
        "",
    )
    assert span.attributes["ergon.offset"] == 42
    assert labels_of(transport) == traced(span)
    assert "secret" not in repr(span)


@BOTH
def test_every_attempt_sends_the_same_envelope(colour: Colour, kept: list[SpanRecord]) -> None:
    """One publication has one span and one label, however often it is tried."""
    lost = NodeUnavailableError("?", code="deadline_exceeded", reason="timeout")
    transport = ScriptedTransport(VirtualClock(), [lost, lost, OK])
    produce(colour, transport, lambda p: p.append_fact(ENVELOPE, FACT))
    assert len({body for _, _, body in transport.calls}) == 1
    assert labels_of(transport) == traced(kept[0])


@BOTH
def test_a_trace_in_the_labels_stays(colour: Colour, kept: list[SpanRecord]) -> None:
    """It is the parent of the publication, and is sent as it was given."""
    given = {**ENVELOPE, "labels": {"traceparent": PARENT, "site": "1"}}
    transport = ScriptedTransport(VirtualClock(), [OK])
    produce(colour, transport, lambda p: p.append_fact(given, FACT))
    (span,) = kept
    assert (span.trace_id, span.parent_id) == (TRACE, PARENT[36:52])
    assert labels_of(transport) == given["labels"]


@BOTH
def test_many_facts_join_a_trace_and_begin_none(colour: Colour, kept: list[SpanRecord]) -> None:
    """Facts that are only sent together have nothing else in common."""
    node = ScriptedTransport(VirtualClock(), [b'{"results":[%b]}' % OK] * 2)
    other = {**ENVELOPE, "message_id": "other:1"}
    produce(colour, node, lambda p: p.append_facts([(ENVELOPE, FACT)]))
    assert kept == []
    with span_at_edge("job.enqueue", SpanKind.PRODUCER, {}):
        produce(colour, node, lambda p: p.append_facts([(other, FACT)]))
    publish, root = kept
    sent = [json.loads(body)["items"][0]["envelope"].get("labels") for *_, body in node.calls]
    assert publish.parent_id == root.span_id
    assert sent == [None, traced(publish)]


@pytest.mark.parametrize(
    "labels",
    [{f"l{n}": "x" for n in range(32)}, {f"l{n}": "x" for n in range(31)} | {"tracestate": "a=b"}],
)
def test_full_labels_are_left_alone(labels: dict[str, str], kept: list[SpanRecord]) -> None:
    """A trace is not worth the refusal of a fact; it is added only where there is room."""
    transport = ScriptedTransport(VirtualClock(), [OK])
    produce("threads", transport, lambda p: p.append_fact({**ENVELOPE, "labels": labels}, FACT))
    assert len(kept) == 1
    assert set(labels_of(transport)) - {"traceparent"} == set(labels)
    assert len(labels_of(transport)) == 32


@pytest.mark.parametrize("labels", [7, "traceparent", ["traceparent"], {"traceparent": 7}])
def test_odd_labels_are_refused_as_ever(labels: Any, kept: list[SpanRecord]) -> None:
    """By the check of the fact, not by the trace."""
    transport = ScriptedTransport(VirtualClock(), [])
    with pytest.raises(FactInvalidError):
        produce("threads", transport, lambda p: p.append_fact({**ENVELOPE, "labels": labels}, FACT))
    (span,) = kept
    assert span.failure == "FactInvalidError"


def test_nobody_traces_and_the_envelope_is_as_it_was() -> None:
    """Without an SDK and a journal nothing is added."""
    transport = ScriptedTransport(VirtualClock(), [OK])
    produce("threads", transport, lambda p: p.append_fact(ENVELOPE, FACT))
    assert labels_of(transport) is None


def test_labels_are_no_part_of_the_identity() -> None:
    """Two tellings of an event in different traces have one digest."""
    other = {**ENVELOPE, "labels": {"traceparent": PARENT}}
    digests = {
        validate_fact(each, FACT, LimitSettings()).new_fact.digest for each in (ENVELOPE, other)
    }
    assert len(digests) == 1


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_duplicate_in_another_trace_is_no_conflict(
    is_strict: bool, kept: list[SpanRecord]
) -> None:
    """Nor a difference, even for a node that insists on envelopes; the first trace stays."""
    zone = zone_of(ZoneSettings(strict_envelope=is_strict))
    other = PARENT.replace(TRACE, "f" * 32)
    first = zone.append({**ENVELOPE, "labels": {"traceparent": PARENT}}, FACT)
    again = zone.append({**ENVELOPE, "labels": {"traceparent": other}}, FACT)
    assert (again.offset, again.duplicate) == (first.offset, True)
    (stored,) = zone.store.page("outbound", 0, 9, 1 << 20).facts
    assert json.loads(stored.envelope)["labels"] == {"traceparent": PARENT}
    assert zone.events.counts.get(("envelope_differences", ""), 0) == 0
    assert [(span.name, span.trace_id, span.attributes["ergon.duplicate"]) for span in kept] == [
        ("boundary.append", TRACE, False),
        ("boundary.append", "f" * 32, True),
    ]


def test_a_refused_append_is_a_failed_span(kept: list[SpanRecord]) -> None:
    """With the reason of the refusal."""
    zone = zone_of(ZoneSettings())
    envelope = {**ENVELOPE, "labels": {"traceparent": PARENT}}
    zone.append(envelope, FACT)
    with pytest.raises(ConflictingDuplicateError):
        zone.append(envelope, {**FACT, "object_json": "another"})
    assert [span.failure for span in kept] == ["", "conflicting_duplicate"]


def test_a_pulled_fact_goes_on_with_its_trace(kept: list[SpanRecord]) -> None:
    """One span for each fact that brought a trace, when it is on disk here."""

    @with_pulled_pair
    async def pull(pair: PulledPair) -> None:
        for name, labels in (
            ("one", {"traceparent": PARENT}),
            ("two", {}),
            ("odd", {"traceparent": "x"}),
        ):
            envelope = {"message_id": name, "from_zone": "a", "to_zone": "b"}
            pair.a.append({**envelope, "produced_at_unix_ms": 1, "labels": labels}, FACT)
        await pair.puller.turn()
        assert pair.inbound() == ["one", "two", "odd"]

    pull()
    append, pulled = kept
    assert (append.name, pulled.name) == ("boundary.append", "boundary.pull")
    assert (pulled.trace_id, pulled.parent_id, pulled.unit) == (TRACE, PARENT[36:52], "one")
    assert pulled.attributes["ergon.peer"] == "a"


def test_an_outbox_sends_the_trace_it_was_given(kept: list[SpanRecord], tmp_path: Path) -> None:
    """The label is on disk with the fact, so that every attempt sends it."""
    node = MemoryNode(VirtualClock())

    def spooled(producer: Any) -> None:
        with Outbox(tmp_path / "outbox.db", producer) as outbox:
            outbox.add(ENVELOPE, FACT)
            outbox.drain(until_empty=True)

    produce("threads", node, spooled)
    by_name = {span.name: span for span in kept}
    assert by_name["boundary.publish"].parent_id == by_name["boundary.spool"].span_id
    (stored,) = node.store.page("outbound", 0, 9, 1 << 20).facts
    assert json.loads(stored.envelope)["labels"] == traced(by_name["boundary.spool"])
