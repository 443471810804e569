"""The time limit of an attempt on an event loop: a timer only where something can be cut off."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ergon_framework.providers.errors import ProviderTimeoutError
from ergon_framework.providers.pipeline.drivers import within


def timers_of(attempt: Any, limit: float | None) -> tuple[Any, int]:
    """What ``within`` answered, and how many timers it set."""

    async def main() -> tuple[Any, int]:
        loop, count = asyncio.get_running_loop(), 0
        set_timer = loop.call_at

        def counted(*args: Any, **kwargs: Any) -> asyncio.TimerHandle:
            nonlocal count
            count += 1
            return set_timer(*args, **kwargs)

        loop.call_at = counted  # type: ignore[method-assign, assignment]
        return await within(attempt(), limit), count

    return asyncio.run(main())


async def at_once() -> str:
    """Answers without waiting."""
    return "answer"


async def after_others() -> str:
    """Lets the others run twice."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return "answer"


@pytest.mark.req("PROVIDERS:pipeline")
def test_an_attempt_that_never_waits_needs_no_timer() -> None:
    """An answer from memory is given without a timer; one that is waited for has one."""
    assert timers_of(at_once, 60.0) == ("answer", 0)
    assert timers_of(after_others, 60.0) == ("answer", 1)
    assert timers_of(after_others, None) == ("answer", 0)


@pytest.mark.req("PROVIDERS:pipeline")
def test_an_attempt_that_waits_too_long_is_cut_off() -> None:
    """Its time runs from its first step: one that took all of it is cut off where it waits."""
    seen: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ahead, now = 0.0, loop.time
        loop.time = lambda: now() + ahead  # type: ignore[method-assign]

        async def slow() -> None:
            nonlocal ahead
            ahead = 100.0
            try:
                await loop.create_future()
            finally:
                seen.append("ended")

        with pytest.raises(ProviderTimeoutError, match="no answer within 60 seconds"):
            await within(slow(), 60.0)

    asyncio.run(main())
    assert seen == ["ended"]


@pytest.mark.req("PROVIDERS:pipeline")
def test_what_is_awaited_reaches_the_attempt() -> None:
    """Results, errors and a cancellation from outside, as if there were no limit."""
    seen: list[object] = []

    async def attempt(*awaited: asyncio.Future[str]) -> str:
        for each in awaited:
            try:
                seen.append(await each)
            except (ValueError, asyncio.CancelledError) as error:
                seen.append(type(error))
                if isinstance(error, asyncio.CancelledError):
                    raise
        return "done"

    async def main() -> None:
        loop = asyncio.get_running_loop()
        good, bad, never = loop.create_future(), loop.create_future(), loop.create_future()
        task = asyncio.ensure_future(within(attempt(good, bad, never), 60.0))
        await asyncio.sleep(0)
        good.set_result("one")
        bad.set_exception(ValueError("two"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["one", ValueError, asyncio.CancelledError]


@pytest.mark.req("PROVIDERS:pipeline")
def test_an_attempt_is_closed_with_its_call() -> None:
    """A coroutine that nobody awaits any more ends where it waits."""
    seen: list[str] = []

    async def attempt() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            seen.append("closed")

    async def main() -> None:
        call = within(attempt(), 60.0)
        call.send(None)
        call.close()

    asyncio.run(main())
    assert seen == ["closed"]


@pytest.mark.req("PROVIDERS:pipeline")
def test_whatever_can_be_awaited_has_a_limit() -> None:
    """A future that a client gives is cut off like a coroutine."""

    async def main() -> None:
        with pytest.raises(ProviderTimeoutError, match="no answer within"):
            await within(asyncio.get_running_loop().create_future(), 0.001)

    asyncio.run(main())
