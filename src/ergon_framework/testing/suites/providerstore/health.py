"""Checks of the health summary: every lane of a tenant once, and the rates of the last hour."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from random import Random

from ergon_framework.core.quota import QuotaUsage
from ergon_framework.ports.providerstore import ALL_TENANTS, AttemptRow, LaneKey
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.providerstore.under_test import (
    CLOCK,
    DEAD,
    FAILED,
    HOUR,
    LANE,
    MINUTE,
    OTHER_TENANT,
    RETRY,
    SUCCESS,
    TENANT,
    ProviderStoreSubject,
    near,
    same,
)

CHECKS: list[Check[ProviderStoreSubject]] = []
check = register(CHECKS)


@check()
def unknown_tenant_has_no_lanes(s: ProviderStoreSubject) -> None:
    """The summary of a tenant that nobody has heard of is empty."""
    s.ran(SUCCESS)
    same(s.store.health(OTHER_TENANT), [], "the summary")


@check()
def tenants_see_their_own_lanes(s: ProviderStoreSubject) -> None:
    """A tenant's summary has no lane, rate or budget of another, nor of everybody."""
    theirs = LANE._replace(tenant_id=OTHER_TENANT)
    s.ran(SUCCESS)
    s.ran(FAILED, key=theirs)
    s.take(2, key=theirs)
    s.store.extend_cooldown(theirs._replace(capability="more"), s.start + 1.0)
    s.must_swap(0, s.opened(), LANE._replace(tenant_id=ALL_TENANTS))
    same([one.key for one in s.store.health(TENANT)], [LANE], "the lanes")
    same((s.rates(), s.lane().account), ((1.0, 20), None), "rates and account")
    same(s.rates(theirs)[0], 0.0, "the success rate of the other")
    same(len(s.store.health(ALL_TENANTS)), 1, "lanes of everybody")


@check()
def lanes_come_in_order(s: ProviderStoreSubject) -> None:
    """Lanes are sorted by provider and capability, whatever made them known."""
    names = [("zoo", "a"), ("rank", "z"), ("rank", "b"), ("a-b", "c"), ("a", "b"), ("Rank", "a")]
    lanes = [LaneKey(TENANT, *pair) for pair in names]
    s.record(s.attempt(key=lanes[0]), s.attempt(key=lanes[4]))
    s.take(key=lanes[1])
    s.take(key=lanes[5])
    s.must_swap(0, s.opened(), lanes[2])
    s.store.extend_cooldown(lanes[3], s.start + 1.0)
    same([one.key for one in s.store.health(TENANT)], sorted(lanes), "the lanes")


@check()
def lane_is_there_once(s: ProviderStoreSubject) -> None:
    """A lane with attempts, a circuit, a cooldown and a budget is one line, with all of it."""
    s.take(4)
    s.store.extend_cooldown(LANE, s.start + 5.0)
    s.ran(SUCCESS, RETRY, FAILED)
    s.must_swap(0, s.opened(3))
    lane = s.lane()
    same(lane.account, QuotaUsage(s.window(), 10, 4), "the account")
    same((lane.breaker_state, lane.consecutive_failures), ("open", 3), "the circuit")
    same((lane.open_until, lane.cooldown_until), (s.start + 30.25, s.start + 5.0), "the instants")
    same((lane.success_rate_1h, lane.last_error_code), (0.5, "timeout"), "rate and last error")


@check()
def lane_with_a_budget_alone(s: ProviderStoreSubject) -> None:
    """A lane of which only a budget is known is closed and has nothing else to tell."""
    s.take(1)
    lane = s.lane()
    same((lane.breaker_state, lane.consecutive_failures), ("closed", 0), "the circuit")
    found = (
        lane.open_until,
        lane.cooldown_until,
        lane.success_rate_1h,
        lane.p95_latency_ms_1h,
        lane.last_error_code,
        lane.last_error_at,
        lane.last_success_at,
    )
    same(found, (None,) * 7, "the rest")


@check()
def lane_with_attempts_alone(s: ProviderStoreSubject) -> None:
    """A lane of which only attempts are known is closed, not cooling, and has no account."""
    s.ran(FAILED)
    lane = s.lane()
    same((lane.breaker_state, lane.consecutive_failures), ("closed", 0), "the circuit")
    same((lane.open_until, lane.cooldown_until, lane.account), (None, None, None), "the rest")


@check()
def failure_keeps_the_last_success(s: ProviderStoreSubject) -> None:
    """A failure does not erase when the lane last succeeded."""
    s.ran(SUCCESS)
    s.ran(FAILED, created_at=s.start + 1.0, reason_code="auth_failed")
    lane = s.lane()
    same(lane.last_success_at, s.start, "last_success_at")
    same((lane.last_error_at, lane.last_error_code), (s.start + 1.0, "auth_failed"), "last error")


@check()
def success_keeps_the_last_error(s: ProviderStoreSubject) -> None:
    """A success does not erase when and how the lane last failed."""
    s.ran(DEAD, reason_code="rate_limited")
    s.ran(SUCCESS, created_at=s.start + 1.0)
    lane = s.lane()
    same((lane.last_error_at, lane.last_error_code), (s.start, "rate_limited"), "last error")
    same(lane.last_success_at, s.start + 1.0, "last_success_at")


@check()
def latest_is_the_latest_made(s: ProviderStoreSubject) -> None:
    """What was last heard goes by when attempts were made, not by when they were written."""
    s.ran(FAILED, created_at=s.start, reason_code="timeout")
    s.ran(FAILED, created_at=s.start - 50.0, reason_code="connection_error")
    s.record(s.attempt(created_at=s.start - 3.0), s.attempt(created_at=s.start - 20.0))
    s.ran(SUCCESS, created_at=s.start - 40.0)
    lane = s.lane()
    same((lane.last_error_at, lane.last_error_code), (s.start, "timeout"), "last error")
    same(lane.last_success_at, s.start - 3.0, "last_success_at")
    s.ran(FAILED, created_at=s.start + 2.0, reason_code="response_invalid")
    same(s.lane().last_error_code, "response_invalid", "last_error_code after a later one")


@check()
def refused_call_is_no_error_of_the_provider(s: ProviderStoreSubject) -> None:
    """A call that a gate refused is on record, and is not what the provider last answered."""
    s.ran(FAILED, reason_code="timeout")
    row = s.refused("circuit_open", correlation_id="c", created_at=s.start + 1.0)
    s.record(row)
    same(s.store.attempts_of("c"), [row], "the attempts")
    lane = s.lane()
    same((lane.last_error_at, lane.last_error_code), (s.start, "timeout"), "last error")


@check(CLOCK)
def updated_at_is_the_last_writing(s: ProviderStoreSubject) -> None:
    """Each writing of a lane dates it, reading does not."""
    writings: tuple[Callable[[], object], ...] = (
        lambda: s.ran(SUCCESS),
        lambda: s.must_swap(0, s.opened()),
        lambda: s.store.extend_cooldown(LANE, s.start + 99.0),
        lambda: s.ran(FAILED),
    )
    for n, write in enumerate(writings):
        s.clock.to(s.start + 10.0 * n)
        write()
        s.clock.forward(5.0)
        same(s.lane().updated_at, s.start + 10.0 * n, "updated_at")


@check(CLOCK)
def what_was_last_heard_stays(s: ProviderStoreSubject) -> None:
    """Days after the last call, the summary still says how the lane stands."""
    s.ran(SUCCESS, FAILED)
    s.must_swap(0, s.opened())
    s.clock.forward(100 * HOUR)
    lane = s.lane()
    found = lane.last_success_at, lane.last_error_at, lane.last_error_code
    same(found, (s.start, s.start, "timeout"), "what was last heard")
    same((lane.breaker_state, lane.open_until), ("open", s.start + 30.25), "the circuit")


@check()
def summary_changes_nothing(s: ProviderStoreSubject) -> None:
    """Two looks at a lane see the same, however it stands."""
    s.take(1)
    s.ran(SUCCESS, FAILED, DEAD)
    s.must_swap(0, s.probing())
    before = s.store.lane_state(LANE)
    same(s.store.health(TENANT), s.store.health(TENANT), "the second look")
    same(s.store.lane_state(LANE), before, "the standing")
    expect(s.store.compare_and_set(LANE, before.version, s.opened()), "a swap was refused")


# Roll-ups are by the minute: an attempt is surely counted for 59 minutes, and surely not after 61.


@check()
def success_rate_is_of_executions(s: ProviderStoreSubject) -> None:
    """The rate is of calls that ended: a dead letter is a failure, a retry in between nothing."""
    s.ran(RETRY, RETRY, SUCCESS, SUCCESS, SUCCESS)
    same(s.rates()[0], 1.0, "with retries only")
    s.ran(RETRY, FAILED)
    same(s.rates()[0], 0.75, "with a failure")
    s.ran(DEAD)
    near(s.rates()[0], 3 / 5, "with a dead letter")


@check()
def no_rate_without_an_ending(s: ProviderStoreSubject) -> None:
    """There is no success rate before a call has ended, though there are durations."""
    s.must_swap(0, s.opened())
    same(s.rates(), (None, None), "of a lane without attempts")
    s.ran(RETRY, duration_ms=70)
    same(s.rates(), (None, 70), "of a lane with retries")


@check()
def nothing_but_failures(s: ProviderStoreSubject) -> None:
    """A rate of zero is told as zero, not as unknown."""
    s.ran(FAILED, DEAD, duration_ms=0)
    same(s.rates(), (0.0, 0), "the rates")


@check()
def refused_calls_do_not_count(s: ProviderStoreSubject) -> None:
    """Calls that a gate refused count neither as failures nor as fast answers."""
    s.ran(SUCCESS, duration_ms=400)
    codes = ("circuit_open", "quota_exhausted", "rate_limited") * 20
    s.record(*(s.refused(code) for code in codes))
    same(s.rates(), (1.0, 400), "the rates")


@check()
def refused_calls_alone_are_no_rate(s: ProviderStoreSubject) -> None:
    """A lane of which only refused calls are known has no rates."""
    s.record(s.refused(), s.refused())
    same(s.rates(), (None, None), "the rates")


@check()
def p95_is_the_nearest_rank(s: ProviderStoreSubject) -> None:
    """Of few durations, the 95th percentile is the one of the nearest rank, exactly."""
    order = Random(5)  # noqa: S311 - the same each time
    for count, wanted in ((1, 1031), (10, 10_310), (19, 19_589), (20, 19_589), (100, 97_945)):
        key = LANE._replace(capability=f"of {count}")
        durations = [1031 * n for n in range(1, count + 1)]
        order.shuffle(durations)
        s.record(*(s.attempt(key=key, duration_ms=each) for each in durations))
        same(s.rates(key)[1], wanted, f"p95 of {count}")


@check()
def p95_has_failures_and_retries(s: ProviderStoreSubject) -> None:
    """How long an attempt took counts however it ended."""
    s.ran(*[SUCCESS] * 4, duration_ms=10)
    s.ran(RETRY, duration_ms=500)
    same(s.rates()[1], 500, "with a retry")
    s.ran(FAILED, duration_ms=600)
    same(s.rates()[1], 600, "with a failure")
    s.ran(DEAD, duration_ms=700)
    same(s.rates()[1], 700, "with a dead letter")


@check()
def p95_of_many(s: ProviderStoreSubject) -> None:
    """Of many durations, the 95th percentile is right within two in a hundred."""
    for scale in (1, 37, 9001):
        key = LANE._replace(capability=f"times {scale}")
        s.record(*(s.attempt(key=key, duration_ms=scale * n) for n in range(1, 1001)))
        near(s.rates(key)[1], 950 * scale, f"p95 times {scale}", within=19 * scale)


@check()
def minutes_add_up(s: ProviderStoreSubject) -> None:
    """Attempts of all minutes of the hour are counted together, exactly."""
    s.record(
        *(
            s.attempt(
                SUCCESS if n % 5 else FAILED,
                created_at=s.start - n * MINUTE,
                duration_ms=1009 * (n + 1),
            )
            for n in range(50)
        )
    )
    same(s.rates(), (0.8, 1009 * ceil(50 * 0.95)), "the rates")


@check()
def old_attempts_do_not_count(s: ProviderStoreSubject) -> None:
    """Attempts that were made more than an hour ago are on record, and in no rate."""
    old = s.attempt(FAILED, created_at=s.start - HOUR - 5 * MINUTE, correlation_id="c")
    s.record(old, s.attempt(created_at=s.start - 50 * MINUTE))
    same(s.store.attempts_of("c"), [old], "the attempts")
    same(s.rates(), (1.0, 20), "the rates")
    key = LANE._replace(capability="long ago")
    s.ran(FAILED, created_at=s.start - 2 * HOUR, key=key)
    same(s.rates(key), (None, None), "the rates where all are old")


@check()
def late_attempts_count(s: ProviderStoreSubject) -> None:
    """Attempts that come in late, as after the store was away, count as of when they were made."""
    s.ran(SUCCESS)
    same(s.rates()[0], 1.0, "at first")
    for n, minutes in enumerate((40, 20, 3, 20), 2):
        s.ran(FAILED, created_at=s.start - minutes * MINUTE)
        near(s.rates()[0], 1 / n, f"after one of {minutes} minutes ago came in")


@check(CLOCK)
def rates_fade_without_traffic(s: ProviderStoreSubject) -> None:
    """When nobody calls any more, the rates stay for most of an hour, and then there are none."""
    s.ran(SUCCESS, FAILED, duration_ms=30)
    for minutes in (1, 20, 37):
        s.clock.forward(minutes * MINUTE)
        same(s.rates(), (0.5, 30), "within the hour")
    s.clock.forward(4 * MINUTE)
    same(s.rates(), (None, None), "after the hour")


@check(CLOCK)
def rates_move_with_the_hour(s: ProviderStoreSubject) -> None:
    """What is older than an hour makes way for what came since."""
    s.ran(FAILED, FAILED, duration_ms=900)
    s.clock.forward(30 * MINUTE)
    s.ran(SUCCESS, SUCCESS, created_at=s.clock(), duration_ms=10)
    same(s.rates(), (0.5, 900), "half an hour later")
    s.clock.forward(32 * MINUTE)
    same(s.rates(), (1.0, 10), "an hour later")


@check(CLOCK)
def rates_survive_a_clock_that_is_set_back(s: ProviderStoreSubject) -> None:
    """A clock that steps back an hour and forth again leaves the rates right in the end."""
    s.ran(SUCCESS, FAILED)
    same(s.rates()[0], 0.5, "at first")
    s.clock.forward(-HOUR)
    expect(s.rates()[0] in {None, 0.5}, f"an hour before, the rate is {s.rates()[0]}")
    s.ran(FAILED, FAILED, created_at=s.clock() + 10 * MINUTE)
    s.rates()
    s.clock.forward(HOUR)
    same(s.rates()[0], 0.25, "afterwards")


@check(CLOCK)
def rates_are_those_of_the_attempts(s: ProviderStoreSubject) -> None:
    """However calls, late news, silence and looks at the summary alternate, the rates are right."""
    dice = Random(11)  # noqa: S311 - the same each time
    rows: list[AttemptRow] = []
    for _ in range(60):
        s.clock.forward(5 * MINUTE * dice.choice((0, 0, 0, 1, 1, 3, 9)))
        fresh = [
            s.attempt(
                dice.choice((SUCCESS, SUCCESS, RETRY, FAILED, DEAD)),
                created_at=s.clock() - MINUTE * (2.5 + 5 * dice.choice((0, 0, 0, 2, 7, 11, 13))),
                duration_ms=dice.randrange(5000),
            )
            for _ in range(dice.choice((0, 1, 1, 4)))
        ]
        rows += fresh
        s.record(*fresh, *dice.sample(rows, min(len(rows), 2)))
        if rows and dice.random() < 0.7:
            same(s.rates(), _scanned(rows, s.clock()), "rates, and those of a scan")


def _scanned(rows: list[AttemptRow], now: float) -> tuple[float | None, int | None]:
    recent = [row for row in rows if row.created_at > now - HOUR]
    ended = [row.outcome == SUCCESS for row in recent if row.outcome != RETRY]
    durations = sorted(row.duration_ms for row in recent)
    rate = sum(ended) / len(ended) if ended else None
    return rate, durations[ceil(0.95 * len(durations)) - 1] if durations else None
