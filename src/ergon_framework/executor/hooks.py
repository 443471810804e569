"""Opens what the handlers of a registry need, and closes it: lifespans, and hooks around them.

Lifespans are opened first, in the order in which they were declared, then the start-up hooks run;
at the end the same in reverse. The caller says how to await async ones, and how to limit the time
of plain ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ergon_framework.errors import ErgonError, HookError, LifespanTimeoutError, describe
from ergon_framework.executor.registry import Hook, Registry
from ergon_framework.executor.stdio import stderr_line

if TYPE_CHECKING:
    from ergon_framework.ports.lifespan import LifespanHooks


class HookStep(NamedTuple):
    """A hook, or one half of a lifespan."""

    name: str
    run: Hook
    failed: str
    timeout: float | None
    overdue: Callable[[], TimeoutError]
    """Makes the error for a step that took too long."""
    place: str
    """Where the hook is declared."""


WaitFor = Callable[[Awaitable[Any], HookStep], Any]
"""Awaits what a step gave on the event loop of the handlers, for as long as the step has."""
CallWithin = Callable[[HookStep], Any]
"""Calls a step, for as long as it has."""


class HookRunner:
    """Runs the lifespans and the hooks of a registry, once each."""

    def __init__(self, registry: Registry, wait_for: WaitFor, call_within: CallWithin) -> None:
        self._registry = registry
        self._wait_for = wait_for
        self._call_within = call_within
        self._opened: list[LifespanHooks] = []

    def open(self) -> None:
        """Open the lifespans and run the start-up hooks; after a failure nothing is open."""
        try:
            scope = self._registry.scope
            for lifespan in () if scope is None else scope.hooks():
                self._run(_opening(lifespan))
                self._opened.append(lifespan)
            for hook in self._registry.startup_hooks:
                self._run(_startup(hook))
        except BaseException:
            self._close_lifespans()
            raise

    def close(self) -> ErgonError | None:
        """Run the shut-down hooks and close the lifespans, each whatever the others did.

        All failures are logged; the first is returned.
        """
        first = None
        for hook in reversed(self._registry.shutdown_hooks):
            failure = self._tried(_shutdown(hook))
            first = first or failure
        failure = self._close_lifespans()
        return first or failure

    def _close_lifespans(self) -> ErgonError | None:
        first = None
        while self._opened:
            failure = self._tried(_closing(self._opened.pop()))
            first = first or failure
        return first

    def _tried(self, step: HookStep) -> ErgonError | None:
        try:
            self._run(step)
        except (HookError, LifespanTimeoutError) as error:
            stderr_line(str(error))
            return error
        return None

    def _run(self, step: HookStep) -> None:
        try:
            result = self._call_within(step)
            if hasattr(result, "__await__"):
                self._wait_for(result, step)
        except (KeyboardInterrupt, LifespanTimeoutError):
            raise
        except BaseException as error:  # SystemExit and a cancellation are failures like others
            remedy = f"it is declared in {step.place}" if step.place else ""
            raise HookError(f"{step.failed}: {describe(error)}", remedy=remedy) from error


def _opening(hooks: LifespanHooks) -> HookStep:
    name = f"the lifespan {hooks.name!r}"
    failed = f"{name} failed before its yield"
    limit, place = hooks.lifespan.startup_timeout, hooks.lifespan.place
    return HookStep(name, hooks.open, failed, limit, hooks.not_opened, place)


def _closing(hooks: LifespanHooks) -> HookStep:
    name = f"the lifespan {hooks.name!r}"
    failed = f"{name} failed after its yield"
    limit, place = hooks.lifespan.shutdown_timeout, hooks.lifespan.place
    return HookStep(name, hooks.close, failed, limit, hooks.not_closed, place)


def _startup(hook: Hook) -> HookStep:
    from ergon_framework.ports.lifespan import STARTUP_TIMEOUT  # late: few registries have hooks

    return _hook(hook, "start-up", STARTUP_TIMEOUT)


def _shutdown(hook: Hook) -> HookStep:
    from ergon_framework.ports.lifespan import SHUTDOWN_TIMEOUT

    return _hook(hook, "shut-down", SHUTDOWN_TIMEOUT)


def _hook(hook: Hook, kind: str, timeout: float) -> HookStep:
    from ergon_framework.ports.lifespan import place_of

    name = f"the {kind} hook {getattr(hook, '__name__', type(hook).__name__)!r}"

    place = place_of(hook)

    def overdue() -> TimeoutError:
        at = f", in {place}" if place else ""
        return LifespanTimeoutError(
            f"{name} did not return within {timeout:g} s",
            remedy=f"see what it waits for{at}; what needs longer belongs in a lifespan, which"
            " takes a limit of its own",
        )

    return HookStep(name, hook, f"{name} failed", timeout, overdue, place)
