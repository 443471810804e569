"""Our own connectors begin traces and go on with them, without code of the task's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.connector.boundary import BoundaryConnector
from ergon_framework.connector.jobs import JobsConnector
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.journal import SpanRecord
from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry.propagation import extract
from tests.connectors.zone_node import in_process, over_http, told

pytestmark = pytest.mark.req("ONE:trace", "ONE:connector-jobs", "ONE:connector-boundary")

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def parent_of(transaction: Transaction) -> tuple[str, str]:
    """The trace that a delivered transaction brings, and the span it hangs below."""
    found = extract(transaction)
    assert found is not None
    return f"{found.trace_id:032x}", f"{found.span_id:016x}"


def labels(connector: Any) -> list[Any]:
    """The labels of all facts in the node's log."""
    facts = connector.zone.store.page("outbound", 0, 99, 1 << 20).facts
    return [json.loads(fact.envelope).get("labels") for fact in facts]


def test_a_dispatched_job_begins_a_trace(kept: list[SpanRecord]) -> None:
    """What is delivered later hangs below the enqueuing."""
    with JobsConnector(MemoryJobStore(), handler="work") as connector:
        connector.dispatch_transactions([Transaction("t1", {"a": "secret"})])
        (delivered,) = connector.fetch_transactions(1)
        connector.ack(delivered)
    (span,) = kept
    assert (span.name, span.unit, span.parent_id) == ("job.enqueue", "t1", "")
    assert parent_of(delivered) == (span.trace_id, span.span_id)
    assert "secret" not in repr(span)


def test_a_dispatched_job_goes_on_with_its_own_trace(kept: list[SpanRecord]) -> None:
    """That of its metadata, when no other is current; many at once begin none."""
    mine = Transaction("t1", metadata={"traceparent": PARENT})
    with JobsConnector(MemoryJobStore(), handler="work") as connector:
        connector.dispatch_transactions([mine])
        (span,) = kept
        assert (span.trace_id, span.parent_id) == (TRACE, PARENT[36:52])
        connector.dispatch_transactions([Transaction("t2"), Transaction("t3")])
        assert len(kept) == 1
        brought = [extract(each) for each in connector.fetch_transactions(9)[1:]]
    assert brought == [None, None]


def test_a_dispatched_fact_begins_a_trace(kept: list[SpanRecord]) -> None:
    """The node's span and what consumes it hang below the publication."""
    with over_http() as connector:
        connector.dispatch_transactions([told(1)])
        (delivered,) = connector.fetch_transactions(1)
        connector.ack(delivered)
    by_name = {span.name: span for span in kept}
    publish = by_name["boundary.publish"]
    assert (publish.unit, publish.parent_id) == ("order:1:created", "")
    assert by_name["boundary.append"].parent_id == publish.span_id
    assert parent_of(delivered) == (publish.trace_id, publish.span_id)


def test_a_fact_that_is_dispatched_again_keeps_its_first_trace(kept: list[SpanRecord]) -> None:
    """Telling an event again is no conflict, and changes nothing."""
    with over_http() as connector:
        connector.dispatch_transactions([told(1)])
        first = labels(connector)
        connector.dispatch_transactions([told(1)])
        assert labels(connector) == first
    traces = [span.trace_id for span in kept if span.name == "boundary.publish"]
    assert len(set(traces)) == 2
    assert first[0]["traceparent"][3:35] == traces[0]


def test_many_facts_begin_no_trace(kept: list[SpanRecord]) -> None:
    """They go as they are."""
    with over_http() as connector:
        connector.dispatch_transactions([told(1), told(2)])
        assert labels(connector) == [None, None]
    assert kept == []


def test_an_event_loop_does_the_same(kept: list[SpanRecord]) -> None:
    """The asyncio twin."""

    async def whole() -> None:
        async with in_process() as connector:
            await connector.dispatch_transactions_async([told(1)])
            (delivered,) = await connector.fetch_transactions_async(1)
            await connector.ack_async(delivered)
            (publish,) = [span for span in kept if span.name == "boundary.publish"]
            assert parent_of(delivered) == (publish.trace_id, publish.span_id)

    asyncio.run(whole())


def test_an_outbox_keeps_the_trace_on_disk(kept: list[SpanRecord], tmp_path: Path) -> None:
    """A node that is away costs nothing but time."""
    with BoundaryConnector(
        "http://127.0.0.1:9", from_zone="a", to_zone="b", outbox=tmp_path / "outbox.db"
    ) as connector:
        connector.dispatch_transactions([told(1)])
    (spool,) = [span for span in kept if span.name == "boundary.spool"]
    assert spool.parent_id in {span.span_id for span in kept if span.name == "boundary.publish"}


def test_what_is_no_transaction_is_refused_as_ever(kept: list[SpanRecord]) -> None:
    """By the connector, not by the trace."""
    odd: Any = ["no transaction"]
    with (
        JobsConnector(MemoryJobStore(), handler="work") as connector,
        pytest.raises(Exception, match="Transaction"),
    ):
        connector.dispatch_transactions(odd)
    assert kept == []
