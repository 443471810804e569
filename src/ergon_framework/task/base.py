"""The base classes of tasks: domain logic with its dependencies injected (RFC-002)."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from ergon_framework.errors import WiringError
from ergon_framework.ports.context import current_attempt


class Stoppable(Protocol):
    """A running call."""

    stops: int  # how often it was asked to stop

    def request_stop(self) -> None:
        """Ask for a graceful stop; a second time, for an immediate one."""


class BaseTask:
    """A task with its connectors and services. One instance may serve many transactions at once.

    ``self.connectors["orders"]`` is also ``self.orders_connector``, and likewise for services.
    """

    # Of the class as well: __getattr__ reads both, and would call itself without end on an instance
    # whose subclass forgot super().__init__().
    connectors: Mapping[str, Any] = MappingProxyType({})
    services: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self,
        connectors: Mapping[str, Any] | None = None,
        services: Mapping[str, Any] | None = None,
    ) -> None:
        self.connectors = _named("connectors", connectors)
        self.services = _named("services", services)

    def __getattr__(self, name: str) -> Any:
        for suffix, group in (("_connector", self.connectors), ("_service", self.services)):
            key = name.removesuffix(suffix)
            if key != name and key in group:
                return group[key]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def request_stop(self) -> None:
        """Ask every running call of this task to stop gracefully; a second time, at once.

        Safe in signal handlers and from any thread. Work in flight is finished within
        ``loop.stop_grace``; calls made from inside a running transaction belong to that work.
        When no call is running, the next one stops before it fetches anything.
        """
        # Without _LOCK: a signal handler that interrupts begin_call in the same thread would wait
        # for it for ever.
        calls = tuple(_calls(self))
        if not calls:
            self.__dict__[_ASKED] = True
            calls = tuple(_calls(self))  # one may have begun meanwhile; only one side takes it
            if not calls or not self.__dict__.pop(_ASKED, False):
                return
        for call in calls:
            call.request_stop()


class BaseAsyncTask(BaseTask):
    """A task whose hooks are coroutines."""


def running_calls(task: BaseTask) -> tuple[Stoppable, ...]:
    """The calls ``request_stop`` would reach now."""
    return tuple(_calls(task))


def begin_call(task: BaseTask, call: Stoppable) -> None:
    """Register a call with its task for ``request_stop``, unless it runs inside a transaction."""
    if current_attempt() is None:
        with _LOCK:
            _calls(task).append(call)
        if task.__dict__.pop(_ASKED, False):
            call.stops += 1  # the call looks at it when it begins


def end_call(task: BaseTask, call: Stoppable) -> None:
    """The call is over."""
    with _LOCK:
        if call in _calls(task):
            _calls(task).remove(call)


def choose_connector(task: BaseTask, name: str | None) -> tuple[str, Any]:
    """The named connector, or the only one of the task."""
    known = ", ".join(sorted(task.connectors)) or "none"
    if name is not None:
        if name in task.connectors:
            return name, task.connectors[name]
        near = difflib.get_close_matches(name, list(task.connectors), 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known connectors: {known}"
        raise WiringError(f"{type(task).__name__} has no connector {name!r}", remedy=hint)
    if len(task.connectors) == 1:
        return next(iter(task.connectors.items()))
    if not task.connectors:
        raise WiringError(
            f"{type(task).__name__} has no connector",
            remedy=f"{type(task).__name__}(connectors={{'name': connector}}, services={{}})",
        )
    raise WiringError(
        f"{type(task).__name__} has several connectors ({known}): which one is meant is ambiguous",
        remedy="name it in steps.fetch.connector_name",
    )


_LOCK = threading.Lock()
_ASKED = "_ergon_stop_asked"  # a stop was asked for while no call was running


def _calls(task: BaseTask) -> list[Stoppable]:
    # Not in __init__: a subclass that forgets super().__init__() can still be stopped.
    calls: list[Stoppable] = task.__dict__.setdefault("_ergon_calls", [])
    return calls


def _named(what: str, group: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if group is None:
        return MappingProxyType({})
    if not isinstance(group, Mapping):
        raise WiringError(
            f"{what} must be a mapping of names to objects, not {type(group).__name__}",
            remedy=f"{what}={{'name': object}}",
        )
    names: list[object] = list(group)
    for name in names:
        if not isinstance(name, str) or not name:
            raise WiringError(f"{what} has a name that is not text: {name!r}")
    return MappingProxyType(dict(group))
