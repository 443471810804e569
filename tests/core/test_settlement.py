from __future__ import annotations

import pytest

from ergon_framework.core.lifecycle import Ending
from ergon_framework.core.settlement import VERBS, Verb


def test_every_ending_has_a_verb() -> None:
    """Whatever the outcome, there is something to tell the source."""
    assert set(VERBS) == set(Ending)


def test_the_verbs_by_hand() -> None:
    """A second writing of the table, so that no edit of the first one is an accident."""
    verbs = [Verb.ACK, Verb.NACK, Verb.NACK, Verb.RELEASE, Verb.RELEASE_AFTER]
    assert [VERBS[ending] for ending in Ending] == verbs


def test_only_success_is_acknowledged() -> None:
    """A source that hears ack forgets the transaction: nothing else may say so."""
    assert [ending for ending, verb in VERBS.items() if verb is Verb.ACK] == [Ending.SUCCEEDED]


@pytest.mark.req("T3.17")
def test_an_aborted_transaction_is_not_refused() -> None:
    """It was cut off, so its source may give it to somebody else."""
    assert VERBS[Ending.ABORTED] is Verb.RELEASE
