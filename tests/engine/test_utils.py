"""The helpers the RFCs name: bounded calls and calls inside a captured context."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from typing import Any

import pytest

from ergon_framework.task.mixins.utils import (
    run_with_timeout,
    run_with_timeout_async,
    with_context,
    with_context_async,
)
from ergon_framework.testing.clock import VirtualClock

NOTE: contextvars.ContextVar[str] = contextvars.ContextVar("a_note", default="none")


@pytest.mark.req("RFC-004:9e", "RFC-005:11d")
def test_a_bounded_call_returns_its_value(virtual_clock: VirtualClock) -> None:
    """Arguments and keywords go through."""
    assert run_with_timeout(lambda a, b=0: a + b, 5.0, 1, b=2) == 3
    assert run_with_timeout(lambda: None, 5.0) is None
    assert run_with_timeout(lambda a: a, None, "inline") == "inline"


@pytest.mark.req("RFC-004:9e", "RFC-005:11d", "T3.2")
def test_a_bounded_call_ends_when_its_time_is_over(virtual_clock: VirtualClock) -> None:
    """With TimeoutError, at the instant, while the daemonic thread goes on."""
    daemons: list[bool] = []

    def hang() -> None:
        daemons.append(threading.current_thread().daemon)
        virtual_clock.hang()

    with pytest.raises(TimeoutError, match="hang"):
        run_with_timeout(hang, 5.0)
    assert virtual_clock.now() == 5.0
    assert daemons == [True]


@pytest.mark.req("RFC-004:9e")
def test_a_bounded_call_raises_what_was_raised(virtual_clock: VirtualClock) -> None:
    """The very exception, a user's TimeoutError and KeyboardInterrupt included."""
    for error in (ValueError("x"), TimeoutError("mine"), KeyboardInterrupt(), SystemExit(2)):

        def fail(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            run_with_timeout(fail, 5.0)
        assert caught.value is error


@pytest.mark.req("T3.23")
@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_that_bounds_nothing_is_refused(timeout: float) -> None:
    """Zero is no way to say 'none'."""
    with pytest.raises(ValueError, match="timeout"):
        run_with_timeout(print, timeout)
    with pytest.raises(ValueError, match="timeout"):
        asyncio.run(run_with_timeout_async(_value, timeout))


async def _value(value: Any = 1) -> Any:
    return value


@pytest.mark.req("RFC-004:12j", "RFC-005:14g", "T3.16")
def test_a_bounded_call_sees_the_callers_context_and_keeps_its_own(
    virtual_clock: VirtualClock,
) -> None:
    """What it sets does not come back."""

    def note() -> str:
        seen = NOTE.get()
        NOTE.set("inside")
        return seen

    token = NOTE.set("outside")
    try:
        assert run_with_timeout(note, 5.0) == "outside"
        assert NOTE.get() == "outside"
    finally:
        NOTE.reset(token)


@pytest.mark.req("RFC-004:12j", "RFC-005:14g", "T3.16")
def test_a_bounded_coroutine_sees_the_callers_context_and_keeps_its_own() -> None:
    """Across awaits; what it sets does not come back."""

    async def note() -> str:
        seen = NOTE.get()
        NOTE.set("inside")
        await asyncio.sleep(1)
        return seen

    async def scene() -> tuple[str, str]:
        NOTE.set("outside")
        return await run_with_timeout_async(note, 5.0), NOTE.get()

    assert VirtualClock().run(scene()) == ("outside", "outside")


def test_what_a_coroutine_raises_while_it_is_cancelled_is_not_called_lost() -> None:
    """asyncio complains of exceptions that nobody looked at; here the timeout says it all."""
    complaints: list[dict[str, Any]] = []

    async def stumble() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            raise ValueError("on its way out")

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: complaints.append(context))
        with pytest.raises(TimeoutError):
            await run_with_timeout_async(stumble, 5.0)
        gc.collect()

    VirtualClock().run(scene())
    assert complaints == []


@pytest.mark.req("RFC-004:9e", "RFC-005:11d")
def test_a_bounded_coroutine() -> None:
    """A function with arguments or a ready awaitable; value, error and timeout."""

    async def scene() -> list[Any]:
        loop = asyncio.get_running_loop()
        results: list[Any] = [
            await run_with_timeout_async(_value, 5.0, 7),
            await run_with_timeout_async(_value(8), 5.0),
            await run_with_timeout_async(_value, None, value=9),
        ]
        with pytest.raises(ZeroDivisionError):
            await run_with_timeout_async(_fail, 5.0)
        began = loop.time()
        with pytest.raises(TimeoutError):
            await run_with_timeout_async(asyncio.sleep, 5.0, 100.0)
        results.append(loop.time() - began)
        return results

    assert VirtualClock().run(scene()) == [7, 8, 9, 5.0]


async def _fail() -> None:
    raise ZeroDivisionError


@pytest.mark.req("T3.13", "RFC-004:9e")
def test_a_bounded_coroutine_that_swallows_cancellation_is_abandoned() -> None:
    """A short grace, then TimeoutError; a value returned after the cancellation is dropped."""

    async def stubborn() -> str:
        loop = asyncio.get_running_loop()
        end = loop.time() + 100
        while loop.time() < end:
            try:
                await asyncio.sleep(end - loop.time())
            except asyncio.CancelledError:
                continue
        return "late"

    async def sly() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            return "sly"
        return "never"

    async def scene() -> float:
        with pytest.raises(TimeoutError):
            await run_with_timeout_async(sly, 5.0)
        with pytest.raises(TimeoutError):
            await run_with_timeout_async(stubborn, 5.0)
        return asyncio.get_running_loop().time()

    assert 10.0 <= VirtualClock().run(scene()) <= 12.0


@pytest.mark.req("T3.11", "RFC-004:9e")
def test_cancelling_a_bounded_coroutine_cancels_what_it_runs() -> None:
    """From outside: CancelledError, and the inner one is gone."""
    ended: list[str] = []

    async def inner() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append("inner")

    async def scene() -> None:
        call = asyncio.create_task(run_with_timeout_async(inner, 50.0))
        await asyncio.sleep(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(0)
        assert ended == ["inner"]  # now, and not when the event loop is closed

    VirtualClock().run(scene())


@pytest.mark.req("RFC-004:12h", "RFC-005:14g", "RFC-004:12j", "T3.16")
def test_with_context_carries_the_moment_into_a_thread() -> None:
    """The context of the binding, not of the call; repeated and concurrent calls share nothing."""
    seen: list[str] = []

    def note(name: str) -> None:
        seen.append(NOTE.get())
        NOTE.set(name)

    token = NOTE.set("bound")
    bound = with_context(note)
    NOTE.reset(token)
    for name in ("a", "b"):
        thread = threading.Thread(target=bound, args=(name,))
        thread.start()
        thread.join()
    bound("c")
    assert seen == ["bound"] * 3
    assert NOTE.get() == "none"
    assert bound.__name__ == "note"


@pytest.mark.req("RFC-004:12i", "RFC-005:14g", "T3.16")
def test_with_context_async_carries_the_moment_into_a_task() -> None:
    """Across awaits, for value and exception, without leaking back."""
    seen: list[str] = []

    async def note(name: str) -> str:
        seen.append(NOTE.get())
        NOTE.set(name)
        await asyncio.sleep(1)
        seen.append(NOTE.get())
        if name == "bad":
            raise ValueError(name)
        return name

    async def scene() -> None:
        token = NOTE.set("bound")
        bound = with_context_async(note)
        NOTE.reset(token)
        assert list(await asyncio.gather(bound("a"), bound("b"))) == ["a", "b"]
        with pytest.raises(ValueError, match="bad"):
            await bound("bad")
        assert NOTE.get() == "none"

    VirtualClock().run(scene())
    assert sorted(seen) == sorted(["bound"] * 3 + ["a", "b", "bad"])


@pytest.mark.req("RFC-004:12i", "T3.16")
def test_an_empty_context_is_a_context_too() -> None:
    """Nothing set at the binding means nothing seen at the call."""

    def look() -> str:
        return NOTE.get()

    bound = contextvars.Context().run(with_context, look)
    token = NOTE.set("caller")
    try:
        assert bound() == "none"
    finally:
        NOTE.reset(token)


@pytest.mark.req("RFC-004:12i")
def test_with_context_async_can_be_cancelled() -> None:
    """Cancellation reaches the wrapped coroutine."""
    ended: list[str] = []

    async def inner() -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def scene() -> None:
        task = asyncio.ensure_future(with_context_async(inner)())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    VirtualClock().run(scene())
    assert ended == ["cancelled"]
