"""Transactions as facts: stable ids, the same envelope on every retry, artifacts first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.client.publish_effects import FactWarning
from ergon_framework.boundary.model import Fact
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.connector.boundary import BoundaryConnector, BoundaryConnectorError
from ergon_framework.errors import (
    ArtifactError,
    ConfigurationError,
    ConflictingDuplicateError,
    NodeUnavailableError,
    PayloadError,
)
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.clock import VirtualClock
from tests.boundary.client.scripted import ScriptedTransport, unavailable
from tests.connectors.test_boundary_connector_machine import ONCE
from tests.connectors.zone_node import HttpNode, eventually, http_node, in_process, told

pytestmark = pytest.mark.req("ONE:connector-boundary")

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
TRACES = [f"00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333{n}-01" for n in range(4)]
ACCEPTED = b'{"results":[{"offset":1}]}'


@pytest.fixture(scope="module")
def node() -> Iterator[HttpNode]:
    """A node over HTTP."""
    with http_node() as made:
        yield made


@pytest.fixture
def connector(node: HttpNode) -> Iterator[BoundaryConnector]:
    """A producer of that node."""
    with BoundaryConnector(node.url, from_zone="a", to_zone="b", retry=ONCE) as made:
        yield made


def stored(zone: LocalZone, message_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The envelope and the fact that a node has under an id."""
    found = zone.store.find("a", message_id)
    assert found is not None, f"there is no {message_id}"
    row = zone.store.page("outbound", found.offset - 1, 1, 1 << 24).facts[0]
    return json.loads(row.envelope), json.loads(row.fact)


def test_the_envelope_is_that_of_the_transaction(
    node: HttpNode, connector: BoundaryConnector
) -> None:
    """Id, instant, correlation, cause, labels and trace of the transaction go with the fact."""
    payload = {"subject": "order:1", "predicate": "paid", "object_json": {"n": 1}}
    metadata = {"traceparent": TRACES[0], "labels": {"tenant": "blue"}, "object_schema": "v1"}
    given = Transaction(
        "order:1:paid",
        payload,
        metadata,
        correlation_id="flow-1",
        parent_id="order:1:created",
        created_at=WHEN,
    )
    connector.dispatch_transactions([given])
    envelope, fact = stored(node.zone, "order:1:paid")
    assert fact == payload
    assert envelope == {
        "message_id": "order:1:paid",
        "from_zone": "a",
        "to_zone": "b",
        "produced_at_unix_ms": round(WHEN.timestamp() * 1000),
        "correlation_id": "flow-1",
        "causation_id": "order:1:created",
        "labels": {"tenant": "blue", "traceparent": TRACES[0]},
        "object_schema": "v1",
    }


def test_metadata_may_name_zone_cause_and_instant(node: HttpNode) -> None:
    """What the connector does not say, a transaction may."""
    metadata = {"to_zone": "c", "causation_id": "why", "produced_at_unix_ms": 7}
    with BoundaryConnector(node.url, from_zone="a") as connector:
        connector.dispatch_transactions([told(2, metadata=metadata, parent_id="other")])
    envelope, _ = stored(node.zone, "order:2:created")
    assert [envelope[name] for name in metadata] == ["c", "why", 7]


def test_every_attempt_has_the_same_envelope() -> None:
    """Also the attempt of another dispatch, whose trace has gone on by then."""
    transport = ScriptedTransport(VirtualClock(), [unavailable(), ACCEPTED, ACCEPTED])
    with BoundaryConnector(transport, from_zone="a", to_zone="b", retry=ONCE) as connector:
        first = told(1, metadata={"traceparent": TRACES[0]}, created_at=WHEN)
        with pytest.raises(NodeUnavailableError):
            connector.dispatch_transactions([first])
        again = first.with_trace({"traceparent": TRACES[1]}, TRACES[1][3:35])
        connector.dispatch_transactions([again])
        connector.dispatch_transactions([again])  # its outcome was known: nothing to keep
    bodies = [body for _, _, body in transport.calls]
    assert bodies[0] == bodies[1]
    assert TRACES[1].encode() in bodies[2]


def test_a_fact_told_twice_is_one_fact(node: HttpNode, connector: BoundaryConnector) -> None:
    """Dispatching again changes nothing; other content under the id is refused by its name."""
    connector.dispatch_transactions([told(3), told(4)])
    before = node.zone.store.logs()[0].head
    connector.dispatch_transactions([told(4), told(3)])
    assert node.zone.store.logs()[0].head == before
    other = Transaction("order:3:created", {**told(3).payload, "object_json": {"n": 99}})
    with pytest.raises(ConflictingDuplicateError, match="'order:3:created'"):
        connector.dispatch_transactions([other])


@pytest.mark.parametrize(
    ("payload", "where"),
    [
        (7, "payload is int"),
        ({"subject": "order:1"}, "a fact has subject"),
        ({"subject": "Order 1", "predicate": "paid", "object_json": 1}, "fact.subject"),
        ({"subject": "order:1", "predicate": "paid", "object_json": {1, 2}}, "object_json"),
        ({"subject": "order:1", "predicate": "paid", "object_json": 1, "more": 1}, "nothing else"),
    ],
)
def test_what_is_no_fact_is_refused_before_anything_is_sent(
    node: HttpNode, connector: BoundaryConnector, payload: Any, where: str
) -> None:
    """The error names the transaction and the field, and nothing of the batch is told."""
    with pytest.raises(PayloadError, match=where) as caught:
        connector.dispatch_transactions([told(50), Transaction("order:bad", payload)])
    assert "'order:bad'" in str(caught.value)
    assert node.zone.store.find("a", "order:50:created") is None


def test_metadata_of_the_wrong_kind_is_refused(connector: BoundaryConnector) -> None:
    """Labels are text under text, artifacts a list or a mapping."""
    with pytest.raises(PayloadError, match="labels"):
        connector.dispatch_transactions([told(51, metadata={"labels": "blue"})])
    with pytest.raises(PayloadError, match="artifacts"):
        connector.dispatch_transactions([told(51, metadata={"artifacts": "a.pdf"})])
    with pytest.raises(PayloadError, match=r"envelope\.to_zone"):
        BoundaryConnector("http://127.0.0.1:1", from_zone="a").dispatch_transactions([told(51)])


def test_ids_that_would_differ_next_time_are_noted(node: HttpNode) -> None:
    """A random id is a warning as with the producer, and an error when asked for."""
    random = Transaction("8f14e45f-ceea-467f-a1c2-2f6d3a1b9c10", told(1).payload)
    zones: dict[str, Any] = {"from_zone": "a", "to_zone": "b"}
    with (
        BoundaryConnector(node.url, **zones) as connector,
        pytest.warns(FactWarning, match="random UUID"),
    ):
        connector.dispatch_transactions([random])
    with (
        BoundaryConnector(node.url, **zones, strict_ids=True) as connector,
        pytest.raises(PayloadError, match="random UUID"),
    ):
        connector.dispatch_transactions([random])


def test_artifacts_are_there_before_their_fact(
    node: HttpNode, connector: BoundaryConnector, tmp_path: Path
) -> None:
    """Files of a list or a mapping are put first, and the fact refers to them."""
    (tmp_path / "scan.pdf").write_bytes(b"a scan")
    order = {"subject": "order:7", "predicate": "attached", "object_json": {"pages": 1}}
    connector.dispatch_transactions(
        [
            told(6),
            Transaction("order:7:attached", order, {"artifacts": [tmp_path / "scan.pdf"]}),
            Transaction(
                "order:8:attached",
                Fact(subject="order:8", predicate="attached"),
                {"artifacts": {"note.txt": b"a note"}},
            ),
        ]
    )
    _, fact = stored(node.zone, "order:7:attached")
    (reference,) = fact["object_json"]["attachments"]
    assert (reference["file_name"], reference["size"]) == ("scan.pdf", 6)
    _, fact = stored(node.zone, "order:8:attached")
    assert fact["object_json"]["media_type"] == "text/plain"
    with BoundaryConnector(node.url, consumer="files", log="outbound", start="start") as consuming:
        assert consuming.get_object(fact["object_json"]) == b"a note"
        saved = consuming.save_object(reference, tmp_path / "saved.pdf")
    assert saved.read_bytes() == b"a scan"


def test_no_artifact_no_fact(node: HttpNode, connector: BoundaryConnector, tmp_path: Path) -> None:
    """A file that cannot be put means that its fact is not told; nor is a false reference."""
    lacking = told(60, metadata={"artifacts": [tmp_path / "missing.pdf"]})
    with pytest.raises(ConfigurationError, match=r"missing\.pdf"):
        connector.dispatch_transactions([lacking])
    reference = {"bucket": "x", "key": "y", "digest": f"sha256:{'0' * 64}", "size": 1}
    false = {"subject": "order:61", "predicate": "attached", "object_json": reference}
    with pytest.raises(ArtifactError, match="'order:61'"):
        connector.dispatch_transactions([Transaction("order:61", false)])
    assert node.zone.store.find("a", "order:60:created") is None


def test_the_outbox_takes_what_the_node_cannot(tmp_path: Path) -> None:
    """A dispatch returns when the fact is on disk here, and the node has it once it is back."""
    with http_node() as node:
        node.stop()
        options: dict[str, Any] = {"from_zone": "a", "to_zone": "b", "outbox": tmp_path / "out.db"}
        with BoundaryConnector(node.url, **options) as connector:
            connector.dispatch_transactions([told(1), told(2)])
            connector.dispatch_transactions([told(1)])
            other = {**told(1).payload, "object_json": {"n": 99}}
            with pytest.raises(ConflictingDuplicateError, match="'order:1:created'"):
                connector.dispatch_transactions([Transaction("order:1:created", other)])
        node.start()
        with BoundaryConnector(node.url, **options) as connector:  # another process, later
            artifacts = {"note.txt": b"a note"}
            asyncio.run(
                connector.dispatch_transactions_async([told(3, metadata={"artifacts": artifacts})])
            )
            eventually(lambda: node.zone.store.logs()[0].head == 3)


@pytest.mark.parametrize("use", ["open", "aopen", "fetch", "fetch_async"])
def test_what_an_earlier_process_left_goes_on_its_way(tmp_path: Path, use: str) -> None:
    """Opening, or else the first fetch, is enough: nobody need dispatch anything."""
    path = tmp_path / "out.db"
    options: dict[str, Any] = {"from_zone": "a", "to_zone": "b", "outbox": path}
    with http_node() as node:
        node.stop()
        with BoundaryConnector(node.url, **options) as connector:
            connector.dispatch_transactions([told(1)])
        node.start()
        options |= {"consumer": "c", "log": "outbound"}
        with BoundaryConnector(node.url, **options) as connector:
            match use:
                case "open":
                    connector.open()
                case "aopen":
                    asyncio.run(connector.aopen())
                case "fetch":
                    connector.fetch_transactions(1)
                case _:
                    asyncio.run(connector.fetch_transactions_async(1))
            eventually(lambda: node.zone.store.find("a", "order:1:created") is not None)


def test_opening_makes_no_outbox(tmp_path: Path) -> None:
    """Where nobody has left anything, a look whether the connector can be used leaves no file."""
    options: dict[str, Any] = {"from_zone": "a", "to_zone": "b", "outbox": tmp_path / "out.db"}
    with BoundaryConnector("http://127.0.0.1:1", **options) as connector:
        connector.open()
    assert not list(tmp_path.iterdir())
    with pytest.raises(BoundaryConnectorError, match="closed"):
        connector.open()


def test_artifacts_on_an_event_loop() -> None:
    """The asyncio face does the same over a transport of its loop."""

    async def scenario() -> bytes:
        async with in_process() as connector:
            fact = {"subject": "order:8", "predicate": "attached"}
            given = Transaction("order:8:attached", fact, {"artifacts": {"a.txt": b"a note"}})
            await connector.dispatch_transactions_async([given, told(1)])
            first, second = await connector.fetch_transactions_async(5)
            found = await connector.get_object_async(first.payload["object_json"])
            await connector.ack_async(second)
            await connector.release_after_async(first, 3600.0)
            assert await connector.fetch_transactions_async(5) == []
            return found

    assert asyncio.run(scenario()) == b"a note"
