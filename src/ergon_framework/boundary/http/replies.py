"""The bytes of an answer."""

from __future__ import annotations

import math
from functools import lru_cache
from http import HTTPStatus

import msgspec

from ergon_framework.boundary.http.refusals import internal, status_of
from ergon_framework.boundary.http.statuses import Headers
from ergon_framework.errors import BoundaryError

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
    """When to come back, if the error knows."""
    if error.retry_after is None:
        return ()
    return (("retry-after", str(max(0, math.ceil(error.retry_after)))),)


def whole_error(error: BoundaryError, date: str) -> bytes:
    """A complete answer, after which the connection is closed."""
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
