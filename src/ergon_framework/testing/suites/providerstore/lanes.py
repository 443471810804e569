"""Checks of the summary: every lane of a tenant, once, in order, with what was last heard."""

from __future__ import annotations

from collections.abc import Callable

from ergon_framework.core.quota import Account
from ergon_framework.ports.providerstore import EVERYBODY, LaneKey
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.providerstore.subject import (
    CLOCK,
    DEAD,
    FAILED,
    HOUR,
    LANE,
    OTHER_TENANT,
    RETRY,
    SUCCESS,
    TENANT,
    Subject,
    same,
)

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


@check()
def unknown_tenant_has_no_lanes(s: Subject) -> None:
    """The summary of a tenant that nobody has heard of is empty."""
    s.ran(SUCCESS)
    same(s.store.health(OTHER_TENANT), [], "the summary")


@check()
def tenants_see_their_own_lanes(s: Subject) -> None:
    """A tenant's summary has no lane, rate or budget of another, nor of everybody."""
    theirs = LANE._replace(tenant_id=OTHER_TENANT)
    s.ran(SUCCESS)
    s.ran(FAILED, key=theirs)
    s.take(2, key=theirs)
    s.store.cool(theirs._replace(capability="more"), s.start + 1.0)
    s.must_swap(0, s.opened(), LANE._replace(tenant_id=EVERYBODY))
    same([one.key for one in s.store.health(TENANT)], [LANE], "the lanes")
    same((s.rates(), s.lane().account), ((1.0, 20), None), "rates and account")
    same(s.rates(theirs)[0], 0.0, "the success rate of the other")
    same(len(s.store.health(EVERYBODY)), 1, "lanes of everybody")


@check()
def lanes_come_in_order(s: Subject) -> None:
    """Lanes are sorted by provider and capability, whatever made them known."""
    names = [("zoo", "a"), ("rank", "z"), ("rank", "b"), ("a-b", "c"), ("a", "b"), ("Rank", "a")]
    lanes = [LaneKey(TENANT, *pair) for pair in names]
    s.record(s.attempt(key=lanes[0]), s.attempt(key=lanes[4]))
    s.take(key=lanes[1])
    s.take(key=lanes[5])
    s.must_swap(0, s.opened(), lanes[2])
    s.store.cool(lanes[3], s.start + 1.0)
    same([one.key for one in s.store.health(TENANT)], sorted(lanes), "the lanes")


@check()
def lane_is_there_once(s: Subject) -> None:
    """A lane with attempts, a circuit, a cooldown and a budget is one line, with all of it."""
    s.take(4)
    s.store.cool(LANE, s.start + 5.0)
    s.ran(SUCCESS, RETRY, FAILED)
    s.must_swap(0, s.opened(3))
    lane = s.lane()
    same(lane.account, Account(s.window(), 10, 4), "the account")
    same((lane.breaker_state, lane.consecutive_failures), ("open", 3), "the circuit")
    same((lane.open_until, lane.cooldown_until), (s.start + 30.25, s.start + 5.0), "the instants")
    same((lane.success_rate_1h, lane.last_error_code), (0.5, "timeout"), "rate and last error")


@check()
def lane_with_a_budget_alone(s: Subject) -> None:
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
def lane_with_attempts_alone(s: Subject) -> None:
    """A lane of which only attempts are known is closed, not cooling, and has no account."""
    s.ran(FAILED)
    lane = s.lane()
    same((lane.breaker_state, lane.consecutive_failures), ("closed", 0), "the circuit")
    same((lane.open_until, lane.cooldown_until, lane.account), (None, None, None), "the rest")


@check()
def failure_keeps_the_last_success(s: Subject) -> None:
    """A failure does not erase when the lane last succeeded."""
    s.ran(SUCCESS)
    s.ran(FAILED, created_at=s.start + 1.0, reason_code="auth_failed")
    lane = s.lane()
    same(lane.last_success_at, s.start, "last_success_at")
    same((lane.last_error_at, lane.last_error_code), (s.start + 1.0, "auth_failed"), "last error")


@check()
def success_keeps_the_last_error(s: Subject) -> None:
    """A success does not erase when and how the lane last failed."""
    s.ran(DEAD, reason_code="rate_limited")
    s.ran(SUCCESS, created_at=s.start + 1.0)
    lane = s.lane()
    same((lane.last_error_at, lane.last_error_code), (s.start, "rate_limited"), "last error")
    same(lane.last_success_at, s.start + 1.0, "last_success_at")


@check()
def latest_is_the_latest_made(s: Subject) -> None:
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
def refused_call_is_no_error_of_the_provider(s: Subject) -> None:
    """A call that a gate refused is on record, and is not what the provider last answered."""
    s.ran(FAILED, reason_code="timeout")
    row = s.refused("circuit_open", correlation_id="c", created_at=s.start + 1.0)
    s.record(row)
    same(s.store.attempts_of("c"), [row], "the attempts")
    lane = s.lane()
    same((lane.last_error_at, lane.last_error_code), (s.start, "timeout"), "last error")


@check(CLOCK)
def updated_at_is_the_last_writing(s: Subject) -> None:
    """Each writing of a lane dates it, reading does not."""
    writings: tuple[Callable[[], object], ...] = (
        lambda: s.ran(SUCCESS),
        lambda: s.must_swap(0, s.opened()),
        lambda: s.store.cool(LANE, s.start + 99.0),
        lambda: s.ran(FAILED),
    )
    for n, write in enumerate(writings):
        s.clock.to(s.start + 10.0 * n)
        write()
        s.clock.forward(5.0)
        same(s.lane().updated_at, s.start + 10.0 * n, "updated_at")


@check(CLOCK)
def what_was_last_heard_stays(s: Subject) -> None:
    """Days after the last call, the summary still says how the lane stands."""
    s.ran(SUCCESS, FAILED)
    s.must_swap(0, s.opened())
    s.clock.forward(100 * HOUR)
    lane = s.lane()
    found = lane.last_success_at, lane.last_error_at, lane.last_error_code
    same(found, (s.start, s.start, "timeout"), "what was last heard")
    same((lane.breaker_state, lane.open_until), ("open", s.start + 30.25), "the circuit")


@check()
def summary_changes_nothing(s: Subject) -> None:
    """Two looks at a lane see the same, however it stands."""
    s.take(1)
    s.ran(SUCCESS, FAILED, DEAD)
    s.must_swap(0, s.probing())
    before = s.store.standing(LANE)
    same(s.store.health(TENANT), s.store.health(TENANT), "the second look")
    same(s.store.standing(LANE), before, "the standing")
    expect(s.store.swap(LANE, before.version, s.opened()), "a swap was refused")
