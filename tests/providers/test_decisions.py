"""What follows from each reason, cell by cell: in the table, and in what a provider does."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from ergon_framework.core.circuit_breaker import CircuitState, Vote
from ergon_framework.core.failure import Kind
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.decisions import (
    DECISIONS,
    RETRYABLE_KINDS,
    Bury,
    DecisionOptions,
    Requeue,
    Spend,
    decisions,
)
from ergon_framework.providers.errors import (
    ERROR_OF,
    ProviderAuthError,
    ProviderConnectionError,
    ProviderDependencyError,
    ProviderError,
    ProviderRateLimitError,
    ProviderTimeoutError,
    Reason,
)
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import ONCE, Scripted, call, is_whole, lane_state, rows, used

DOWN = ProviderDependencyError("down")

TABLE = """
reason                 | retry | requeue      | vote    | quota                | dead letter
timeout                | yes   | backoff      | failure | spent                | on_exhaustion
connection_error       | yes   | backoff      | failure | refund_if_never_sent | on_exhaustion
dependency_unavailable | yes   | backoff      | failure | spent                | on_exhaustion
rate_limited           | yes   | cooldown_end | neutral | spent                | on_exhaustion
response_invalid       | no    | never        | failure | spent                | opt_in
internal_error         | no    | opt_in       | failure | spent                | opt_in
auth_failed            | no    | never        | neutral | spent                | opt_in
bad_request            | no    | never        | neutral | refund_if_never_sent | opt_in
quota_exhausted        | no    | window_end   | neutral | none                 | opt_in
circuit_open           | no    | open_until   | -       | refund               | opt_in
"""


class Row(NamedTuple):
    """One reason, as it is written above."""

    reason: str
    retry: str
    requeue: str
    vote: str
    quota: str
    bury: str


WANTED = [
    Row(*(cell.strip() for cell in line.split("|"))) for line in TABLE.strip().splitlines()[1:]
]
RAISED = [row for row in WANTED if row.reason not in {"quota_exhausted", "circuit_open"}]
"""Reasons that come out of an attempt; the other two are gates of ours."""


def by_reason(found: list[Row]) -> pytest.MarkDecorator:
    """A test for each reason."""
    return pytest.mark.parametrize("row", found, ids=[row.reason for row in found])


def failing(row: Row, *, never_sent: bool = False) -> Scripted:
    """A provider that fails with one reason for ever, with a roomy quota and breaker."""

    def fail(_: object) -> ProviderError:
        provider.steps.append(fail)
        return ERROR_OF[row.reason]("x", never_sent=never_sent)

    provider = Scripted(fail, circuit_breaker=CircuitBreaker(100), quota=QuotaPolicy(limit=100))
    return provider


# -- the table -----------------------------------------------------------------------------------


@pytest.mark.req("PEF:E-12")
def test_every_reason_has_its_row_and_its_class() -> None:
    """Ten codes, ten classes, one base for them; no code more and none less."""
    names = [row.reason for row in WANTED]
    assert sorted(names) == sorted(Reason) == sorted(DECISIONS) == sorted(ERROR_OF)
    assert len(set(ERROR_OF.values())) == 10
    assert {kind.reason_code for kind in ERROR_OF.values()} == set(names)
    assert ProviderError not in ERROR_OF.values()


@by_reason(WANTED)
@pytest.mark.req("PEF:R-4", "PEF:A-1", "PEF:A-2", "PEF:E-10", "PEF:E-11")
def test_the_cell_of_retries(row: Row) -> None:
    """The table, the class and the judge's list of kinds say the same."""
    decision = DECISIONS[Reason(row.reason)]
    assert decision.retries is (row.retry == "yes")
    assert ERROR_OF[row.reason].retryable is decision.retries
    assert (decision.kind in RETRYABLE_KINDS) is decision.retries


@by_reason(WANTED)
@pytest.mark.req("PEF:A-1")
def test_the_cell_of_requeues(row: Row) -> None:
    """When a task may put the call back."""
    assert DECISIONS[Reason(row.reason)].requeue is Requeue(row.requeue)


@by_reason(WANTED)
def test_the_cell_of_votes(row: Row) -> None:
    """What the circuit hears; of a circuit that refused, nothing."""
    wanted = None if row.vote == "-" else Vote(row.vote)
    assert DECISIONS[Reason(row.reason)].vote is wanted


@by_reason(WANTED)
def test_the_cell_of_quota(row: Row) -> None:
    """What becomes of the unit."""
    assert DECISIONS[Reason(row.reason)].quota is Spend(row.quota)


@by_reason(WANTED)
@pytest.mark.req("PEF:A-17")
def test_the_cell_of_dead_letters(row: Row) -> None:
    """Which ends are buried without being asked for."""
    assert DECISIONS[Reason(row.reason)].bury is Bury(row.bury)


def test_only_some_cells_can_be_chosen() -> None:
    """Every option changes its own cell, and nothing else."""
    plain = decisions(DecisionOptions())
    assert plain == {reason.value: row for reason, row in DECISIONS.items()}
    for option, reason, cell, value in (
        ("rate_limit_votes_failure", "rate_limited", "vote", Vote.FAILURE),
        ("rate_limit_refunds", "rate_limited", "quota", Spend.REFUND),
        ("internal_error_is_neutral", "internal_error", "vote", Vote.NEUTRAL),
    ):
        changed = decisions(DecisionOptions(**{option: True}))
        assert getattr(changed[reason], cell) is value
        assert {name for name in plain if plain[name] != changed[name]} == {reason}


# -- what a provider does ------------------------------------------------------------------------


@by_reason(RAISED)
@pytest.mark.req(
    "PEF:R-4", "PEF:E-2", "PEF:E-3", "PEF:E-4", "PEF:E-5", "PEF:E-7", "PEF:E-8", "PEF:E-9"
)
def test_attempts_of_each_reason(row: Row, clock: VirtualClock) -> None:
    """Three, or one and no wait."""
    provider = failing(row)
    result = call(provider, correlation_id="c")
    wanted = 3 if row.retry == "yes" else 1
    assert (provider.calls, result.attempts, result.reason_code) == (wanted, wanted, row.reason)
    assert (clock.now() > 0) is (row.retry == "yes")
    assert [each.retryable for each in rows(provider, "c")] == [row.retry == "yes"] * wanted
    stop = "attempts_spent" if row.retry == "yes" else "not_retryable"
    assert result.stop_reason == stop


@by_reason(RAISED)
@pytest.mark.req("PEF:trap-neutral-votes")
def test_streak_of_each_reason(row: Row, clock: VirtualClock) -> None:
    """A failure lengthens it; what is neutral neither lengthens nor ends it."""
    provider = failing(row)
    provider.steps.appendleft(ProviderDependencyError("down"))
    call(provider, timeout_budget_seconds=0.1)
    assert lane_state(provider).failures == 1
    result = call(provider)
    votes = result.attempts if row.vote == "failure" else 0
    assert lane_state(provider).failures == 1 + votes


@by_reason(RAISED)
@pytest.mark.req("PEF:C-11")
def test_probe_of_each_reason(row: Row, clock: VirtualClock) -> None:
    """A failure opens the circuit again; what is neutral gives the place back, half-open."""
    breaker = CircuitBreaker(1, 5, probe_lease_seconds=10_000)
    provider = Scripted(DOWN, retry_policy=ONCE, circuit_breaker=breaker)
    call(provider)
    clock.advance(5.0)
    provider.steps.append(ERROR_OF[row.reason]("x", retry_after_seconds=0.0))
    call(provider)
    wanted = CircuitState.OPEN if row.vote == "failure" else CircuitState.HALF_OPEN
    assert (lane_state(provider).state, lane_state(provider).probes) == (wanted, ())
    clock.advance(6.0)
    assert call(provider).success
    assert lane_state(provider).state is CircuitState.CLOSED


@by_reason(RAISED)
@pytest.mark.parametrize("never_sent", [False, True])
def test_unit_of_each_reason(row: Row, never_sent: bool, clock: VirtualClock) -> None:
    """Spent, unless it is certain that the provider never saw the request and the table minds."""
    provider = failing(row, never_sent=never_sent)
    call(provider)
    is_refunded = row.quota == "refund" or (row.quota == "refund_if_never_sent" and never_sent)
    assert used(provider) == (0 if is_refunded else 1)


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_one_attempt_that_was_sent_spends_the_unit(
    order: tuple[bool, bool], clock: VirtualClock
) -> None:
    """Whichever of them it was."""
    errors = [ProviderConnectionError("x", never_sent=never_sent) for never_sent in order]
    provider = Scripted(*errors, ProviderConnectionError("x", never_sent=True))
    provider = Scripted(
        *errors, ProviderConnectionError("x", never_sent=True), quota=QuotaPolicy(limit=9)
    )
    assert call(provider).attempts == 3
    assert used(provider) == 1


def test_a_success_spends_and_ends_the_streak(clock: VirtualClock) -> None:
    """Also after a retry; its permit is given back."""
    provider = Scripted(DOWN, DOWN, quota=QuotaPolicy(limit=9))
    assert call(provider).success
    assert (used(provider), lane_state(provider).failures) == (1, 0)
    assert is_whole(provider)


@pytest.mark.req("PEF:A-1")
def test_an_open_circuit_is_terminal_and_says_when_to_come_back(clock: VirtualClock) -> None:
    """No attempt, no vote, no unit, no wait."""
    provider = Scripted(
        DOWN, retry_policy=ONCE, circuit_breaker=CircuitBreaker(1, 7), quota=QuotaPolicy(limit=9)
    )
    call(provider)
    clock.advance(2.0)
    before = lane_state(provider)
    result = call(provider)
    assert (result.reason_code, result.retry_after_seconds) == ("circuit_open", 5.0)
    assert (provider.calls, used(provider), clock.now()) == (1, 1, 2.0)
    assert lane_state(provider) == before


@pytest.mark.req("PEF:E-6")
def test_quota_of_ours_and_of_theirs(clock: VirtualClock) -> None:
    """Both end at once and say nothing about the provider; theirs has cost a unit."""
    theirs = ERROR_OF["quota_exhausted"]("their own limit")
    provider = Scripted(DOWN, theirs, quota=QuotaPolicy(limit=2), retry_policy=ONCE)
    call(provider)
    result = call(provider)
    assert (result.reason_code, result.attempts, result.stop_reason) == (
        "quota_exhausted",
        1,
        "not_retryable",
    )
    ours = call(provider)
    assert (ours.reason_code, ours.attempts, ours.stop_reason) == (
        "quota_exhausted",
        0,
        "quota_exhausted",
    )
    assert lane_state(provider).failures == 1


@pytest.mark.req("PEF:A-2")
def test_unknown_errors_are_not_retried_and_vote(clock: VirtualClock) -> None:
    """Unless the provider is told that they are bugs of ours."""
    for options, failures in (({}, 1), ({"internal_error_is_neutral": True}, 0)):
        provider = Scripted(KeyError("bug"), decisions=DecisionOptions(**options))
        result = call(provider)
        assert (result.reason_code, result.attempts) == ("internal_error", 1)
        assert lane_state(provider).failures == failures


def test_a_rate_limit_may_vote_and_may_refund(clock: VirtualClock) -> None:
    """By choice of the provider."""
    options = DecisionOptions(rate_limit_votes_failure=True, rate_limit_refunds=True)
    provider = Scripted(
        *[ProviderRateLimitError("wait")] * 3, decisions=options, quota=QuotaPolicy(limit=9)
    )
    assert call(provider).attempts == 3
    assert (lane_state(provider).failures, used(provider)) == (3, 0)


@pytest.mark.req("PEF:trap-neutral-votes")
def test_an_excluded_error_does_not_reset_the_streak(clock: VirtualClock) -> None:
    """Failures with a refusal of our credentials after every second one still open the circuit."""
    provider = Scripted(retry_policy=ONCE, circuit_breaker=CircuitBreaker(3, 60))
    for _ in range(3):
        provider.steps.extend([DOWN, DOWN, ProviderAuthError("no")])
    states = []
    for _ in range(4):
        call(provider)
        states.append(lane_state(provider).state)
    assert states == [
        CircuitState.CLOSED,
        CircuitState.CLOSED,
        CircuitState.CLOSED,
        CircuitState.OPEN,
    ]


def test_the_class_of_an_error_is_what_the_judge_sees() -> None:
    """A timeout is one, and so on: reports and the engine speak of the same kinds."""
    kinds = {reason.value: row.kind for reason, row in DECISIONS.items()}
    assert kinds["timeout"] is Kind.TIMEOUT
    assert kinds["rate_limited"] is Kind.THROTTLED
    assert kinds["circuit_open"] is kinds["quota_exhausted"] is Kind.HELD
    assert kinds["internal_error"] is Kind.DEFECT
    assert issubclass(ProviderTimeoutError, TimeoutError)
