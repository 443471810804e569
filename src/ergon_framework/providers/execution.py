"""What goes into a provider call beside its payload, and what comes out.

The larger records are not frozen: a frozen one takes five times as long to build, and one of each
is built per call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeAlias

from ergon_framework.core.circuit_breaker import CircuitState
from ergon_framework.core.quota import QuotaUsage
from ergon_framework.errors import ConfigurationError
from ergon_framework.ports.providerstore import AttemptOutcome, DeadLetter
from ergon_framework.providers.errors import ProviderError, ProviderInternalError

P = ParamSpec("P")

BUDGET = "timeout_budget_seconds"
"""The word for how long a whole call may take."""

RENAMED = frozenset({"timeout_seconds", "budget_seconds"})
"""Older names of it, and of the timeout of one attempt. They are refused, with the right one in the
error: a bound that is accepted and ignored is worse than none.
"""


def refuse_renamed(names: Collection[str]) -> None:
    """Refuse a name that is none any more."""
    for name in RENAMED.intersection(names):
        raise ConfigurationError(
            f"there is no {name}",
            remedy=f"write {BUDGET} for the whole call, or attempt_timeout_seconds for one attempt",
        )


def refusing_renamed(init: Callable[P, None]) -> Callable[P, None]:
    """An ``__init__`` that refuses the old names; its signature is as it was."""

    @wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        if kwargs:
            refuse_renamed(kwargs)
        init(*args, **kwargs)

    return checked


@dataclass(slots=True)
class ProviderExecutionContext:
    """Who calls, under which names, and until when. Every field is optional.

    Inside a job's handler or a transaction's hook, what is left out is taken from there: the
    deadline, the correlation id, an idempotency key that is the same at every attempt, the trace.

    ``deadline`` is an instant of ``time.monotonic`` in this process: the outermost owner sets it,
    and no inner call extends it. ``timeout_budget_seconds`` is the budget of the whole call: it
    ends so much later than the call begins, or at the deadline if that is earlier. Beside a
    deadline it is also what the records name: a task has used some of it to claim its key.
    """

    correlation_id: str | None = None
    idempotency_key: str | None = None
    task_execution_id: str | None = None
    task_name: str | None = None
    deadline: float | None = None
    timeout_budget_seconds: float | None = None
    attempt_offset: int = 0
    """Attempts that an earlier delivery made for the same call before it was requeued."""
    units: int = 1
    """What the call costs of the quota."""
    traceparent: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 0
    """The number of the attempt under way; set for ``_execute_impl``."""
    attempt_timeout_seconds: float | None = None
    """What this attempt may take, and no more; set for ``_execute_impl``. Given by a caller, no
    attempt may take longer, even if the provider allows it."""
    max_attempts: int | None = None
    """At most so many attempts, and no more than the policy has. Inside a job or transaction that
    is itself retried, the default is 1: attempts must not multiply.
    """
    may_continue: Callable[[], bool] | None = field(default=None, repr=False)
    """Asked after each wait, and must not take time itself: False ends the
    call. A task makes no further attempt once the lease of its key is over."""


init_context: Callable[..., None] = ProviderExecutionContext.__init__
"""Fills a context whose fields are all given in their order, so that no name has to be checked. The
fast path uses it: the check would cost it a twentieth of a call."""

# mypy takes the assignment for a mistake; dataclasses.replace() comes by here too.
ProviderExecutionContext.__init__ = refusing_renamed(  # type: ignore[method-assign]
    ProviderExecutionContext.__init__
)


@dataclass(slots=True)
class ProviderAttempt:
    """One attempt of a call. Instants are of ``time.monotonic``."""

    number: int
    started_at: float
    duration_ms: float
    reason_code: str | None = None
    retryable: bool = False
    delay_seconds: float | None = None
    """The wait that followed; None after the last."""
    http_status: int | None = None


class QuotaSnapshot(NamedTuple):
    """The window's budget as the call saw it."""

    limit_count: int
    used_count: int
    remaining_count: int
    window_end: float
    """Seconds since 1970."""


def quota_snapshot(account: QuotaUsage) -> QuotaSnapshot:
    """A quota budget as a result shows it."""
    return QuotaSnapshot(account.limit, account.used, account.remaining, account.window.end)


LaterParts: TypeAlias = tuple[
    tuple[Any, ...] | None, QuotaUsage | None, tuple[int, float, float] | None
]
"""What the fields of a result are made of that nobody may ever read.

Of the error: a function that makes it, and its arguments; None where there is none. Of the quota:
its account. Of the log: number, start and duration of the only attempt; None where none was made.
"""


class _MadeLater:
    """The fields of a result that are made when they are first read.

    Refusals come by the thousand, and callers look at little more than whether a call succeeded.
    """

    __slots__ = ("later_parts",)
    later_parts: LaterParts

    def __getattr__(self, name: str) -> Any:
        # Python asks here for a field that has no value yet, and for names that do not exist.
        if name not in _MAKERS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        made = _MAKERS[name](self.later_parts)
        setattr(self, name, made)
        return made


def _error_of(parts: LaterParts) -> ProviderError | None:
    if parts[0] is None:
        return None
    make, *arguments = parts[0]
    error: ProviderError = make(*arguments)
    return error


def _quota_of(parts: LaterParts) -> QuotaSnapshot | None:
    return None if parts[1] is None else quota_snapshot(parts[1])


def _attempts_of(parts: LaterParts) -> tuple[ProviderAttempt, ...]:
    return () if parts[2] is None else (ProviderAttempt(*parts[2]),)


_MAKERS: dict[str, Callable[[LaterParts], Any]] = {
    "error": _error_of,
    "quota": _quota_of,
    "attempt_log": _attempts_of,
}


@dataclass(slots=True)
class ProviderExecutionResult(_MadeLater):
    """How a call ended. A failure is returned, not raised: :meth:`unwrap` raises it."""

    success: bool
    data: dict[str, Any] | None = field(repr=False)
    error: ProviderError | None
    reason_code: str | None
    attempts: int
    """Attempts made by this call; 0 when a gate refused it."""
    duration_ms: float
    correlation_id: str
    idempotency_key: str | None = None
    http_status: int | None = None
    retry_after_seconds: float | None = None
    stop_reason: str = "succeeded"
    """Why it ended, in the words of ``core.provider_call.GuardEnd``."""
    is_late: bool = False
    """Whether the attempt succeeded after its deadline, which still counts as a success."""
    replayed: bool = False
    """An earlier call under the same idempotency key had the result already."""
    breaker_state: CircuitState = CircuitState.CLOSED
    quota: QuotaSnapshot | None = None
    attempt_log: tuple[ProviderAttempt, ...] = ()
    dead_letter: DeadLetter | None = None
    """The dead letter of the call, if its task asked for one."""
    is_outcome_unknown_before: bool = False
    """An earlier delivery of the same call ended without reporting an outcome, and may have made
    the call.
    """

    def unwrap(self) -> dict[str, Any]:
        """The data, or the canonical error raised."""
        if self.success and self.data is not None:
            return self.data
        raise self.error or ProviderInternalError("the call failed without an error")


OnFailure = Callable[[ProviderExecutionResult], DeadLetter | AttemptOutcome | None]
"""What a call that failed comes to: a dead letter, ``RETRY`` if it goes on later, or neither."""
