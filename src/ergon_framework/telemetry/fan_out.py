"""Hands each notice to all who asked for it. Nobody's failure reaches the work or the others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context
from typing import Protocol, TypeAlias

from ergon_framework.ports.context import Attempt
from ergon_framework.ports.notice import CATALOGUE, Notice

logger = logging.getLogger(__name__)

Listener: TypeAlias = Callable[[Notice], None]

_lock = threading.Lock()
_everywhere: tuple[Listener, ...] = ()
_complained: set[str] = set()  # by name: it cannot outgrow the program's text


class Part(Protocol):
    """A reader of notices that names the ones it wants."""

    handlers: Mapping[str, Listener]


class Entering(Part, Protocol):
    """A part that prepares the context user code runs in."""

    def enter(self, attempt: Attempt, context: Context) -> None:
        """User code is about to run in ``context``."""


class FanOut:
    """The sink given to an engine: parts by name of the notice, then listeners to all of them."""

    def __init__(
        self, entering: Entering | None, parts: Iterable[Part], listeners: Iterable[Listener]
    ) -> None:
        self._entering = entering
        self._listeners = tuple(listeners)
        all_parts = [*([] if entering is None else [entering]), *parts]
        self._handlers = {
            name: tuple(part.handlers[name] for part in all_parts if name in part.handlers)
            for name in CATALOGUE
        }

    def emit(self, notice: Notice) -> None:
        """Hand it on."""
        for handler in self._handlers.get(notice.name, ()):
            _tell(handler, notice)
        for listener in self._listeners:
            _tell(listener, notice)
        for listener in _everywhere:
            _tell(listener, notice)

    def enter(self, attempt: Attempt, context: Context) -> None:
        """Let the spans make theirs current."""
        if self._entering is None:
            return
        try:
            self._entering.enter(attempt, context)
        except Exception as error:
            _complain(self._entering.enter, error)


def _tell(listener: Listener, notice: Notice) -> None:
    try:
        listener(notice)
    except Exception as error:
        _complain(listener, error)


def _complain(listener: Callable[..., None], error: Exception) -> None:
    name = getattr(listener, "__qualname__", type(listener).__qualname__)
    if name not in _complained:
        _complained.add(name)
        logger.error("%s failed to take a notice; said once", name, exc_info=error)


def add_listener(listener: Listener) -> None:
    """Let a function hear every notice of this process, from the next engine call on.

    It is called from worker threads and event loops, must not block, and is told about by a log
    record when it fails; the work goes on.
    """
    global _everywhere  # noqa: PLW0603 - replaced as a whole, so that readers need no lock
    with _lock:
        if listener not in _everywhere:
            _everywhere = (*_everywhere, listener)


def remove_listener(listener: Listener) -> None:
    """Stop telling it, at once. Removing one that was never added is no error."""
    global _everywhere  # noqa: PLW0603 - see add_listener
    with _lock:
        _everywhere = tuple(known for known in _everywhere if known != listener)


def has_listeners() -> bool:
    """Whether any function listens to the whole process."""
    return bool(_everywhere)
