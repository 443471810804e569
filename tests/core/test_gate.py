"""The gate of a link: every sequence of events, beside a model written from the promises alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from ergon_framework.core.zone_link import Gate, GateRule, Mode

RULE = GateRule(failures=3, lag=100, settle=2.0)
SHUT = Gate().failed(RULE).failed(RULE).failed(RULE)
gates = st.builds(
    Gate,
    mode=st.sampled_from(Mode),
    is_sealed=st.booleans(),
    failures=st.integers(0, 5),
    caught_up_at=st.none() | st.floats(0.0, 100.0),
)
rules = st.builds(
    GateRule,
    failures=st.integers(1, 5),
    lag=st.integers(0, 1000),
    settle=st.floats(0.0, 60.0),
)


@pytest.mark.req("BOUNDARY:zones")
def test_a_few_failures_do_not_shut_it() -> None:
    """The first edge: as many in a row as the rule says, and any success starts the count anew."""
    gate = Gate().failed(RULE).failed(RULE)
    assert gate.mode is Mode.NORMAL
    assert gate.failed(RULE).mode is Mode.AUTONOMOUS
    rested = gate.pulled(RULE, lag=0, now=0.0).failed(RULE).failed(RULE)
    assert rested.mode is Mode.NORMAL
    assert rested.failed(RULE).mode is Mode.AUTONOMOUS


@pytest.mark.req("BOUNDARY:zones")
def test_it_opens_when_the_backlog_has_stayed_small() -> None:
    """The second edge: a small backlog counts when it has been small for the time given."""
    gate = SHUT.pulled(RULE, lag=5000, now=10.0)
    assert gate.mode is Mode.RECONCILING
    gate = gate.pulled(RULE, lag=100, now=11.0)
    assert gate.mode is Mode.RECONCILING
    assert gate.pulled(RULE, lag=0, now=12.9).mode is Mode.RECONCILING
    assert gate.pulled(RULE, lag=0, now=13.0).mode is Mode.NORMAL


@pytest.mark.req("BOUNDARY:zones")
def test_a_backlog_that_grows_again_starts_the_wait_anew() -> None:
    """Otherwise it would open on the way up."""
    gate = SHUT.pulled(RULE, lag=0, now=10.0).pulled(RULE, lag=101, now=11.0)
    assert gate.caught_up_at is None
    gate = gate.pulled(RULE, lag=0, now=12.5)
    assert gate.pulled(RULE, lag=0, now=14.0).mode is Mode.RECONCILING
    assert gate.pulled(RULE, lag=0, now=14.5).mode is Mode.NORMAL


@pytest.mark.req("BOUNDARY:zones")
def test_one_failure_while_reconciling_shuts_it_at_once() -> None:
    """A link that is not trusted yet gets no further benefit of the doubt."""
    gate = SHUT.pulled(RULE, lag=0, now=10.0).failed(RULE)
    assert gate.mode is Mode.AUTONOMOUS
    assert gate.caught_up_at is None


@pytest.mark.req("BOUNDARY:zones")
def test_even_without_a_settling_time_it_never_jumps_from_shut_to_normal() -> None:
    """The backlog is carried over first, however small it is."""
    eager = GateRule(failures=1, lag=10, settle=0.0)
    gate = Gate().failed(eager).pulled(eager, lag=0, now=1.0)
    assert gate.mode is Mode.RECONCILING
    assert gate.pulled(eager, lag=0, now=1.0).mode is Mode.NORMAL


@pytest.mark.req("BOUNDARY:zones", "BOUNDARY:operator")
@given(gates, rules, st.lists(st.integers(-1, 2000), max_size=20))
def test_a_seal_is_sticky(gate: Gate, rule: GateRule, events: list[int]) -> None:
    """Whatever the link does, only an operator opens what an operator shut."""
    gate = gate.sealed()
    for now, lag in enumerate(events):
        gate = gate.failed(rule) if lag < 0 else gate.pulled(rule, lag, float(now))
        assert gate.is_sealed
        assert gate.mode is Mode.AUTONOMOUS
    opened = gate.opened()
    assert not opened.is_sealed
    assert opened.mode is Mode.RECONCILING
    assert opened.failures == 0


@given(gates)
def test_sealing_twice_and_opening_twice_are_fine(gate: Gate) -> None:
    """The second time changes nothing."""
    assert gate.sealed().sealed() == gate.sealed()
    assert gate.sealed().opened().opened() == gate.sealed().opened()
    if not gate.is_sealed:
        assert gate.opened() == gate


@given(gates, rules, st.integers(0, 10**9), st.floats(0.0, 1e12))
def test_every_event_has_an_answer_in_every_state(
    gate: Gate, rule: GateRule, lag: int, now: float
) -> None:
    """Totality: a gate, in one of three modes, with counts that make sense."""
    for after in (gate.failed(rule), gate.pulled(rule, lag, now), gate.sealed(), gate.opened()):
        assert after.mode in Mode
        assert after.failures >= 0
        assert after.caught_up_at is None or math.isfinite(after.caught_up_at)


def test_every_mode_can_be_reached_from_every_other() -> None:
    """No mode is a trap and none is a dead letter."""
    steps: dict[str, Callable[[Gate], Gate]] = {
        "failed": lambda gate: gate.failed(GateRule(failures=1)),
        "far": lambda gate: gate.pulled(RULE, 1000, 0.0),
        "near": lambda gate: gate.pulled(RULE, 0, 0.0),
        "later": lambda gate: gate.pulled(RULE, 0, 100.0),
        "sealed": Gate.sealed,
        "opened": Gate.opened,
    }
    for start in (Gate(), SHUT, SHUT.pulled(RULE, 0, 0.0), Gate().sealed()):
        reached = set()
        for path in product(steps.values(), repeat=3):
            gate = start
            for step in path:
                gate = step(gate)
            reached.add(gate.mode)
        assert reached == set(Mode)


@pytest.mark.req("P13", "BOUNDARY:zones")
def test_nothing_here_can_refuse_an_append() -> None:
    """The machine knows pulls, failures and operators; of appends it has no word to say."""
    public = {name for name in dir(Gate) if not name.startswith("_")}
    fields = {field.name for field in dataclasses.fields(Gate)}
    assert public - fields == {"failed", "pulled", "sealed", "opened"}
    assert {field.name for field in dataclasses.fields(GateRule)} == {"failures", "lag", "settle"}


class GateMachine(RuleBasedStateMachine):
    """A link that does anything, and a model that remembers everything that happened to it."""

    @initialize(
        gate_rule=st.builds(
            GateRule,
            failures=st.integers(1, 3),
            lag=st.sampled_from([0, 10]),
            settle=st.sampled_from([0.0, 2.0]),
        )
    )
    def begin(self, gate_rule: GateRule) -> None:
        """A fresh link."""
        self.rule, self.gate, self.now = gate_rule, Gate(), 0.0
        self.is_sealed = False
        self.is_shut = False  # since it was last normal
        self.in_a_row = 0
        self.small_since: float | None = None
        self.has_pulled = False  # since it was last shut

    @rule(passed=st.sampled_from([0.0, 0.5, 2.0]))
    def time_passes(self, passed: float) -> None:
        """Nothing else happens."""
        self.now += passed

    @rule()
    def a_pull_fails(self) -> None:
        """The peer is not there."""
        self.gate = self.gate.failed(self.rule)
        self.in_a_row += 1
        self.small_since, self.has_pulled = None, False
        self.is_shut = self.is_shut or self.in_a_row >= self.rule.failures

    @rule(lag=st.sampled_from([0, 10, 11, 1000]))
    def a_pull_succeeds(self, lag: int) -> None:
        """Which a sealed link does not even try; one that was under way comes back."""
        before = self.gate
        self.gate = self.gate.pulled(self.rule, lag, self.now)
        if self.is_sealed:
            assert self.gate == before
            return
        self.in_a_row = 0
        if not self.is_shut:
            return
        was_pulling, self.has_pulled = self.has_pulled, True
        if lag > self.rule.lag:
            self.small_since = None
            return
        if self.small_since is None:
            self.small_since = self.now
        if was_pulling and self.now - self.small_since >= self.rule.settle:
            self.is_shut, self.small_since, self.has_pulled = False, None, False

    @rule()
    def an_operator_seals_it(self) -> None:
        """At any time."""
        self.gate = self.gate.sealed()
        self.is_sealed = self.is_shut = True
        self.small_since, self.has_pulled = None, False

    @rule()
    def an_operator_opens_it(self) -> None:
        """What has piled up comes first."""
        self.gate = self.gate.opened()
        if self.is_sealed:
            self.is_sealed, self.in_a_row, self.has_pulled = False, 0, True
            self.small_since = None

    @invariant()
    def the_mode_is_the_model_s(self) -> None:
        """Normal until shut; then reconciling exactly while pulls succeed."""
        if not self.is_shut:
            expected = Mode.NORMAL
        elif self.is_sealed or not self.has_pulled:
            expected = Mode.AUTONOMOUS
        else:
            expected = Mode.RECONCILING
        assert self.gate.mode is expected
        assert self.gate.is_sealed is self.is_sealed

    @invariant()
    def the_clock_runs_only_while_reconciling(self) -> None:
        """A settling time that began before an outage must not count after it."""
        if self.gate.mode is not Mode.RECONCILING:
            assert self.gate.caught_up_at is None
        else:
            assert self.gate.caught_up_at == self.small_since


@pytest.mark.req("BOUNDARY:zones")
def test_any_history_leads_where_the_model_says() -> None:
    """Failures, pulls, seals and openings in any order."""
    run_state_machine_as_test(
        GateMachine,
        settings=settings(
            derandomize=True,
            deadline=None,
            max_examples=150,
            stateful_step_count=30,
            phases=[Phase.generate, Phase.shrink],
            report_multiple_bugs=False,
        ),
    )
