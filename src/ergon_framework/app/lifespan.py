"""Builds, opens and closes what a task is given; sync and async.

Parts are opened in order and closed in reverse, also when a later one fails to start. A part may
offer ``open`` and ``close``, or ``aopen`` (or ``init_async``) and ``aclose``; one that cannot be
opened is ready when it is made. What a failing ``close`` raises is logged, and the others are
closed all the same.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from ergon_framework.app.factories import Factory, StartError
from ergon_framework.app.settings.secrets import described
from ergon_framework.app.wiring import Group, Wiring
from ergon_framework.errors import ErgonError, WiringError
from ergon_framework.task.base import BaseTask
from ergon_framework.task.mixins.utils import run_with_timeout_async

logger = logging.getLogger("ergon.app")

CLOSE_TIMEOUT = 10.0
"""Seconds a coroutine that closes a part may take. Synchronous ones are waited for."""
_OPEN, _CLOSE = ("open",), ("close",)
_OPEN_ASYNC, _CLOSE_ASYNC = ("aopen", "init_async", "open"), ("aclose", "close")
_Method = Callable[[], Any]


@contextmanager
def open_task(wiring: Wiring) -> Iterator[BaseTask]:
    """The task with its parts open, for threads."""
    parts = _Parts(_OPEN)
    try:
        parts.make(wiring)
        for label, method in parts.openings():
            _open(label, method, parts)
        yield parts.task(wiring)
    finally:
        for label, method in parts.closings(_CLOSE):
            try:
                method()
            except Exception as error:
                parts.not_closed(label, error)


@asynccontextmanager
async def open_task_async(wiring: Wiring) -> AsyncIterator[BaseTask]:
    """The task with its parts open, for asyncio."""
    parts = _Parts(_OPEN_ASYNC)
    try:
        parts.make(wiring)
        for label, method in parts.openings():
            await _open_async(label, method, parts)
        yield parts.task(wiring)
    finally:
        for label, method in parts.closings(_CLOSE_ASYNC):
            try:
                await run_with_timeout_async(_settled, CLOSE_TIMEOUT, method)
            except Exception as error:
                parts.not_closed(label, error)


class _Parts:
    """What was made so far, and what of it has to be closed."""

    def __init__(self, openers: tuple[str, ...]) -> None:
        self._openers = openers
        self._made: list[tuple[str, Any]] = []
        self._begun: list[tuple[str, Any]] = []
        self._options: dict[str, Mapping[str, Any]] = {}
        self._connectors: Mapping[str, Any] = {}
        self._services: Mapping[str, Any] = {}

    def make(self, wiring: Wiring) -> None:
        """Make every part and look once more whether it fits, before any of them connects."""
        if isinstance(wiring.task, BaseTask):
            self._connectors, self._services = wiring.task.connectors, wiring.task.services
            if not wiring.keeps_connectors:
                self._take_all("connector", self._connectors)
            self._take_all("service", self._services)
            return
        self._connectors = self._group("connector", wiring.connectors, wiring)
        self._services = self._group("service", wiring.services, wiring)
        wiring.check_connectors(self._connectors)

    def openings(self) -> Iterator[tuple[str, _Method]]:
        """The parts that can be opened. Each counts as begun when it is handed out."""
        # All of them before the first is opened: a part that cannot be opened in this colour is
        # told before anything connects.
        methods = [(label, part, _method(label, part, self._openers)) for label, part in self._made]
        for label, part, method in methods:
            if method is not None:
                # Before it is opened: one that fails half-way has to be closed, too.
                self._begun.append((label, part))
                yield label, method

    def closings(self, closers: tuple[str, ...]) -> Iterator[tuple[str, _Method]]:
        """What has to be closed, the last first."""
        for label, part in reversed(self._begun):
            method = offered(part, closers)
            if method is not None:
                yield label, method

    def task(self, wiring: Wiring) -> BaseTask:
        """The task, made only now that its parts are ready."""
        if isinstance(wiring.task, BaseTask):
            return wiring.task
        injected = {"connectors": self._connectors, "services": self._services}
        task = Factory(wiring.task.__name__, wiring.task, injected).make()
        if not isinstance(task, BaseTask):
            raise WiringError(f"{wiring.task.__name__} made a {type(task).__name__}, no task")
        return task

    def not_opened(self, label: str, error: Exception) -> StartError:
        """The error of a part that cannot be opened, without the secrets it was given."""
        return StartError(
            f"{label} could not be opened: {self._description(label, error)}",
            remedy="check that what it connects to is there; --debug shows where it failed",
        )

    def not_closed(self, label: str, error: Exception) -> None:
        """Log that a part could not be closed."""
        logger.error("%s could not be closed: %s", label, self._description(label, error))

    def _description(self, label: str, error: Exception) -> str:
        return described(error, self._options.get(label, {}))

    def _group(self, kind: str, group: Group, wiring: Wiring) -> Mapping[str, Any]:
        if isinstance(group, Mapping):
            made = {}
            for name, maker in group.items():
                # Kept for errors of opening and closing it, whose texts must not show them.
                self._options[f"{kind} {name!r}"] = maker.options
                made[name] = maker.make()
                self._take(f"{kind} {name!r}", made[name])
            return made
        label = f"{wiring.task_name}.build_{kind}s()"
        built = Factory(label, group).make()
        if not isinstance(built, Mapping):
            raise WiringError(
                f"{label} gave {type(built).__name__}, not a mapping", remedy="return {'name': it}"
            )
        self._take_all(kind, built)
        return built

    def _take_all(self, kind: str, group: Mapping[str, Any]) -> None:
        for name, part in group.items():
            self._take(f"{kind} {name!r}", part)

    def _take(self, label: str, part: Any) -> None:
        if any(part is other for _, other in self._made):
            return  # known under two names, but opened and closed once
        self._made.append((label, part))
        if offered(part, self._openers) is None:
            # Ready when it is made, so it has to be closed whatever comes next.
            self._begun.append((label, part))


def offered(part: Any, names: tuple[str, ...]) -> _Method | None:
    """The first of these methods that the part has."""
    methods = (getattr(part, name, None) for name in names)
    return next((method for method in methods if callable(method)), None)


def _method(label: str, part: Any, names: tuple[str, ...]) -> _Method | None:
    method = offered(part, names)
    if names is _OPEN and inspect.iscoroutinefunction(method):
        raise WiringError(
            f"{label} ({type(part).__name__}): open is a coroutine function, but the task is "
            "synchronous",
            remedy="use an async task, or call the coroutine aopen and write a plain open",
        )
    return method


def _open(label: str, method: _Method, parts: _Parts) -> None:
    try:
        method()
    except ErgonError:
        raise
    except Exception as error:
        raise parts.not_opened(label, error) from error


async def _open_async(label: str, method: _Method, parts: _Parts) -> None:
    try:
        await _settled(method)
    except ErgonError:
        raise
    except Exception as error:
        raise parts.not_opened(label, error) from error


async def _settled(method: _Method) -> None:
    result = method()
    if inspect.isawaitable(result):
        await result
