"""What the server answers: status codes, its own refusals, and the bytes of a response.

Every refusal has a status, a code of the wire and a sentence of its own, and all of them are here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import msgspec

from ergon_framework.errors import BoundaryError

Headers = Sequence[tuple[str, str]]

STATUS = {
    "invalid_argument": 400,
    "failed_precondition": 400,
    "out_of_range": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "unimplemented": 404,
    "already_exists": 409,
    "aborted": 409,
    "resource_exhausted": 429,
    "canceled": 499,
    "unknown": 500,
    "internal": 500,
    "data_loss": 500,
    "unavailable": 503,
    "deadline_exceeded": 504,
}
"""The names and numbers of the Connect protocol."""


class HttpRefusal(BoundaryError):
    """An error whose HTTP status is not the usual one of its code."""

    def __init__(
        self,
        status: int,
        code: str,
        reason: str,
        message: str,
        *,
        remedy: str = "",
        retry_after: float | None = None,
        **details: Any,
    ) -> None:
        super().__init__(
            message,
            code=code,
            reason=reason,
            remedy=remedy,
            details=details,
            retry_after=retry_after,
        )
        self.status = status


def status_of(error: BoundaryError) -> int:
    """The HTTP status an error is answered with."""
    return error.status if isinstance(error, HttpRefusal) else STATUS.get(error.code, 500)


def malformed(problem: str) -> HttpRefusal:
    """The bytes are no HTTP request."""
    return HttpRefusal(
        400, "invalid_argument", "malformed_request", f"the request is malformed: {problem}"
    )


def tls_expected_elsewhere() -> HttpRefusal:
    """The error for a client that speaks TLS to a plain port."""
    return HttpRefusal(
        400,
        "invalid_argument",
        "malformed_request",
        "this port speaks plain HTTP, and a TLS handshake arrived",
        remedy="use an http:// address, or start the node with certificates",
    )


def unknown_method() -> HttpRefusal:
    """A word that is no HTTP method."""
    return HttpRefusal(
        501,
        "unimplemented",
        "unknown_method",
        "the request's method is none that HTTP knows",
        remedy="use POST for operations and PUT, GET or HEAD for objects",
    )


def no_upgrade() -> HttpRefusal:
    """The client wants to speak something else on this connection."""
    return HttpRefusal(
        501,
        "unimplemented",
        "no_upgrade",
        "only HTTP/1.1 is spoken here; the connection cannot be upgraded",
        remedy="send the request without Upgrade and CONNECT",
    )


def unmet_expectation() -> HttpRefusal:
    """An Expect header other than 100-continue."""
    return HttpRefusal(
        417,
        "invalid_argument",
        "unmet_expectation",
        "the Expect header asks for something other than 100-continue",
        remedy="leave the header out",
    )


def unknown_coding() -> HttpRefusal:
    """A body that would have to be unpacked before it is what the client means."""
    return HttpRefusal(
        501,
        "unimplemented",
        "unknown_coding",
        "the Transfer-Encoding of the body is not understood here",
        remedy="send the bytes as they are, with a Content-Length or Transfer-Encoding: chunked",
    )


def from_a_browser() -> HttpRefusal:
    """The error for a request of a web page: a browser must not speak to an insecure node."""
    return HttpRefusal(
        403,
        "permission_denied",
        "cross_origin",
        "a node without certificates does not answer web pages",
        remedy="leave the Origin header out, or start the node with certificates",
    )


def foreign_host() -> HttpRefusal:
    """The error for a host name that is not one of the node's own."""
    return HttpRefusal(
        403,
        "permission_denied",
        "foreign_host",
        "a node without certificates is not known under the name in the header Host",
        remedy="ask for localhost or 127.0.0.1, or list the name under names of the zone",
    )


def head_too_large(limit: int) -> HttpRefusal:
    """The request line and the headers."""
    return HttpRefusal(
        431,
        "invalid_argument",
        "headers_too_large",
        f"the request line and headers are larger than {limit} bytes",
        remedy="send fewer headers, or raise limits.header_bytes",
        limit=limit,
    )


def body_too_large(limit: int, setting: str) -> HttpRefusal:
    """The body, by its announced or its real length."""
    return HttpRefusal(
        413,
        "invalid_argument",
        "body_too_large",
        f"the request's body is larger than {limit} bytes",
        remedy=f"send less at once, or raise limits.{setting}",
        limit=limit,
    )


def too_slow(what: str) -> HttpRefusal:
    """The rest of a request did not come in time."""
    return HttpRefusal(
        408,
        "deadline_exceeded",
        "request_timeout",
        f"{what} did not arrive in time; nothing was done",
        remedy="send the request again",
    )


def stopping() -> HttpRefusal:
    """The node shuts down."""
    return HttpRefusal(
        503,
        "unavailable",
        "stopping",
        "the node is stopping; nothing was done",
        remedy="try again when it is back",
        retry_after=1.0,
    )


def too_many_connections(limit: int, why: str) -> HttpRefusal:
    """The answer to a connection above the limit."""
    return HttpRefusal(
        503,
        "unavailable",
        "too_many_connections",
        f"{why}; nothing was done",
        remedy="try again later, close idle connections, or raise limits.connections",
        retry_after=1.0,
        limit=limit,
    )


def no_room() -> HttpRefusal:
    """All requests that are arriving take too much memory together."""
    return HttpRefusal(
        503,
        "unavailable",
        "no_room",
        "too many large requests are arriving at once; nothing was done",
        remedy="try again later, send less at once, or raise limits.bodies_bytes",
        retry_after=1.0,
    )


def internal() -> HttpRefusal:
    """The answer to an unexpected error, without details."""
    return HttpRefusal(
        500,
        "internal",
        "",
        "the node failed to answer; its log says why",
        remedy="try again, and look into the node's log if it stays",
    )


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON = "application/json"
_BODILESS = frozenset({204, 304})
_encoder = msgspec.json.Encoder(enc_hook=str)


def head(
    status: int, content_type: str, length: int, date: str, headers: Headers, *, is_kept: bool
) -> bytes:
    """The status line and the headers, with the empty line that ends them."""
    text = f"{_opening(status, content_type)}{length}\r\ndate: {date}\r\n"
    if headers:
        text += "".join(map(_line, headers))
    return (text + ("\r\n" if is_kept else "connection: close\r\n\r\n")).encode("latin-1")


def has_body(method: str, status: int) -> bool:
    """Whether the answer's body is sent at all."""
    return method != "HEAD" and status not in _BODILESS


def error_body(error: BoundaryError) -> bytes:
    """``{"code", "message", "details"}``, whatever is in the details."""
    try:
        return _encoder.encode(error.to_dict())
    except (ValueError, TypeError, RecursionError):  # text that is no Unicode, endless nesting, …
        return _encoder.encode(internal().to_dict())


def error_headers(error: BoundaryError) -> Headers:
    """A ``Retry-After`` header if the error has one."""
    if error.retry_after is None:
        return ()
    return (("retry-after", str(max(0, math.ceil(error.retry_after)))),)


def whole_error(error: BoundaryError, date: str) -> bytes:
    """The complete answer for an error, after which the connection is closed."""
    body = error_body(error)
    headers = error_headers(error)
    return head(status_of(error), JSON, len(body), date, headers, is_kept=False) + body


@lru_cache(maxsize=256)
def _opening(status: int, content_type: str) -> str:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    kind = _line(("content-type", content_type))
    return f"HTTP/1.1 {status} {phrase}\r\n{kind}content-length: "


def _line(header: tuple[str, str]) -> str:
    line = f"{header[0]}: {header[1]}"
    if not line.isprintable():
        raise ValueError(f"the header {header[0]!r} holds characters that a header cannot carry")
    return line + "\r\n"
