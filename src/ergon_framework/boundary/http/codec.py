"""The client's side of HTTP/1.1, without a socket: requests as bytes, bytes as responses.

Both clients feed what they receive to an ``ResponseReader``. Whatever a peer sends, memory is
bounded, and nothing but a ``BoundaryError`` is raised. A refusal becomes the error it stands for,
and a body is compared with the length and digest that were announced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from ergon_framework.boundary.model import ObjectReceipt
from ergon_framework.errors import (
    ArtifactError,
    BoundaryError,
    BoundaryNotFoundError,
    BufferFullError,
    ConflictingDuplicateError,
    ConsumerHeldError,
    DataLossError,
    FactInvalidError,
    NodeUnavailableError,
    NotPermittedError,
    ObjectConflictError,
    ZoneMovedError,
)

HEAD_LIMIT = 64 << 10
"""Bytes of status line and headers."""
BODY_LIMIT = 64 << 20
"""Bytes of an answer that is kept in memory as a whole."""


def request_head(
    method: str, target: str, host: str, headers: Iterable[tuple[str, str]] = ()
) -> bytes:
    """Request line and headers, with the empty line after them."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def call_prefix(target: str, host: str, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """What comes before the length of the body in every unary call to ``target``."""
    head = request_head("POST", target, host, [*headers, ("Content-Type", "application/json")])
    return head[:-2] + b"Content-Length: "


def object_target(prefix: str, bucket: str, key: str) -> str:
    """The path of an object. A slash in a key belongs to the key, so it is encoded too."""
    return f"{prefix}/v1/objects/{_segment(bucket)}/{_segment(key)}"


def _segment(name: str) -> str:
    try:
        quoted = quote(name, safe="")
    except UnicodeEncodeError:
        raise FactInvalidError(
            "the name of an object has half a character, which UTF-8 cannot say",
            reason="encoding",
            remedy="name it with whole characters",
            details={"field": "key"},
        ) from None
    # A proxy would resolve these two as folders.
    return quoted.replace(".", "%2E") if quoted in {".", ".."} else quoted


class ResponseReader:
    """One answer on its way in; after ``is_done`` it is there as a whole.

    ``take()`` gives out the body as it arrives; without it, the body is given in one piece with
    ``body()``, and then it may not be longer than ``limit``.
    """

    __slots__ = (
        "_chunks",
        "_head_bytes",
        "_is_bodyless",
        "_limit",
        "_parser",
        "headers",
        "held",
        "is_begun",
        "is_done",
        "is_headed",
        "is_streamed",
        "keeps_alive",
        "received",
        "status",
    )

    def __init__(self, *, is_head: bool = False, limit: int | None = BODY_LIMIT) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_begun = False  # the peer has sent something
        self.is_headed = False  # status and headers are complete
        self.is_done = False
        self.keeps_alive = False
        self.held = 0  # bytes of the body that were not taken yet
        self.received = 0
        self._is_bodyless = is_head
        self.is_streamed = limit is None
        self._limit = limit
        self._chunks: list[bytes] = []
        self._head_bytes = 0
        self._parser = HttpResponseParser(self)

    # ---- what the driver does ----

    def feed(self, data: bytes) -> None:
        """Parse received bytes."""
        self.is_begun = True
        if not self.is_headed:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            raise _malformed_response("it switched to another protocol") from None
        except HttpParserError as error:
            if not self.is_done:
                raise _malformed_response(str(error)) from None
            self.keeps_alive = False  # what follows a complete answer only costs the connection
        if not self.is_headed and self._head_bytes > HEAD_LIMIT:
            raise _malformed_response(f"its headers are longer than {HEAD_LIMIT} bytes")
        if self._limit is not None and self.received > self._limit:
            raise BoundaryError(
                f"the node's answer is longer than {self._limit} bytes",
                reason="answer_too_large",
                remedy="ask for less at once",
            )

    def end(self) -> None:
        """The peer has closed: fine when that is how the answer ends, otherwise it was cut."""
        self.keeps_alive = False
        is_framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        if self.is_headed and not is_framed:
            self.is_done = True
        if not self.is_done:
            raise cut(is_begun=self.is_begun)

    def take(self) -> bytes:
        """The bytes of the body that have come since."""
        chunks, self._chunks, self.held = self._chunks, [], 0
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    body = take

    # ---- what the parser tells ----

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header. The last one of a name wins; no header that we read may come twice."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Skip an interim answer (1xx); keep the final one."""
        status = self._parser.get_status_code()
        if status < 200:
            self.headers = {}
            return
        self.status = status
        self.is_headed = True
        self.keeps_alive = self._parser.should_keep_alive()
        if self.is_streamed and status >= 300:  # a refusal is read as a whole
            self.is_streamed, self._limit = False, HEAD_LIMIT * 16
        if self._is_bodyless:
            # The parser cannot know that this one's length announces a body that will not come.
            self.is_done = True

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if self.is_done:  # a body after an answer that has none: never use this connection again
            self.keeps_alive = False
            return
        self.received += len(data)
        self.held += len(data)
        self._chunks.append(data)

    def on_message_complete(self) -> None:
        """The end of an answer, unless it was an interim one."""
        if self.is_headed:
            self.is_done = True

    def on_message_begin(self) -> None:
        """Note that bytes follow an answer that is complete, which no request asked for."""
        if self.is_done:
            self.keeps_alive = False


def cut(*, is_begun: bool) -> NodeUnavailableError:
    """The connection ended before the answer did."""
    what = "in the middle of its answer" if is_begun else "without an answer"
    return NodeUnavailableError(
        f"the node closed the connection {what}",
        reason="connection_lost",
        remedy="the outcome is unknown: repeat the call with the same id and content",
    )


def _malformed_response(why: str) -> NodeUnavailableError:
    return NodeUnavailableError(
        f"what answered does not speak HTTP as a node does: {why}",
        reason="bad_answer",
        remedy="check the URL: the port may belong to something else, or speak TLS",
    )


ERROR_OF_REASON: dict[tuple[str, str], type[BoundaryError]] = {
    ("already_exists", "conflicting_duplicate"): ConflictingDuplicateError,
    ("already_exists", "object_conflict"): ObjectConflictError,
    ("failed_precondition", "artifact_missing"): ArtifactError,
    ("failed_precondition", "artifact_mismatch"): ArtifactError,
    ("unavailable", "moved"): ZoneMovedError,
}
ERROR_OF_CODE: dict[str, type[BoundaryError]] = {
    "invalid_argument": FactInvalidError,
    "unauthenticated": NotPermittedError,
    "permission_denied": NotPermittedError,
    "not_found": BoundaryNotFoundError,
    "aborted": ConsumerHeldError,
    "resource_exhausted": BufferFullError,
    "data_loss": DataLossError,
    "unavailable": NodeUnavailableError,
    "deadline_exceeded": NodeUnavailableError,
}
CODES_OF_NODE = frozenset({"internal", "unknown"})
"""Codes of errors inside a node."""
CODE_OF_STATUS = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "permission_denied",
    408: "deadline_exceeded",
    413: "invalid_argument",
    429: "resource_exhausted",
    502: "unavailable",
    503: "unavailable",
    504: "deadline_exceeded",
}
"""Error codes for answers that come from no node, such as a proxy's. A proxy's 404 says nothing
about facts.
"""
_GET_REMEDY = "get the object itself: that answer says why"
_PROXY_REMEDY = "check the URL, and the proxy if there is one between here and the node"


def error_of_answer(status: int, headers: Mapping[str, str], body: bytes) -> BoundaryError:
    """The error in an answer whose status is no success."""
    return _completed(error_of_document(_document(body) or _elsewhere(status)), status, headers)


def error_of_head(status: int, headers: Mapping[str, str]) -> BoundaryError:
    """The error of an answer to HEAD, which has no body that could say more."""
    message = f"the answer has the HTTP status {status}"
    document = {"code": _code(status), "message": message, "details": {"remedy": _GET_REMEDY}}
    return _completed(error_of_document(document), status, headers)


def _elsewhere(status: int) -> dict[str, Any]:
    message = f"what answers with the HTTP status {status} is no node of a zone"
    details = {"reason": "bad_answer", "remedy": _PROXY_REMEDY}
    return {"code": _code(status), "message": message, "details": details}


def _code(status: int) -> str:
    return CODE_OF_STATUS.get(status, "unimplemented" if status in {404, 405} else "unknown")


def _completed(error: BoundaryError, status: int, headers: Mapping[str, str]) -> BoundaryError:
    if status < 500 and error.code in CODES_OF_NODE:
        error.is_retryable = False  # a redirection, say: not an error of a node
    if error.retry_after is None:
        error.retry_after = _seconds(headers.get("retry-after"))
    return error


def error_of_document(document: Mapping[str, Any]) -> BoundaryError:
    """The error that ``{code, message, details}`` stands for."""
    code, given = str(document.get("code") or "unknown"), document.get("details")
    details = dict(given) if isinstance(given, Mapping) else {}
    reason = str(details.pop("reason", ""))
    remedy = str(details.pop("remedy", ""))
    wait = details.pop("retry_after_ms", None)
    kind = ERROR_OF_REASON.get((code, reason)) or ERROR_OF_CODE.get(code, BoundaryError)
    error = kind(
        str(document.get("message") or "the node refused"),
        code=code,
        reason=reason,
        remedy=remedy,
        details=details,
        retry_after=wait / 1000 if isinstance(wait, int | float) else None,
    )
    if code in CODES_OF_NODE:  # it says nothing about the request, and the outcome is unknown
        error.is_retryable = True
    return error


def _document(body: bytes) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return (
        document if isinstance(document, dict) and isinstance(document.get("code"), str) else None
    )


def _seconds(text: str | None) -> float | None:
    """The seconds of a ``Retry-After``. A date is ignored."""
    return float(text) if text and text.isascii() and text.isdigit() and len(text) < 9 else None


DIGEST_HEADER = "digest-sha256"
ZONE_HEADER = "ergon-zone"
"""Names the zone of a node in its answer to ``/livez``, written as in a URL."""


def answer_of(reader: ResponseReader) -> bytes:
    """The body of an answer that is a success; the error of any other."""
    body = reader.body()
    if reader.status == 200:
        return body
    raise error_of_answer(reader.status, reader.headers, body)


def counted(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The chunks, which must be as many bytes as were announced."""
    left = size
    for chunk in chunks:
        left -= len(chunk)
        if left < 0:
            break
        if chunk:
            yield chunk
    if left:
        raise FactInvalidError(
            f"the blob has {'more' if left < 0 else 'fewer'} than the {size} bytes announced",
            reason="size_mismatch",
            remedy="do not change a file while it is being sent",
        )


def no_object(reader: ResponseReader, bucket: str, key: str) -> BoundaryError:
    """The error of an answer to HEAD, which has no body to say it."""
    if reader.status == 404:
        return BoundaryNotFoundError(
            f"there is no object {bucket}/{key}",
            reason="object_not_found",
            remedy="check bucket and key, or put it first",
        )
    return error_of_head(reader.status, reader.headers)


def object_of_headers(bucket: str, key: str, headers: Mapping[str, str]) -> ObjectReceipt:
    """What the headers of an answer say about the whole object."""
    return ObjectReceipt(
        bucket=bucket, key=key, digest=_spelled(headers.get(DIGEST_HEADER, "")), size=_size(headers)
    )


def object_begun(
    reader: ResponseReader, bucket: str, key: str, start: int
) -> tuple[ObjectReceipt, int]:
    """The size of the object that follows, and how many of its bytes come before ``start``: a
    server without ranges sends the whole object.
    """
    if reader.status not in {200, 206}:
        raise error_of_answer(reader.status, reader.headers, reader.body())
    return object_of_headers(bucket, key, reader.headers), start - _first_byte(reader)


def _first_byte(reader: ResponseReader) -> int:
    place = reader.headers.get("content-range", "").removeprefix("bytes ").partition("-")[0]
    return int(place) if reader.status == 206 and place.isascii() and place.isdigit() else 0


def _size(headers: Mapping[str, str]) -> int:
    whole = headers.get("content-range", "").rpartition("/")[2] or headers.get("content-length", "")
    if not (whole.isascii() and whole.isdigit()):
        raise NodeUnavailableError(
            "the node did not say how long the object is",
            reason="bad_answer",
            remedy="check the URL, and the proxy if there is one between here and the node",
        )
    return int(whole)


def _spelled(digest: str) -> str:
    digest = digest.strip().lower()
    return f"sha256:{digest}" if digest and ":" not in digest else digest
