from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import pytest

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.loop import Fetch, Finish, Loop, LoopRule, StopReason, Wait
from ergon_framework.core.retry import Backoff, RetryRule

SYSTEM = Failure(Kind.TRANSIENT, "system")
BUSINESS = Failure(Kind.REJECTED, "business")
MOST_STEPS = 100  # far more than any of these small calls needs


@dataclass
class Story:
    """What a whole call did."""

    why: StopReason | None = None
    asked: list[int] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    busiest: int = 0  # the most transactions that were taken in and not done
    done: int = 0


def whole_call(rule: LoopRule, total: int) -> Story:
    """One worker's view: fetch when told to, otherwise finish one transaction at a time."""
    loop, story = Loop(rule), Story()
    outstanding = 0
    for _ in range(MOST_STEPS):
        plan = loop.plan(0.0, outstanding)
        if isinstance(plan, Finish):
            story.why = plan.why
            assert loop.batches == sum(1 for given in story.given if given)
            return story
        if isinstance(plan, Fetch):
            loop.fetch_began(0.0)
            given = min(plan.at_most, total - sum(story.given))
            story.asked.append(plan.at_most)
            story.given.append(given)
            outstanding += loop.delivered(given, 0.0)
            story.busiest = max(story.busiest, outstanding)
        else:
            assert outstanding > 0
            outstanding -= 1
            story.done += 1
    raise AssertionError(f"{rule} did not come to an end")


def fetched(loop: Loop, count: int, now: float) -> int:
    """One fetch from its beginning to its answer."""
    loop.fetch_began(now)
    return loop.delivered(count, now)


# ---- whole calls --------------------------------------------------------------------------------


@pytest.mark.req(
    "RFC-004:13.1a", "RFC-004:13.1b", "RFC-005:15.1a", "RFC-005:15.1b", "R3-BA1", "T3.7"
)
@pytest.mark.parametrize("continuous", [False, True])
def test_every_small_call_does_exactly_its_work(continuous: bool) -> None:
    """It takes what there is or what the limit allows, whatever the sizes, and ends."""
    sizes, workers, limits, totals = range(1, 5), range(1, 4), (None, *range(7)), range(10)
    for size, concurrency, limit, total in itertools.product(sizes, workers, limits, totals):
        rule = LoopRule(size, concurrency, limit, continuous=continuous)
        story = whole_call(rule, total)
        bound = math.inf if limit is None else limit
        assert story.done == sum(story.given) == min(bound, total)
        assert story.why is (StopReason.LIMIT if bound <= total else StopReason.EMPTY)
        left = [bound - sum(story.given[:i]) for i in range(len(story.given))]
        assert story.asked == [min(size, one) for one in left]
        assert story.busiest < (concurrency + 2 * size if continuous else size + 1)


@pytest.mark.req("RFC-004:15d", "RFC-005:10.1b", "T3.8")
def test_a_batch_is_done_before_the_next_is_fetched() -> None:
    """In batch mode one slow transaction holds the next fetch back."""
    loop = Loop(LoopRule(size=3, concurrency=3))
    fetched(loop, 3, 0.0)
    assert [loop.plan(0.0, left) for left in (3, 2, 1)] == [Wait()] * 3
    assert loop.plan(0.0, 0) == Fetch(3)


@pytest.mark.req("T3.8")
def test_a_slow_transaction_blocks_nobody_in_continuous_mode() -> None:
    """There is a fetch while some are at work, up to a bound that keeps memory small."""
    loop = Loop(LoopRule(size=3, concurrency=2, continuous=True))
    plans = [loop.plan(0.0, outstanding) for outstanding in range(7)]
    assert plans == [Fetch(3)] * 5 + [Wait()] * 2


@pytest.mark.req("RFC-005:15.1d")
def test_a_producer_ends_when_its_input_is_used_up() -> None:
    """The same loop, under another name for the same end."""
    rule = LoopRule(exhausted=StopReason.EXHAUSTED)
    assert whole_call(rule, 2).why is StopReason.EXHAUSTED


# ---- the limit ----------------------------------------------------------------------------------


@pytest.mark.req("T3.7")
@pytest.mark.parametrize("streaming", [False, True])
def test_a_limit_of_zero_ends_before_the_first_fetch(streaming: bool) -> None:
    """Nothing is asked for."""
    assert Loop(LoopRule(limit=0, streaming=streaming)).plan(0.0, 0) == Finish(StopReason.LIMIT)


@pytest.mark.req("T3.7", "T3.9")
def test_a_surplus_stays_out_only_because_of_the_limit() -> None:
    """A source that gives more than it was asked for is cut at the limit and nowhere else."""
    unlimited, limited = Loop(LoopRule(size=2)), Loop(LoopRule(size=2, limit=3))
    assert fetched(unlimited, 5, 0.0) == 5
    assert fetched(limited, 5, 0.0) == 3
    assert (limited.taken, limited.remaining) == (3, 0)
    assert limited.plan(0.0, 3) == Wait()
    assert limited.plan(0.0, 0) == Finish(StopReason.LIMIT)


@pytest.mark.req("T3.7", "R3-BA1")
def test_the_last_fetch_asks_for_what_the_limit_leaves() -> None:
    """Nothing is stranded at a source that keeps to what was asked."""
    loop = Loop(LoopRule(size=4, limit=6))
    assert loop.plan(0.0, 0) == Fetch(4)
    fetched(loop, 4, 0.0)
    assert loop.plan(0.0, 0) == Fetch(2)


# ---- empty fetches ------------------------------------------------------------------------------


@pytest.mark.req("RFC-004:7.2b", "RFC-004:7.2c", "R3-EQ2", "R3-EQ3", "R3-EQ4", "T3.21")
def test_empty_fetches_are_spaced_from_the_base_on_and_reset_by_a_delivery() -> None:
    """The first wait has exponent 0; a delivery, and nothing else, starts the schedule again."""
    loop = Loop(LoopRule(streaming=True, empty=Backoff(1.0, 2.0, 5.0), fetch=RetryRule(2)))
    now = 100.0
    waits = []
    for count in (0, 0, 0, 0, 1, 0, 0):
        fetched(loop, count, now)
        plan = loop.plan(now, 0)
        until = plan.until if isinstance(plan, Wait) else None
        waits.append(None if until is None else until - now)
        now = until or now
    assert waits == [1.0, 2.0, 4.0, 5.0, None, 1.0, 2.0]
    loop.fetch_began(now)
    loop.fetch_failed(SYSTEM, now, 0.5)
    fetched(loop, 0, now)
    assert loop.plan(now, 0) == Wait(now + 4.0)


@pytest.mark.req("RFC-004:7.2a", "R3-EQ1")
def test_without_streaming_an_empty_fetch_is_the_end() -> None:
    """The empty-queue policy has no say."""
    loop = Loop(LoopRule(empty=Backoff(1.0)))
    fetched(loop, 0, 0.0)
    assert loop.plan(0.0, 0) == Finish(StopReason.EMPTY)


@pytest.mark.req("R3-EQ3")
def test_a_wait_ends_at_its_instant() -> None:
    """Neither before nor after."""
    loop = Loop(LoopRule(streaming=True, empty=Backoff(4.0)))
    fetched(loop, 0, 10.0)
    assert loop.plan(13.9, 0) == Wait(14.0)
    assert loop.plan(14.0, 0) == Fetch(1)


# ---- failing fetches ----------------------------------------------------------------------------


@pytest.mark.req("RFC-004:7.1b", "RFC-004:7.1e", "RFC-004:13.1d")
def test_a_failing_fetch_is_repeated_by_its_policy_and_then_ends_the_loop() -> None:
    """Waits follow the fetch step's backoff, and the last failure is kept."""
    loop = Loop(LoopRule(fetch=RetryRule(3, Backoff(1.0, 3.0))))
    for wait in (1.0, 3.0):
        loop.fetch_began(50.0)
        loop.fetch_failed(SYSTEM, 50.0, 0.5)
        assert loop.plan(50.0, 0) == Wait(50.0 + wait)
    loop.fetch_began(50.0)
    loop.fetch_failed(SYSTEM, 50.0, 0.5)
    assert loop.plan(50.0, 0) == Finish(StopReason.FETCH_FAILED)
    assert loop.failure is SYSTEM


@pytest.mark.req("T3.6", "RFC-004:13.1d")
def test_a_refused_fetch_is_not_repeated() -> None:
    """Asking again would bring the same refusal."""
    loop = Loop(LoopRule(fetch=RetryRule(9)))
    loop.fetch_began(0.0)
    loop.fetch_failed(BUSINESS, 0.0, 0.5)
    assert loop.plan(0.0, 0) == Finish(StopReason.FETCH_FAILED)


@pytest.mark.req("RFC-004:7.1b")
@pytest.mark.parametrize("count", [0, 1])
def test_an_answer_gives_the_next_fetch_all_its_attempts_back(count: int) -> None:
    """An empty answer is an answer."""
    loop = Loop(LoopRule(streaming=True, fetch=RetryRule(2)))
    for _ in range(3):
        loop.fetch_began(0.0)
        loop.fetch_failed(SYSTEM, 0.0, 0.5)
        fetched(loop, count, 0.0)
    assert loop.reason is None


def test_the_budget_of_a_fetch_starts_with_its_first_attempt() -> None:
    """Repeating it does not start the clock again; the next fetch does."""
    loop = Loop(LoopRule(fetch=RetryRule(9, budget=10.0)))
    for now in (100.0, 104.0):
        loop.fetch_began(now)
        loop.fetch_failed(SYSTEM, now, 0.5)
        assert loop.reason is None
    fetched(loop, 1, 108.0)
    for now in (200.0, 205.0):
        loop.fetch_began(now)
        loop.fetch_failed(SYSTEM, now, 0.5)
        assert loop.reason is None
    loop.fetch_began(210.0)
    loop.fetch_failed(SYSTEM, 210.0, 0.5)
    assert loop.reason is StopReason.FETCH_FAILED


def test_dice_reach_the_fetch_s_backoff() -> None:
    """A jittered schedule is jittered here too."""
    loop = Loop(LoopRule(fetch=RetryRule(2, Backoff(10.0, low=0.0, high=1.0))))
    loop.fetch_began(0.0)
    loop.fetch_failed(SYSTEM, 0.0, 0.25)
    assert loop.plan(0.0, 0) == Wait(2.5)


@pytest.mark.req("T3.20")
def test_work_in_flight_is_finished_after_a_failed_fetch() -> None:
    """The loop ends when the last transaction has its outcome."""
    loop = Loop(LoopRule(concurrency=2, continuous=True))
    fetched(loop, 1, 0.0)
    loop.fetch_began(0.0)
    loop.fetch_failed(SYSTEM, 0.0, 0.5)
    assert loop.plan(0.0, 1) == Wait()
    assert loop.plan(0.0, 0) == Finish(StopReason.FETCH_FAILED)


# ---- stopping -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(StopReason, 2)))
def test_the_first_reason_stays(first: StopReason, second: StopReason) -> None:
    """What happens while a loop winds down does not change why it ended."""
    loop = Loop(LoopRule())
    loop.stop(first)
    loop.stop(second)
    assert loop.plan(0.0, 0) == Finish(first)


@pytest.mark.req("T3.30")
def test_a_stopped_loop_waits_for_its_fetch_and_its_work() -> None:
    """It asks for nothing more, and is over when both are."""
    loop = Loop(LoopRule(size=3, continuous=True))
    fetched(loop, 1, 0.0)
    loop.fetch_began(0.0)
    loop.stop(StopReason.STOPPED)
    assert loop.plan(0.0, 0) == Wait()
    assert loop.delivered(0, 0.0) == 0
    assert loop.plan(0.0, 1) == Wait()
    assert loop.plan(0.0, 0) == Finish(StopReason.STOPPED)


@pytest.mark.req("T3.30", "T3.19")
@pytest.mark.parametrize(("returns", "accepted"), [(True, 0), (False, 2)])
def test_what_arrives_during_a_stop_goes_back_or_is_worked_on(returns: bool, accepted: int) -> None:
    """Where the source takes nothing back, nobody else would ever see it."""
    loop = Loop(LoopRule(size=2, returns=returns))
    loop.fetch_began(0.0)
    loop.stop(StopReason.STOPPED)
    assert loop.delivered(2, 0.0) == accepted
    assert (loop.taken, loop.batches) == (accepted, 1 if accepted else 0)
    assert loop.plan(0.0, 0) == Finish(StopReason.STOPPED)


@pytest.mark.req("T3.7")
def test_the_limit_holds_during_a_stop() -> None:
    """Work that cannot go back is taken in, but not past the limit."""
    loop = Loop(LoopRule(size=2, limit=3))
    fetched(loop, 2, 0.0)
    loop.fetch_began(0.0)
    loop.stop(StopReason.STOPPED)
    assert loop.delivered(2, 0.0) == 1
    assert loop.reason is StopReason.STOPPED


@pytest.mark.req("R3-D4", "R3-EQ3")
def test_defaults_are_safe() -> None:
    """One at a time, one attempt, an end at the first empty fetch, and no busy loop."""
    rule = LoopRule()
    assert (rule.size, rule.concurrency, rule.limit) == (1, 1, None)
    assert (rule.streaming, rule.continuous, rule.returns) == (False, False, False)
    assert rule.fetch == RetryRule(1)
    assert [rule.empty.delay(k) for k in (0, 1, 99)] == [0.1, 0.2, 10.0]
