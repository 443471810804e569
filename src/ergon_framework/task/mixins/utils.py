"""The helpers RFC-004 and RFC-005 name: a bounded call and a call inside a captured context.

The engines bound attempts with one watchdog and a ticket per attempt instead of a pool per call;
these functions have the same contract for code of your own.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from ergon_framework.engine.clocks import current_clock
from ergon_framework.engine.task_source import keep
from ergon_framework.engine.trampoline import await_inside

P = ParamSpec("P")
T = TypeVar("T")

CANCEL_GRACE = 1.0
"""Seconds a cancelled coroutine gets before it is abandoned."""


def run_with_timeout(
    fn: Callable[..., T], timeout: float | None, /, *args: Any, **kwargs: Any
) -> T:
    """Call ``fn`` and wait at most ``timeout`` seconds; None waits for ever.

    Raises TimeoutError when the time is over. The call then goes on in a daemonic thread, since a
    thread cannot be stopped, and its result is dropped. It runs in a copy of the caller's context.
    """
    _check(timeout)
    if timeout is None:
        return fn(*args, **kwargs)
    clock = current_clock()
    lock = threading.Lock()
    done = clock.signal(lock)
    outcome: list[tuple[bool, Any]] = []
    context = contextvars.copy_context()

    def body() -> None:
        try:
            result: tuple[bool, Any] = (True, context.run(fn, *args, **kwargs))
        except BaseException as error:  # carried over to the waiting thread
            result = (False, error)
        with lock:
            outcome.append(result)
            done.notify_all()

    clock.join_time()
    try:
        until = clock.now() + timeout
        with lock:
            clock.spawn("ergon-bounded", body)
            while not outcome and clock.now() < until:
                done.wait(until)
    finally:
        clock.leave_time()
    if not outcome:
        raise TimeoutError(f"{_name(fn)} did not return within {timeout} s")
    is_ok, value = outcome[0]
    if not is_ok:
        raise value
    return value  # type: ignore[no-any-return]


async def run_with_timeout_async(
    fn: Callable[..., Awaitable[T]] | Awaitable[T],
    timeout: float | None,  # noqa: ASYNC109 - the RFCs name this helper and what it bounds
    /,
    *args: Any,
    **kwargs: Any,
) -> T:
    """Await ``fn(*args, **kwargs)``, or an awaitable, for at most ``timeout`` seconds.

    Raises TimeoutError when the time is over. The call is cancelled; one that swallows the
    cancellation for longer than a short grace is abandoned and its result dropped.
    """
    _check(timeout)
    awaitable = fn(*args, **kwargs) if callable(fn) else fn
    if timeout is None:
        return await awaitable
    task = asyncio.ensure_future(_await(awaitable))
    try:
        await asyncio.wait({task}, timeout=timeout)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.wait({task}, timeout=CANCEL_GRACE)
    if not task.done():
        keep(task)
    raise TimeoutError(f"{_name(fn)} did not return within {timeout} s")


def with_context(fn: Callable[P, T]) -> Callable[P, T]:
    """``fn`` bound to the context of this moment, for use in another thread."""
    context = contextvars.copy_context()

    @functools.wraps(fn)
    def bound(*args: P.args, **kwargs: P.kwargs) -> T:
        return context.copy().run(fn, *args, **kwargs)

    return bound


def with_context_async(fn: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """A coroutine function bound to the context of this moment, for use in another task."""
    context = contextvars.copy_context()

    @functools.wraps(fn)
    async def bound(*args: P.args, **kwargs: P.kwargs) -> T:
        inside = context.copy()
        result: T = await await_inside(inside, inside.run(fn, *args, **kwargs))
        return result

    return bound


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _check(timeout: float | None) -> None:
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds or None, not {timeout!r}")


def _name(fn: object) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)
