"""What runs before the first request and after the last, and the event loop in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ergon_framework.core.wire import Outcome
from ergon_framework.errors import HookError, describe
from ergon_framework.executor.flight import Flight
from ergon_framework.executor.registry import Hook, Registry
from ergon_framework.executor.streams import say

if TYPE_CHECKING:
    from ergon_framework.executor.loop_thread import LoopThread

PATIENCE = 10.0
"""Seconds an async shut-down hook has; a loop that is stuck must not hold the process."""


class Lifespan:
    """Runs the hooks of a registry; the event loop is made when something async needs it."""

    def __init__(self, registry: Registry, answer: Callable[[Flight, Outcome], Any]) -> None:
        self._registry = registry
        self._answer = answer
        self.loop: LoopThread | None = None

    def open(self) -> None:
        """Run the start-up hooks, and begin the loop if there are async handlers."""
        if self._registry.has_async:
            self.event_loop()
        for hook in self._registry.startup_hooks:
            self._run(hook, "start-up", None)

    def close(self) -> HookError | None:
        """Run the shut-down hooks, each whatever the others did; the first failure."""
        first = None
        for hook in reversed(self._registry.shutdown_hooks):
            try:
                self._run(hook, "shut-down", PATIENCE)
            except HookError as error:
                say(str(error))
                first = first or error
        return first

    def event_loop(self) -> LoopThread:
        """The loop, begun at the first need."""
        if self.loop is None:
            from ergon_framework.executor.loop_thread import LoopThread

            self.loop = LoopThread(self._answer)
        return self.loop

    def _run(self, hook: Hook, kind: str, patience: float | None) -> None:
        try:
            result = hook()
            if hasattr(result, "__await__"):
                self.event_loop().run(result, patience)
        except BaseException as error:
            name = getattr(hook, "__name__", type(hook).__name__)
            raise HookError(f"the {kind} hook {name!r} failed: {describe(error)}") from error
