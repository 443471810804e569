"""The circuit breaker's machine."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ergon_framework.core.circuit_breaker import (
    Breaker,
    BreakerRule,
    CircuitRefusal,
    CircuitState,
    Permit,
    Vote,
)

RULE = BreakerRule(failure_threshold=3, open_cooldown=10.0, probe_lease=20.0)


def fail(circuit: Breaker, times: int, now: float = 0.0, rule: BreakerRule = RULE) -> Breaker:
    """Let so many calls in, and let them fail."""
    for _ in range(times):
        circuit, permit = circuit.admit(rule, "t", now)
        assert isinstance(permit, Permit)
        circuit = circuit.report(rule, permit, Vote.FAILURE, now)
    return circuit


@pytest.mark.req("PEF:C-1", "PEF:C-2")
def test_the_states_are_the_words_the_tables_hold() -> None:
    """``closed``, ``open``, ``half_open``, and the fields of the specification."""
    assert [each.value for each in CircuitState] == ["closed", "open", "half_open"]
    circuit = fail(Breaker(), 3)
    assert (circuit.state, circuit.failures, circuit.open_until) == (CircuitState.OPEN, 3, 10.0)


@pytest.mark.req("PEF:C-3")
def test_so_many_failures_in_a_row_open_it() -> None:
    """One less does not, and a success in between begins anew."""
    circuit = fail(Breaker(), 2)
    assert circuit.state is CircuitState.CLOSED
    circuit = circuit.report(RULE, Permit(0), Vote.SUCCESS, 0.0)
    assert circuit.failures == 0
    assert fail(circuit, 2).state is CircuitState.CLOSED
    assert fail(circuit, 3).state is CircuitState.OPEN


@pytest.mark.req("PEF:trap-neutral-votes")
def test_a_neutral_vote_is_no_success() -> None:
    """Twenty failures with a neutral end after every second one still open the circuit."""
    circuit = Breaker()
    for number in range(3):
        circuit = fail(circuit, 1)
        if number < 2:
            circuit = circuit.report(RULE, Permit(0), Vote.NEUTRAL, 0.0)
    assert circuit.state is CircuitState.OPEN


@pytest.mark.req("PEF:C-4")
def test_open_refuses_until_the_cooldown_has_passed() -> None:
    """The last instant before is refused, the cooldown's end is not."""
    circuit = fail(Breaker(), 3)
    assert circuit.peek(RULE, 9.999) == CircuitRefusal(10.0)
    assert circuit.admit(RULE, "t", 9.999) == (circuit, CircuitRefusal(10.0))
    assert circuit.peek(RULE, 10.0) is None
    after, permit = circuit.admit(RULE, "t", 10.0)
    assert isinstance(permit, Permit)
    assert after.state is CircuitState.HALF_OPEN


@pytest.mark.req("PEF:C-5", "PEF:trap-half-open-stampede")
def test_half_open_lets_in_as_many_probes_as_allowed() -> None:
    """Of five that ask, two are let in."""
    rule = BreakerRule(1, 10.0, half_open_max_calls=2, half_open_success_threshold=2)
    circuit = fail(Breaker(), 1, rule=rule)
    answers = []
    for number in range(5):
        circuit, answer = circuit.admit(rule, f"p{number}", 10.0)
        answers.append(answer)
    assert [isinstance(each, Permit) for each in answers] == [True, True, False, False, False]


@pytest.mark.req("PEF:C-6", "PEF:A-3")
def test_enough_successful_probes_close_it_even_through_one_place() -> None:
    """A threshold above the number of places cannot deadlock: places are used again."""
    rule = BreakerRule(1, 10.0, half_open_max_calls=1, half_open_success_threshold=3)
    circuit = fail(Breaker(), 1, rule=rule)
    for number in range(3):
        assert circuit.state is not CircuitState.CLOSED
        circuit, permit = circuit.admit(rule, f"p{number}", 10.0)
        assert isinstance(permit, Permit)
        circuit = circuit.report(rule, permit, Vote.SUCCESS, 11.0)
    assert circuit == Breaker(generation=circuit.generation)


@pytest.mark.req("PEF:C-7")
def test_any_failed_probe_opens_it_again_for_a_fresh_cooldown() -> None:
    """Even when another probe has succeeded before."""
    rule = BreakerRule(1, 10.0, half_open_max_calls=2, half_open_success_threshold=2)
    circuit = fail(Breaker(), 1, rule=rule)
    circuit, first = circuit.admit(rule, "a", 10.0)
    circuit, second = circuit.admit(rule, "b", 10.0)
    assert isinstance(first, Permit)
    assert isinstance(second, Permit)
    circuit = circuit.report(rule, first, Vote.SUCCESS, 12.0)
    circuit = circuit.report(rule, second, Vote.FAILURE, 13.0)
    assert (circuit.state, circuit.open_until) == (CircuitState.OPEN, 23.0)


@pytest.mark.req("PEF:C-10", "PEF:trap-stale-success")
def test_a_report_from_before_a_change_changes_nothing() -> None:
    """A slow call that was let in while closed does not close an open circuit."""
    circuit, slow = Breaker().admit(RULE, "t", 0.0)
    assert isinstance(slow, Permit)
    opened = fail(circuit, 3)
    assert opened.report(RULE, slow, Vote.SUCCESS, 5.0) is opened
    assert opened.report(RULE, slow, Vote.FAILURE, 5.0) is opened
    half, _ = opened.admit(RULE, "p", 10.0)
    assert half.report(RULE, slow, Vote.SUCCESS, 11.0) is half


@pytest.mark.req("PEF:C-11", "PEF:trap-lost-probe")
def test_a_probe_that_never_reports_gives_its_place_back() -> None:
    """When its lease is over somebody else may try, and its late report is void."""
    circuit = fail(Breaker(), 3)
    circuit, lost = circuit.admit(RULE, "lost", 10.0)
    assert isinstance(lost, Permit)
    assert isinstance(circuit.admit(RULE, "p", 29.9)[1], CircuitRefusal)
    circuit, permit = circuit.admit(RULE, "p", 30.0)
    assert isinstance(permit, Permit)
    assert circuit.report(RULE, lost, Vote.FAILURE, 31.0) is circuit
    assert circuit.report(RULE, permit, Vote.SUCCESS, 31.0).state is CircuitState.CLOSED


def test_a_neutral_probe_only_gives_its_place_back() -> None:
    """It neither closes nor opens the circuit."""
    circuit, permit = fail(Breaker(), 3).admit(RULE, "p", 10.0)
    assert isinstance(permit, Permit)
    circuit = circuit.report(RULE, permit, Vote.NEUTRAL, 11.0)
    assert (circuit.state, circuit.probes) == (CircuitState.HALF_OPEN, ())


@pytest.mark.req("PEF:A-13")
def test_what_a_restarted_process_finds() -> None:
    """Open and due, or half-open, becomes half-open with free places; a far future is clamped."""
    opened = fail(Breaker(), 3)
    assert opened.restored(RULE, 4.0) == opened
    assert opened.restored(RULE, 10.0).state is CircuitState.HALF_OPEN
    half, _ = opened.admit(RULE, "p", 10.0)
    assert half.restored(RULE, 11.0).probes == ()
    assert opened.restored(RULE, -3600.0).open_until == -3590.0
    assert Breaker(failures=2).restored(RULE, 0.0) == Breaker(failures=2)


@pytest.mark.req("PROVIDERS:badinput")
def test_a_clock_that_is_set_back_keeps_it_open_for_one_cooldown_at_most() -> None:
    """The instant is shortened when it is next asked, and so are the leases of probes."""
    circuit = fail(Breaker(), 3, now=3600.0)
    circuit, refusal = circuit.admit(RULE, "t", 0.0)
    assert refusal == CircuitRefusal(10.0)
    circuit, probe = circuit.admit(RULE, "t", 10.0)
    assert isinstance(probe, Permit)
    assert circuit.peek(RULE, -3600.0) == CircuitRefusal(-3599.0)
    assert circuit.live_probes(RULE, -3600.0)[0].expires_at == -3580.0


@pytest.mark.req("ONE:parked")
def test_whoever_finds_the_probes_under_way_asks_again_soon() -> None:
    """A probe mostly ends long before its lease, and nobody should be parked for that long."""
    circuit = fail(Breaker(), 3)
    circuit, _ = circuit.admit(RULE, "t", 10.0)
    assert circuit.admit(RULE, "u", 10.0)[1] == CircuitRefusal(11.0)
    assert circuit.admit(RULE, "u", 29.5)[1] == CircuitRefusal(
        30.0
    )  # … and at its end at the latest


def test_an_operator_may_force_a_state() -> None:
    """Reports from before are void."""
    circuit, permit = Breaker().admit(RULE, "t", 0.0)
    assert isinstance(permit, Permit)
    opened = circuit.forced(RULE, CircuitState.OPEN, 5.0)
    assert (opened.state, opened.open_until) == (CircuitState.OPEN, 15.0)
    closed = opened.forced(RULE, CircuitState.CLOSED, 6.0)
    assert closed.report(RULE, permit, Vote.FAILURE, 6.0) is closed


@pytest.mark.req("PROVIDERS:breaker")
def test_an_operator_may_hold_it_open_for_longer_than_the_rule_would() -> None:
    """Nobody who asks shortens it, and a probe that fails afterwards is under the rule again."""
    held = Breaker().forced(RULE, CircuitState.OPEN, 0.0, 3600.0)
    assert held.peek(RULE, 1.0) == CircuitRefusal(3600.0)
    assert held.admit(RULE, "t", 1.0) == (held, CircuitRefusal(3600.0))
    assert held.shortened(RULE, 1.0) is held
    assert held.restored(RULE, 1.0) == held
    assert held.restored(RULE, 3600.0).held_for == 0.0
    half, permit = held.admit(RULE, "t", 3600.0)
    assert isinstance(permit, Permit)
    assert half.report(RULE, permit, Vote.FAILURE, 3600.0).open_until == 3610.0


@pytest.mark.req("PROVIDERS:badinput")
def test_a_clock_that_is_set_back_holds_it_for_what_was_asked_at_most() -> None:
    """That is counted from the new time, and a short hold stays short."""
    held = Breaker().forced(RULE, CircuitState.OPEN, 7200.0, 3600.0)
    after, refusal = held.admit(RULE, "t", 0.0)
    assert (refusal, after.open_until) == (CircuitRefusal(3600.0), 3600.0)
    brief = Breaker().forced(RULE, CircuitState.OPEN, 7200.0, 2.0)
    assert brief.peek(RULE, 0.0) == CircuitRefusal(2.0)


@dataclass
class Running:
    permit: Permit
    began_at: float


class Circuits(RuleBasedStateMachine):
    """Whatever calls begin, end, end late or never, the promises hold."""

    def __init__(self) -> None:
        super().__init__()
        self.rule = BreakerRule(3, 10.0, 2, 3, 20.0)
        self.circuit = Breaker()
        self.now = 0.0
        self.running: list[Running] = []
        self.tokens = 0
        self.streak = 0

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 10.0, 25.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def a_call_asks(self) -> None:
        self.tokens += 1
        before = self.circuit
        peeked = before.peek(self.rule, self.now)
        self.circuit, answer = before.admit(self.rule, str(self.tokens), self.now)
        assert isinstance(answer, CircuitRefusal) == (peeked is not None)
        if isinstance(answer, Permit):
            assert answer.generation == self.circuit.generation
            self.running.append(Running(answer, self.now))
        else:
            assert answer.retry_at > self.now
            assert before.state is not CircuitState.CLOSED
        if before.state is CircuitState.OPEN and before.open_until is not None:
            assert isinstance(answer, Permit) == (self.now >= before.open_until)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), vote=st.sampled_from(Vote))
    def a_call_ends(self, data: st.DataObject, vote: Vote) -> None:
        index = data.draw(st.integers(0, len(self.running) - 1))
        call = self.running.pop(index)
        before = self.circuit
        after = before.report(self.rule, call.permit, vote, self.now)
        if call.permit.generation != before.generation:
            assert after is before
        elif before.state is CircuitState.CLOSED:
            self.streak = {Vote.SUCCESS: 0, Vote.FAILURE: self.streak + 1}.get(vote, self.streak)
            assert after.failures == self.streak
            assert (after.state is CircuitState.OPEN) == (self.streak >= 3)
        elif vote is Vote.FAILURE and after is not before:
            assert after.state is CircuitState.OPEN
            assert after.open_until == self.now + 10.0
        if after.state is CircuitState.CLOSED and before.state is CircuitState.HALF_OPEN:
            assert before.successes + 1 == 3
        self.circuit = after
        if after.generation != before.generation:
            self.streak = 0

    @precondition(lambda self: self.running)
    @rule()
    def a_call_is_lost(self) -> None:
        self.running.pop()

    @invariant()
    def never_more_probes_than_places(self) -> None:
        assert len(self.circuit.live_probes(self.rule, self.now)) <= 2

    @invariant()
    def fields_fit_the_state(self) -> None:
        circuit = self.circuit
        assert (circuit.open_until is not None) == (circuit.state is CircuitState.OPEN)
        if circuit.state is not CircuitState.HALF_OPEN:
            assert circuit.probes == ()
            assert circuit.successes == 0

    @invariant()
    def it_never_stays_shut(self) -> None:
        """Whatever was lost, after the cooldown and the longest lease somebody may try."""
        assert self.circuit.peek(self.rule, self.now + 20.0) is None


TestCircuits = Circuits.TestCase


@pytest.mark.req("PEF:C-4")
def test_what_people_are_told() -> None:
    """That one whose cooldown is over would let a probe in; everything else is as it is."""
    opened = Breaker(CircuitState.OPEN, 3, 10.0, generation=4, held_for=5.0)
    assert opened.observed(9.9) is opened
    assert opened.observed(10.0) == Breaker(CircuitState.HALF_OPEN, 3, generation=4)
    for other in (
        Breaker(),
        Breaker(CircuitState.HALF_OPEN, 2),
        Breaker(CircuitState.OPEN, 2, None),
    ):
        assert other.observed(1e9) is other
