"""Hands every notice to the listeners that asked for it.

A listener that fails is logged once; neither the work nor the other listeners notice.
``NoticeDispatcher`` is the sink of an engine call. Code without a sink of its own calls ``emit``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context
from typing import Any, Protocol, TypeAlias

from ergon_framework.core.failure import Failure
from ergon_framework.ports.context import Attempt, Call
from ergon_framework.ports.notice import CATALOGUE, LifecycleSink, Notice

logger = logging.getLogger("ergon_framework.telemetry")


Listener: TypeAlias = Callable[[Notice], None]
Enterer: TypeAlias = Callable[[Attempt, Context], None]
"""The method ``enter`` of a listener, which prepares the context that user code runs in."""

_lock = threading.Lock()
_listeners: tuple[Listener, ...] = ()
_enterers: tuple[Enterer, ...] = ()


class NoticeHandler(Protocol):
    """A reader of notices that names the ones it wants."""

    handlers: Mapping[str, Listener]


class SpanHandler(NoticeHandler, LifecycleSink, Protocol):
    """A listener that prepares the context that user code runs in, and receives lifecycle events
    directly.

    It handles its own failures.
    """


class NoticeDispatcher:
    """The sink given to an engine: parts by name of the notice, then listeners to all of them."""

    def __init__(
        self,
        entering: SpanHandler | None,
        parts: Iterable[NoticeHandler],
        listeners: Iterable[Listener],
    ) -> None:
        self._entering = entering
        self._listeners = tuple(listeners)
        self._enterers = _entering(self._listeners)
        others = tuple(parts)
        all_parts = (*(() if entering is None else (entering,)), *others)
        self._handlers = _by_name(all_parts)
        self._others = _by_name(all_parts[len(all_parts) - len(others) :])
        self._has_others = bool(others) or bool(self._listeners)

    def emit(self, notice: Notice) -> None:
        """Hand it on."""
        self._hand_on(notice, self._handlers)

    def _hand_on(self, notice: Notice, handlers: Mapping[str, tuple[Listener, ...]]) -> None:
        for handler in handlers.get(notice.name, ()):
            try:
                handler(notice)
            except Exception as error:
                log_once(handler, error)
        for listener in (*self._listeners, *_listeners):
            try:
                listener(notice)
            except Exception as error:
                log_once(listener, error)

    def enter(self, attempt: Attempt, context: Context) -> None:
        """Make the attempt's span current, and let listeners prepare."""
        if self._entering is not None:
            self._entering.enter(attempt, context)
        if self._enterers or _enterers:
            for enter in (*self._enterers, *_enterers):
                try:
                    enter(attempt, context)
                except Exception as error:
                    log_once(enter, error)

    # The notices of each lifecycle come here without a Notice around them: in most calls only the
    # spans read them, and building a Notice would cost as much as the spans.

    def began(self, call: Call, run: Any) -> None:
        """A lifecycle started."""
        if self._entering is not None:
            self._entering.began(call, run)
        if self._has_others or _listeners:
            fields = {"call": call, "run": run}
            self._hand_on(Notice("transaction.began", run.began_at, fields), self._others)

    def left(
        self,
        attempt: Attempt,
        at: float,
        failure: Failure | None,
        exception: BaseException | None,
        result: Any,
    ) -> None:
        """A hook returned, raised or ran out of time."""
        if self._entering is not None:
            self._entering.left(attempt, at, failure, exception, result)
        if self._has_others or _listeners:
            fields = {
                "call": attempt.call,
                "attempt": attempt,
                "failure": failure,
                "exception": exception,
                "result": result,
            }
            self._hand_on(Notice("attempt.ended", at, fields), self._others)

    def ended(
        self,
        call: Call,
        run: Any,
        at: float,
        ending: str,
        failure: Failure | None,
        handler_failure: Failure | None,
    ) -> None:
        """A lifecycle reached its one outcome."""
        if self._entering is not None:
            self._entering.ended(call, run, at, ending, failure, handler_failure)
        if self._has_others or _listeners:
            fields = {
                "call": call,
                "run": run,
                "ending": ending,
                "failure": failure,
                "handler_failure": handler_failure,
            }
            self._hand_on(Notice("transaction.ended", at, fields), self._others)


def _by_name(parts: Iterable[NoticeHandler]) -> dict[str, tuple[Listener, ...]]:
    known = tuple(parts)
    return {
        name: tuple(part.handlers[name] for part in known if name in part.handlers)
        for name in CATALOGUE
    }


class FailureLog:
    """Logs the first failure of each listener; a listener that goes on failing is not repeated."""

    def __init__(self) -> None:
        self._failed: set[str] = set()

    @property
    def failed(self) -> frozenset[str]:
        """The names of the listeners that have failed in this process."""
        return frozenset(self._failed)

    def __call__(self, listener: Callable[..., None], error: Exception) -> None:
        """Log that a listener failed, unless that was logged before."""
        # Remembered by name: names are part of the program's text, so they cannot grow without end.
        name = getattr(listener, "__qualname__", type(listener).__qualname__)
        if name not in self._failed:
            self._failed.add(name)
            logger.error("%s failed to take a notice; said once", name, exc_info=error)

    def forget(self) -> None:
        """Log the next failure of every listener again."""
        self._failed.clear()


log_once = FailureLog()


def add_listener(listener: Listener) -> None:
    """Call a function with every notice of this process, from the next engine call on.

    It is called from worker threads and event loops and must not block. When it raises, that is
    logged and the work goes on. Its optional attribute ``passes_over`` is a set of notices that it
    ignores, which need not be built for it. Its optional method ``enter`` gets each attempt of a
    transaction and the context that the hook is about to run in.
    """
    global _listeners, _enterers  # noqa: PLW0603 - replaced as a whole: readers need no lock
    with _lock:
        if listener not in _listeners:
            _listeners = (*_listeners, listener)
            _enterers = _entering(_listeners)


def remove_listener(listener: Listener) -> None:
    """Stop calling it, at once. Removing one that was never added is no error."""
    global _listeners, _enterers  # noqa: PLW0603 - see add_listener
    with _lock:
        _listeners = tuple(known for known in _listeners if known != listener)
        _enterers = _entering(_listeners)


def _entering(listeners: Iterable[Listener]) -> tuple[Enterer, ...]:
    found = (getattr(listener, "enter", None) for listener in listeners)
    return tuple(each for each in found if callable(each))


def has_listeners(name: str = "") -> bool:
    """Whether any function listens to the whole process, and to notices of this name if given."""
    if not name:
        return bool(_listeners)
    for listener in _listeners:  # noqa: SIM110 - every enqueue asks; a generator costs more
        if name not in _ignored_by(listener):
            return True
    return False


def _ignored_by(listener: Listener) -> set[str] | frozenset[str]:
    """The notices that a listener declares to ignore; none if its declaration has another form."""
    try:
        names = getattr(listener, "passes_over", None)
    except Exception:  # a failure of its own, which must not reach the work that asks
        return frozenset()
    return names if isinstance(names, set | frozenset) else frozenset()


_SINK = NoticeDispatcher(None, (), ())


def emit(name: str, /, **fields: Any) -> None:
    """Send a notice to the listeners of this process; without any, this costs one check."""
    if has_listeners():
        _SINK.emit(Notice(name, time.time(), fields))
