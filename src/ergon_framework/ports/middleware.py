"""Middleware: functions of the user around the handling of each unit, in four forms.

::

    def timed(unit, call_next):  # around plain handlers
        began = time.monotonic()
        try:
            return call_next()
        finally:
            observe(unit.name, time.monotonic() - began)


    async def limited(unit, call_next):  # around async handlers
        async with semaphore:
            return await call_next()


    def tagged(unit):  # a generator function: around both
        with logging_context(unit.id):
            yield

An async generator function surrounds async handlers. Middleware runs inside of each attempt: what
it raises fails the attempt, and its time is part of the attempt's. The first one that was added is
the outermost.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from ergon_framework.errors import HookError, WiringError
from ergon_framework.ports.unit_of_work import UnitOfWork

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Around = Callable[[UnitOfWork, Callable[[], Any]], Any]
"""Middleware of either colour, once it has the form of a function that calls the next one."""


class HandlerKind(StrEnum):
    """The kinds of handlers that middleware may surround, by the word in ``UnitOfWork.kind``."""

    CONSUMER = "transaction"
    JOB = "job"
    PROVIDER = "provider"


_NAMES = {
    "consumer": HandlerKind.CONSUMER,
    "job": HandlerKind.JOB,
    "provider": HandlerKind.PROVIDER,
}


@dataclass(frozen=True, slots=True)
class Middleware:
    """A middleware function, with the handlers that it surrounds."""

    name: str
    kinds: frozenset[HandlerKind]
    sync: Around | None
    """The middleware for plain handlers; None if it cannot surround them."""
    asynchronous: Around | None
    only: str | None = None
    """``sync`` or ``async`` where it was restricted to handlers of that colour."""

    def around(self, kind: HandlerKind, handler: str, *, is_async: bool) -> Around | None:
        """The middleware for a handler; None if it was not meant for it."""
        if kind not in self.kinds or self.only not in (None, "async" if is_async else "sync"):
            return None
        found = self.asynchronous if is_async else self.sync
        if found is None:
            own, other = ("plain", "async") if is_async else ("async", "plain")
            raise HookError(
                f"the middleware {self.name!r} is {own} and cannot surround the {other} handler"
                f" {handler!r}",
                remedy="write it as a generator function, which surrounds both, or restrict it"
                f' with only="{"sync" if is_async else "async"}"',
            )
        return found


class MiddlewareStack:
    """The middleware of an application, in the order in which it was added."""

    def __init__(self) -> None:
        self._all: list[Middleware] = []

    def add(self, function: F, kinds: Iterable[str] = (), only: str | None = None) -> F:
        """Surround handlers with a function; ``kinds`` are consumer, job, provider, or all."""
        self._all.append(_read(function, tuple(kinds), only))
        return function

    def around(self, kind: HandlerKind, handler: str, *, is_async: bool) -> tuple[Around, ...]:
        """What surrounds a handler, the innermost first; refused where the colours do not fit."""
        found = (each.around(kind, handler, is_async=is_async) for each in reversed(self._all))
        return tuple(each for each in found if each is not None)


def call_through(layers: tuple[Around, ...], unit: UnitOfWork, function: Callable[[], T]) -> T:
    """Call a function inside of its middleware."""
    call: Callable[[], Any] = function
    for layer in layers:
        call = _step(layer, unit, call)
    result: T = call()
    return result


async def await_through(
    layers: tuple[Around, ...], unit: UnitOfWork, function: Callable[[], Awaitable[T]]
) -> T:
    """Await a function inside of its middleware."""
    result: T = await call_through(layers, unit, function)
    return result


def _step(layer: Around, unit: UnitOfWork, following: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: layer(unit, following)


def _read(function: Callable[..., Any], kinds: tuple[str, ...], only: str | None) -> Middleware:
    name = getattr(function, "__name__", type(function).__name__)
    if not callable(function):
        raise HookError(f"{function!r} is no middleware", remedy="give a function")
    unknown = [each for each in kinds if each not in _NAMES]
    if unknown:
        raise WiringError(
            f"the middleware {name!r} cannot surround {unknown[0]!r}",
            remedy=f"the kinds are {', '.join(_NAMES)}",
        )
    if only not in (None, "sync", "async"):
        raise WiringError(
            f"the middleware {name!r} is restricted to {only!r}", remedy="write sync or async"
        )
    chosen = frozenset(_NAMES[each] for each in kinds) or frozenset(HandlerKind)
    if inspect.isgeneratorfunction(function):
        _check_parameters(name, function, 1)
        manager = contextmanager(function)
        return Middleware(name, chosen, _with(manager), _with_in_async(manager), only)
    if inspect.isasyncgenfunction(function):
        _check_parameters(name, function, 1)
        return Middleware(name, chosen, None, _async_with(asynccontextmanager(function)), only)
    _check_parameters(name, function, 2)
    call = function if inspect.isfunction(function) else getattr(function, "__call__", function)  # noqa: B004 - its colour is asked, not whether it can be called
    if inspect.iscoroutinefunction(call):
        return Middleware(name, chosen, None, function, only)
    return Middleware(name, chosen, function, None, only)


def _with(manager: Callable[[UnitOfWork], Any]) -> Around:
    def around(unit: UnitOfWork, call_next: Callable[[], Any]) -> Any:
        with manager(unit):
            return call_next()

    return around


def _with_in_async(manager: Callable[[UnitOfWork], Any]) -> Around:
    async def around(unit: UnitOfWork, call_next: Callable[[], Any]) -> Any:
        with manager(unit):
            return await call_next()

    return around


def _async_with(manager: Callable[[UnitOfWork], Any]) -> Around:
    async def around(unit: UnitOfWork, call_next: Callable[[], Any]) -> Any:
        async with manager(unit):
            return await call_next()

    return around


def _check_parameters(name: str, function: Callable[..., Any], count: int) -> None:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError as error:
        wanted = "(unit, call_next)" if count == 2 else "(unit), and yields once"
        raise HookError(
            f"the middleware {name!r} does not take {count} argument{'s'[: count - 1]}",
            remedy=f"write it as def {name}{wanted}",
        ) from error
    except ValueError:  # a builtin without a readable signature: the call will show
        pass
