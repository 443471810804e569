"""Artifacts over HTTP: streamed in, streamed out, in ranges if asked, and who may get them.

A caller may get artifacts of the buckets that the policy opens to it, and those that facts refer to
which it may read: a peer names the fact it asks for, so nothing about readers has to be written
down when a fact is appended, and a fact that was dropped opens nothing any more.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec

from ergon_framework.boundary.facts.schema import digest_text, parsed
from ergon_framework.boundary.facts.validation import REFERENCE_MARK, references
from ergon_framework.boundary.http.exchange import Caller, Exchange
from ergon_framework.boundary.http.responses import HttpRefusal
from ergon_framework.boundary.model import ObjectReceipt
from ergon_framework.boundary.node.operations import (
    ADMIN,
    CORE,
    Offload,
    OperationRequest,
    demand,
    operation,
)
from ergon_framework.boundary.node.policy import Permissions
from ergon_framework.boundary.node.wire import object_view
from ergon_framework.boundary.zone import PEER, LocalZone
from ergon_framework.errors import BoundaryError, DataLossError, FactInvalidError, NotPermittedError
from ergon_framework.ports.factstore import OUTBOUND, StoredFact, StoredObject
from ergon_framework.ports.objectstore import Download, Upload

PREFIX = "/v1/objects/"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def object_name(path: str) -> tuple[str, str]:
    """Bucket and key in a path; the key is everything behind the bucket."""
    bucket, _, rest = path.removeprefix(PREFIX).partition("/")
    try:
        return checked_name(unquote(bucket, errors="strict"), unquote(rest, errors="strict"))
    except UnicodeDecodeError:
        raise FactInvalidError(
            "the key is not UTF-8",
            reason="encoding",
            remedy="encode it as UTF-8, then its bytes with percent signs",
            details={"field": "key"},
        ) from None


def checked_name(bucket: str, key: str) -> tuple[str, str]:
    """A bucket and a key that may be used."""
    if not _BUCKET.fullmatch(bucket):
        raise FactInvalidError(
            "a bucket is named with 1 to 63 letters, digits, dots, hyphens and underscores",
            reason="pattern",
            remedy="begin with a letter or a digit, and leave everything else out",
            details={"field": "bucket"},
        )
    # 1,024 bytes as in S3, where the objects of a zone may lie.
    if not 0 < _size(key) <= 1024 or any(char < " " or char == "\x7f" for char in key):
        raise FactInvalidError(
            "a key has 1 to 1024 bytes of UTF-8 without control characters",
            reason="pattern",
            remedy="shorten it, or leave these characters out",
            details={"field": "key"},
        )
    return bucket, key


def _size(key: str) -> int:
    """Bytes; none of what cannot be said in UTF-8."""
    try:
        return len(key.encode())
    except UnicodeEncodeError:
        return 0


def allowed_digest(
    zone: LocalZone,
    permit: Permissions,
    name: tuple[str, str],
    wanted: bytes | None,
    fact_offset: int | None,
) -> bytes | None:
    """The digest of the bytes that the caller may get under this name.

    None when the caller did not say which, and may get any: it may use the whole bucket. Reads the
    log otherwise; ``NotPermittedError`` in the same words whether the object exists or not.
    """
    bucket, key = name
    if permit.may_use_bucket(bucket):
        return wanted
    # A reference is a permission: a caller that may read a fact may get the artifacts that it
    # names, and no others of the bucket.
    for fact in _facts(zone, permit, fact_offset):
        for digest in _referred(fact, name):
            if wanted in (None, digest):
                return digest
    # The same refusal for an object that is missing and one that is not allowed: otherwise names
    # could be guessed.
    zone.events.count("denied", "object")
    who = permit.identity or "an anonymous caller"
    raise NotPermittedError(
        f"{who} may not get {bucket}/{key}: it may not use the bucket, and names no fact that it"
        " may read and that refers to these bytes",
        reason="not_allowed",
        remedy="give the offset of such a fact as fact_offset, or an operator of this zone allows"
        f" buckets = [{bucket!r}] in the policy file",
        details={"bucket": bucket},
    )


def _facts(zone: LocalZone, permit: Permissions, offset: int | None) -> Iterator[StoredFact]:
    """The facts that may open an object to the caller: the one it names, or those it was served."""
    if not permit.may_read(OUTBOUND):
        return
    if offset is None:
        yield from _served(zone, permit)
        return
    page = zone.store.page(OUTBOUND, max(0, offset - 1), 1, 1)
    for fact in page.facts:
        if fact.offset == offset and permit.may_consume(f"{PEER}{fact.to_zone}"):
            yield fact


def _served(zone: LocalZone, permit: Permissions) -> Iterator[StoredFact]:
    """What a peer has been given and has not confirmed: peers of an older version name no fact."""
    name = f"{PEER}{permit.identity}"
    if not permit.identity or not permit.may_consume(name):
        return
    with suppress(BoundaryError):  # there is no such consumer
        reader = zone.store.consumer(name)
        if reader.log != OUTBOUND or reader.served <= reader.cursor:
            return
        limits = zone.settings.limits
        page = zone.store.page(
            OUTBOUND, reader.cursor, limits.page_items, limits.page_bytes, reader.to_zone
        )
        for fact in page.facts:
            if fact.offset <= reader.served:
                yield fact


def _referred(fact: StoredFact, name: tuple[str, str]) -> Iterator[bytes]:
    """The digests that a fact gives for the object of this name."""
    if REFERENCE_MARK not in fact.fact:
        return
    # A fact that was validated under other rules refers to nothing that could be given out.
    with suppress(BoundaryError, msgspec.DecodeError):
        content = msgspec.json.decode(fact.fact)
        for each in references(content.get("object_json")):
            if (each.bucket, each.key) == name:
                yield each.digest


class ObjectPut:
    """Used by one thread at a time, which stays as long as there is something to write.

    Going back to the event loop for each piece would take longer than writing it.
    """

    def __init__(
        self,
        zone: LocalZone,
        name: tuple[str, str],
        take: Callable[[], list[bytes]],
        announced: int | None,
        expected: bytes | None,
    ) -> None:
        self._zone = zone
        self._name = name
        self._take = take
        self._announced = announced
        self._expected = expected
        self._upload: Upload | None = None

    def go_on(self) -> ObjectReceipt | None:
        """Write what has arrived; the receipt if those were all the bytes announced."""
        upload = self._begun()
        most = self._zone.settings.limits.object_bytes
        # The announced length is not trusted: it is counted while the bytes come.
        while lot := self._take():
            for piece in lot:
                # Before the write, so that a stream without end cannot fill the disk.
                if upload.size + len(piece) > most:
                    raise too_large(most)
                upload.write(piece)
        return self.finish() if upload.size == self._announced else None

    def finish(self) -> ObjectReceipt:
        """Sync the uploaded bytes to disk and name them."""
        return self._zone.finished(*self._name, self._begun(), self._expected)

    def abort(self) -> None:
        """Throw away what was written."""
        if self._upload is not None:
            self._upload.abort()

    def _begun(self) -> Upload:
        if self._upload is None:
            self._upload = self._zone.objects.upload()
        return self._upload


def too_large(most: int) -> FactInvalidError:
    """The refusal of an object that has more bytes."""
    return FactInvalidError(
        f"an object may have {most} bytes",
        reason="object_too_large",
        remedy="split it, or raise limits.object_bytes",
    )


class PutObject(OperationRequest):
    """A small blob in one call; larger ones are streamed to /v1/objects."""

    bucket: str
    key: str
    blob: str
    """The bytes, in base64."""
    expected_digest: str | None = None


class ObjectRequest(OperationRequest):
    """HeadObject and GetObject."""

    bucket: str
    key: str
    fact_offset: int | None = None
    """The offset of a fact that refers to the object: needed by callers that may not use the whole
    bucket.
    """


@operation(CORE, PutObject)
def put_object(zone: LocalZone, permit: Permissions, asked: PutObject) -> dict[str, Any]:
    """Store bytes under a name, for ever; the answer means they are on disk."""
    bucket, key = _named(permit, asked.bucket, asked.key)
    try:
        data = base64.b64decode(asked.blob, validate=True)
    except (binascii.Error, ValueError):
        raise FactInvalidError(
            "blob is not base64",
            reason="encoding",
            remedy="encode the bytes, or PUT them as they are to /v1/objects/{bucket}/{key}",
            details={"field": "blob"},
        ) from None
    expected = asked.expected_digest and parsed(asked.expected_digest, "expected_digest")
    receipt = zone.put(bucket, key, data, expected or None)
    return {"bucket": bucket, "key": key, "digest": receipt.digest, "size": receipt.size}


@operation(ADMIN, ObjectRequest)
def head_object(zone: LocalZone, permit: Permissions, asked: ObjectRequest) -> dict[str, Any]:
    """Size and digest of an object."""
    stored = _found(zone, permit, asked)
    blob = zone.objects.stat(stored.digest)
    if blob is None or blob.size != stored.size:
        raise damaged(stored.bucket, stored.key)
    return object_view(stored)


@operation(ADMIN, ObjectRequest)
def get_object(zone: LocalZone, permit: Permissions, asked: ObjectRequest) -> dict[str, Any]:
    """A small object in one call; larger ones are streamed from /v1/objects."""
    stored = _found(zone, permit, asked)
    if stored.size > zone.settings.limits.body_bytes // 2:
        raise BoundaryError(
            f"the object has {stored.size} bytes, too many for one call",
            code="failed_precondition",
            reason="object_too_large",
            remedy="GET /v1/objects/{bucket}/{key}",
        )
    source = zone.objects.open(stored.digest)
    data = b""
    if source is not None:
        try:
            data = source.read(stored.size)
        finally:
            source.close()
    # Checked although the disk reported no error: a client would keep damaged bytes under a digest
    # that promises others.
    if source is None or hashlib.sha256(data).digest() != stored.digest:
        raise damaged(stored.bucket, stored.key)
    return {**object_view(stored), "blob": base64.b64encode(data).decode()}


def damaged(bucket: str, key: str) -> DataLossError:
    """The error of an object whose bytes are gone or cut off."""
    return DataLossError(
        f"the bytes of {bucket}/{key} are missing, cut off or changed where this zone keeps them",
        reason="object_damaged",
        remedy="put the same bytes again, or restore them from a backup",
        details={"bucket": bucket, "key": key},
    )


def _found(zone: LocalZone, permit: Permissions, asked: ObjectRequest) -> StoredObject:
    name = checked_name(asked.bucket, asked.key)
    return zone.found(*name, allowed_digest(zone, permit, name, None, asked.fact_offset))


def _named(permit: Permissions, bucket: str, key: str) -> tuple[str, str]:
    name = checked_name(bucket, key)
    demand(permit.may_use_bucket(bucket), permit, f"use the bucket {bucket}", bucket=bucket)
    return name


MAX_DAMAGED = 10_000
"""Damaged objects that are remembered."""
MIN_THREAD_BYTES = 1 << 18
"""Bytes that are worth a thread's while."""
CHUNK = 1 << 20
"""Bytes taken from the disk in one go."""
_DIGITS = 18
"""The most digits of an offset, which stays below 2^63."""
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class ObjectRoutes:
    """What stands behind ``/v1/objects/``."""

    def __init__(
        self, zone: LocalZone, in_thread: Offload, permitted: Callable[[Caller, str], Permissions]
    ) -> None:
        self._zone = zone
        self._in_thread = in_thread
        self._permitted = permitted
        self._damaged: set[bytes] = set()
        """Objects found to be damaged while they were sent; a put of the same bytes fixes them."""

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

    def _found(self, exchange: Exchange, permit: Permissions) -> StoredObject:
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
        putting = ObjectPut(self._zone, (bucket, key), exchange.take, announced, expected)
        try:
            receipt = await self._in_thread(putting.go_on)
            while receipt is None and await exchange.has_more(MIN_THREAD_BYTES):
                receipt = await self._in_thread(putting.go_on)
            if receipt is None:
                # The bytes came in chunks, whose end only the connection tells.
                receipt = await self._in_thread(putting.finish)
        except BaseException:
            # Also after a cancellation: a temporary file without a name would stay for ever.
            await self._in_thread(putting.abort)
            raise
        # The same bytes were put again and are on disk now.
        self._damaged.discard(parsed(receipt.digest, "digest"))
        view = {
            "bucket": receipt.bucket,
            "key": receipt.key,
            "digest": receipt.digest,
            "size": receipt.size,
        }
        exchange.reply(200, json.dumps(view).encode())

    def _length(self, length: str | None, encoding: str | None) -> int | None:
        """How many bytes were announced; None when they come in chunks."""
        if length is None and encoding is None:
            message = "the request says nothing about the length of the object"
            raise HttpRefusal(411, "invalid_argument", "length_required", message)
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
            ("Digest-SHA256", digest_text(stored.digest)),
            ("ETag", f'"{stored.digest.hex()}"'),
            ("Accept-Ranges", "bytes"),
        ]
        # An object never changes, so its digest is the strongest validator there is.
        if exchange.header("if-none-match") == f'"{stored.digest.hex()}"':
            exchange.reply(304, b"", headers=headers)
            return
        source = await self._in_thread(lambda: self._zone.objects.open(stored.digest))
        is_damaged = not is_head and stored.digest in self._damaged
        if source is None or source.size != stored.size or is_damaged:
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
            most = min(CHUNK, left)
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
                if len(self._damaged) < MAX_DAMAGED:
                    self._damaged.add(digest)
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
