"""Any loop, with any rules and any source, beside a model of what the engines promise."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.loop import Fetch, Finish, Loop, LoopPlan, LoopRule, StopReason, Wait
from ergon_framework.core.retry import Backoff, RetryRule

NEVER_RETRIED = {Kind.REJECTED, Kind.HELD, Kind.CANCELLED}
RETRIED = [kind for kind in Kind if kind not in NEVER_RETRIED]
backoffs = st.builds(
    Backoff,
    base=st.sampled_from([0.5, 2.0, 0.0]),
    factor=st.sampled_from([2.0, 1.0]),
    cap=st.sampled_from([0.0, 3.0]),
)
loop_rules = st.builds(
    LoopRule,
    size=st.sampled_from([2, 1, 3, 4]),
    concurrency=st.sampled_from([2, 1, 3]),
    limit=st.sampled_from([None, 7, 3, 1]),
    streaming=st.sampled_from([True, False]),
    continuous=st.booleans(),
    empty=backoffs,
    fetch=st.builds(RetryRule, st.sampled_from([3, 2, 1]), backoffs),
    exhausted=st.sampled_from([StopReason.EMPTY, StopReason.EXHAUSTED]),
    returns=st.booleans(),
)
outside_reasons = st.sampled_from([StopReason.STOPPED, StopReason.TIMEOUT, StopReason.INTERRUPTED])
kinds = st.sampled_from([*Kind, *RETRIED, *RETRIED])
counts = st.integers(1, 4)
passing = st.sampled_from([0.0, 0.25, 10.0])


class LoopMachine(RuleBasedStateMachine):
    """A driver with a clock of its own, a source that does anything, and workers that finish."""

    @initialize(loop_rule=loop_rules, now=st.sampled_from([0.0, 1000.0]))
    def begin(self, loop_rule: LoopRule, now: float) -> None:
        """The first call under some rule."""
        self.rule = loop_rule
        self.now = now
        self.begin_one()

    def begin_one(self) -> None:
        """A new call."""
        self.loop = Loop(self.rule)
        self.asked: int | None = None  # how much the fetch under way asked for
        self.is_hanging = False  # whether a fetch that was given up on may still come back
        self.outstanding = 0
        self.taken = 0
        self.empties = 0
        self.failed_fetches = 0  # in a row
        self.resume_at: float | None = None
        self.reason: StopReason | None = None
        self.fetches = 0

    # -- the model -------------------------------------------------------------------------------

    def expected(self) -> LoopPlan:
        """What must be planned now."""
        if self.reason is not None:
            is_done = self.outstanding == 0 and self.asked is None
            return Finish(self.reason) if is_done else Wait()
        bound = self.rule.concurrency + self.rule.size if self.rule.continuous else 1
        if self.asked is not None or self.outstanding >= bound:
            return Wait()
        if self.resume_at is not None and self.resume_at > self.now:
            return Wait(self.resume_at)
        left = self.rule.size if self.rule.limit is None else self.rule.limit - self.taken
        return Fetch(min(self.rule.size, left))

    def plan(self) -> LoopPlan:
        """What the loop under test plans now."""
        return self.loop.plan(self.now, self.outstanding)

    def stops(self, reason: StopReason) -> None:
        """A reason arrives; only the first one counts."""
        self.reason = self.reason or reason

    def is_fetching(self) -> bool:
        """Whether the source is being asked."""
        return self.asked is not None

    def may_fetch(self) -> bool:
        """Whether the loop wants to fetch."""
        return isinstance(self.plan(), Fetch)

    # -- what can happen -------------------------------------------------------------------------

    @precondition(may_fetch)
    @rule()
    def a_fetch_begins(self) -> None:
        """The driver does what was planned."""
        plan = self.plan()
        assert isinstance(plan, Fetch)
        self.loop.fetch_began(self.now)
        self.asked, self.resume_at = plan.at_most, None
        self.fetches += 1

    @precondition(is_fetching)
    @rule(count=counts, passed=passing)
    def some_are_delivered(self, count: int, passed: float) -> None:
        """A well-behaved source gives no more than it was asked for."""
        self.now += passed
        assert self.asked is not None
        before = self.outstanding
        self.delivered(min(count, self.asked))
        if self.rule.continuous:
            assert self.outstanding < self.rule.concurrency + 2 * self.rule.size
        else:
            assert before == 0
            assert self.outstanding <= self.rule.size

    @precondition(is_fetching)
    @rule(extra=counts)
    def too_many_are_delivered(self, extra: int) -> None:
        """A source may give more; only the limit keeps any of it out."""
        assert self.asked is not None
        self.delivered(self.asked + extra)

    @precondition(lambda self: self.is_hanging and self.reason is not None)
    @rule(count=counts)
    def a_hanging_fetch_comes_back_after_the_stop(self, count: int) -> None:
        """What it brought is in our hands, even though nobody waits for it any more."""
        self.is_hanging = False
        self.delivered(count)

    def delivered(self, count: int) -> None:
        """Hand transactions over, and see that the right number of them is taken in."""
        goes_back = self.reason is not None and self.rule.returns
        left = count if self.rule.limit is None else self.rule.limit - self.taken
        accepted = 0 if goes_back else min(count, left)
        assert self.loop.delivered(count, self.now) == accepted
        self.taken += accepted
        self.outstanding += accepted
        self.asked, self.empties, self.failed_fetches = None, 0, 0
        if self.taken == self.rule.limit:
            self.stops(StopReason.LIMIT)

    @precondition(is_fetching)
    @rule(passed=passing)
    def nothing_is_delivered(self, passed: float) -> None:
        """Without streaming that is the end; with it, a wait by the count of empty fetches."""
        self.now += passed
        assert self.loop.delivered(0, self.now) == 0
        self.asked, self.failed_fetches = None, 0
        if self.rule.streaming:
            self.resume_at = self.now + self.rule.empty.delay(self.empties)
            self.empties += 1
        else:
            self.stops(self.rule.exhausted)

    @precondition(is_fetching)
    @rule(kind=kinds, is_hanging=st.booleans(), passed=passing)
    def a_fetch_fails(self, kind: Kind, is_hanging: bool, passed: float) -> None:
        """Another attempt after the wait of the fetch policy, or the end."""
        self.now += passed
        failure = Failure(Kind.TIMEOUT if is_hanging else kind, "test")
        self.is_hanging = self.is_hanging or is_hanging
        self.loop.fetch_failed(failure, self.now, 0.5)
        self.asked = None
        retry = self.rule.fetch
        if failure.kind in NEVER_RETRIED or self.failed_fetches + 1 == retry.attempts:
            self.stops(StopReason.FETCH_FAILED)
            assert self.loop.failure == failure
        else:
            self.resume_at = self.now + retry.backoff.delay(self.failed_fetches)
            self.failed_fetches += 1

    @precondition(lambda self: self.outstanding > 0)
    @rule(count=counts, passed=passing)
    def some_are_done(self, count: int, passed: float) -> None:
        """Workers finish what they had."""
        self.now += passed
        self.outstanding -= min(count, self.outstanding)

    @precondition(lambda self: isinstance(self.plan(), Wait) and self.plan().until is not None)
    @rule()
    def the_wait_ends(self) -> None:
        """At the very instant that was planned, the loop fetches."""
        plan = self.plan()
        assert isinstance(plan, Wait)
        assert plan.until is not None
        self.now = plan.until
        assert isinstance(self.plan(), Fetch)

    @precondition(lambda self: self.fetches > 1 and self.reason is None)
    @rule(reasons=st.lists(outside_reasons, min_size=1, max_size=2))
    def somebody_stops_it(self, reasons: list[StopReason]) -> None:
        """A stop from outside, or two."""
        for reason in reasons:
            self.loop.stop(reason)
            self.stops(reason)

    @precondition(lambda self: isinstance(self.plan(), Finish))
    @rule()
    def the_next_call_begins(self) -> None:
        """One call is over; what it knew is not known to the next."""
        self.begin_one()

    # -- what is always true ---------------------------------------------------------------------

    @invariant()
    def the_plan_is_the_model_s(self) -> None:
        """Asked twice, it answers the same: planning changes nothing."""
        assert self.plan() == self.plan() == self.expected()

    @invariant()
    def a_fetch_asks_for_what_may_be_taken(self) -> None:
        """At least one, at most a batch, never past the limit, and one fetch at a time."""
        plan = self.plan()
        if isinstance(plan, Fetch):
            assert 1 <= plan.at_most <= self.rule.size
            assert self.loop.remaining is None or plan.at_most <= self.loop.remaining
            assert not self.loop.fetching
            assert self.rule.continuous or self.outstanding == 0

    @invariant()
    def the_limit_is_never_passed(self) -> None:
        """However much the source gives."""
        assert self.loop.taken == self.taken
        assert self.rule.limit is None or self.taken <= self.rule.limit
        assert self.loop.remaining == (self.rule.limit and self.rule.limit - self.taken)

    @invariant()
    def it_finishes_when_nothing_is_left(self) -> None:
        """Neither a transaction without an outcome nor a fetch under way."""
        if isinstance(self.plan(), Finish):
            assert self.outstanding == 0
            assert not self.loop.fetching

    @invariant()
    def the_counts_agree(self) -> None:
        """What the report and the notices are made of."""
        assert self.loop.reason == self.reason
        assert self.loop.empties == self.empties
        assert self.loop.resume_at == self.resume_at
        assert self.loop.fetch_attempt == self.failed_fetches
        assert self.loop.fetching == (self.asked is not None)

    def teardown(self) -> None:
        """From wherever the run has come, an idle source leads to the end in a few steps."""
        if not hasattr(self, "loop"):
            return
        if self.rule.streaming:
            self.loop.stop(StopReason.STOPPED)
        for _ in range(6):
            plan = self.plan()
            if isinstance(plan, Finish):
                return
            if isinstance(plan, Fetch):
                self.loop.fetch_began(self.now)
            elif plan.until is not None:
                self.now = plan.until
            elif self.loop.fetching:
                self.loop.delivered(0, self.now)
            else:
                self.outstanding = 0
        raise AssertionError(f"no end in sight: {self.plan()}")


@pytest.mark.req(
    "RFC-004:3h",
    "RFC-004:7.1b",
    "RFC-004:7.1e",
    "RFC-004:7.2a",
    "RFC-004:7.2b",
    "RFC-004:7.2c",
    "RFC-004:13.1a",
    "RFC-004:13.1b",
    "RFC-004:13.1d",
    "RFC-004:13.2b",
    "RFC-004:13.2c",
    "RFC-004:15d",
    "RFC-005:3d",
    "RFC-005:3h",
    "RFC-005:10.1b",
    "RFC-005:15.1a",
    "RFC-005:15.1b",
    "R0-G7",
    "R3-BA1",
    "R3-EQ1",
    "R3-EQ2",
    "R3-EQ3",
    "R3-EQ4",
    "T3.7",
    "T3.8",
    "T3.9",
    "T3.20",
    "T3.21",
)
def test_any_loop_keeps_every_promise() -> None:
    """Whatever source, workers and clock do, the loop plans as the model does."""
    run_state_machine_as_test(
        LoopMachine,
        settings=settings(
            derandomize=True,
            deadline=None,
            max_examples=60,
            stateful_step_count=30,
            phases=[Phase.generate, Phase.shrink],  # explaining a failure takes a minute
            report_multiple_bugs=False,
        ),
    )
