"""Awaiting user code inside a context of its own, without a task of its own.

A worker task drives many transactions. Awaiting a hook directly would let the context variables it
sets leak into the next one; a task per hook costs ten times as much as the rest of a lifecycle. So
the coroutine is stepped here, each step inside the attempt's private context.
"""

from __future__ import annotations

import contextvars
from collections.abc import Coroutine, Generator
from types import CoroutineType
from typing import Any


class Stepped:
    """An awaitable that runs every step of a suspended coroutine inside ``context``."""

    __slots__ = ("_context", "_coroutine", "_first")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context, first: Any
    ) -> None:
        self._coroutine = coroutine
        self._context = context
        self._first = first  # what the coroutine yielded when it suspended for the first time

    def __await__(self) -> Generator[Any, Any, Any]:
        run, send, throw = self._context.run, self._coroutine.send, self._coroutine.throw
        waiting_for = self._first
        while True:
            error: BaseException | None = None
            value = None
            try:
                value = yield waiting_for
            except BaseException as thrown:  # a cancellation, on its way into the coroutine
                error = thrown
            try:
                waiting_for = run(send, value) if error is None else run(throw, error)
            except StopIteration as stop:
                return stop.value


async def await_inside(context: contextvars.Context, answer: Any) -> Any:
    """The value of what a hook returned: awaited inside ``context`` when it can be awaited."""
    if type(answer) is not CoroutineType:
        answer = wait_for(answer)
    try:
        first = context.run(answer.send, None)
    except StopIteration as stop:
        return stop.value
    return await Stepped(answer, context, first)


async def wait_for(answer: Any) -> Any:
    """A coroutine for what a hook returned, be it a value, a future or another awaitable."""
    return await answer if hasattr(answer, "__await__") else answer
