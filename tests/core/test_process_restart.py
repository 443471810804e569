"""When a program that keeps dying may be started again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.core.process_restart import StartGate
from ergon_framework.core.retry import Backoff

pytestmark = pytest.mark.req("X7")

PLAIN = Backoff(base=1.0, factor=2.0, cap=8.0)


def test_failed_starts_wait_longer_and_longer() -> None:
    """1, 2, 4, 8, 8 …: the waits follow the backoff."""
    gate = StartGate(PLAIN)
    waits = [gate.died(0.0, 0.5, "no", had_answered=False) for _ in range(5)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert (gate.failures, gate.reason) == (5, "no")


def test_a_crash_after_good_work_is_replaced_at_once() -> None:
    """The first time; a process that then dies without an answer has to wait."""
    gate = StartGate(PLAIN)
    assert gate.died(0.0, 0.5, "crash", had_answered=True) == 0.0
    assert gate.may_start(0.0)
    assert gate.died(0.0, 0.5, "no", had_answered=False) == 2.0
    assert not gate.may_start(1.9)
    assert gate.may_start(2.0)


def test_an_answer_closes_the_matter() -> None:
    """After it the first wait is the shortest again."""
    gate = StartGate(PLAIN)
    for _ in range(4):
        gate.died(0.0, 0.5, "no", had_answered=False)
    gate.answered(0.0)
    assert (gate.failures, gate.open_until, gate.reason) == (0, 0.0, "")
    assert gate.died(10.0, 0.5, "no", had_answered=False) == 1.0


@given(
    st.lists(
        st.one_of(st.none(), st.tuples(st.floats(0, 1e6), st.booleans(), st.floats(0, 0.999))),
        max_size=50,
    )
)
def test_the_gate_never_waits_longer_than_its_cap(
    events: list[tuple[float, bool, float] | None],
) -> None:
    """Whatever happens, the next start is at most one cap away, jitter included."""
    gate = StartGate()
    for event in events:
        if event is None:
            gate.answered(1e9)
            assert gate.may_start(0.0)
            continue
        now, had_answered, dice = event
        wait = gate.died(now, dice, "no", had_answered=had_answered)
        assert 0.0 <= wait <= gate.backoff.cap * gate.backoff.high
        assert gate.may_start(now + wait)


def test_an_older_process_does_not_vouch_for_new_ones() -> None:
    """One that was there before the failure answers: the gate stays as it is."""
    gate = StartGate(PLAIN)
    gate.died(10.0, 0.5, "no", had_answered=False)
    gate.answered(5.0)
    assert (gate.failures, gate.open_until) == (1, 11.0)
    gate.answered(11.5)
    assert gate.failures == 0


def test_processes_that_were_started_together_fail_once() -> None:
    """Eight that meet the same server that is away are one failed start, and not eight."""
    gate = StartGate(PLAIN)
    waits = [
        gate.died(at, 0.5, "no", had_answered=False, started_at=0.0) for at in (1.0, 1.25, 1.5)
    ]
    assert waits == [1.0, 0.75, 0.5]
    assert gate.failures == 1
    assert gate.died(3.0, 0.5, "no", had_answered=False, started_at=2.0) == 2.0
    assert gate.died(3.5, 0.5, "crash", had_answered=True, started_at=0.0) == 2.0
    assert gate.failures == 3
