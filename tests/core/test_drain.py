"""How a queue of facts is sent: batches, refusals and waits, decided without a peer."""

from __future__ import annotations

import pytest

from ergon_framework.core.drain import DRAIN_BACKOFF, Answered, DrainMachine, DrainWait
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import Backoff

REJECTED = Failure(Kind.REJECTED, "invalid_argument")
AWAY = Failure(Kind.TRANSIENT, "unavailable")


def test_facts_go_in_batches() -> None:
    """As many as fit, unless something makes them go one by one."""
    assert DrainMachine(DRAIN_BACKOFF).batch_size(500) == 500
    assert DrainMachine(DRAIN_BACKOFF, stops_at_refusal=True).batch_size(500) == 1
    machine = DrainMachine(DRAIN_BACKOFF, looks_up=True)
    assert machine.batch_size(500) == 1
    machine.recovered()
    assert machine.batch_size(500) == 500


def test_a_refused_batch_goes_one_by_one() -> None:
    """Until as many facts as it had have left the queue."""
    machine = DrainMachine(DRAIN_BACKOFF)
    machine.split(2)
    assert machine.batch_size(500) == 1
    machine.answered(0, [AWAY])
    machine.answered(1, [])
    assert machine.batch_size(500) == 1
    machine.answered(0, [REJECTED])
    assert machine.batch_size(500) == 500


@pytest.mark.parametrize(
    ("taken", "failures", "stops", "answered"),
    [
        (2, [], False, Answered([], None, True, True)),
        (1, [REJECTED], False, Answered([0], None, True, True)),
        (1, [REJECTED], True, Answered([0], None, True, False)),
        (0, [AWAY], False, Answered([], 0, False, False)),
        (1, [REJECTED, AWAY, AWAY], False, Answered([0], 1, True, False)),
    ],
)
def test_what_answers_mean(
    taken: int, failures: list[Failure], stops: bool, answered: Answered
) -> None:
    """A refusal is final, and only stops the queue where that is wanted; the rest passes."""
    machine = DrainMachine(DRAIN_BACKOFF, stops_at_refusal=stops)
    assert machine.answered(taken, failures) == answered


def test_waits_grow_until_there_is_progress() -> None:
    """And are never shortened below the first one by new facts."""
    machine = DrainMachine(Backoff(base=1.0, factor=2.0, cap=4.0, low=1.0, high=1.0))
    waits = [machine.wait(AWAY, 0.5) for _ in range(4)]
    assert waits == [
        DrainWait(1.0, 1.0),
        DrainWait(2.0, 1.0),
        DrainWait(4.0, 1.0),
        DrainWait(4.0, 1.0),
    ]
    machine.answered(1, [])
    assert machine.wait(AWAY, 0.5) == DrainWait(1.0, 1.0)


def test_a_peer_that_names_a_time_is_not_disturbed_before() -> None:
    """But it cannot name any time."""
    machine = DrainMachine(Backoff(base=1.0, factor=2.0, cap=4.0, low=1.0, high=1.0))
    asked = Failure(Kind.THROTTLED, "unavailable", retry_after=30.0)
    assert machine.wait(asked, 0.5) == DrainWait(30.0, 30.0)
    forever = Failure(Kind.THROTTLED, "unavailable", retry_after=1e9)
    assert machine.wait(forever, 0.5) == DrainWait(60.0, 60.0)
