"""How a client reaches a node: one call there and back, and blobs as streams.

A transport knows nothing of facts. It raises the ``BoundaryError`` that the node answered, and its
own when there was no answer: ``NodeUnavailableError`` when the network failed (with the code
``deadline_exceeded`` when time ran out, and then the outcome is unknown), ``NotPermittedError``
with the reason ``tls`` when the two sides do not trust each other. It never tries again by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeAlias

import msgspec

from ergon_framework.boundary.model import ObjectReceipt

ReportBytes: TypeAlias = Callable[[int], None] | None
"""Called with the number of bytes sent so far, from 0 again when they are sent again."""


class BlobSource(Protocol):
    """Bytes that can be read again and again."""

    size: int

    def __iter__(self) -> Iterator[bytes]:
        """All of them, from the start."""

    def close(self) -> None:
        """Close what was opened for the upload."""


class Reported:
    """The source's bytes, with their progress reported; may be read anew."""

    def __init__(self, source: BlobSource, report: ReportBytes) -> None:
        self._source = source
        self._report = report

    def __iter__(self) -> Iterator[bytes]:
        report, sent = self._report, 0
        if report is None:
            yield from self._source
            return
        report(0)
        for piece in self._source:
            yield piece
            sent += len(piece)
            report(sent)


class ObjectStream(Protocol):
    """The bytes of an object on their way here."""

    size: int
    """The size of the whole object, wherever the stream starts."""
    digest: str
    """``sha256:<hex>`` as the node has it; empty when it did not say."""

    def read(self, most: int = 1 << 16) -> bytes:
        """The next bytes; none at the end. A stream that was cut raises."""

    def close(self) -> None:
        """Close the stream, read to the end or not."""


class AsyncObjectStream(Protocol):
    """An object stream for event loops."""

    size: int
    digest: str

    async def read(self, most: int = 1 << 16) -> bytes:
        """The next bytes; none at the end. A stream that was cut raises."""

    async def close(self) -> None:
        """Close the stream, read to the end or not."""


class Transport(Protocol):
    """The calls to a node, for threads. Any thread may call."""

    def call(self, method: str, body: bytes, *, timeout: float | None = None) -> bytes:
        """The answer to a unary call such as ``bsfg.v1.Boundary/AppendFact``."""

    def put_object(
        self,
        bucket: str,
        key: str,
        chunks: Iterable[bytes],
        *,
        size: int,
        digest: str | None = None,
    ) -> bytes:
        """Send a blob."""

    def get_object(
        self, bucket: str, key: str, *, start: int = 0, digest: bytes | None = None
    ) -> ObjectStream:
        """Begin to receive an object, from its byte ``start`` on.

        With ``digest`` (32 bytes), the node refuses to send any other bytes than these.
        """

    def head_object(self, bucket: str, key: str) -> ObjectReceipt:
        """What the node knows about an object; ``BoundaryNotFoundError`` when it has none."""

    def close(self) -> None:
        """Close every connection. May be called twice."""


class AsyncTransport(Protocol):
    """The calls to a node, for event loops."""

    async def call(self, method: str, body: bytes, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - as the other colour
        """The answer to a unary call such as ``bsfg.v1.Boundary/AppendFact``."""

    async def put_object(
        self,
        bucket: str,
        key: str,
        chunks: Iterable[bytes],
        *,
        size: int,
        digest: str | None = None,
    ) -> bytes:
        """Send a blob; the chunks are made in another thread, so they may read a file."""

    async def get_object(
        self,
        bucket: str,
        key: str,
        *,
        start: int = 0,
        digest: bytes | None = None,
        fact_offset: int | None = None,
    ) -> AsyncObjectStream:
        """Begin to receive an object, from its byte ``start`` on.

        With ``digest`` (32 bytes), the node refuses to send any other bytes than these.
        ``fact_offset`` is that of a fact which refers to the object, in the node's outbound log:
        a caller that may not use the whole bucket gets it for the fact's sake.
        """

    async def head_object(self, bucket: str, key: str) -> ObjectReceipt:
        """What the node knows about an object; ``BoundaryNotFoundError`` when it has none."""

    async def close(self) -> None:
        """Close every connection. May be called twice."""


BOUNDARY = "bsfg.v1.Boundary/"
ADMIN = "bsfg.v1.BoundaryAdmin/"

encode = msgspec.json.Encoder().encode
