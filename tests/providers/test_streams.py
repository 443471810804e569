"""Streams of a provider: tried again until the first item, and one attempt from then on."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing, contextmanager, suppress
from typing import Any, assert_type

import pytest

from ergon_framework.core.circuit_breaker import CircuitState
from ergon_framework.errors import HookError
from ergon_framework.integrations.structlog import add_unit, name_calls
from ergon_framework.ports.middleware import MiddlewareStack
from ergon_framework.ports.providerstore import AttemptRow, ProviderStore
from ergon_framework.ports.unit_of_work import OBSERVERS, UnitOfWork
from ergon_framework.providers import (
    CircuitBreaker,
    Provider,
    ProviderCircuitOpenError,
    ProviderConnectionError,
    ProviderQuotaExceededError,
    ProviderTimeoutError,
)
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import rows

name_calls(on=False)  # importing the module has turned it on, for the tests of other files as well

Steps = list[Any]


def told(provider: Provider, correlation_id: str = "mine") -> list[tuple[int, str, str | None]]:
    """The rows of a stream."""
    found: list[AttemptRow] = rows(provider.base, correlation_id)
    return [(row.attempt_number, row.outcome, row.reason_code) for row in found]


class Feed:
    """One provider with a plain and an async stream that do the same; what they do is a script."""

    def __init__(self, clock: VirtualClock, *attempts: Steps, **options: Any) -> None:
        self.clock = clock
        self.attempts = iter(attempts)
        self.closed = 0
        self.closing = 0.0
        self.times: list[float] = []
        self.provider = provider = Provider("feed", **options)

        @provider.stream(operation="plain")
        def plain(pair: str, *, timeout: float = 50.0) -> Iterator[int]:
            self.times.append(timeout)
            try:
                for step in next(self.attempts):
                    if isinstance(step, float):
                        clock.sleep(step)
                    elif isinstance(step, BaseException):
                        raise step
                    else:
                        yield step() if callable(step) else step
            finally:
                self.closed += 1

        @provider.stream(operation="coloured", correlation_id="mine")
        async def coloured(pair: str) -> AsyncIterator[int]:
            try:
                for step in next(self.attempts):
                    if isinstance(step, float):
                        await asyncio.sleep(step)
                    elif isinstance(step, BaseException):
                        raise step
                    else:
                        yield step() if callable(step) else step
            finally:
                self.closed += 1
                if self.closing:
                    await asyncio.sleep(self.closing)

        self.plain = plain.options(correlation_id="mine")
        self.coloured = coloured

    def read(self, colour: str, count: int | None = None) -> list[int]:
        """Read so many items, or all."""
        return self.read_plain(count) if colour == "plain" else self.read_async(count)

    def read_plain(self, count: int | None) -> list[int]:
        """On this thread."""
        with closing(self.plain("eur")) as items:
            return [item for item, _ in zip(items, range(count or 99), strict=False)]

    def read_async(self, count: int | None) -> list[int]:
        """On an event loop."""

        async def read() -> list[int]:
            found: list[int] = []
            async with aclosing(self.coloured("eur")) as items:
                async for item in items:
                    found.append(item)
                    if len(found) == count:
                        break
            return found

        return self.clock.run(read())


BROKEN = ConnectionResetError("the line broke")
both = pytest.mark.parametrize("colour", ["plain", "coloured"])


@both
def test_a_stream_is_tried_again_until_its_first_item(
    colour: str, clock: VirtualClock, store: ProviderStore
) -> None:
    """On both kinds of store."""
    feed = Feed(clock, [BROKEN], [BROKEN], [1, 2, 3], store=store)
    assert feed.read(colour) == [1, 2, 3]
    assert feed.closed == 3
    assert told(feed.provider) == [
        (1, "retry", "connection_error"),
        (2, "retry", "connection_error"),
        (3, "success", None),
    ]


@both
def test_a_failure_after_the_first_item_ends_the_stream(
    colour: str, clock: VirtualClock, store: ProviderStore
) -> None:
    """It is the failed end of this attempt, and counts for the circuit."""
    breaker = CircuitBreaker(failure_threshold=1)
    feed = Feed(clock, [1, BROKEN], [5], store=store, circuit_breaker=breaker)
    with pytest.raises(ProviderConnectionError):
        feed.read(colour)
    assert told(feed.provider) == [(1, "failed", "connection_error")]
    assert breaker.state is CircuitState.OPEN
    with pytest.raises(ProviderCircuitOpenError):
        feed.read(colour)
    assert feed.closed == 1


@both
def test_a_stream_without_items_is_a_success(colour: str, clock: VirtualClock) -> None:
    """It came to its end."""
    feed = Feed(clock, [])
    assert feed.read(colour) == []
    assert told(feed.provider) == [(1, "success", None)]


@both
def test_attempts_are_spent_before_the_first_item(colour: str, clock: VirtualClock) -> None:
    """As with any call."""
    feed = Feed(clock, [BROKEN], [BROKEN], attempts=2)
    with pytest.raises(ProviderConnectionError):
        feed.read(colour)
    assert [row[:2] for row in told(feed.provider)] == [(1, "retry"), (2, "failed")]


@both
def test_a_reader_who_leaves_closes_the_stream(
    colour: str, clock: VirtualClock, store: ProviderStore
) -> None:
    """That is no failure of the provider; its record says that nobody read on."""
    breaker = CircuitBreaker(failure_threshold=1)
    feed = Feed(clock, [1, 2, 3], quota="5/day", circuit_breaker=breaker, store=store)
    assert feed.read(colour, 2) == [1, 2]
    assert feed.closed == 1
    assert told(feed.provider) == [(1, "success", "abandoned")]
    assert breaker.state is CircuitState.CLOSED
    [health] = feed.provider.health()
    assert health.account is not None
    assert health.account.used == 1


def test_a_stream_that_nobody_keeps_is_closed_too(clock: VirtualClock) -> None:
    """When it is collected."""
    feed = Feed(clock, [1, 2, 3])
    items = feed.plain("eur")
    assert (next(items), feed.closed) == (1, 0)
    del items
    gc.collect()
    assert (feed.closed, told(feed.provider)) == (1, [(1, "success", "abandoned")])


def test_nothing_happens_before_the_first_item_is_asked_for(clock: VirtualClock) -> None:
    """A stream that nobody reads costs nothing."""
    feed = Feed(clock, [1], quota="1/day")
    feed.plain("eur").close()
    assert (feed.closed, feed.read_plain(None)) == (0, [1])
    with pytest.raises(ProviderQuotaExceededError):
        feed.read_plain(None)


@both
@pytest.mark.parametrize("bound", [{"timeout": 3}, {"budget": 3}])
def test_the_whole_stream_is_bounded(
    colour: str, bound: dict[str, float], clock: VirtualClock
) -> None:
    """By the timeout of an attempt, and by the budget."""
    feed = Feed(clock, [1, 2.0, 2, 2.0, 3, 2.0, 4], [9], **bound)
    began_at = clock.now()
    with pytest.raises(ProviderTimeoutError, match=r"after 3 seconds, and [23] items"):
        feed.read(colour)
    assert clock.now() - began_at <= 4
    assert [row[:2] for row in told(feed.provider)] == [(1, "failed")]


def test_an_async_stream_that_hangs_before_its_first_item_is_tried_again(
    clock: VirtualClock,
) -> None:
    """It is cut off, as any attempt."""
    feed = Feed(clock, [100.0, 1], [2], timeout=1)
    assert feed.read_async(None) == [2]
    assert [row[2] for row in told(feed.provider)] == ["timeout", None]


def test_each_attempt_is_told_its_time(clock: VirtualClock) -> None:
    """The parameter is the same as for calls."""
    feed = Feed(clock, [20.0, BROKEN], [1], timeout=40, budget=55, backoff=0)
    assert feed.read_plain(None) == [1]
    assert feed.times == [40, 35]


def test_a_cancelled_reader_leaves_a_record(clock: VirtualClock) -> None:
    """Of the items that came; a stream without any leaves nothing."""
    for first, expected in (([1], [(1, "success", "abandoned")]), ([], [])):
        feed = Feed(clock, [*first, 100.0, 2])

        async def read(feed: Feed = feed) -> None:
            async with asyncio.timeout(5):
                async for _ in feed.coloured("eur"):
                    pass

        with pytest.raises(TimeoutError):
            clock.run(read())
        assert (feed.closed, told(feed.provider)) == (1, expected)


@both
def test_middleware_surrounds_a_stream_until_its_first_item(
    colour: str, clock: VirtualClock
) -> None:
    """At each attempt."""
    stack = MiddlewareStack()
    seen: list[str] = []

    @stack.add
    def watched(unit: Any) -> Iterator[None]:
        seen.append(f"{unit.name} {unit.attempt}")
        try:
            yield
        finally:
            seen.append("left")

    feed = Feed(clock, [BROKEN], [1, 2], middleware=stack)
    assert feed.read(colour) == [1, 2]
    assert seen == [f"feed.{colour} 1", "left", f"feed.{colour} 2", "left"]


def test_a_function_that_returns_is_no_stream() -> None:
    """And the error says which decorator it needs."""
    rates = Provider("rates")

    def quote() -> Iterator[int]:
        return iter([1])

    with pytest.raises(HookError, match=r"returns its result .*@rates.call"):
        rates.stream(quote)


def test_types_of_streams(clock: VirtualClock) -> None:
    """Their items are typed, and so are their arguments."""
    rates = Provider("rates")

    @rates.stream
    def ticks(*, timeout: float) -> Iterator[int]:
        yield 1

    @rates.stream
    async def news(topic: str) -> AsyncIterator[str]:
        yield topic

    assert [assert_type(each, int) for each in ticks()] == [1]
    assert [assert_type(each, int) for each in ticks.tenant("acme")()] == [1]

    async def read() -> list[str]:
        return [assert_type(each, str) async for each in news("fx")]

    assert clock.run(read()) == ["fx"]


# ---- who looks on --------------------------------------------------------------------------------


@pytest.fixture
def seen() -> Iterator[list[tuple[int, str]]]:
    """The attempts that an observer of this process was around, and how each ended."""
    kept: list[tuple[int, str]] = []

    @contextmanager
    def watch(unit: UnitOfWork) -> Iterator[None]:
        ending = "ok"
        try:
            yield
        except BaseException as error:
            ending = type(error).__name__
            raise
        finally:
            kept.append((unit.attempt, ending))

    OBSERVERS.append(watch)
    yield kept
    OBSERVERS.remove(watch)


@both
@pytest.mark.parametrize(
    ("attempts", "count", "expected"),
    [
        ([[BROKEN], [1, 2]], None, [(1, "ConnectionResetError"), (2, "ok")]),
        ([[1, BROKEN]], None, [(1, "ConnectionResetError")]),
        ([[1, 2, 3]], 2, [(1, "ok")]),
        ([[]], None, [(1, "ok")]),
        ([[1, 5.0, 2]], None, [(1, "ProviderTimeoutError")]),
    ],
    ids=["retried", "broken", "left", "empty", "too long"],
)
def test_observers_are_around_the_attempts_of_a_stream(
    colour: str,
    attempts: list[Steps],
    count: int | None,
    expected: list[tuple[int, str]],
    clock: VirtualClock,
    seen: list[tuple[int, str]],
) -> None:
    """Each attempt has one end, which is that of its record."""
    feed = Feed(clock, *attempts, timeout=4)
    with suppress(ProviderConnectionError, ProviderTimeoutError):
        feed.read(colour, count)
    assert seen == expected
    outcomes = [row[1] for row in told(feed.provider)]
    assert ["ok" if each == "success" else "bad" for each in outcomes] == [
        "ok" if each == "ok" else "bad" for _, each in expected
    ]


def test_a_reader_that_fails_or_forgets_ends_the_attempt_once(
    clock: VirtualClock, seen: list[tuple[int, str]]
) -> None:
    """The error of a reader is none of the provider; a stream that nobody keeps is over too."""
    feed = Feed(clock, [1, 2], [1, 2], [1, 2])
    with suppress(LookupError):
        for _ in feed.plain("eur"):
            raise LookupError
    gc.collect()
    assert seen == [(1, "ok")]

    async def forget() -> None:
        with suppress(LookupError):
            async for _ in feed.coloured("eur"):
                raise LookupError
        items = feed.coloured("eur")
        await anext(items)
        del items
        gc.collect()
        await asyncio.sleep(1)

    clock.run(forget())
    assert seen == [(1, "ok")] * 3
    assert told(feed.provider) == [(1, "success", "abandoned")] * 3


@pytest.mark.parametrize(("first", "expected"), [([1], "ok"), ([], "CancelledError")])
def test_a_cancelled_reader_ends_the_attempt_once(
    first: Steps, expected: str, clock: VirtualClock, seen: list[tuple[int, str]]
) -> None:
    """Also one that is cancelled again while the provider closes its connection."""
    feed = Feed(clock, [*first, 100.0, 2])
    feed.closing = 50.0

    async def read() -> None:
        async for _ in feed.coloured("eur"):
            pass

    async def cancel_twice() -> None:
        reader = asyncio.create_task(read())
        for _ in range(2):
            await asyncio.sleep(5)
            reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader

    clock.run(cancel_twice())
    assert seen == [(1, expected)]
    assert told(feed.provider) == ([(1, "success", "abandoned")] if first else [])


@both
def test_only_the_code_of_the_provider_is_part_of_the_call(
    colour: str, clock: VirtualClock, seen: list[tuple[int, str]]
) -> None:
    """Between two items the code of the reader runs, which belongs to whom it did before."""
    feed = Feed(clock, [about_call, about_call])
    if colour == "plain":
        read: list[Any] = [(item, about_call()) for item in feed.plain("eur")]
    else:

        async def aread() -> list[Any]:
            return [(item, about_call()) async for item in feed.coloured("eur")]

        read = clock.run(aread())
    assert read == [(f"feed/feed/{colour}", None)] * 2
    assert seen == [(1, "ok")]


def about_call() -> str | None:
    """The call that a log line would name here."""
    return add_unit(None, "", {}).get("call_name")


def test_the_time_of_a_stream_begins_with_its_first_item(clock: VirtualClock) -> None:
    """One that is made ahead loses none."""
    feed = Feed(clock, [1, 2], budget=3)
    items = feed.plain("eur")
    clock.sleep(5)
    assert list(items) == [1, 2]
