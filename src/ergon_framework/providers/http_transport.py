"""Transports for httpx that guard every request of a client.

::

    client = httpx.Client(base_url=URL, transport=rates.transport())
    client.get("/latest")

A request is a call of the provider: its operation is the method and the host. Statuses that may
pass by themselves and errors of the transport are tried again, if the request may be sent twice.
What the client sees is what httpx users expect: the last response, whatever its status, or the
error of the last attempt. Only a request that was never sent raises an error of ours, which is a
``httpx.TransportError`` as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ergon_framework.errors import ConfigurationError, MissingExtraError
from ergon_framework.ports.context import current_unit
from ergon_framework.ports.middleware import await_through, call_through
from ergon_framework.providers.errors import (
    ProviderCircuitOpenError,
    ProviderDependencyError,
    ProviderError,
    ProviderQuotaExceededError,
    ProviderRateLimitError,
    ProviderTimeoutError,
)
from ergon_framework.providers.execution import ProviderExecutionContext, ProviderExecutionResult
from ergon_framework.providers.function_base import (
    ATTEMPT,
    AsyncFunctionProvider,
    FunctionProvider,
)
from ergon_framework.providers.signatures import AttemptMiddleware
from ergon_framework.telemetry.propagation import outgoing_metadata

try:
    import httpx
except ImportError as error:
    raise MissingExtraError(
        "a transport of a provider needs httpx", remedy="pip install 'ergon-framework[httpx]'"
    ) from error

if TYPE_CHECKING:
    from ergon_framework.providers.calls import CallOptions

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Methods whose requests may be sent twice (RFC 9110, section 9.2.2)."""
KEY_HEADER = "Idempotency-Key"
"""The header by which a provider knows a request again; with it any method may be sent twice."""
RETRY_EXTENSION = "ergon_retry"
"""The request extension that allows or forbids retries, whatever the method is."""
MAX_KEY = 255  # characters that the tables of calls take of a key …
MAX_OPERATION = 120  # … and of an operation
_TIMEOUTS = ("connect", "read", "write", "pool")


# -- errors of requests that have no answer --------------------------------------------------------


class ProviderTransportError(ProviderError, httpx.TransportError):
    """A request failed without an answer, and not by an error of httpx."""


class CircuitOpenTransportError(ProviderCircuitOpenError, httpx.TransportError):
    """The circuit is open; the request was not sent."""


class QuotaExceededTransportError(ProviderQuotaExceededError, httpx.TransportError):
    """The quota is used up; the request was not sent."""


class RateLimitTransportError(ProviderRateLimitError, httpx.TransportError):
    """The provider asked for a pause; the request was not sent."""


class DependencyTransportError(ProviderDependencyError, httpx.TransportError):
    """The store of the quota does not answer; the request was not sent."""


class TimeoutTransportError(ProviderTimeoutError, httpx.TimeoutException):
    """The time of the call is over."""


_BOTH: dict[str, type[ProviderError]] = {
    kind.reason_code: kind
    for kind in (
        CircuitOpenTransportError,
        QuotaExceededTransportError,
        RateLimitTransportError,
        DependencyTransportError,
        TimeoutTransportError,
    )
}


def error_for_httpx(error: ProviderError, request: httpx.Request) -> Exception:
    """The error of a request without an answer, as both our users and those of httpx catch it."""
    if isinstance(error.__cause__, httpx.HTTPError):
        return error.__cause__
    kind = _BOTH.get(error.reason_code, ProviderTransportError)
    made: Any = kind(
        error.message,
        http_status=error.http_status,
        retry_after_seconds=error.retry_after_seconds,
        never_sent=error.never_sent,
        remedy=error.remedy,
        details=error.details,
    )
    made.reason_code = error.reason_code
    made.request = request
    made.__cause__ = error.__cause__ or error
    raised: Exception = made
    return raised


# -- what is decided about a request ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestRules:
    """How the requests of one client become calls of a provider."""

    options: CallOptions
    operation: Callable[[httpx.Request], str] | None
    retry_methods: Collection[str]

    def call(self, request: httpx.Request, attempt: Callable[..., Any]) -> dict[str, Any]:
        """The arguments of ``execute``."""
        context = self.options.context()
        context.metadata = {**context.metadata, ATTEMPT: attempt}
        key = request.headers.get(KEY_HEADER)
        if context.idempotency_key is None and key and len(key) <= MAX_KEY and key.isprintable():
            context.idempotency_key = key
        if not self.may_be_sent_again(request):
            context.max_attempts = 1
        return {
            "tenant_id": self.options.tenant,
            "campaign_id": self.options.campaign,
            "operation": self.operation_of(request),
            "payload": _payload(request),
            "context": context,
        }

    def operation_of(self, request: httpx.Request) -> str:
        """The method and the host: paths have ids in them, and health is shown by operation."""
        if self.operation is not None:
            return self.operation(request)
        return f"{request.method} {request.url.host}"[:MAX_OPERATION]

    def may_be_sent_again(self, request: httpx.Request) -> bool:
        """Whether a second sending is wanted, and possible: a body that was read is gone."""
        asked = request.extensions.get(RETRY_EXTENSION)
        if not isinstance(asked, bool | None):
            raise ConfigurationError(
                f"the extension {RETRY_EXTENSION} is {asked!r}",
                remedy="write True or False",
            )
        if not isinstance(request.stream, httpx.ByteStream):
            return False
        if asked is not None:
            return asked
        return request.method in self.retry_methods or KEY_HEADER in request.headers


def _payload(request: httpx.Request) -> dict[str, Any]:
    payload: dict[str, Any] = {"method": request.method, "url": str(request.url)}
    # Inside a job the payload distinguishes two requests; elsewhere the body is not needed.
    if current_unit() is not None and isinstance(request.stream, httpx.ByteStream):
        payload["body"] = hashlib.sha256(request.read()).hexdigest()
    return payload


def _bounded(extensions: dict[str, Any], limit: float | None) -> dict[str, Any]:
    """The timeouts of a request, none of them longer than the attempt."""
    if limit is None:
        return extensions
    known = extensions.get("timeout") or {}
    bounds = {
        name: limit if known.get(name) is None else min(limit, known[name]) for name in _TIMEOUTS
    }
    return {**extensions, "timeout": bounds}


def _raw(trace: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in trace.items()]


def _with_body(response: httpx.Response, body: bytes) -> httpx.Response:
    """A copy of the response with its body in memory, so that the connection is freed."""
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        stream=httpx.ByteStream(body),
        extensions=response.extensions,
    )


class GuardedRequest:
    """One request with all its attempts."""

    def __init__(self, request: httpx.Request, rules: RequestRules) -> None:
        self.request = request
        self._extensions = request.extensions
        self._headers = request.headers
        self._is_sent_again = rules.may_be_sent_again(request)

    def begin(self, context: ProviderExecutionContext) -> None:
        """An attempt begins, is part of a trace, and has so much time."""
        if "traceparent" not in self._headers and (trace := outgoing_metadata()):
            self.request.headers = httpx.Headers([*self._headers.raw, *_raw(trace)])
        self.request.extensions = _bounded(dict(self._extensions), context.attempt_timeout_seconds)

    def needs_body(self, response: httpx.Response) -> bool:
        """Whether its body is read at once: another attempt may follow, which needs a connection.

        Which statuses are tried again the rules of the provider may say, so it is any error.
        """
        return self._is_sent_again and response.status_code >= 400

    def data_of(self, response: httpx.Response) -> dict[str, Any]:
        """The data of an attempt, or its failure raised; either has the response."""
        if response.status_code < 400:
            return {"response": response}
        text = f"HTTP {response.status_code}"
        raise httpx.HTTPStatusError(text, request=self.request, response=response)

    def answer(self, result: ProviderExecutionResult) -> httpx.Response:
        """What the client gets."""
        self.request.extensions, self.request.headers = self._extensions, self._headers
        error = result.error
        if error is None:
            found: httpx.Response | None = result.unwrap().get("response")
            if found is None:  # middleware answered without asking, and with something else
                raise httpx.TransportError("no response", request=self.request)
            return found
        if isinstance(error.__cause__, httpx.HTTPStatusError):
            return error.__cause__.response
        raise error_for_httpx(error, self.request)


# -- the transports --------------------------------------------------------------------------------


class ProviderTransport(httpx.BaseTransport):
    """Guards the requests of an ``httpx.Client``."""

    def __init__(
        self,
        base: Callable[[], FunctionProvider],
        inner: httpx.BaseTransport | None,
        rules: RequestRules,
        around: AttemptMiddleware,
    ) -> None:
        self._base = base
        self._inner = httpx.HTTPTransport() if inner is None else inner
        self._rules = rules
        self._around = around

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, as often as it takes and may be."""
        guarded = GuardedRequest(request, self._rules)

        def attempt(context: ProviderExecutionContext) -> dict[str, Any]:
            guarded.begin(context)
            return call_through(
                self._around.layers(), self._around.unit(context), lambda: self._send(guarded)
            )

        return guarded.answer(self._base().execute(**self._rules.call(request, attempt)))

    def _send(self, guarded: GuardedRequest) -> dict[str, Any]:
        response = self._inner.handle_request(guarded.request)
        if guarded.needs_body(response):
            received = response
            try:
                # Not by iter_raw: the response may have been read by a transport below.
                response = _with_body(received, b"".join(cast("Iterable[bytes]", received.stream)))
            finally:
                received.close()
        return guarded.data_of(response)

    def close(self) -> None:
        """Close the transport below; the provider stays open."""
        self._inner.close()


class AsyncProviderTransport(httpx.AsyncBaseTransport):
    """The transport for an ``httpx.AsyncClient``."""

    def __init__(
        self,
        base: Callable[[], AsyncFunctionProvider],
        inner: httpx.AsyncBaseTransport | None,
        rules: RequestRules,
        around: AttemptMiddleware,
    ) -> None:
        self._base = base
        self._inner = httpx.AsyncHTTPTransport() if inner is None else inner
        self._rules = rules
        self._around = around

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, as often as it takes and may be."""
        guarded = GuardedRequest(request, self._rules)

        async def attempt(context: ProviderExecutionContext) -> dict[str, Any]:
            guarded.begin(context)
            return await await_through(
                self._around.layers(), self._around.unit(context), lambda: self._send(guarded)
            )

        return guarded.answer(await self._base().aexecute(**self._rules.call(request, attempt)))

    async def _send(self, guarded: GuardedRequest) -> dict[str, Any]:
        response = await self._inner.handle_async_request(guarded.request)
        if guarded.needs_body(response):
            received = response
            try:
                parts = cast("AsyncIterable[bytes]", received.stream)
                body = b"".join([part async for part in parts])
                response = _with_body(received, body)
            finally:
                await received.aclose()
        return guarded.data_of(response)

    async def aclose(self) -> None:
        """Close the transport below; the provider stays open."""
        await self._inner.aclose()
