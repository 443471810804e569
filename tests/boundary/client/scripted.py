"""Transports for tests: one that says what it was told to say, and one over a memory store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

from ergon_framework.boundary.append_batcher import answer
from ergon_framework.boundary.client.consumer import AsyncConsumer, Consumer
from ergon_framework.boundary.client.producer import AsyncProducer, Producer
from ergon_framework.boundary.facts.validation import parse_append, validate_fact
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.model import Envelope, Fact, ObjectReceipt
from ergon_framework.boundary.node import operations
from ergon_framework.boundary.node.wire import page_json
from ergon_framework.boundary.settings import LimitSettings
from ergon_framework.errors import BoundaryError, BoundaryNotFoundError, NodeUnavailableError
from ergon_framework.testing.clock import VirtualClock

T = TypeVar("T")
Colour = Literal["threads", "tasks"]
Step = bytes | BoundaryError | Callable[[bytes], bytes]

ENVELOPE = {
    "message_id": "WO:12345:created",
    "from_zone": "Plant A",
    "to_zone": "Enterprise",
    "produced_at_unix_ms": 1741248600000,
}
FACT = {"subject": "work_order:WO-12345", "predicate": "created", "object_json": {"n": 1}}


def unavailable(**options: Any) -> NodeUnavailableError:
    """What a transport raises when the node is away."""
    return NodeUnavailableError("away", reason="connect_failed", **options)


def envelope(n: int) -> Envelope:
    """The n-th envelope."""
    return Envelope(
        message_id=f"WO:{n}:created", from_zone="a", to_zone="b", produced_at_unix_ms=1741248600000
    )


def fact(n: int) -> Fact:
    """The n-th fact."""
    return Fact(subject=f"work_order:WO-{n}", predicate="created", object_json={"n": n})


class Bytes:
    """A stream over bytes; an error at its end is raised when it is reached."""

    def __init__(self, data: bytes, size: int, error: BoundaryError | None = None) -> None:
        self.size, self.digest = size, ""
        self._data, self._error = data, error
        self.is_closed = False

    def read(self, most: int = 4) -> bytes:
        data, self._data = self._data[:4], self._data[4:]
        if not data and self._error is not None:
            raise self._error
        return data

    def close(self) -> None:
        self.is_closed = True


class ScriptedTransport:
    """Answers each call with the next step, and remembers when it was asked what."""

    def __init__(self, clock: VirtualClock, steps: Iterable[Step] = ()) -> None:
        self.clock = clock
        self.steps = list(steps)
        self.calls: list[tuple[float, str, bytes]] = []
        self.streams: list[Bytes] = []
        self.is_closed = False

    @property
    def times(self) -> list[float]:
        return [round(at, 9) for at, _, _ in self.calls]

    @property
    def methods(self) -> list[str]:
        return [method.partition("/")[2] or method for _, method, _ in self.calls]

    def call(self, method: str, body: bytes, *, timeout: float | None = None) -> bytes:
        return self._step(method, body)

    def put_object(
        self,
        bucket: str,
        key: str,
        chunks: Iterable[bytes],
        *,
        size: int,
        digest: str | None = None,
    ) -> bytes:
        body = b"".join(chunks)
        assert len(body) == size
        assert digest == f"sha256:{hashlib.sha256(body).hexdigest()}"
        return self._step(f"PUT {bucket}/{key}", body)

    def get_object(
        self, bucket: str, key: str, *, start: int = 0, digest: bytes | None = None
    ) -> Bytes:
        raise NotImplementedError

    def head_object(self, bucket: str, key: str) -> ObjectReceipt:
        raise NotImplementedError

    def close(self) -> None:
        self.is_closed = True

    def _step(self, method: str, body: bytes) -> bytes:
        self.calls.append((self.clock.now(), method, body))
        step = self.steps.pop(0)
        if isinstance(step, BoundaryError):
            raise step
        return step if isinstance(step, bytes) else step(body)


class HungTransport(ScriptedTransport):
    """A node that takes everything and answers nothing, for as long as it is waited for."""

    def __init__(self, patience: float) -> None:
        super().__init__(VirtualClock(), [])
        self.patience = patience

    def call(self, method: str, body: bytes, *, timeout: float | None = None) -> bytes:
        return self._silence(self.patience if timeout is None else min(timeout, self.patience))

    def put_object(self, *_name: Any, **_options: Any) -> bytes:
        return self._silence(self.patience)

    def get_object(self, *_name: Any, **_options: Any) -> Any:
        return self._silence(self.patience)

    def _silence(self, seconds: float) -> bytes:
        self.clock.advance(seconds)
        raise NodeUnavailableError("no answer", code="deadline_exceeded", reason="timeout")


class MemoryNode(ScriptedTransport):
    """A node made of a memory store; the steps that are given come before its own answers."""

    def __init__(self, clock: VirtualClock, steps: Iterable[Step] = ()) -> None:
        super().__init__(clock, steps)
        self.store = MemoryFactStore("a", clock=clock.now)
        self.faults: dict[str, list[BoundaryError]] = {}
        """Errors of a method, raised before it does anything."""
        self.lost: dict[str, int] = {}
        """How many answers of a method are lost, after it has done everything."""
        self.lease = 30.0
        self.blobs: dict[str, Callable[[int], Bytes]] = {}

    def fill(self, count: int) -> None:
        """Append facts 1 to ``count``."""
        self.append([(envelope(n), fact(n)) for n in range(1, count + 1)])

    def append(self, items: Sequence[tuple[Envelope, Fact]]) -> None:
        new = [validate_fact(*item, LimitSettings()).new_fact for item in items]
        self.store.append("outbound", new)

    def count(self, method: str) -> int:
        return self.methods.count(method)

    def get_object(
        self, bucket: str, key: str, *, start: int = 0, digest: bytes | None = None
    ) -> Bytes:
        self.calls.append((self.clock.now(), f"GET {bucket}/{key}", b"%d" % start))
        if key not in self.blobs:
            raise BoundaryNotFoundError("no such object")
        stream = self.blobs[key](start)
        self.streams.append(stream)
        return stream

    def _step(self, method: str, body: bytes) -> bytes:
        name = method.partition("/")[2]
        if self.steps:
            return super()._step(method, body)
        self.calls.append((self.clock.now(), method, body))
        if self.faults.get(name):
            raise self.faults[name].pop(0)
        answer: bytes = getattr(self, f"_{operations.snake(name).lower()}")(body)
        if self.lost.get(name):
            self.lost[name] -= 1
            raise NodeUnavailableError("lost", code="deadline_exceeded", reason="timeout")
        return answer

    def _append_fact(self, body: bytes) -> bytes:
        new = validate_fact(*parse_append(body), LimitSettings()).new_fact
        receipt = answer(new, self.store.append("outbound", [new])[0], strict_envelope=False)
        if isinstance(receipt, BoundaryError):
            raise receipt
        return json.dumps({"offset": receipt.offset, "duplicate": receipt.duplicate}).encode()

    def _lookup_fact(self, body: bytes) -> bytes:
        asked = operations.read(body, operations.LookupFact)
        found = self.store.find(asked.from_zone, asked.message_id)
        if found is None:
            raise BoundaryNotFoundError("no such fact", reason="fact")
        shape = {"offset": found.offset, "digest": found.digest.hex(), "state": "retained"}
        return json.dumps({**shape, "log": found.log}).encode()

    def _fetch_facts(self, body: bytes) -> bytes:
        asked = operations.read(body, operations.FetchFacts)
        lease = (asked.lease_ms or 0) / 1000
        page = self.store.serve(
            asked.consumer_name, asked.limit, asked.max_bytes or 1, holder=asked.holder, lease=lease
        )
        if not page.page.facts and asked.wait_ms:
            self.clock.sleep(asked.wait_ms / 1000)
        return page_json(page, "epoch", "plant-a")

    def _confirm_receipt(self, body: bytes) -> bytes:
        asked = operations.read(body, operations.ConfirmReceipt)
        cursor = self.store.confirm(asked.consumer_name, asked.offset, holder=asked.holder)
        if asked.holder is not None:
            with self.store.database.step() as state:
                state.consumer(asked.consumer_name).held_until = self.clock.now() + self.lease
        return b'{"cursor":%d}' % cursor

    def _create_consumer(self, body: bytes) -> bytes:
        asked = operations.read(body, operations.CreateConsumer)
        self.store.create_consumer(
            asked.consumer_name, asked.log, from_end=asked.start == "end", to_zone=asked.to_zone
        )
        return b"{}"

    def _seek_consumer(self, body: bytes) -> bytes:
        asked = operations.read(body, operations.SeekConsumer)
        self.store.seek(asked.consumer_name, asked.offset, reason=asked.reason)
        return b"{}"

    def _release_lease(self, body: bytes) -> bytes:
        asked = operations.read(body, operations.ReleaseLease)
        self.store.release_lease(asked.consumer_name, asked.holder)
        return b"{}"

    def _quarantine_fact(self, body: bytes) -> bytes:
        asked = operations.read(body, operations.QuarantineFact)
        self.store.set_aside(
            asked.consumer_name,
            asked.offset,
            reason=asked.reason,
            message=asked.message,
            attempts=asked.attempts,
            holder=asked.holder,
        )
        return b"{}"


class _AsyncBytes:
    def __init__(self, stream: Bytes) -> None:
        self._stream = stream
        self.size, self.digest = stream.size, stream.digest

    async def read(self, most: int = 4) -> bytes:
        return self._stream.read(most)

    async def close(self) -> None:
        self._stream.close()


class AsyncOver:
    """The asyncio colour of a scripted transport."""

    def __init__(self, transport: ScriptedTransport) -> None:
        self._transport = transport

    async def call(self, method: str, body: bytes, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        return self._transport.call(method, body, timeout=timeout)

    async def put_object(
        self,
        bucket: str,
        key: str,
        chunks: Iterable[bytes],
        *,
        size: int,
        digest: str | None = None,
    ) -> bytes:
        return self._transport.put_object(bucket, key, chunks, size=size, digest=digest)

    async def get_object(
        self,
        bucket: str,
        key: str,
        *,
        start: int = 0,
        digest: bytes | None = None,
        fact_offset: int | None = None,
    ) -> _AsyncBytes:
        return _AsyncBytes(self._transport.get_object(bucket, key, start=start, digest=digest))

    async def head_object(self, bucket: str, key: str) -> ObjectReceipt:
        return self._transport.head_object(bucket, key)

    async def close(self) -> None:
        self._transport.close()


def produce(
    colour: Colour, transport: ScriptedTransport, act: Callable[[Any], Any], **options: Any
) -> Any:
    """Let a producer of either colour do something, in virtual time."""
    if colour == "threads":
        with transport.clock, Producer(transport, **options) as producer:
            return act(producer)

    async def main() -> Any:
        async with AsyncProducer(AsyncOver(transport), **options) as producer:
            return await _awaited(act(producer))

    return transport.clock.run(main())


def consume(
    colour: Colour, transport: ScriptedTransport, act: Callable[[Any], Any], **options: Any
) -> Any:
    """Let a consumer of either colour do something, in virtual time."""
    options = {"log": "outbound", "dice": lambda: 0.5, **options}
    if colour == "threads":
        with transport.clock, Consumer(transport, "c", **options) as consumer:
            return act(consumer)

    async def main() -> Any:
        async with AsyncConsumer(AsyncOver(transport), "c", **options) as consumer:
            return await _awaited(act(consumer))

    return transport.clock.run(main())


async def _awaited(value: Awaitable[T]) -> T:
    return await value
