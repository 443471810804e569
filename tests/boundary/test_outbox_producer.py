"""The outbox with the real producers, of both colours, over a transport that fails as scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.boundary.client.outbox import DrainReport, Outbox
from ergon_framework.boundary.client.producer import AsyncProducer, Producer
from ergon_framework.boundary.model import Envelope, Fact, ObjectReceipt
from ergon_framework.core.retry import Backoff
from ergon_framework.errors import BoundaryError, BoundaryNotFoundError
from tests.boundary.outbox_node import Node, away, envelope, fact

AT_ONCE = Backoff()


class Wire:
    """A node at the end of a wire. What was sent is kept as it was sent."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.sent: list[tuple[str, bytes]] = []

    def call(self, method: str, body: bytes, *, timeout: float | None = None) -> bytes:
        name = method.rpartition("/")[2]
        self.sent.append((name, body))
        asked = msgspec.json.decode(body)
        if name == "AppendFact":
            return msgspec.json.encode(self.node.append_fact(*_pair(asked)))
        if name == "AppendFacts":
            answers = self.node.append_facts([_pair(item) for item in asked["items"]])
            return msgspec.json.encode({"results": [_shape(answer) for answer in answers]})
        found = self.node.lookup_fact(asked["from_zone"], asked["message_id"])
        if found is None:
            raise BoundaryNotFoundError("never seen")
        return msgspec.json.encode(found)

    def put_object(
        self,
        bucket: str,
        key: str,
        chunks: Iterable[bytes],
        *,
        size: int,
        digest: str | None = None,
    ) -> bytes:
        self.sent.append(("PutObject", b"".join(chunks)))
        self.node.note_call("put_object")
        self.node.objects[bucket, key] = (digest or "", size)
        return msgspec.json.encode(
            ObjectReceipt(bucket=bucket, key=key, digest=digest or "", size=size)
        )

    def get_object(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    def head_object(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


class AsyncWire:
    """The same for an event loop."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    async def call(self, method: str, body: bytes, **options: Any) -> bytes:
        return self.wire.call(method, body, **options)

    async def put_object(self, *args: Any, **options: Any) -> bytes:
        return self.wire.put_object(*args, **options)

    async def close(self) -> None:
        """Nothing is open."""


def _pair(item: dict[str, Any]) -> tuple[Envelope, Fact]:
    return msgspec.convert(item["envelope"], Envelope), msgspec.convert(item["fact"], Fact)


def _shape(answer: Any) -> Any:
    return {"error": answer.to_dict()} if isinstance(answer, BoundaryError) else answer


def drained(outbox: Outbox, wire: Wire, colour: str) -> DrainReport:
    """Drain with a producer of one colour."""
    if colour == "async":
        producer = AsyncProducer(AsyncWire(wire))  # type: ignore[arg-type]
        return asyncio.run(outbox.drain_async(producer, until_empty=True))
    return outbox.drain(until_empty=True)


@pytest.mark.req("BOUNDARY:producer", "P4", "P6", "BSFG:Retry")
@pytest.mark.parametrize("colour", ["threads", "async"])
def test_the_patience_is_the_outboxes_alone(tmp_path: Path, colour: str) -> None:
    """One call for each attempt, the same bytes in each; the producer does not multiply them."""
    node = Node()
    wire = Wire(node)
    node.losses = [away() for _ in range(6)]
    with Outbox(tmp_path / "o.db", Producer(wire), backoff=AT_ONCE) as outbox:
        outbox.add(envelope("e:1"), fact([1.5, {"b": 1, "a": "é"}]))
        report = drained(outbox, wire, colour)
    assert (report.sent, report.duplicates, report.failures) == (1, 1, 6)
    assert len(wire.sent) == 7
    assert len(set(wire.sent)) == 1
    assert node.log == ["e:1"]


@pytest.mark.req("BOUNDARY:producer", "P1", "P14", "BSFG:Sequence")
@pytest.mark.parametrize("colour", ["threads", "async"])
def test_everything_an_outbox_asks_of_a_producer(tmp_path: Path, colour: str) -> None:
    """Look-ups, batches, files and refusals, in the order of the line."""
    node = Node()
    wire = Wire(node)
    node.append_fact(envelope("e:0"), fact(0))
    with Outbox(tmp_path / "o.db", Producer(wire), recover="lookup", backoff=AT_ONCE) as outbox:
        for n in range(5):
            outbox.add(envelope(f"e:{n}"), fact(n), [b"bytes"] if n == 3 else [])
        conflicting = outbox.add(envelope("e:5"), fact(5))
        node.append_fact(envelope("e:5"), fact("else"))
        report = drained(outbox, wire, colour)
        assert (report.sent, report.duplicates, report.refused) == (5, 1, 1)
        [aside] = outbox.refused()
        assert (aside.id, aside.reason) == (conflicting, "conflicting_duplicate")
    assert node.log == ["e:0", "e:5", "e:1", "e:2", "e:3", "e:4"]
    names = [name for name, _ in wire.sent]
    assert names[:3] == ["LookupFact", "LookupFact", "AppendFact"]
    assert names[3:] == ["AppendFact", "PutObject", "AppendFact", "AppendFacts"]
