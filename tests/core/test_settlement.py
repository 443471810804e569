from __future__ import annotations

import pytest

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import GiveUp, GiveUpReason, RetryAfter
from ergon_framework.core.transaction_lifecycle import (
    VERBS,
    Ending,
    Verb,
    judge_settlement,
    settlement_rule,
)


def test_every_ending_has_a_verb() -> None:
    """Whatever the outcome, there is something to tell the source."""
    assert set(VERBS) == set(Ending)


def test_the_verbs_by_hand() -> None:
    """A second writing of the table, so that no edit of the first one is an accident."""
    verbs = [Verb.ACK, Verb.ACK, Verb.NACK, Verb.NACK, Verb.RELEASE, Verb.RELEASE_AFTER]
    assert [VERBS[ending] for ending in Ending] == verbs


def test_only_what_is_done_is_acknowledged() -> None:
    """A source that hears ack forgets the transaction: nothing else may say so."""
    done = [Ending.SUCCEEDED, Ending.DISCARDED]
    assert [ending for ending, verb in VERBS.items() if verb is Verb.ACK] == done


@pytest.mark.req("T3.17")
def test_an_aborted_transaction_is_not_refused() -> None:
    """It was cut off, so its source may give it to somebody else."""
    assert VERBS[Ending.ABORTED] is Verb.RELEASE


def _after(kind: Kind, attempt: int = 0, now: float = 0.0, *, is_lost: bool = False) -> object:
    failure = Failure(kind, "x")
    return judge_settlement(settlement_rule(), attempt, 0.0, failure, now, is_channel_lost=is_lost)


@pytest.mark.parametrize("kind", Kind)
def test_only_passing_reasons_are_tried_again(kind: Kind) -> None:
    """Not what may have been heard, nor what cannot be told any more, nor what stays."""
    passing = {Kind.TRANSIENT, Kind.THROTTLED, Kind.HELD}
    expected = RetryAfter(0.1) if kind in passing else GiveUp(GiveUpReason.NOT_RETRYABLE)
    assert _after(kind) == expected
    assert _after(kind, is_lost=True) == GiveUp(GiveUpReason.NOT_RETRYABLE)


def test_a_settlement_is_bounded_by_attempts_and_by_time() -> None:
    """Whichever comes first."""
    last = _after(Kind.TRANSIENT, 3)
    assert isinstance(last, RetryAfter)
    assert last.delay == pytest.approx(2.7)
    assert _after(Kind.TRANSIENT, 4) == GiveUp(GiveUpReason.ATTEMPTS_SPENT)
    assert _after(Kind.TRANSIENT, 1, 29.8) == GiveUp(GiveUpReason.BUDGET_SPENT)
