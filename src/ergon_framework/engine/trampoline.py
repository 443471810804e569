"""Awaits user code inside its own :class:`contextvars.Context`, without starting a task for it.

A worker task drives many transactions. Awaiting a hook directly would let the context variables it
sets leak into the next one; a task per hook costs ten times as much as the rest of a lifecycle. So
the coroutine is stepped here, each step inside the attempt's private context.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import types
from collections.abc import Generator
from types import CoroutineType
from typing import Any

DONE, FAILED = object(), object()
"""What a stepper answers when its coroutine has come to an end."""


class Stepper:
    """Runs one coroutine after the other, step by step, and answers instead of raising.

    ``send(coroutine)`` begins one. An answer that is neither DONE nor FAILED is what it waits for;
    go on with ``send(None)`` or ``throw``. Finishing a coroutine by hand costs a StopIteration,
    which is dearer than the rest of a call; ``yield from`` finishes it without one.
    """

    __slots__ = ("send", "throw", "value")

    def __init__(self) -> None:
        self.value: Any = None  # the result, or the exception
        self.renew()

    def renew(self) -> None:
        """Make the generator anew. Only a ``GeneratorExit`` ends a stepper, whatever code raises
        it.
        """
        steps = self._steps()
        steps.send(None)
        self.send = steps.send
        self.throw = steps.throw

    @types.coroutine
    def _steps(self) -> Generator[Any, Any, None]:
        answer: Any = None
        while True:
            coroutine = yield answer
            try:
                self.value = yield from coroutine
                answer = DONE
            except GeneratorExit:
                raise
            except BaseException as error:
                self.value = error
                answer = FAILED
            del coroutine  # an idle worker holds on to nothing


class Stepped:
    """An awaitable that runs every step of a suspended coroutine inside ``context``.

    ``cancels`` counts the cancellations that reached the task between two steps and that the
    coroutine has not undone: the engine's own and those from outside. What the coroutine does to
    its own task while it runs is its own affair.
    """

    __slots__ = ("_context", "_first", "_stepper", "cancels")

    def __init__(self, stepper: Stepper, context: contextvars.Context, first: Any) -> None:
        self._stepper = stepper
        self._context = context
        self._first = first  # what the coroutine yielded when it suspended for the first time
        self.cancels = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        run, stepper = self._context.run, self._stepper
        answer = self._first
        task = asyncio.current_task()
        pending = _cancelling(task)
        groups: list[asyncio.TaskGroup] = []
        while answer is not DONE and answer is not FAILED:
            error: BaseException | None = None
            value = None
            try:
                value = yield answer
            except BaseException as thrown:  # a cancellation, on its way into the coroutine
                error = thrown
                if task is not None and HAS_LOST_CANCELLATION:
                    _clear_group_cancellations(stepper, task, groups)
            arrived = _cancelling(task)
            self.cancels += arrived - pending
            try:
                answer = run(stepper.send, value) if error is None else run(stepper.throw, error)
            except GeneratorExit:
                stepper.renew()
                raise
            pending = _cancelling(task)
            if pending < arrived:  # asyncio.timeout and its like undo what they caused
                self.cancels = max(0, self.cancels - (arrived - pending))
        result, stepper.value = stepper.value, None
        if answer is FAILED:
            try:
                raise result
            finally:
                del result  # its traceback holds on to this frame
        return result


async def await_inside(context: contextvars.Context, answer: Any) -> Any:
    """The value of what a hook returned: awaited inside ``context`` when it can be awaited."""
    return await inside(context, answer)


def inside(context: contextvars.Context, answer: Any) -> Stepped:
    """The step of an awaitable that was begun and not yet awaited."""
    if type(answer) is not CoroutineType:
        answer = wait_for(answer)
    stepper = Stepper()
    return Stepped(stepper, context, context.run(stepper.send, answer))


HAS_LOST_CANCELLATION = sys.version_info < (3, 13)
_TASK_GROUP_EXIT = asyncio.TaskGroup.__aexit__.__code__


def _clear_group_cancellations(
    stepper: Stepper, task: asyncio.Task[Any], forgiven: list[asyncio.TaskGroup]
) -> None:
    """Undo what a TaskGroup of the coroutine did to the task, and forgets to undo before 3.13.

    When one of its tasks fails while it waits for them, a group cancels the task that it is in. It
    takes that back only where it was not waiting yet. Without this, a failure inside of a hook
    would look like a cancellation from outside that is meant to end the whole call.
    """
    awaited: Any = getattr(stepper.send, "__self__", None)
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None)
        if frame is not None and frame.f_code is _TASK_GROUP_EXIT:
            group = frame.f_locals["self"]
            is_its_own = group._parent_cancel_requested and frame.f_locals["et"] is None  # noqa: SLF001
            if is_its_own and group not in forgiven:
                forgiven.append(group)
                task.uncancel()
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)


def _cancelling(task: asyncio.Task[Any] | None) -> int:
    return 0 if task is None else task.cancelling()


async def wait_for(answer: Any) -> Any:
    """A coroutine for what a hook returned, be it a value, a future or another awaitable."""
    return await answer if hasattr(answer, "__await__") else answer
