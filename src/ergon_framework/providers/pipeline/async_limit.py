"""The time limit of an attempt on an event loop, whose timer is set only if the attempt waits.

A timer costs as much as a whole call around it. An attempt that answers from memory, or fails
before it sends anything, never waits and needs none: nothing could have cut it off either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

from ergon_framework.providers.errors import ProviderTimeoutError

T = TypeVar("T")


async def within(attempt: Awaitable[T], limit: float | None) -> T:
    """The answer of an attempt, which is cut off after so many seconds; None: never."""
    if limit is None:
        return await attempt
    if not asyncio.iscoroutine(attempt):  # something else that can be awaited
        attempt = _awaited(attempt)
    began_at = asyncio.get_running_loop().time()
    try:
        awaited = attempt.send(None)
    except StopIteration as ended:
        answer: T = ended.value
        return answer
    bound = asyncio.timeout_at(began_at + limit)
    try:
        async with bound:
            return await _rest(attempt, awaited)
    # Any error: a client may turn the cancellation into an error of its own. The timeout is why.
    except Exception as error:
        if not bound.expired():
            raise
        raise ProviderTimeoutError(f"no answer within {limit:.3g} seconds") from error


async def _awaited(attempt: Awaitable[T]) -> T:
    return await attempt


@coroutine
def _rest(attempt: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Go on with a coroutine that waits for something, as ``await`` would have from its start."""
    while True:
        raised = sent = None
        try:
            sent = yield awaited
        except GeneratorExit:
            attempt.close()
            raise
        except BaseException as error:
            raised = error
        try:
            awaited = attempt.send(sent) if raised is None else attempt.throw(raised)
        except StopIteration as ended:
            answer: T = ended.value
            return answer
