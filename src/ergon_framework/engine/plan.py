"""What a driver is given: the policy compiled into plain numbers, the hooks, and the source."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ergon_framework.core.loop import LoopRule
from ergon_framework.core.retry import RetryRule
from ergon_framework.core.transaction_lifecycle import (
    LifecycleRule,
    LifecycleStep,
    Verb,
    settlement_rule,
)
from ergon_framework.engine.run import LifecycleRun

Hook = Callable[..., Any]

# Reading a member off its enum class is slow before Python 3.12; the hot path reads these instead.
PROCESS, ON_SUCCESS = LifecycleStep.PROCESS, LifecycleStep.ON_SUCCESS


@dataclass(frozen=True, slots=True)
class Hooks:
    """The user's code for one role. A handler that is None is skipped and counts as returned."""

    process: Hook
    success: Hook | None = None
    exception: Hook | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of a lifecycle, compiled from policies and hooks."""

    step: LifecycleStep
    hook: Any  # None is skipped, and counts as returned
    phase: str
    timeout: float | None


@dataclass(frozen=True, slots=True)
class SettlementPlan:
    """How the source is told about outcomes. A verb it does not offer is absent."""

    verbs: dict[Verb, Hook]
    timeout: float = 30.0
    redelivers: bool = False
    """Whether the source by itself brings again what failed."""
    is_volatile: bool = False
    """Whether what the source holds ends with this process."""
    retry: RetryRule = settlement_rule()
    """When a settlement that failed is tried again."""
    ack_at_once: Hook | None = None
    """The source's ``ack``, where that only takes a note of it and never waits."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Times and numbers that belong to the driver, not to a machine of the core."""

    loop_timeout: float | None = None
    fetch_timeout: float | None = None
    stop_grace: float = 30.0
    cancel_grace: float = 1.0
    release_grace: float = 5.0
    max_abandoned: int | None = None  # None: as many as ``concurrency``, and at least four
    hold_abandoned: bool = False  # whether an abandoned call still counts as running


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One consume or produce call, compiled for the engine."""

    role: str
    task: str
    fetch: Callable[[int], Any]
    hooks: Hooks
    lifecycle: LifecycleRule = LifecycleRule()
    loop: LoopRule = LoopRule()
    bounds: Bounds = Bounds()
    settlement: SettlementPlan | None = None
    duplicates: Callable[[], Iterable[str]] = tuple
    leftovers: Callable[[], Iterable[str]] = tuple
    malformed: Callable[[], tuple[int, str]] = lambda: (0, "")  # set aside so far, and where
    ended: Callable[[LifecycleRun], None] | None = None  # told about every ending
    wake: Callable[[], object] | None = None  # lets a fetch return that waits for work
    stop_reading: Callable[[], object] | None = None  # nothing more is taken from the input
    compiled: bool = True  # False drives every step through the machine: for the test that compares
    dice: Callable[[], float] = random.random
    settings: dict[str, Any] = field(default_factory=dict)

    def steps(self) -> tuple[StepPlan, StepPlan, StepPlan]:
        """Process, success and exception, ready to be called."""
        rule, hooks = self.lifecycle, self.hooks
        first = "produce" if self.role == "producer" else "process"
        return (
            StepPlan(LifecycleStep.PROCESS, hooks.process, first, rule.process.timeout),
            StepPlan(LifecycleStep.ON_SUCCESS, hooks.success, "success", rule.success.timeout),
            StepPlan(
                LifecycleStep.ON_EXCEPTION, hooks.exception, "exception", rule.exception.timeout
            ),
        )

    def has_timeout(self) -> bool:
        """Whether anything bounds a lifecycle, so that its instants must be known."""
        steps = (step.timeout for step in self.steps())
        timeouts = (self.bounds.loop_timeout, self.lifecycle.timeout, *steps)
        return any(timeouts) or self.has_budget()

    def has_budget(self) -> bool:
        """Whether a step's retries share a budget of time, measured from its beginning."""
        rule = self.lifecycle
        steps = (rule.process, rule.success, rule.exception)
        return any(step.retry.budget is not None for step in steps)
