"""Artifacts over HTTP: streamed in, streamed out, in ranges if asked."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any
from urllib.parse import parse_qs

from ergon_framework.boundary.facts.schema import parsed, spelled
from ergon_framework.boundary.http.exchange import Caller, Exchange
from ergon_framework.boundary.http.responses import Refusal
from ergon_framework.boundary.offloop import InThread
from ergon_framework.boundary.serving.object_access import allowed_digest
from ergon_framework.boundary.serving.object_names import object_name
from ergon_framework.boundary.serving.object_operations import damaged
from ergon_framework.boundary.serving.operations import demand
from ergon_framework.boundary.serving.policy import Permit
from ergon_framework.boundary.serving.putting import Putting, too_large
from ergon_framework.boundary.zone import Zone
from ergon_framework.errors import BoundaryError, FactInvalidError
from ergon_framework.ports.factstore import StoredObject
from ergon_framework.ports.objectstore import Download

MOST_SPOILT = 10_000
"""Damaged objects that are remembered."""
LEAST = 1 << 18
"""Bytes that are worth a thread's while."""
PIECE = 1 << 20
"""Bytes taken from the disk in one go."""
_DIGITS = 18
"""Of an offset at most: it stays below 2^63."""
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class ObjectRoutes:
    """What stands behind ``/v1/objects/``."""

    def __init__(
        self, zone: Zone, in_thread: InThread, permitted: Callable[[Caller, str], Permit]
    ) -> None:
        self._zone = zone
        self._in_thread = in_thread
        self._permitted = permitted
        self._spoilt: set[bytes] = set()
        """Objects found to be damaged while they were sent; a put of the same bytes mends them."""

    def handle(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        """Answer one request."""
        match exchange.method:
            case "PUT":
                return self._put(exchange)
            case "GET" | "HEAD":
                return self._get(exchange)
            case "DELETE":
                return self._delete(exchange)
        raise FactInvalidError(
            f"an object cannot be asked for with {exchange.method}",
            reason="method",
            remedy="use PUT, GET, HEAD or DELETE",
        )

    def _named(self, exchange: Exchange, operation: str) -> tuple[str, str]:
        permit = self._permitted(exchange.caller, operation)
        bucket, key = object_name(exchange.path)
        demand(permit.may_use_bucket(bucket), permit, f"use the bucket {bucket}", bucket=bucket)
        return bucket, key

    def _found(self, exchange: Exchange, permit: Permit) -> StoredObject:
        """The object that the caller asks for and may get; in a thread."""
        name, query = object_name(exchange.path), parse_qs(exchange.query)
        wanted = _digest(next(iter(query.get("digest", ())), None))
        offset = _offset(next(iter(query.get("fact_offset", ())), None))
        return self._zone.found(*name, allowed_digest(self._zone, permit, name, wanted, offset))

    async def _put(self, exchange: Exchange) -> None:
        bucket, key = self._named(exchange, "PutObject")
        _refuse_other_bytes(exchange)
        expected = _digest(exchange.header("digest-sha256"))
        announced = self._length(
            exchange.header("content-length"), exchange.header("transfer-encoding")
        )
        putting = Putting(self._zone, (bucket, key), exchange.take, announced, expected)
        try:
            receipt = await self._in_thread(putting.go_on)
            while receipt is None and await exchange.has_more(LEAST):
                receipt = await self._in_thread(putting.go_on)
            if receipt is None:
                receipt = await self._in_thread(putting.finish)
        except BaseException:
            await self._in_thread(putting.abort)
            raise
        self._spoilt.discard(parsed(receipt.digest, "digest"))
        shape = {
            "bucket": receipt.bucket,
            "key": receipt.key,
            "digest": receipt.digest,
            "size": receipt.size,
        }
        exchange.reply(200, json.dumps(shape).encode())

    def _length(self, length: str | None, encoding: str | None) -> int | None:
        """How many bytes were announced; None when they come in chunks."""
        if length is None and encoding is None:
            told = "the request says nothing about the length of the object"
            raise Refusal(411, "invalid_argument", "length_required", told)
        most = self._zone.settings.limits.object_bytes
        if length is None or not length.isdigit():
            return None
        if int(length) > most:
            raise too_large(most)
        return int(length)

    async def _get(self, exchange: Exchange) -> None:
        is_head = exchange.method == "HEAD"
        permit = self._permitted(exchange.caller, "HeadObject" if is_head else "GetObject")
        stored = await self._in_thread(lambda: self._found(exchange, permit))
        headers = [
            ("Digest-SHA256", spelled(stored.digest)),
            ("ETag", f'"{stored.digest.hex()}"'),
            ("Accept-Ranges", "bytes"),
        ]
        if exchange.header("if-none-match") == f'"{stored.digest.hex()}"':
            exchange.reply(304, b"", headers=headers)
            return
        source = await self._in_thread(lambda: self._zone.objects.open(stored.digest))
        is_spoilt = not is_head and stored.digest in self._spoilt
        if source is None or source.size != stored.size or is_spoilt:
            if source is not None:
                source.close()
            raise damaged(*object_name(exchange.path))
        try:
            await self._send(exchange, source, headers, stored.digest, is_head=is_head)
        finally:
            source.close()

    async def _send(
        self,
        exchange: Exchange,
        source: Download,
        headers: list[tuple[str, str]],
        digest: bytes,
        *,
        is_head: bool,
    ) -> None:
        wanted = _range(exchange.header("range"), source.size)
        status, (start, end) = 200, wanted or (0, source.size)
        if wanted is not None:
            if start >= source.size:
                headers = [*headers, ("Content-Range", f"bytes */{source.size}")]
                error = BoundaryError(
                    f"the object has {source.size} bytes", code="out_of_range", reason="range"
                )
                exchange.reply(416, json.dumps(error.to_dict()).encode(), headers=headers)
                return
            status = 206
            headers = [*headers, ("Content-Range", f"bytes {start}-{end - 1}/{source.size}")]
        pieces = _nothing() if is_head else self._pieces(source, start, end)
        if not is_head and (start, end) == (0, source.size):
            pieces = self._checked(pieces, source.size, digest, exchange)
        await exchange.stream(status, end - start, pieces, headers=headers)

    async def _pieces(self, source: Download, start: int, end: int) -> AsyncIterator[bytes]:
        if start:
            await self._in_thread(lambda: source.seek(start))
        left = end - start
        while left > 0:
            most = min(PIECE, left)
            piece = await self._in_thread(lambda most=most: source.read(most))  # type: ignore[misc]
            if not piece:
                raise ConnectionAbortedError("the object ended early")
            left -= len(piece)
            yield piece

    async def _checked(
        self, pieces: AsyncIterator[bytes], size: int, digest: bytes, exchange: Exchange
    ) -> AsyncIterator[bytes]:
        """A whole object; the last piece of one that was spoilt on disk is never sent."""
        seen, given = hashlib.sha256(), 0
        async for piece in pieces:
            seen.update(piece)
            given += len(piece)
            if given == size and seen.digest() != digest:
                if len(self._spoilt) < MOST_SPOILT:
                    self._spoilt.add(digest)
                raise damaged(*object_name(exchange.path))
            yield piece

    async def _delete(self, exchange: Exchange) -> None:
        bucket, key = self._named(exchange, "DeleteObject")
        await self._in_thread(lambda: self._zone.delete(bucket, key))
        exchange.reply(200, b"{}")


def _refuse_other_bytes(exchange: Exchange) -> None:
    """An object never changes: a part of it, or bytes in a code, would stand for it for ever."""
    said = {name: exchange.header(name) for name in ("content-range", "content-encoding")}
    for name, value in said.items():
        if value is not None and value.strip().lower() != "identity":
            raise FactInvalidError(
                f"{name} is given, and an object is put whole and as it is",
                reason=name.replace("-", "_"),
                remedy="send all of its bytes, without that header",
                details={"field": name},
            )


def _digest(text: str | None) -> bytes | None:
    if text is None:
        return None
    bare = text.strip()
    return parsed(bare if bare.startswith("sha256:") else f"sha256:{bare}", "Digest-SHA256")


def _offset(text: str | None) -> int | None:
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS:
        return int(text)
    raise FactInvalidError(
        "fact_offset is not the offset of a fact",
        reason="type",
        remedy="give the offset under which FetchFacts answered the fact",
        details={"field": "fact_offset"},
    )


def _range(header: str | None, size: int) -> tuple[int, int] | None:
    """First byte and the one after the last; None for the whole, also instead of odd ranges."""
    found = _RANGE.fullmatch(header or "")
    if found is None or not (found[1] or found[2]) or not size:
        return None
    if not found[1]:
        return max(0, size - int(found[2])), size
    start = int(found[1])
    end = min(size, int(found[2]) + 1) if found[2] else size
    return (start, end) if start < end or start >= size else None


async def _nothing() -> AsyncIterator[bytes]:
    nothing: tuple[bytes, ...] = ()
    for piece in nothing:
        yield piece
