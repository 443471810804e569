"""Producers of facts: ``Producer`` for threads, ``AsyncProducer`` for event loops.

What is confirmed is that the node has it on disk, and nothing about any consumer. Calls may be
repeated any number of times, in this process or the next: the same id and content get the same
offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self, TypeVar, Unpack

from ergon_framework.boundary.arguments import TRANSPORT
from ergon_framework.boundary.client.artifacts import Artifact, FileContent
from ergon_framework.boundary.client.effects import ClientEffects, TaskRunner, ThreadRunner
from ergon_framework.boundary.client.options import (
    EnvelopeOptions,
    ProducerBase,
    ProducerOptions,
    client_tls,
)
from ergon_framework.boundary.client.publish_effects import (
    ShowProgress,
    appending,
    appending_many,
    fact_of,
    looking_up,
    message_json,
    publishing,
    putting_blob,
)
from ergon_framework.boundary.client.transport import AsyncTransport, Transport
from ergon_framework.boundary.http.async_client import AsyncHttpTransport
from ergon_framework.boundary.http.client import HttpTransport
from ergon_framework.boundary.model import EnvelopeLike, FactLike, ObjectReceipt, Receipt
from ergon_framework.boundary.telemetry import traced_publishing, traced_publishing_many
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import BoundaryError

T = TypeVar("T")


class Producer(ProducerBase):
    """Publishes facts to a node. Any thread may use it.

    ::

        with Producer("http://127.0.0.1:9443", from_zone="plant-a", to_zone="enterprise") as node:
            node.publish(
                {"subject": "work_order:WO-1", "predicate": "has_batch_attachment"},
                ["batch_order.pdf"],
                message_id=message_id("attached", "work_order", "WO-1", revision=1),
            )
    """

    def __init__(self, node: str | Transport, **options: Unpack[ProducerOptions]) -> None:
        TRANSPORT.check("node", node)
        super().__init__(options)
        self._is_owner = isinstance(node, str)
        self._transport: Transport
        if isinstance(node, str):
            self._transport = HttpTransport(node, tls=client_tls(options), **self.connecting)
        else:
            self._transport = node

    def append_fact(self, envelope: EnvelopeLike, fact: FactLike) -> Receipt:
        """Append one fact; when this returns, the node has it on disk at ``offset``."""
        with traced_publishing(envelope) as on_its_way:
            strict_ids = self.config.strict_ids
            message = message_json(on_its_way.envelope, fact, strict_ids=strict_ids)
            return on_its_way.told(self._run(appending(message, self.config)))

    def append_facts(
        self, items: Iterable[tuple[EnvelopeLike, FactLike]]
    ) -> list[Receipt | BoundaryError]:
        """Append in order, a few hundred in one commit; an outcome for each, in order.

        Raises when the node cannot be reached; repeating all of it is harmless.
        """
        with traced_publishing_many() as span:
            results = self._run(appending_many(items, self.config))
            span.set_attribute("ergon.facts", len(results))
        return results

    def put_object(
        self, bucket: str, key: str, blob: FileContent, digest: str | None = None
    ) -> ObjectReceipt:
        """Store bytes, or a file, under a name; when this returns, the node has them on disk."""
        return self._run(putting_blob(bucket, key, blob, digest, self.config))

    def lookup_fact(self, from_zone: str, message_id: str) -> Receipt | None:
        """Where a fact lies that was appended at any time; None when it never was."""
        return self._run(looking_up(from_zone, message_id, self.config))

    def publish(
        self,
        fact: FactLike,
        files: Sequence[Artifact | FileContent] = (),
        *,
        envelope: EnvelopeLike | None = None,
        progress: ShowProgress = None,
        **fields: Unpack[EnvelopeOptions],
    ) -> Receipt:
        """Do the whole sequence: put every file, wait for its digest, then append the fact.

        One file and no ``object_json``: the object is the reference to it. Otherwise references
        are added as ``attachments``. A file that cannot be put means that no fact is appended.
        """
        with traced_publishing(self.envelope_of(envelope, fields)) as on_its_way:
            wrapping, config = on_its_way.envelope, self.config
            script = publishing(fact_of(fact), wrapping, files, config, progress)
            return on_its_way.told(self._run(script))

    def once(self) -> Producer:
        """A producer that makes one attempt per call, for callers with their own retry loop."""
        other = Producer(self._transport)
        other.adopt(self)
        return other

    def close(self) -> None:
        """Close the connections. May be called twice."""
        if self._is_owner:
            self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self, script: ClientEffects[T]) -> T:
        return ThreadRunner(self._transport, current_clock()).run(script)


class AsyncProducer(ProducerBase):
    """Publishes facts to a node; see :class:`~ergon_framework.boundary.Producer`.

    It belongs to one event loop. Files are read, and hashed, in other threads. A call that is
    cancelled is given up, not undone: repeat it when that matters.
    """

    def __init__(self, node: str | AsyncTransport, **options: Unpack[ProducerOptions]) -> None:
        TRANSPORT.check("node", node)
        super().__init__(options)
        self._is_owner = isinstance(node, str)
        self._transport: AsyncTransport
        if isinstance(node, str):
            self._transport = AsyncHttpTransport(node, tls=client_tls(options), **self.connecting)
        else:
            self._transport = node

    async def append_fact(self, envelope: EnvelopeLike, fact: FactLike) -> Receipt:
        """Append one fact; when this returns, the node has it on disk at ``offset``."""
        with traced_publishing(envelope) as on_its_way:
            strict_ids = self.config.strict_ids
            message = message_json(on_its_way.envelope, fact, strict_ids=strict_ids)
            return on_its_way.told(await self._run(appending(message, self.config)))

    async def append_facts(
        self, items: Iterable[tuple[EnvelopeLike, FactLike]]
    ) -> list[Receipt | BoundaryError]:
        """Append in order, a few hundred in one commit; an outcome for each, in order.

        Raises when the node cannot be reached; repeating all of it is harmless.
        """
        with traced_publishing_many() as span:
            results = await self._run(appending_many(items, self.config))
            span.set_attribute("ergon.facts", len(results))
        return results

    async def put_object(
        self, bucket: str, key: str, blob: FileContent, digest: str | None = None
    ) -> ObjectReceipt:
        """Store bytes, or a file, under a name; when this returns, the node has them on disk."""
        return await self._run(putting_blob(bucket, key, blob, digest, self.config))

    async def lookup_fact(self, from_zone: str, message_id: str) -> Receipt | None:
        """Where a fact lies that was appended at any time; None when it never was."""
        return await self._run(looking_up(from_zone, message_id, self.config))

    async def publish(
        self,
        fact: FactLike,
        files: Sequence[Artifact | FileContent] = (),
        *,
        envelope: EnvelopeLike | None = None,
        progress: ShowProgress = None,
        **fields: Unpack[EnvelopeOptions],
    ) -> Receipt:
        """Do the whole sequence: put every file, wait for its digest, then append the fact.

        One file and no ``object_json``: the object is the reference to it. Otherwise references
        are added as ``attachments``. A file that cannot be put means that no fact is appended.
        """
        with traced_publishing(self.envelope_of(envelope, fields)) as on_its_way:
            wrapping, config = on_its_way.envelope, self.config
            script = publishing(fact_of(fact), wrapping, files, config, progress)
            return on_its_way.told(await self._run(script))

    def once(self) -> AsyncProducer:
        """A producer that makes one attempt per call, for callers with their own retry loop."""
        other = AsyncProducer(self._transport)
        other.adopt(self)
        return other

    async def close(self) -> None:
        """Close the connections. May be called twice."""
        if self._is_owner:
            await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _run(self, script: ClientEffects[T]) -> T:
        return await TaskRunner(self._transport).run(script)
