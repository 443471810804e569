"""One HTTP request as ASGI hands it over: its headers, its body within a bound, and its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class RefusedError(Exception):
    """A request is not taken; says what is answered."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        remedy: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.remedy = remedy
        self.headers = dict(headers or {})


class DisconnectedError(Exception):
    """The sender has gone before its request was whole: there is nobody to answer."""


def headers_of(scope: Scope) -> dict[str, str]:
    """The headers of a request by their names in lower case.

    One that is there twice is left out: what is read in front of us may have taken the other one.
    """
    found: dict[str, str] = {}
    twice: set[str] = set()
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        if key in found:
            twice.add(key)
        found[key] = value.decode("latin-1")
    return {name: value for name, value in found.items() if name not in twice}


async def read_body(headers: Mapping[str, str], receive: Receive, max_bytes: int) -> bytes:
    """The whole body, or a refusal as soon as it is known to be too large."""
    length = headers.get("content-length", "0")
    # Cut before it is read as a number: thousands of digits would take long.
    if length.isascii() and length.isdecimal() and int(length[:20]) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(max_bytes: int) -> RefusedError:
    return RefusedError(
        413,
        "too_large",
        f"the body is larger than {max_bytes} bytes",
        "send less, or let the receiver have a larger max_body_bytes",
        {"connection": "close"},  # the rest of the body is not read
    )


async def answer(
    send: Send, status: int, document: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> None:
    """A JSON document."""
    body = msgspec.json.encode(document)
    named = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "cache-control": "no-store",
        **(headers or {}),
    }
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, refused: RefusedError) -> None:
    """Why a request was not taken, in the one shape of our HTTP errors."""
    document = {
        "code": refused.code,
        "message": refused.message,
        "details": {"remedy": refused.remedy},
    }
    await answer(send, refused.status, document, refused.headers)


async def end_lifespan(receive: Receive, send: Send) -> None:
    """Take part in the lifespan of a server that runs this application alone."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return
