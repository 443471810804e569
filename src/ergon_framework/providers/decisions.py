"""What follows from each reason: the one table.

Drivers, tasks and pages read the table; nothing else decides by reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from ergon_framework.core.circuit_breaker import Vote
from ergon_framework.core.failure import Kind


class Reason(StrEnum):
    """Why a call failed: a closed list."""

    TIMEOUT = "timeout"
    CONNECTION_ERROR = "connection_error"
    RATE_LIMITED = "rate_limited"
    AUTH_FAILED = "auth_failed"
    QUOTA_EXHAUSTED = "quota_exhausted"
    BAD_REQUEST = "bad_request"
    RESPONSE_INVALID = "response_invalid"
    DEPENDENCY_UNAVAILABLE = "dependency_unavailable"
    CIRCUIT_OPEN = "circuit_open"
    INTERNAL_ERROR = "internal_error"


class Requeue(StrEnum):
    """Whether and when a task may put the call back into its queue."""

    NEVER = "never"
    BACKOFF = "backoff"
    COOLDOWN_END = "cooldown_end"
    WINDOW_END = "window_end"
    OPEN_UNTIL = "open_until"
    OPT_IN = "opt_in"


class Spend(StrEnum):
    """What becomes of the reserved quota."""

    SPENT = "spent"
    REFUND = "refund"
    REFUND_IF_NEVER_SENT = "refund_if_never_sent"
    NONE = "none"  # nothing was taken


class Bury(StrEnum):
    """Whether the end of such a call becomes a dead letter."""

    ON_EXHAUSTION = "on_exhaustion"
    OPT_IN = "opt_in"


@dataclass(frozen=True, slots=True)
class Decision:
    """One row of the table: what happens after an error."""

    kind: Kind
    """What the retry rule sees."""
    retries: bool
    requeue: Requeue
    vote: Vote | None
    """What is reported to the circuit; None: the call did not pass it."""
    quota: Spend
    bury: Bury


_LATER = (Requeue.BACKOFF, Vote.FAILURE)

DECISIONS: dict[Reason, Decision] = {
    Reason.TIMEOUT: Decision(Kind.TIMEOUT, True, *_LATER, Spend.SPENT, Bury.ON_EXHAUSTION),
    Reason.CONNECTION_ERROR: Decision(
        Kind.TRANSIENT, True, *_LATER, Spend.REFUND_IF_NEVER_SENT, Bury.ON_EXHAUSTION
    ),
    Reason.DEPENDENCY_UNAVAILABLE: Decision(
        Kind.TRANSIENT, True, *_LATER, Spend.SPENT, Bury.ON_EXHAUSTION
    ),
    Reason.RATE_LIMITED: Decision(
        Kind.THROTTLED,
        True,
        Requeue.COOLDOWN_END,
        Vote.NEUTRAL,
        Spend.SPENT,
        Bury.ON_EXHAUSTION,
    ),
    Reason.RESPONSE_INVALID: Decision(
        Kind.REJECTED, False, Requeue.NEVER, Vote.FAILURE, Spend.SPENT, Bury.OPT_IN
    ),
    Reason.INTERNAL_ERROR: Decision(
        Kind.DEFECT, False, Requeue.OPT_IN, Vote.FAILURE, Spend.SPENT, Bury.OPT_IN
    ),
    Reason.AUTH_FAILED: Decision(
        Kind.REJECTED, False, Requeue.NEVER, Vote.NEUTRAL, Spend.SPENT, Bury.OPT_IN
    ),
    Reason.BAD_REQUEST: Decision(
        Kind.REJECTED,
        False,
        Requeue.NEVER,
        Vote.NEUTRAL,
        Spend.REFUND_IF_NEVER_SENT,
        Bury.OPT_IN,
    ),
    Reason.QUOTA_EXHAUSTED: Decision(
        Kind.HELD, False, Requeue.WINDOW_END, Vote.NEUTRAL, Spend.NONE, Bury.OPT_IN
    ),
    Reason.CIRCUIT_OPEN: Decision(
        Kind.HELD, False, Requeue.OPEN_UNTIL, None, Spend.REFUND, Bury.OPT_IN
    ),
}

RETRYABLE_KINDS = frozenset(each.kind for each in DECISIONS.values() if each.retries)
"""The kinds of failures that ``judge`` may retry."""


_GATES = frozenset({Reason.QUOTA_EXHAUSTED, Reason.CIRCUIT_OPEN, Reason.RATE_LIMITED})


def kind_around(reason_code: str, *, never_sent: bool) -> str | None:
    """What the end of a call means to the job or transaction it was part of.

    A gate that refused before anything was sent holds it. A quota or a limit of the provider's own
    does not: the provider was called, and such calls have to be bounded.
    """
    if reason_code in _GATES:
        return Kind.HELD.value if never_sent else Kind.THROTTLED.value
    row = DECISIONS.get(reason_code)  # type: ignore[call-overload]
    return Kind.REJECTED.value if row is not None and row.kind is Kind.REJECTED else None


@dataclass(frozen=True, slots=True)
class DecisionOptions:
    """The cells a provider may choose differently."""

    rate_limit_votes_failure: bool = False
    rate_limit_refunds: bool = False
    internal_error_is_neutral: bool = False


def decisions(options: DecisionOptions) -> dict[str, Decision]:
    """The table by reason code, with a provider's own choices."""
    table = {reason.value: row for reason, row in DECISIONS.items()}
    if options.rate_limit_votes_failure:
        _change(table, Reason.RATE_LIMITED, vote=Vote.FAILURE)
    if options.rate_limit_refunds:
        _change(table, Reason.RATE_LIMITED, quota=Spend.REFUND)
    if options.internal_error_is_neutral:
        _change(table, Reason.INTERNAL_ERROR, vote=Vote.NEUTRAL)
    return table


def _change(
    table: dict[str, Decision],
    reason: Reason,
    vote: Vote | None = None,
    quota: Spend | None = None,
) -> None:
    row = table[reason.value]
    table[reason.value] = replace(row, vote=vote or row.vote, quota=quota or row.quota)
