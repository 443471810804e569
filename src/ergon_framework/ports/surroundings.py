"""The unit of work that code runs in, whichever part runs it.

A job's handler, a transaction's hook: code below them may ask what it is part of, and a provider
call takes over its deadline, its names and its trace. The engines set ``CURRENT``; an executor puts
something in ``RUNNING`` that can describe itself. Either is asked only when somebody wants to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import NamedTuple, Protocol

from ergon_framework.ports.context import CURRENT, Attempt, current_attempt

_NO_TRACE: Mapping[str, str] = MappingProxyType({})


class Surroundings(NamedTuple):
    """What is known about the unit of work that is running."""

    kind: str
    """``job`` or ``transaction``."""
    id: str
    name: str
    """The handler of a job, the task of a transaction."""
    attempt: int = 1
    """Counted from 1."""
    deadline: float | None = None
    """When it is cut off, as an instant of ``time.monotonic``."""
    correlation_id: str | None = None
    trace: Mapping[str, str] = _NO_TRACE
    """What a propagator injected: ``traceparent`` and ``tracestate``."""
    is_retried: bool = True
    """Whether it is tried again, as a whole, when it fails: then nobody inside tries again."""


class Describable(Protocol):
    """Something that runs, and knows what it runs."""

    def surroundings(self) -> Surroundings:
        """What it is."""


RUNNING: ContextVar[Describable | None] = ContextVar("ergon_running", default=None)


def surroundings() -> Surroundings | None:
    """The unit this code runs in, a transaction before the job around it; None outside of any."""
    if CURRENT.get() is not None:
        attempt = current_attempt()
        return None if attempt is None or attempt.run is None else _of_attempt(attempt)
    running = RUNNING.get()
    return None if running is None else running.surroundings()


def _of_attempt(attempt: Attempt) -> Surroundings:
    transaction, call = attempt.transaction, attempt.call
    step = call.settings.get("steps", {}).get(attempt.phase, {})
    trace = {
        name: str(transaction.metadata[name])
        for name in ("traceparent", "tracestate")
        if name in transaction.metadata
    }
    return Surroundings(
        "transaction",
        transaction.transaction_id,
        call.task,
        attempt.number + 1,
        attempt.deadline_at,
        transaction.correlation_id,
        trace,
        bool(call.settings.get("redelivers")) or step.get("max_attempts", 1) > 1,
    )
