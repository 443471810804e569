"""Transports of httpx over a provider: what is sent again, and what the client sees."""

from __future__ import annotations

import asyncio
import gzip
import pickle
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from ergon_framework.core.circuit_breaker import CircuitState
from ergon_framework.errors import ConfigurationError, MissingExtraError
from ergon_framework.ports.middleware import MiddlewareStack
from ergon_framework.providers import (
    CircuitBreaker,
    Provider,
    ProviderCircuitOpenError,
    ProviderError,
    ProviderQuotaExceededError,
    ProviderRateLimitError,
    ProviderTimeoutError,
    Rule,
)
from ergon_framework.testing import VirtualClock

Answer = Any
"""A status, a response, or an error to raise."""
URL = "https://rates.example/latest?pair=eur_usd"


class Remote:
    """A server by script, for clients of both colours."""

    def __init__(self, clock: VirtualClock, *answers: Answer, **options: Any) -> None:
        self.clock = clock
        self.answers = deque(answers)
        self.sent: list[httpx.Request] = []
        self.seen: list[httpx.Request] = []  # copies: later attempts change nothing of them
        self.times: list[float] = []
        self.provider = Provider("rates", **options)

    def answer(self, request: httpx.Request) -> httpx.Response:
        """The next step of the script; afterwards all is well."""
        self.sent.append(request)
        self.seen.append(httpx.Request(request.method, request.url, headers=request.headers))
        self.times.append(self.clock.now())
        step = self.answers.popleft() if self.answers else 200
        if callable(step):
            step = step(request)
        if isinstance(step, Exception):
            raise step
        return step if isinstance(step, httpx.Response) else httpx.Response(step, text=f"is {step}")

    def ask(self, colour: str, method: str = "GET", **given: Any) -> httpx.Response:
        """Send one request through a client of this colour."""
        how = {name: given.pop(name) for name in ("retry_methods", "operation") if name in given}
        inner = httpx.MockTransport(self.answer)
        if colour == "plain":
            with httpx.Client(transport=self.provider.transport(inner, **how)) as client:
                return client.request(method, URL, **given)

        async def ask() -> httpx.Response:
            transport = self.provider.async_transport(inner, **how)
            async with httpx.AsyncClient(transport=transport) as client:
                return await client.request(method, URL, **given)

        return self.clock.run(ask())


both = pytest.mark.parametrize("colour", ["plain", "async"])


@both
@pytest.mark.parametrize(
    "trouble", [503, 500, 429, 408, httpx.ConnectError("refused"), httpx.ReadTimeout("slow")]
)
def test_what_may_pass_is_asked_again(colour: str, trouble: Answer, clock: VirtualClock) -> None:
    """The client sees the good answer, and its own request."""
    remote = Remote(clock, trouble, trouble)
    response = remote.ask(colour)
    assert (response.status_code, response.text, len(remote.sent)) == (200, "is 200", 3)
    assert str(response.request.url) == URL


@both
@pytest.mark.parametrize("status", [301, 400, 401, 404, 409, 501])
def test_other_answers_are_the_clients_business(
    colour: str, status: int, clock: VirtualClock
) -> None:
    """They come as they are, and open no circuit."""
    remote = Remote(clock, *[status] * 6, circuit_breaker=(breaker := CircuitBreaker(2)))
    assert [remote.ask(colour).status_code for _ in range(5)] == [status] * 5
    assert (len(remote.sent), breaker.state) == (5, CircuitState.CLOSED)


@both
def test_the_rules_of_the_provider_say_which_statuses_pass(
    colour: str, clock: VirtualClock
) -> None:
    """An API may answer 404 while it does not know yet what it was told."""

    def is_unknown(error: Exception) -> bool:
        return isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 404

    rules = [Rule(is_unknown, "dependency_unavailable")]
    remote = Remote(clock, 404, 404, errors=rules)
    assert (remote.ask(colour).status_code, len(remote.sent)) == (200, 3)


@both
def test_the_last_answer_is_returned_when_all_attempts_failed(
    colour: str, clock: VirtualClock
) -> None:
    """With its own body: each answer before it was read and let go."""
    packed = httpx.Response(
        503, content=gzip.compress(b"no"), headers={"Content-Encoding": "gzip", "X-Id": "7"}
    )
    remote = Remote(clock, 500, 500, packed, circuit_breaker=False)
    response = remote.ask(colour)
    assert (response.status_code, response.text, response.headers["X-Id"]) == (503, "no", "7")
    with pytest.raises(httpx.HTTPStatusError):
        response.raise_for_status()


@both
def test_the_last_error_is_raised_as_httpx_raised_it(colour: str, clock: VirtualClock) -> None:
    """Code that catches errors of httpx works unchanged."""
    remote = Remote(clock, 503, 503, lost := httpx.ReadError("lost"))
    with pytest.raises(httpx.ReadError) as raised:
        remote.ask(colour)
    assert raised.value is lost
    assert str(raised.value.request.url) == URL


@both
def test_a_pause_that_the_server_asks_for_is_kept(colour: str, clock: VirtualClock) -> None:
    """By this request, and by those that come meanwhile."""
    busy = httpx.Response(429, headers={"Retry-After": "20"})
    remote = Remote(clock, busy, attempts=2)
    assert remote.ask(colour).status_code == 200
    assert remote.times[1] - remote.times[0] >= 20
    remote.answers.append(httpx.Response(429, headers={"Retry-After": "500"}))
    assert remote.ask(colour).status_code == 429
    with pytest.raises(httpx.TransportError) as refused:
        remote.ask(colour)
    assert isinstance(refused.value, ProviderRateLimitError)
    assert (refused.value.retry_after_seconds or 0) > 400


@both
@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"circuit_breaker": CircuitBreaker(failure_threshold=1)}, ProviderCircuitOpenError),
        ({"quota": "1/day"}, ProviderQuotaExceededError),
    ],
)
def test_a_request_that_is_not_sent_raises_an_error_of_both(
    colour: str, options: dict[str, Any], kind: type[ProviderError], clock: VirtualClock
) -> None:
    """Whoever handles failures of httpx handles it, and whoever knows ours can tell."""
    remote = Remote(clock, 503, attempts=1, **options)
    remote.ask(colour)
    with pytest.raises(httpx.TransportError) as refused:
        remote.ask(colour)
    assert isinstance(refused.value, kind)
    assert isinstance(refused.value, ProviderError)
    assert (refused.value.never_sent, len(remote.sent)) == (True, 1)
    assert str(refused.value.request.url) == URL
    copied = pickle.loads(pickle.dumps(refused.value))  # noqa: S301 - our own
    assert (type(copied), copied.message) == (type(refused.value), refused.value.message)


@both
@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({"method": "POST", "content": b"x"}, 1),
        ({"method": "PATCH", "content": b"x"}, 1),
        ({"method": "PUT", "content": b"x"}, 2),
        ({"method": "DELETE"}, 2),
        ({"method": "POST", "content": b"x", "headers": {"Idempotency-Key": "k1"}}, 2),
        ({"method": "POST", "json": {"a": 1}, "extensions": {"ergon_retry": True}}, 2),
        ({"method": "GET", "extensions": {"ergon_retry": False}}, 1),
        ({"method": "POST", "content": b"x", "retry_methods": {"post"}}, 2),
        ({"method": "GET", "retry_methods": {"POST"}}, 1),
    ],
)
def test_only_requests_that_may_be_sent_twice_are(
    colour: str, given: dict[str, Any], count: int, clock: VirtualClock
) -> None:
    """By their method, their key, or as they say themselves."""
    remote = Remote(clock, 503)
    response = remote.ask(colour, **given)
    assert (len(remote.sent), response.status_code) == (count, 200 if count == 2 else 503)
    assert len({request.content for request in remote.sent}) == 1


@both
@pytest.mark.parametrize("asked", ["no", 0])
def test_what_is_neither_yes_nor_no_is_refused(
    colour: str, asked: object, clock: VirtualClock
) -> None:
    """``"no"`` would be taken for yes; nothing is sent."""
    remote = Remote(clock, 503)
    with pytest.raises(ConfigurationError, match=r"ergon_retry is .*write True or False"):
        remote.ask(colour, method="POST", extensions={"ergon_retry": asked})
    assert remote.sent == []


@both
def test_a_body_that_is_made_while_it_is_sent_is_sent_once(
    colour: str, clock: VirtualClock
) -> None:
    """Its first part is gone."""

    def parts() -> Iterator[bytes]:
        yield b"x"

    async def aparts() -> AsyncIterator[bytes]:
        yield b"x"

    remote = Remote(clock, 503)
    content = parts() if colour == "plain" else aparts()
    assert remote.ask(colour, "PUT", content=content).status_code == 503
    assert len(remote.sent) == 1


def test_a_response_that_is_not_read_again_keeps_its_stream(clock: VirtualClock) -> None:
    """Only what may be asked again is read before the client does."""
    read: list[str] = []

    class Body(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            read.append("read")
            yield b"long"

        def close(self) -> None:
            read.append("closed")

    remote = Remote(clock, httpx.Response(503, stream=Body()), httpx.Response(200, stream=Body()))
    transport = remote.provider.transport(httpx.MockTransport(remote.answer))
    with httpx.Client(transport=transport) as client, client.stream("GET", URL) as response:
        assert read == ["read", "closed"]
        assert list(response.iter_bytes()) == [b"long"]
    assert read == ["read", "closed", "read", "closed"]


@both
def test_an_attempt_bounds_the_timeouts_of_its_request(colour: str, clock: VirtualClock) -> None:
    """A shorter one of the client stays."""
    remote = Remote(clock, timeout=3)
    response = remote.ask(colour, timeout=httpx.Timeout(None, connect=1))
    assert response.request.extensions["timeout"]["read"] is None
    seen: list[dict[str, float]] = []

    def look(request: httpx.Request) -> int:
        seen.append(request.extensions["timeout"])
        return 200

    remote.answers.append(look)
    remote.ask(colour, timeout=httpx.Timeout(None, connect=1))
    assert seen == [{"connect": 1, "read": 3, "write": 3, "pool": 3}]


def test_an_async_request_is_cut_off_when_its_attempt_is_over(clock: VirtualClock) -> None:
    """Whatever it waits for."""
    provider = Provider("rates", timeout=2, attempts=1)

    async def hang(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(100)
        return httpx.Response(200)

    async def ask() -> None:
        transport = provider.async_transport(httpx.MockTransport(hang))
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get(URL)

    with pytest.raises(httpx.TimeoutException) as late:
        clock.run(ask())
    assert isinstance(late.value, ProviderTimeoutError)
    assert clock.now() == pytest.approx(2)


@both
def test_every_attempt_goes_on_with_the_trace(colour: str, clock: VirtualClock) -> None:
    """The header of the current trace is sent, and the client's request stays as it was."""
    came = SpanContext(7, 8, is_remote=True, trace_flags=TraceFlags(1))
    remote = Remote(clock, 503)
    with use_span(NonRecordingSpan(came)):
        response = remote.ask(colour, headers={"x-shop": "berlin"})
    sent = [each.headers["traceparent"].split("-") for each in remote.seen]
    assert [trace_id for _, trace_id, *_ in sent] == [f"{7:032x}"] * 2
    assert {each.headers["x-shop"] for each in remote.seen} == {"berlin"}
    assert "traceparent" not in response.request.headers


@both
def test_a_trace_of_the_client_is_left_alone(colour: str, clock: VirtualClock) -> None:
    """An instrumented client says itself what its request is part of; without a trace none is."""
    own = f"00-{9:032x}-{9:016x}-01"
    remote = Remote(clock)
    with use_span(NonRecordingSpan(SpanContext(7, 8, is_remote=True))):
        remote.ask(colour, headers={"traceparent": own})
    remote.ask(colour)
    assert [each.headers.get("traceparent") for each in remote.seen] == [own, None]


def test_operations_tenants_and_middleware(clock: VirtualClock) -> None:
    """A request is recorded as a call is."""
    stack = MiddlewareStack()
    seen: list[tuple[str, int]] = []

    @stack.add
    def watched(unit: Any) -> Iterator[None]:
        seen.append((unit.name, unit.attempt))
        yield

    remote = Remote(clock, 503, middleware=stack)
    inner = httpx.MockTransport(remote.answer)
    provider = remote.provider
    named = provider.transport(
        inner, operation=lambda request: request.url.path, tenant="acme", correlation_id="c1"
    )
    with httpx.Client(transport=named) as client:
        client.get(URL)
    with httpx.Client(transport=provider.transport(inner, correlation_id="c2")) as client:
        client.post(URL, headers={"Idempotency-Key": "k1"})
    assert provider.flush()
    found = [
        (row.tenant_id, row.operation, row.outcome, row.http_status, row.idempotency_key)
        for name in ("c1", "c2")
        for row in provider.store.attempts_of(name)
    ]
    assert found == [
        ("acme", "/latest", "retry", 503, None),
        ("acme", "/latest", "success", None, None),
        ("default", "POST rates.example", "success", None, "k1"),
    ]
    assert seen == [("rates.http", 1), ("rates.http", 2), ("rates.http", 1)]


@both
def test_what_is_no_error_of_httpx_is_one_of_both(colour: str, clock: VirtualClock) -> None:
    """A defect below is not hidden."""
    remote = Remote(clock, ZeroDivisionError("a defect"))
    with pytest.raises(httpx.TransportError) as raised:
        remote.ask(colour)
    assert isinstance(raised.value, ProviderError)
    assert raised.value.reason_code == "internal_error"
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_retry_methods_are_a_set() -> None:
    """A single text is a set of its letters."""
    with pytest.raises(ConfigurationError, match=r'retry_methods=\{"POST"\}'):
        Provider("rates").transport(retry_methods="POST")


@contextmanager
def server(answers: deque[Callable[[BaseHTTPRequestHandler], None]]) -> Iterator[str]:
    """A real server, for what no mock has: connections."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answers.popleft()(self)

        def log_message(self, format: str, *args: Any) -> None: ...

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}/"
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def test_a_real_server_that_drops_connections_and_is_busy() -> None:
    """One connection in the pool is enough: an answer that is asked again lets go of it."""

    def drop(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True

    def say(status: int) -> Callable[[BaseHTTPRequestHandler], None]:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            handler.send_header("Content-Length", "4")
            handler.end_headers()
            handler.wfile.write(b"said")

        return answer

    limits = httpx.Limits(max_connections=1)
    for colour in ("plain", "async"):
        provider = Provider("rates", attempts=4, backoff=0)
        answers = deque([drop, say(503), say(500), say(200)])
        with server(answers) as url:
            if colour == "plain":
                inner = httpx.HTTPTransport(limits=limits)
                with httpx.Client(transport=provider.transport(inner)) as client:
                    response = client.get(url)
            else:

                async def ask(url: str = url, provider: Provider = provider) -> httpx.Response:
                    inner = httpx.AsyncHTTPTransport(limits=limits)
                    transport = provider.async_transport(inner)
                    async with httpx.AsyncClient(transport=transport) as client:
                        return await client.get(url)

                response = asyncio.run(ask())
        assert (response.status_code, response.text) == (200, "said")
        assert answers == deque()


def test_without_httpx_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else of a provider works."""
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.delitem(sys.modules, "ergon_framework.providers.http_transport", raising=False)
    provider = Provider("rates")
    with pytest.raises(MissingExtraError, match=r"pip install 'ergon-framework\[httpx\]'"):
        provider.transport()
    with pytest.raises(MissingExtraError, match="needs httpx"):
        provider.async_transport()
