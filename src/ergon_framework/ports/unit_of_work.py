"""The unit of work that code runs in: a transaction, or a job in an executor.

Apart from ``context``, which asks for it: an executor starts without transactions.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import NamedTuple, Protocol

_NO_TRACE: Mapping[str, str] = MappingProxyType({})


class UnitOfWork(NamedTuple):
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

    def surroundings(self) -> UnitOfWork:
        """What it is."""


RUNNING: ContextVar[Describable | None] = ContextVar("ergon_running", default=None)
"""What an executor runs; asked only when somebody wants to know."""
