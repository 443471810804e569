"""``WebhookReceiver``: an ASGI application that takes signed requests and keeps them.

Below it stands what is read of a request, its body within a bound, and how it is answered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Self

import msgspec

from ergon_framework.connector.broker.options import COUNT, SOME_SECONDS, takes_options
from ergon_framework.connector.webhook.signatures import (
    TOLERANCE,
    Secrets,
    SignatureCheck,
    SignatureError,
    StripeSignature,
    digest,
    github_signature,
)
from ergon_framework.connector.webhook.targets import is_known, store_of
from ergon_framework.errors import (
    ConfigurationError,
    EnvelopeError,
    ErgonError,
    JobError,
    MissingExtraError,
    PayloadError,
)
from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry.propagation import read

logger = logging.getLogger("ergon.connector")

MAX_BODY_BYTES = 1024 * 1024
MAX_REQUESTS = 64
"""Requests at once, so that their bodies have a bound together."""
TIMEOUT = 10.0
"""Seconds a body may take to arrive, and the target to keep it: GitHub waits ten for an answer."""
MAX_NAME = 40
MAX_ID = 150
_BAD_BODY = (msgspec.MsgspecError, ValueError, RecursionError)
_REFUSED_FOR_GOOD = (PayloadError, EnvelopeError, JobError)


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class RefusedError(Exception):
    """A request is refused; it has the answer to send."""

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


class WebhookReceiver:
    """Takes signed requests of another service, and answers when they are kept.

    It is an ASGI application: mount it, put ``routes()`` into a Starlette application, or let a
    server run it alone. A request is answered with 202 when ``target`` has stored it: a handler of
    an App, or a connector that can be produced to and outlives the process. The payload is
    ``{"event": <the body>}``, with ``"headers"`` when ``headers`` names some. The transaction's or
    job's id is ``name`` and the id of the delivery, so that a repeat changes nothing for as long as
    the target knows the id. That id is read from the header ``id_header`` or from the field
    ``id_field`` of the body (``a.b`` for one inside another); without either it is a digest of the
    body. ``format`` is ``json``, or ``text`` for bodies that a handler reads by itself.

    ``accepted`` and ``refused`` count requests; ``refused`` by the code of the answer.
    """

    @takes_options(max_body_bytes=COUNT, max_requests=COUNT, timeout=SOME_SECONDS)
    def __init__(
        self,
        target: Any,
        signature: SignatureCheck,
        *,
        name: str = "webhook",
        path: str | None = None,
        id_header: str | None = None,
        id_field: str | None = None,
        headers: Sequence[str] = (),
        format: str = "json",
        max_body_bytes: int = MAX_BODY_BYTES,
        max_requests: int = MAX_REQUESTS,
        timeout: float = TIMEOUT,
        now: Callable[[], float] = time.time,
    ) -> None:
        _check(name, id_header, id_field, format, headers)
        if not callable(getattr(signature, "verify", None)):
            raise ConfigurationError(
                "a webhook needs a signature: without one, anybody could send anything",
                remedy='github_signature(secret), or HmacSignature(secret, header="…")',
            )
        self.name = name
        self.path = path or f"/{name}"
        self._signature = signature
        self._id_header = None if id_header is None else id_header.lower()
        self._id_field = None if id_field is None else tuple(id_field.split("."))
        self._headers = tuple(each.lower() for each in headers)
        self._is_json = format == "json"
        self._max_body_bytes = max_body_bytes
        self._max_requests = max_requests
        self._timeout = timeout
        self._now = now
        self._store = store_of(target, ("event", "headers") if headers else ("event",))
        self._running = 0
        self._storing: set[asyncio.Task[None]] = set()  # the loop itself keeps no hold of them
        self.accepted = 0
        self.refused: dict[str, int] = {}

    @classmethod
    def stripe(
        cls,
        target: Any,
        secrets: Secrets,
        *,
        tolerance: float = TOLERANCE,
        name: str = "stripe",
        **options: Any,
    ) -> Self:
        """A receiver of Stripe's events, which are known by their ``id``."""
        signature = StripeSignature(secrets, tolerance=tolerance)
        return cls(target, signature, name=name, **{"id_field": "id", **options})

    @classmethod
    def github(cls, target: Any, secrets: Secrets, *, name: str = "github", **options: Any) -> Self:
        """A receiver of GitHub's events; the headers have ``x-github-event``, which names the kind.

        A delivery is known by ``X-GitHub-Delivery``. That header is not signed: let only TLS in.
        """
        given = {"id_header": "x-github-delivery", "headers": ("x-github-event",), **options}
        return cls(target, github_signature(secrets), name=name, **given)

    def __repr__(self) -> str:
        return f"WebhookReceiver({self.name!r}, path={self.path!r})"

    def routes(self) -> list[Any]:
        """Routes for a Starlette or FastAPI application: one, at ``path``."""
        try:
            from starlette.routing import Route
        except ImportError as error:
            raise MissingExtraError(
                "routes() needs Starlette", remedy="pip install 'ergon-framework[api]'"
            ) from error
        # A class instance is called as an ASGI application, and says itself that only POST will do.
        return [Route(self.path, self, name=self.name)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await end_lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        try:
            delivery_id = await self._take(scope, receive)
        except DisconnectedError:
            return
        except RefusedError as refused:
            self._note(refused)
            await refuse(send, refused)
        else:
            self.accepted += 1
            await answer(send, 202, {"id": delivery_id})

    # ---- one request ----------------------------------------------------------------------------

    async def _take(self, scope: Scope, receive: Receive) -> str:
        """Store the delivery of a request. Returns its id."""
        if scope["method"] != "POST":
            raise RefusedError(
                405, "method_not_allowed", "method not allowed", "send it with POST",
                {"allow": "POST"},
            )  # fmt: skip
        if self._running >= self._max_requests:
            raise _later("too_busy", f"{self._running} requests are being answered", 1)
        self._running += 1
        storing: asyncio.Task[None] | None = None
        try:
            headers = headers_of(scope)
            transaction = self._transaction(headers, await self._body(headers, receive))
            storing = asyncio.ensure_future(self._store(transaction))
            await self._stored(storing, transaction.transaction_id)
            return transaction.transaction_id
        finally:
            if storing is None or storing.done():
                self._running -= 1
            else:  # its body is still in memory
                storing.add_done_callback(self._late)

    async def _body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        try:
            async with asyncio.timeout(self._timeout):
                return await read_body(headers, receive, self._max_body_bytes)
        except TimeoutError:
            raise RefusedError(
                408,
                "request_timeout",
                f"the body did not come within {self._timeout:g} s",
                "send it again",
                {"connection": "close"},
            ) from None

    def _transaction(self, headers: Mapping[str, str], body: bytes) -> Transaction:
        try:
            self._signature.verify(headers, body, self._now())
        except SignatureError as error:
            raise RefusedError(
                401,
                error.code,
                error.message,
                error.remedy or "sign the body as the receiver's documentation says",
            ) from None
        event = self._event(body)
        payload: dict[str, Any] = {"event": event}
        if self._headers:
            payload["headers"] = {
                each: headers[each] for each in self._headers if each in headers
            }  # fmt: skip
        return Transaction(
            f"{self.name}:{self._delivery_id(headers, event, body)}",
            payload,
            _trace(headers),
            source=self.name,
        )

    def _event(self, body: bytes) -> Any:
        try:
            return msgspec.json.decode(body) if self._is_json else body.decode()
        except _BAD_BODY:
            wanted = "JSON" if self._is_json else "UTF-8"
            raise RefusedError(
                400, "bad_request", f"the body is not {wanted}", f"send {wanted}"
            ) from None

    def _delivery_id(self, headers: Mapping[str, str], event: Any, body: bytes) -> str:
        found: Any
        if self._id_header is not None:
            found, place = headers.get(self._id_header), f"the header {self._id_header}"
        elif self._id_field is not None:
            found, place = _field(event, self._id_field), f"the field {'.'.join(self._id_field)}"
        else:
            return digest(body)
        if isinstance(found, int) and not isinstance(found, bool):
            found = str(found)
        if not isinstance(found, str) or not 0 < len(found) <= MAX_ID or not found.isprintable():
            raise RefusedError(
                400,
                "bad_request",
                f"{place} is no id of a delivery",
                f"send an id there of at most {MAX_ID} printable characters",
            )
        return found

    async def _stored(self, storing: asyncio.Task[None], delivery_id: str) -> None:
        """Wait until it is kept. One that takes too long goes on, and the sender comes again."""
        self._storing.add(storing)
        storing.add_done_callback(self._storing.discard)
        await asyncio.wait({storing}, timeout=self._timeout)
        if not storing.done():
            raise _later("store_unavailable", "the delivery is not stored yet", 5)
        error: Any = storing.exception()
        if error is None or is_known(error):
            return
        if isinstance(error, _REFUSED_FOR_GOOD):
            logger.warning(
                "webhook %s: %s cannot be stored (%s)", self.name, delivery_id, _of(error)
            )
            raise RefusedError(
                400, "bad_request", "such a body cannot be stored", "the server's log says more"
            )
        logger.error("webhook %s: %s was not stored (%s)", self.name, delivery_id, _of(error))
        raise _later("store_unavailable", "the delivery cannot be stored now", 5)

    def _late(self, storing: asyncio.Task[None]) -> None:
        self._running -= 1
        if not storing.cancelled():
            storing.exception()  # read it, or asyncio warns: its sender was told to come again

    def _note(self, refused: RefusedError) -> None:
        """Count a refusal, and log the first of its kind and each time their number has doubled."""
        count = self.refused[refused.code] = self.refused.get(refused.code, 0) + 1
        if count & (count - 1) == 0:
            text = "webhook %s refused a request with %d: %s (%d of this kind)"
            logger.warning(text, self.name, refused.status, refused.message, count)


def _of(error: Exception) -> str:
    """What may be told of an error: texts of other programs' errors may have payloads in them."""
    return (
        f"{error.code}: {error.message}" if isinstance(error, ErgonError) else type(error).__name__
    )


def _later(code: str, text: str, seconds: int) -> RefusedError:
    remedy = f"send it again in {seconds} s"
    return RefusedError(503, code, text, remedy, {"retry-after": str(seconds)})


def _field(event: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        event = event.get(name) if isinstance(event, dict) else None
    return event


def _trace(headers: Mapping[str, str]) -> dict[str, str] | None:
    if read(headers) is None:
        return None
    return {each: headers[each] for each in ("traceparent", "tracestate") if each in headers}


def _check(
    name: Any, id_header: str | None, id_field: str | None, form: str, headers: Sequence[str]
) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise ConfigurationError(f"the name of a webhook has 1 to {MAX_NAME} printable characters")
    if form not in ("json", "text"):
        raise ConfigurationError(
            "the format of a webhook is json or text", remedy="leave it out for json"
        )
    if id_header is not None and id_field is not None:
        raise ConfigurationError(
            "a delivery has one id: in a header, or in a field of its body",
            remedy="leave out id_header or id_field",
        )
    if id_field is not None and form != "json":
        raise ConfigurationError(
            "a body of text has no fields", remedy="leave out id_field, or give id_header"
        )
    if isinstance(headers, str):
        raise ConfigurationError("headers is one text", remedy=f"write headers=({headers[:40]!r},)")


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
    """Answer why a request was refused, in the form of all HTTP errors of Ergon."""
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
