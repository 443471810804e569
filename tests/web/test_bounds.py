"""What a request may cost, and that a slow part holds up nobody else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.web.backend_pool import Bulkhead
from ergon_framework.web.middleware import MAX_BODY, MAX_HEAD, PROBES, RequestLimiter, RequestLimits

pytestmark = pytest.mark.req("ONE:serve")

WAIT_TIMEOUT = 30.0


@contextmanager
def hanging() -> Iterator[Callable[[], str]]:
    """A question that is not answered before the end of the block."""
    let_go = threading.Event()
    try:
        yield lambda: str(let_go.wait(WAIT_TIMEOUT))
    finally:
        let_go.set()


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """Says which method arrives inside."""
    await JSONResponse({"method": scope["method"]})(scope, receive, send)


def asked(
    app: Any,
    limits: RequestLimits,
    *requests: tuple[str, str],
    mounted: str = "",
    **more: Any,
) -> list[httpx.Response]:
    """The answers to requests that are made at the same time."""

    async def go() -> list[httpx.Response]:
        transport = httpx.ASGITransport(RequestLimiter(app, limits), root_path=mounted)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            calls = [client.request(method, path, **more) for method, path in requests]
            return list(await asyncio.gather(*calls))

    return asyncio.run(go())


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_only_reading(method: str) -> None:
    """Every other method is refused on every path, and the allowed ones are named."""
    [answer] = asked(hello, RequestLimits(), (method, "/anywhere"))
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD"


def test_the_head_alone() -> None:
    """It has the length of the body that is left out."""
    get, head = asked(hello, RequestLimits(), ("GET", "/"), ("HEAD", "/"))
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize("size", [MAX_BODY + 1, 10**30])
def test_a_body_that_is_too_large(size: int) -> None:
    """It is refused by its announced length, unread, and the connection ends."""
    headers = {"Content-Length": str(size)}
    [answer] = asked(hello, RequestLimits(), ("GET", "/"), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/", {"X-Long": "x" * MAX_HEAD}), ("/?" + "x" * MAX_HEAD, {}), ("/" + "x" * MAX_HEAD, {})],
)
def test_a_head_that_is_too_large(path: str, headers: dict[str, str]) -> None:
    """Headers, query and path have a bound together."""
    [answer] = asked(hello, RequestLimits(), ("GET", path), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (431, "too_large")


@pytest.mark.parametrize("mounted", ["", "/ergon"])
@pytest.mark.parametrize("probe_path", sorted(PROBES))
def test_too_many_at_once(mounted: str, probe_path: str) -> None:
    """Those beyond the limit are told to come again, and probes are answered all the same."""
    arrived = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].endswith("/slow"):
            await arrived.wait()
        else:
            arrived.set()
        await hello(scope, receive, send)

    paths = [f"{mounted}{path}" for path in ("/slow", "/api/v1/jobs", probe_path)]
    first, second, probe = asked(
        slow, RequestLimits(requests=1), *[("GET", path) for path in paths], mounted=mounted
    )
    assert (first.status_code, probe.status_code) == (200, 200)
    assert (second.status_code, second.json()["code"]) == (503, "too_busy")
    assert second.headers["retry-after"] == "1"


def test_a_request_that_takes_too_long() -> None:
    """It is answered, late as it is, whatever its thread still does; its place is free then."""
    with hanging() as question:

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == "/slow":
                await Bulkhead("slow", WAIT_TIMEOUT).call(question)
            await hello(scope, receive, send)

        async def go() -> list[int]:
            transport = httpx.ASGITransport(
                RequestLimiter(slow, RequestLimits(requests=1, seconds=0.5))
            )
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return [(await client.get(path)).status_code for path in ("/slow", "/quick")]

        assert asyncio.run(go()) == [503, 200]


def test_a_change_that_takes_too_long() -> None:
    """Nobody is told to ask again at once: it may be done all the same."""

    async def slow(_scope: Any, _receive: Any, _send: Any) -> None:
        await asyncio.Event().wait()

    limits = RequestLimits(seconds=0.05)
    [answer] = asked(slow, limits, ("POST", "/api/v1/jobs/a/requeue"), json={})
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert "before you ask again" in answer.json()["details"]["remedy"]


def run(*calls: Callable[[], Awaitable[Any]]) -> list[Any]:
    """What each call gives or raises, one after the other."""

    async def go() -> list[Any]:
        found = []
        for call in calls:
            try:
                found.append(await call())
            except Exception as error:
                found.append(error)
        return found

    return asyncio.run(go())


def test_a_part_answers_or_raises() -> None:
    """On a thread of its own."""
    part = Bulkhead("jobs", WAIT_TIMEOUT)

    def broken() -> None:
        raise KeyError("x")

    thread, error = run(lambda: part.call(threading.current_thread), lambda: part.call(broken))
    assert thread is not threading.current_thread()
    assert isinstance(error, KeyError)


def test_a_part_that_hangs_holds_up_no_other() -> None:
    """Its callers are told so in time; another part answers meanwhile, and so does it later."""
    slow, quick = Bulkhead("slow", 0.05, threads=1), Bulkhead("quick", WAIT_TIMEOUT)
    asked_late: list[int] = []
    with hanging() as question:
        first, second, other = run(
            lambda: slow.call(question),
            lambda: slow.call(lambda: asked_late.append(1)),
            lambda: quick.call(lambda: "here"),
        )
    assert isinstance(first, StoreUnavailableError)
    assert isinstance(second, StoreUnavailableError)
    assert other == "here"
    [again] = run(lambda: slow.call(lambda: "back", WAIT_TIMEOUT))
    assert again == "back"
    assert asked_late == []  # nobody waited for it any more


def test_more_questions_than_threads_wait_for_their_turn() -> None:
    """None is lost."""
    part = Bulkhead("jobs", WAIT_TIMEOUT, threads=2)

    async def go() -> list[int]:
        return list(await asyncio.gather(*(part.call(partial(abs, n)) for n in range(50))))

    assert asyncio.run(go()) == list(range(50))
