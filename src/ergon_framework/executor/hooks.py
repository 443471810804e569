"""Opens what the handlers of a registry need, and closes it: lifespans, and hooks around them.

Lifespans are opened first, in the order in which they were declared, then the start-up hooks run;
at the end the same in reverse. Whoever opens says how to wait for what is async.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ergon_framework.errors import HookError, describe
from ergon_framework.executor.registry import Hook, Registry
from ergon_framework.executor.stdio import stderr_line

if TYPE_CHECKING:
    from ergon_framework.ports.lifespan import LifespanHooks

SHUTDOWN_TIMEOUT = 10.0
"""Seconds that async code has to close; a loop that is stuck must not hold the process."""

WaitFor = Callable[[Awaitable[Any], float | None], Any]
"""Awaits something on the event loop of the handlers, for so many seconds at most."""


class HookRunner:
    """Runs the lifespans and the hooks of a registry, once each."""

    def __init__(self, registry: Registry, wait_for: WaitFor) -> None:
        self._registry = registry
        self._wait_for = wait_for
        self._opened: list[LifespanHooks] = []

    def open(self) -> None:
        """Open the lifespans and run the start-up hooks; after a failure nothing is open."""
        try:
            scope = self._registry.scope
            for lifespan in () if scope is None else scope.hooks():
                what = f"the lifespan {lifespan.name!r} failed before its yield"
                self._run(lifespan.open, what, None)
                self._opened.append(lifespan)
            for hook in self._registry.startup_hooks:
                self._run(hook, f"the start-up hook {_name_of(hook)!r} failed", None)
        except BaseException:
            self._close_lifespans()
            raise

    def close(self) -> HookError | None:
        """Run the shut-down hooks and close the lifespans, each whatever the others did.

        All failures are told; the first is returned.
        """
        first = None
        for hook in reversed(self._registry.shutdown_hooks):
            failure = self._tried(hook, f"the shut-down hook {_name_of(hook)!r} failed")
            first = first or failure
        failure = self._close_lifespans()
        return first or failure

    def _close_lifespans(self) -> HookError | None:
        first = None
        while self._opened:
            lifespan = self._opened.pop()
            failure = self._tried(
                lifespan.close, f"the lifespan {lifespan.name!r} failed after its yield"
            )
            first = first or failure
        return first

    def _tried(self, hook: Hook, what: str) -> HookError | None:
        try:
            self._run(hook, what, SHUTDOWN_TIMEOUT)
        except HookError as error:
            stderr_line(str(error))
            return error
        return None

    def _run(self, hook: Hook, what: str, timeout: float | None) -> None:
        try:
            result = hook()
            if hasattr(result, "__await__"):
                self._wait_for(result, timeout)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit and a cancellation are failures like others
            raise HookError(f"{what}: {describe(error)}") from error


def _name_of(hook: Hook) -> str:
    return getattr(hook, "__name__", type(hook).__name__)
