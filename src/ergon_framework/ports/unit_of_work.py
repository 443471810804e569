"""The unit of work that code runs in: a transaction, a job in an executor, or a provider call.

It is a module apart from ``context``, so that an executor starts without importing transactions.

Attempts of jobs and of provider calls can be observed: ``OBSERVERS`` are context managers around
each of them. Attempts of transactions are reported to sinks, which are given the context instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Protocol

_NO_TRACE: Mapping[str, str] = MappingProxyType({})


class UnitOfWork(NamedTuple):
    """What is known about the unit of work that is running."""

    kind: str
    """``job``, ``transaction`` or ``call``."""
    id: str
    name: str
    """The handler of a job, the task of a transaction, ``provider/capability/operation``."""
    attempt: int = 1
    """Counted from 1."""
    deadline: float | None = None
    """When it is cut off, as an instant of ``time.monotonic``."""
    correlation_id: str | None = None
    trace: Mapping[str, str] = _NO_TRACE
    """What a propagator injected: ``traceparent`` and ``tracestate``."""
    is_retried: bool = True
    """Whether the unit is retried as a whole when it fails: then no call inside of it retries."""


class Describable(Protocol):
    """A run that can describe its unit of work."""

    def unit_of_work(self) -> UnitOfWork:
        """The unit of work that this run belongs to."""


RUNNING: ContextVar[Describable | None] = ContextVar("ergon_running", default=None)
"""What an executor runs; read only when ``current_unit`` is called."""

CALLING: ContextVar[UnitOfWork | None] = ContextVar("ergon_calling", default=None)
"""The provider call whose attempt runs here. Set only while there are observers: setting it for
each call would cost too much.
"""


class AttemptObserver(Protocol):
    """A function that gives a context manager around each attempt of a job or a provider call."""

    def __call__(self, unit: UnitOfWork, /) -> AbstractContextManager[object]:
        """What is entered before an attempt and left after it, with what the attempt raised."""


OBSERVERS: list[AttemptObserver] = []
"""Asked at each attempt. An empty list costs a look."""


def observed(
    function: Callable[..., Any],
    unit_of: Callable[[Mapping[str, Any]], UnitOfWork],
    *,
    is_async: bool,
) -> Callable[..., Any]:
    """The function with the observers around it; ``unit_of`` is given its keyword arguments."""
    if is_async:

        @functools.wraps(function)
        async def around(*args: Any, **kwargs: Any) -> Any:
            with ObservedAttempt(unit_of(kwargs)):
                return await function(*args, **kwargs)

    else:

        @functools.wraps(function)
        def around(*args: Any, **kwargs: Any) -> Any:
            with ObservedAttempt(unit_of(kwargs)):
                return function(*args, **kwargs)

    return around


class ObservedAttempt:
    """The observers around one attempt. What an observer raises never reaches the attempt.

    An observer that is entered in a context has to be left in the same context.
    """

    def __init__(self, unit: UnitOfWork) -> None:
        self._unit = unit
        self._entered: list[AbstractContextManager[object]] = []
        self._token: Token[UnitOfWork | None] | None = None

    def __enter__(self) -> None:
        if self._unit.kind == "call":
            self._token = CALLING.set(self._unit)
        for observer in tuple(OBSERVERS):
            try:
                manager = observer(self._unit)
                manager.__enter__()
                self._entered.append(manager)
            except Exception as error:
                _log_once(observer, error)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for manager in reversed(self._entered):
            try:
                manager.__exit__(kind, error, trace)
            except Exception as failure:
                _log_once(manager, failure)
        if self._token is not None:
            CALLING.reset(self._token)


_logged: set[str] = set()


def _log_once(observer: object, error: Exception) -> None:
    import logging  # not at the start of an executor

    name = getattr(observer, "__qualname__", type(observer).__qualname__)
    if name not in _logged:
        _logged.add(name)
        logging.getLogger("ergon_framework.telemetry").error(
            "%s failed to observe an attempt; said once", name, exc_info=error
        )
