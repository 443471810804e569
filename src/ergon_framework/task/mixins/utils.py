"""The helpers RFC-004 and RFC-005 name: a bounded call and a call inside a captured context.

The engines bound attempts with one watchdog and a ticket per attempt instead of a pool per call;
these functions have the same contract for code of your own.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from typing import Any, ParamSpec, TypeVar, overload

from opentelemetry import context as otel_context

from ergon_framework.core.option_values import is_number
from ergon_framework.core.retry import MAX_DELAY
from ergon_framework.engine.clocks import current_clock
from ergon_framework.engine.time_limit import ended_within
from ergon_framework.engine.trampoline import await_inside

P = ParamSpec("P")
T = TypeVar("T")

CANCEL_GRACE = 1.0
"""Seconds a cancelled coroutine gets before it is abandoned."""


def run_with_timeout(
    fn: Callable[..., T], timeout: float | None = None, *args: Any, **kwargs: Any
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
    timeout: float | None = None,  # noqa: ASYNC109 - the RFCs name this helper and its bound
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
    if await ended_within(task, timeout, CANCEL_GRACE):
        return task.result()
    raise TimeoutError(f"{_name(fn)} did not return within {timeout} s")


@overload
def with_context(fn: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def with_context(context: Mapping[str, Any] | Context, fn: Callable[P, T], /) -> Callable[P, T]: ...
def with_context(*given: Any) -> Any:
    """``fn`` bound to the context of this moment, or to a given one, for use in another thread.

    ``with_context(fn)`` or ``with_context(context, fn)``, where the context is OpenTelemetry's or
    Python's own.
    """
    context, fn = _bound_to(given)

    @functools.wraps(fn)
    def bound(*args: Any, **kwargs: Any) -> Any:
        # A copy for each call: a context can be entered once at a time, and threads may call this
        # at once.
        return context.copy().run(fn, *args, **kwargs)

    return bound


@overload
def with_context_async(fn: Callable[P, Awaitable[T]], /) -> Callable[P, Awaitable[T]]: ...
@overload
def with_context_async(
    context: Mapping[str, Any] | Context, fn: Callable[P, Awaitable[T]], /
) -> Callable[P, Awaitable[T]]: ...
def with_context_async(*given: Any) -> Any:
    """A coroutine function bound to the context of this moment, or to a given one.

    ``with_context_async(fn)`` or ``with_context_async(context, fn)``.
    """
    context, fn = _bound_to(given)

    @functools.wraps(fn)
    async def bound(*args: Any, **kwargs: Any) -> Any:
        inside = context.copy()
        return await await_inside(inside, inside.run(fn, *args, **kwargs))

    return bound


def _bound_to(given: tuple[Any, ...]) -> tuple[Context, Callable[..., Any]]:
    *contexts, fn = given or (None,)
    if not callable(fn) or len(contexts) > 1:
        raise TypeError("with_context takes a function, or a context and a function")
    if not contexts:
        return contextvars.copy_context(), fn
    if isinstance(contexts[0], Context):
        return contexts[0], fn
    context = contextvars.copy_context()
    context.run(otel_context.attach, contexts[0])
    return context, fn


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _check(timeout: object) -> None:
    if timeout is None:
        return
    if not is_number(timeout) or not 0 < timeout <= MAX_DELAY:  # type: ignore[operator]
        raise ValueError(f"timeout must be a positive number of seconds or None, not {timeout!r}")


def _name(fn: object) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)
