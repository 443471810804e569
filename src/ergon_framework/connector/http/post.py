"""Posting transactions to an HTTP API: one request for each, with an id that makes repeats known.

Without a provider the rule of this file says when a request is made again; with one, the provider's
quota, circuit breaker and policy do. With a secret the body is signed, so that its receiver knows
who sent it (``signer_of``).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Self

from ergon_framework.connector.base import refuse_extra
from ergon_framework.connector.broker.message import CONTENT_TYPE as CONTENT_TYPE_HEADER
from ergon_framework.connector.broker.message import (
    CORRELATION_ID,
    MAX_MESSAGE_BYTES,
    OWN,
    TRACEPARENT,
    TRACESTATE,
    TRANSACTION_ID,
    BrokerMessage,
    MessageCodec,
)
from ergon_framework.connector.broker.options import COUNT, Bound, takes_options
from ergon_framework.connector.broker.url import import_client
from ergon_framework.connector.broker.wakeup import Wakeup
from ergon_framework.connector.http.options import (
    POST,
    RESERVED,
    address_of,
    client_rules,
    post_rules,
)
from ergon_framework.connector.http.request_loop import RequestLoop
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import Backoff, GiveUp, RetriedCall, RetryRule
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import (
    Business,
    ConfigurationError,
    ConnectorError,
    ErgonError,
    describe,
)
from ergon_framework.ports.dice import roll
from ergon_framework.ports.transaction import Transaction
from ergon_framework.providers.mapping.retry_after import retry_after_seconds
from ergon_framework.storage.server import Observation
from ergon_framework.telemetry.tracing import dispatching

REPEAT = RetryRule(
    attempts=5,
    backoff=Backoff(base=0.2, factor=2.0, cap=10.0, low=0.8, high=1.2),
    on=frozenset({Kind.TRANSIENT, Kind.THROTTLED, Kind.TIMEOUT, Kind.LOST}),
    max_retry_after=60.0,
)
"""The retry rule of requests without a provider."""
_PASSING = frozenset({408, 409, 425, 429})
_CLOSED = frozenset({401, 402, 403, 404, 405, 410})
"""Statuses by which the API refuses every transaction at that URL."""
_MOST_READ = 64 * 1024
"""Bytes of an answer that are read, so that its connection can be used again."""
_TRACE = (TRACEPARENT, TRACESTATE, CONTENT_TYPE_HEADER)


class PostRefusedError(Business):
    """The API refuses this transaction, and sending it again would not help."""

    code = "post_refused"
    http_status: int | None = None


class PostFailedError(ConnectorError):
    """The API did not take the transaction; whether it has seen it is not known."""

    code = "post_failed"
    failure_kind = "transient"
    http_status: int | None = None


class HttpPostConnector:
    """Posts each transaction that is dispatched to ``url``; an answer of 2xx means it was taken.

    The body is the payload, in this ``format``. ``id_header`` carries the transaction's id, the
    same in every attempt, so that a receiver which knows such ids does the work once. With a
    ``provider``, requests are calls of it: its quota, circuit breaker and policy hold. Without one,
    a request without an answer, or with 408, 409, 425, 429 or 5xx, is made again, ``attempts``
    times in all. Another answer is a :class:`PostRefusedError`, which is a business failure. With a
    ``secret`` the body is signed: as Standard Webhooks say, or with ``signature="github"``.
    ``envelope`` sends the other fields of the transaction, too, in headers.
    """

    @takes_options(attempts=COUNT, timeout=Bound(0.001, 3600))
    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        format: str = "json",
        method: str = "POST",
        id_header: str = "Idempotency-Key",
        correlation_header: str = "X-Correlation-ID",
        envelope: bool = False,
        provider: str | Any = None,
        attempts: int = REPEAT.attempts,
        timeout: float = 30.0,
        query: str = "",
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        secret: str | None = None,
        signature: str = "standard",
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_in_flight: int = 8,
        ca: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        given = dict(locals())
        address = address_of(url, query, POST)
        post_rules(given)
        self.name = name or address.name
        self._title, self._url = address.name, address.url
        self._client_rules = client_rules({**given, "max_page_bytes": _MOST_READ}, address)
        self._codec = MessageCodec(format, max_message_bytes, name)
        self._method, self._envelope = method, envelope
        self._id_header, self._correlation_header = id_header.lower(), correlation_header.lower()
        self._provider = provider
        self._rule = replace(REPEAT, attempts=attempts)
        self._sign = signer_of(secret, signature)
        self._now = now
        self._max_in_flight = max_in_flight
        self._wakeup = Wakeup()
        self._loop = RequestLoop("ergon-post", self._end)
        self._is_well = True
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the connections in a forked child, because they are the parent's."""
        self._client: Any = None
        self._turns: asyncio.Semaphore | None = None

    # ---- opening and closing ---------------------------------------------------------------------

    def health(self) -> bool:
        """Whether the last request was answered, and it is open."""
        return self._is_well and not self._loop.is_closed

    def observe(self) -> list[Observation]:
        """What ``ergon doctor`` says: a HEAD request is made, and nothing is sent."""
        try:
            status = self._loop.submit(self._head()).result(self._client_rules.timeout + 1)
        except Exception as error:
            found = f"{self._title} cannot be reached: {describe(error)}"
            remedy = getattr(error, "remedy", "") or "see that the URL is right"
            return [Observation("receiver", found, remedy, is_grave=True)]
        remedy = (
            "see that token or headers, or the user in the URL, are right"
            if status in (401, 403)
            else ""
        )
        return [Observation("receiver", f"{self._title} answers HEAD with {status}", remedy)]

    def close(self) -> None:
        """Cancel running requests, and close. Closing twice is fine."""
        self._wakeup.stop()
        self._loop.close()

    async def aclose(self) -> None:
        """The async version of :meth:`close`."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- producing ------------------------------------------------------------------------------

    def dispatch_transactions(self, transactions: Iterable[Transaction], **extra: Any) -> None:
        """Post each transaction, in order. Returns when all were accepted, and stops at the first
        that was not.
        """
        refuse_extra(self, extra, "it takes no settings per call")
        given = list(transactions)
        with dispatching("http.post", "messaging.message.id", given):
            messages = self._codec.encode_all(given)
            if given:
                self._loop.submit(self._post_all(given, messages)).result()

    async def dispatch_transactions_async(
        self, transactions: Iterable[Transaction], **extra: Any
    ) -> None:
        """The async version of :meth:`dispatch_transactions`."""
        refuse_extra(self, extra, "it takes no settings per call")
        given = list(transactions)
        with dispatching("http.post", "messaging.message.id", given):
            messages = self._codec.encode_all(given)
            if given:
                await asyncio.wrap_future(self._loop.submit(self._post_all(given, messages)))

    # ---- inside of the loop ---------------------------------------------------------------------

    async def _post_all(self, given: list[Transaction], messages: list[BrokerMessage]) -> None:
        done = 0
        try:
            for transaction, message in zip(given, messages, strict=True):
                await self._post(transaction, message)
                done += 1
        except ErgonError as error:
            if len(given) > 1:
                error.details = {**error.details, "posted": done, "given": len(given)}
            raise

    async def _post(self, transaction: Transaction, message: BrokerMessage) -> None:
        if self._turns is None:
            self._turns = asyncio.Semaphore(self._max_in_flight)
        headers = self._headers(message)
        call = RetriedCall(self._rule, asyncio.get_running_loop().time())
        async with self._turns:
            while True:
                found = await self._attempt(transaction, message, headers)
                if found is None:
                    return
                if self._provider is not None:  # it has made its own attempts
                    raise found
                loop_time = asyncio.get_running_loop().time()
                kind = Kind.THROTTLED if found.retry_after_seconds is not None else Kind.TRANSIENT
                failure = Failure(kind, found.code, found.message, found.retry_after_seconds)
                verdict = call.failed(failure, loop_time, roll())
                if isinstance(verdict, GiveUp):
                    raise _refused_at_last(found)
                await self._wakeup.wait_async(
                    loop_time + verdict.delay, lambda: self._loop.is_closed
                )

    async def _attempt(
        self, transaction: Transaction, message: BrokerMessage, headers: Mapping[str, str]
    ) -> PostFailedError | None:
        """Make one attempt. Returns None on success or an error that may pass; raises one that will
        not.
        """
        signed = dict(headers)
        if self._sign is not None:
            identity = headers[self._id_header]
            signed |= self._sign(identity, message.body, self._now())
        identity = transaction.transaction_id
        client = self._made()
        httpx = import_client("httpx", extra="httpx", connector="http-post")
        seconds = self._client_rules.timeout
        try:
            # A provider bounds each of its attempts by itself.
            async with asyncio.timeout(seconds if self._provider is None else None):
                status, given = await self._sent(client, message.body, signed)
        except ErgonError:
            self._is_well = False
            raise
        except TimeoutError:
            self._is_well = False
            return self._failed(identity, f"gave no answer within {seconds:g} s")
        except (httpx.HTTPError, httpx.StreamError) as error:
            self._is_well = False
            return self._failed(identity, f"gave no answer ({type(error).__name__})")
        self._is_well = status < 500 and status not in _CLOSED and not 300 <= status < 400
        return self._judged(identity, status, given)

    async def _sent(
        self, client: Any, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str]]:
        extensions = {"ergon_retry": True} if self._provider is not None else None
        request = client.stream(
            self._method, self._url, content=body, headers=headers, extensions=extensions
        )
        async with request as response:
            size = 0
            async with aclosing(response.aiter_raw()) as coming:
                async for part in coming:
                    size += len(part)
                    if size > _MOST_READ:
                        break
            return response.status_code, response.headers

    def _judged(
        self, identity: str, status: int, headers: Mapping[str, str]
    ) -> PostFailedError | None:
        if 200 <= status < 300:
            return None
        if status in _PASSING or status >= 500:
            found = self._failed(identity, f"answers {status}")
            found.http_status = status
            found.retry_after_seconds = retry_after_seconds(
                headers, time.time(), is_throttled=status == 429
            )
            return found
        remedy = "see in the manual of the API what the status means"
        if status in (401, 403):
            remedy = "see that token or headers, or the user in the URL, are right and may post"
        if 300 <= status < 400:
            remedy = "let url= name the address that it redirects to; redirects are not followed"
        refused = PostRefusedError(
            f"{self._title} refuses transaction {identity!r}: it answers {status}", remedy=remedy
        )
        refused.http_status = status
        refused.details = {"http_status": status}
        raise refused

    def _failed(self, identity: str, what: str) -> PostFailedError:
        return PostFailedError(
            f"{self._title} {what} to transaction {identity!r}",
            remedy="dispatch it again later: its id is the same, so that a receiver knows it",
        )

    def _headers(self, message: BrokerMessage) -> dict[str, str]:
        """The headers of the message that the API is to see."""
        found: dict[str, str] = {}
        for name, value in message.headers.items():
            lower = name.lower()
            is_foreign = lower not in OWN
            if is_foreign and (lower in RESERVED or lower in self._client_rules.headers):
                continue  # another program's word does not replace ours
            if is_foreign or lower in _TRACE or self._envelope:
                found[lower] = value
        found[self._id_header] = message.headers[TRANSACTION_ID]
        if CORRELATION_ID in message.headers:
            found[self._correlation_header] = message.headers[CORRELATION_ID]
        return found

    def _made(self) -> Any:
        if self._client is None:
            self._client = self._client_with(self._provider)
        return self._client

    def _client_with(self, provider: Any) -> Any:
        httpx = import_client("httpx", extra="httpx", connector="http-post")
        rules = self._client_rules
        verify: Any = True
        if rules.ca is not None:
            verify = ssl.create_default_context(cafile=rules.ca)
        transport = None
        if provider is not None:
            transport = provider.async_transport(httpx.AsyncHTTPTransport(verify=verify))
        return httpx.AsyncClient(
            headers=rules.headers,
            auth=rules.login,
            timeout=rules.timeout,
            verify=verify,
            transport=transport,
            follow_redirects=False,
        )

    async def _head(self) -> int:
        async with asyncio.timeout(self._client_rules.timeout), self._client_with(None) as client:
            answer = await client.head(self._url)
            status: int = answer.status_code
            return status

    async def _end(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def _refused_at_last(error: PostFailedError) -> ErgonError:
    """The error of a lasting conflict (409): no other request with this id was under way."""
    if error.http_status != 409:
        return error
    refused = PostRefusedError(error.message, remedy="see what the API has under this id")
    refused.http_status = 409
    refused.details = {"http_status": 409}
    return refused


Signer = Callable[[str, bytes, float], dict[str, str]]
"""Makes the signature headers from the id, the body and the time."""
STANDARD, GITHUB = "standard", "github"
_PREFIX = "whsec_"


def signer_of(secret: object, scheme: str) -> Signer | None:
    """The signer of a scheme. None when there is no secret."""
    if secret is None:
        return None
    if not isinstance(secret, str) or not secret.strip():
        raise ConfigurationError(
            "secret is empty, or no text", remedy="see that the variable is set"
        )
    if scheme == GITHUB:
        key = secret.encode()
        return lambda _id, body, _now: {"x-hub-signature-256": f"sha256={_hmac_hex(key, body)}"}
    if scheme != STANDARD:
        raise ConfigurationError(
            "signature is standard or github", remedy="leave it out for Standard Webhooks"
        )
    return _standard_signer(_signing_key(secret))


def _standard_signer(key: bytes) -> Signer:
    def sign(identity: str, body: bytes, now: float) -> dict[str, str]:
        instant = str(int(now))
        content = f"{identity}.{instant}.".encode() + body
        found = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        return {
            "webhook-id": identity,
            "webhook-timestamp": instant,
            "webhook-signature": f"v1,{found}",
        }

    return sign


def _hmac_hex(key: bytes, body: bytes) -> str:
    return hmac.new(key, body, hashlib.sha256).hexdigest()


def _signing_key(secret: str) -> bytes:
    """The signing key. What follows ``whsec_`` is base64, as in Standard Webhooks."""
    if not secret.startswith(_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigurationError(
            "what follows whsec_ in secret is no base64", remedy="copy the whole secret again"
        ) from None
