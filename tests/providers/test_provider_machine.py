"""A provider against its model: any calls, failures, pauses, interrupts and time, in any order."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ergon_framework.ports.providerstore import LaneKey
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import ERROR_OF
from ergon_framework.providers.execution import ProviderExecutionResult
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.testing import VirtualClock
from tests.providers import machine_model as model
from tests.providers.machine_model import Ended, Interrupted, Model, Step
from tests.providers.scripted import AsyncScripted, Scripted, WatchedStore, acall, call, rows

ENOUGH = settings(max_examples=100, stateful_step_count=15, deadline=None)
REASONS = sorted(set(ERROR_OF) - {"quota_exhausted", "circuit_open"})


def steps(inner: st.SearchStrategy[list[Step] | None]) -> st.SearchStrategy[Step]:
    """What attempts do."""
    return st.builds(
        Step,
        reason=st.one_of(st.none(), st.just("timeout"), st.sampled_from(REASONS)),
        never_sent=st.booleans(),
        lasts=st.sampled_from([0.0, 0.0, 0.25, 3.0, 25.0]),
        asks_for=st.sampled_from([None, 0.1, 2.0, 30.0]),
        is_interrupted=st.sampled_from([False] * 9 + [True]),
        inner=inner,
        wait_is_interrupted=st.sampled_from([False] * 9 + [True]),
    )


PLAIN_STEPS = steps(st.none())
NESTED = steps(st.one_of(st.none(), st.none(), st.lists(PLAIN_STEPS, max_size=4)))


class InterruptibleClock(VirtualClock):
    """Whose next wait may be cut short."""

    is_armed = False

    def signal(self, lock: threading.Lock) -> Any:
        if self.is_armed:
            self.is_armed = False
            raise KeyboardInterrupt
        return super().signal(lock)


class ProviderMachine(RuleBasedStateMachine):
    """One provider, one tenant, and the model beside it."""

    kind: type[Scripted] = Scripted

    @initialize(
        unit=st.sampled_from(["execution", "attempt"]),
        scope=st.sampled_from(["execution", "attempt"]),
    )
    def build(self, unit: str, scope: str) -> None:
        """The settings that the model knows."""
        self.clock = InterruptibleClock()
        self.clock.__enter__()
        self.store = WatchedStore(self.clock)
        self.provider = self.kind(
            store=self.store,
            retry_policy=RetryPolicy(model.ATTEMPTS, model.BASE, 8, 0.0),
            circuit_breaker=CircuitBreaker(model.THRESHOLD, model.OPEN_FOR),
            quota=QuotaPolicy(model.LIMIT, model.WINDOW),
            timeout_budget_seconds=model.BUDGET,
            quota_unit=unit,
            breaker_scope=scope,
            default_cooldown_seconds=model.DEFAULT_PAUSE,
        )
        self.model = Model(unit, scope)
        self.numbers = 0

    def teardown(self) -> None:
        """Give the clock back."""
        if hasattr(self, "clock"):
            self.clock.__exit__(None, None, None)

    # -- what happens ----------------------------------------------------------------------------

    @rule(given=st.lists(NESTED, max_size=4))
    def call(self, given: list[Step]) -> None:
        """A call, with another one inside perhaps."""
        self.compare(given)

    def compare(self, given: list[Step]) -> None:
        """Let both do it."""
        try:
            wanted: Ended | None = self.model.call(given)
        except Interrupted:
            wanted = None
        found = self.made(given)
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            assert (found.reason_code, found.attempts) == (wanted.reason, wanted.attempts)
            kept = rows(self.provider, found.correlation_id)
            if kept or wanted.attempts:  # not every refusal has a row
                assert [row.outcome for row in kept] == wanted.outcomes
                numbers = [row.attempt_number for row in kept]
                assert numbers == (list(range(1, wanted.attempts + 1)) or [0])

    @rule(seconds=st.sampled_from([0.1, 0.9, 1.0, 5.0, 60.0]))
    def pass_time(self, seconds: float) -> None:
        """Nobody calls."""
        self.clock.advance(seconds)
        self.model.now += seconds

    @rule(step=st.sampled_from(["lane_state", "reserve", "compare_and_set"]))
    def interrupt_at_a_gate(self, step: str) -> None:
        """Ctrl-C while the store is asked: nothing stays taken, whatever was asked for."""

        def interrupt(name: str) -> None:
            if name == step:
                self.store.before = lambda name: None
                raise KeyboardInterrupt

        if self.model.paused_until > self.model.now:
            return  # the wait comes first, and moves the clock
        self.provider.steps.clear()
        calls = self.provider.calls
        self.store.before = interrupt
        try:
            result = call(self.provider)
        except KeyboardInterrupt:
            result = None
        finally:
            self.store.before = lambda name: None
        if result is not None:
            wanted = self.model.call([])
            assert (result.reason_code, result.attempts) == (wanted.reason, wanted.attempts)
        elif self.provider.calls > calls:  # it had succeeded, but could not tell the circuit
            self.model.used[self.model.window] = self.model.used_now + 1

    # -- what holds ------------------------------------------------------------------------------

    @precondition(lambda self: hasattr(self, "model"))
    @invariant()
    def the_clocks_agree(self) -> None:
        """Every wait was as long as it should be."""
        assert self.clock.now() == pytest.approx(self.model.now)

    @precondition(lambda self: hasattr(self, "model"))
    @invariant()
    def the_quota_is_right(self) -> None:
        """Never over the limit, nothing lost and nothing given away."""
        accounts = [each.account for each in self.store.health("t")]
        used = sum(account.used for account in accounts if account is not None)
        assert 0 <= used <= model.LIMIT
        assert used == self.model.used_now

    @precondition(lambda self: hasattr(self, "model"))
    @invariant()
    def the_circuit_is_right(self) -> None:
        """The state, the streak, and nobody in a place that is not there any more."""
        key = LaneKey("t", "scripted", "test")
        found, wanted = self.store.lane_state(key).breaker, self.model.circuit
        assert (found.state.value, found.failures) == (wanted.state, wanted.failures)
        assert found.probes == ()
        assert not wanted.is_probing

    # -- how it is made --------------------------------------------------------------------------

    def made(self, given: list[Step]) -> ProviderExecutionResult | None:
        """The real call; None when it was interrupted."""
        self.provider.steps.clear()
        self.clock.is_armed = False
        return self.once(given)

    def once(self, given: list[Step]) -> ProviderExecutionResult | None:
        """One call with its own steps; those of an outer one wait until it has ended."""
        self.numbers += 1
        outer = list(self.provider.steps)
        self.provider.steps.clear()
        self.provider.steps.extend(self.attempt(step) for step in given)
        try:
            return self.run(f"c{self.numbers}")
        except KeyboardInterrupt:
            return None
        finally:
            self.provider.steps.clear()
            self.provider.steps.extend(outer)

    def run(self, correlation_id: str) -> ProviderExecutionResult:
        """In this colour."""
        return call(self.provider, correlation_id=correlation_id)

    def attempt(self, step: Step) -> Any:
        """A step as the provider takes it."""

        def made(_: object) -> Any:
            if step.inner is not None:
                found = self.once(step.inner)
                if found is None:
                    raise KeyboardInterrupt
            self.clock.sleep(step.lasts)
            if step.is_interrupted:
                raise KeyboardInterrupt
            if step.reason is None:
                return {}
            self.clock.is_armed = step.wait_is_interrupted
            return ERROR_OF[step.reason](
                "x", never_sent=step.never_sent, retry_after_seconds=step.asks_for
            )

        return made


class AsyncProviderMachine(ProviderMachine):
    """The same on an event loop, on which waits are not cut short and calls not nested."""

    kind = AsyncScripted

    @rule(given=st.lists(PLAIN_STEPS, max_size=4))
    def call(self, given: list[Step]) -> None:
        """A call."""
        for step in given:
            step.wait_is_interrupted = False
            step.lasts = min(step.lasts, 0.25)  # an attempt that awaits is ended at the deadline
        self.compare(given)

    def run(self, correlation_id: str) -> ProviderExecutionResult:
        return self.clock.run(acall(self.provider, correlation_id=correlation_id))


@pytest.mark.slow
@pytest.mark.req("PROVIDERS:pipeline", "PEF:E-15", "PEF:Q-3", "PEF:M-2", "PEF:C-11")
def test_a_provider_does_what_its_model_does() -> None:
    """In a thread."""
    run_state_machine_as_test(ProviderMachine, settings=ENOUGH)


@pytest.mark.slow
@pytest.mark.req("PROVIDERS:pipeline", "PEF:A-30")
def test_an_async_provider_does_what_its_model_does() -> None:
    """On an event loop."""
    run_state_machine_as_test(AsyncProviderMachine, settings=ENOUGH)
