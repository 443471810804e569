"""Checks of quotas: no unit is granted twice, and a window that is over does not come back."""

from __future__ import annotations

from ergon_framework.core.quota import QuotaUsage, QuotaWindow
from ergon_framework.ports.providerstore import QuotaGrant
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.providerstore.under_test import (
    CLOCK,
    DAY,
    HOUR,
    LANE,
    NEIGHBOURS,
    SUCCESS,
    ProviderStoreSubject,
    same,
)

CHECKS: list[Check[ProviderStoreSubject]] = []
check = register(CHECKS)


@check()
def first_units_are_taken(s: ProviderStoreSubject) -> None:
    """The first reservation of a window opens its account and takes the units."""
    same(s.reserve(3), QuotaGrant(QuotaUsage(s.window(), 10, 3), True), "the answer")
    same(s.lane().account, QuotaUsage(s.window(), 10, 3), "the account in the summary")


@check()
def units_add_up(s: ProviderStoreSubject) -> None:
    """Each reservation is on top of those before."""
    same([s.take(units) for units in (1, 2, 4, 1)], [1, 3, 7, 8], "used")
    same(s.lane().account, QuotaUsage(s.window(), 10, 8), "the account in the summary")


@check()
def used_up_is_refused(s: ProviderStoreSubject) -> None:
    """The last unit is granted, one more is not, and the answer says how it stands."""
    s.take(9)
    same(s.take(1), 10, "used")
    for _ in range(3):
        same(s.must_refuse(), QuotaGrant(QuotaUsage(s.window(), 10, 10), False), "the answer")
    same(s.lane().account, QuotaUsage(s.window(), 10, 10), "the account in the summary")


@check()
def all_units_or_none(s: ProviderStoreSubject) -> None:
    """When too few units are left, none is taken, and fewer can still be had."""
    s.take(8)
    same(s.must_refuse(3), QuotaGrant(QuotaUsage(s.window(), 10, 8), False), "the answer")
    same(s.take(2), 10, "used")


@check()
def more_than_the_limit_is_refused(s: ProviderStoreSubject) -> None:
    """A first reservation that asks for more than there is takes nothing."""
    same(s.must_refuse(11), QuotaGrant(QuotaUsage(s.window(), 10, 0), False), "the answer")
    same(s.take(10), 10, "used")


@check()
def large_budgets(s: ProviderStoreSubject) -> None:
    """A budget may be of tokens or bytes, of which there are many."""
    limit = 5_000_000_000_000
    same(s.take(limit - 1, limit=limit), limit - 1, "used")
    s.must_refuse(2, limit=limit)
    same(s.take(1, limit=limit), limit, "used")


@check()
def raised_limit_holds(s: ProviderStoreSubject) -> None:
    """A higher limit gives more at once."""
    s.take(2, limit=2)
    s.must_refuse(limit=2)
    same(s.reserve(limit=4), QuotaGrant(QuotaUsage(s.window(), 4, 3), True), "the answer")
    same(s.lane().account, QuotaUsage(s.window(), 4, 3), "the account in the summary")


@check()
def lowered_limit_holds(s: ProviderStoreSubject) -> None:
    """A limit below what is used refuses, takes nothing away, and is what the summary shows."""
    s.take(5)
    answer = s.must_refuse(limit=3)
    same(answer.account, QuotaUsage(s.window(), 3, 5), "the account")
    same(answer.account.remaining, 0, "what is left of it")
    same(s.lane().account, QuotaUsage(s.window(), 3, 5), "the account in the summary")


@check()
def refund_is_for_others(s: ProviderStoreSubject) -> None:
    """Units that came back can be taken again, and no more than they."""
    s.take(10)
    s.store.refund(LANE, s.window(), 3)
    same(s.lane().account, QuotaUsage(s.window(), 10, 7), "the account after the refund")
    s.must_refuse(4)
    same(s.take(3), 10, "used")


@check()
def refund_stops_at_nothing_used(s: ProviderStoreSubject) -> None:
    """More than was taken cannot come back, as after a refund that is made twice."""
    s.take(2)
    s.store.refund(LANE, s.window(), 2)
    s.store.refund(LANE, s.window(), 2)
    same(s.lane().account, QuotaUsage(s.window(), 10, 0), "the account")
    s.must_refuse(11)
    same(s.take(10), 10, "used")


@check()
def refund_below_a_lowered_limit(s: ProviderStoreSubject) -> None:
    """After a limit was lowered below what is used, a refund frees what is under it."""
    s.take(5)
    s.must_refuse(limit=3)
    s.store.refund(LANE, s.window(), 1)
    s.must_refuse(limit=3)
    s.store.refund(LANE, s.window(), 2)
    same(s.take(limit=3), 3, "used")
    s.must_refuse(limit=3)


@check()
def refund_of_nothing_known(s: ProviderStoreSubject) -> None:
    """A refund to a lane without a budget is not an error, and opens none."""
    s.store.refund(LANE, s.window(), 1)
    same(s.store.health(LANE.tenant_id), [], "the summary")
    s.must_refuse(11)
    same(s.take(10), 10, "used")


@check()
def budgets_are_apart(s: ProviderStoreSubject) -> None:
    """Tenants, providers and capabilities share no budget."""
    s.take(10)
    for key in NEIGHBOURS:
        same(s.take(4, key=key), 4, f"used by {key}")
        s.store.refund(key, s.window(), 4)
    s.must_refuse()


@check()
def budget_leaves_the_gates_alone(s: ProviderStoreSubject) -> None:
    """A budget that is used up changes neither circuit, version nor cooldown."""
    s.store.extend_cooldown(LANE, s.start + 9.0)
    s.must_swap(0, s.probing())
    before = s.store.lane_state(LANE)
    s.take(10)
    s.must_refuse()
    s.store.refund(LANE, s.window(), 1)
    same(s.store.lane_state(LANE), before, "the standing")


@check()
def next_window_is_fresh(s: ProviderStoreSubject) -> None:
    """A window that begins where the last one ended has a budget of its own."""
    s.take(10)
    s.must_refuse()
    same(s.reserve(4, window=1), QuotaGrant(QuotaUsage(s.window(1), 10, 4), True), "the answer")
    same(s.take(6, window=1), 10, "used")
    s.must_refuse(window=1)


@check()
def windows_may_be_skipped(s: ProviderStoreSubject) -> None:
    """Windows in which nobody called leave no trace."""
    s.take(10)
    same(s.take(1, window=30), 1, "used thirty windows later")


@check()
def older_window_is_not_asked_again(s: ProviderStoreSubject) -> None:
    """Whoever comes with an older window is served from the newest."""
    s.take(3)
    s.take(6, window=1)
    same(s.reserve(2), QuotaGrant(QuotaUsage(s.window(1), 10, 8), True), "the answer")
    same(
        s.must_refuse(3),
        QuotaGrant(QuotaUsage(s.window(1), 10, 8), False),
        "the answer to too much",
    )
    same(s.take(2, window=1), 10, "used of the newest")


@check()
def older_window_is_not_opened(s: ProviderStoreSubject) -> None:
    """An older window is not opened though nobody has used it: its time is over."""
    s.take(10, window=2)
    for older in (1, 0, -5):
        same(s.must_refuse(window=older).account, QuotaUsage(s.window(2), 10, 10), "the account")


@check()
def refused_first_use_makes_a_window_known(s: ProviderStoreSubject) -> None:
    """A window whose first reservation asked for too much is the newest all the same."""
    s.take(10)
    s.must_refuse(11, window=1)
    same(
        s.reserve(4),
        QuotaGrant(QuotaUsage(s.window(1), 10, 4), True),
        "the answer to the older window",
    )


@check()
def refund_goes_to_its_own_window(s: ProviderStoreSubject) -> None:
    """Units of a window that is over do not come back into the next."""
    s.take(5)
    s.take(5, window=1)
    s.store.refund(LANE, s.window(), 5)
    s.must_refuse(6, window=1)
    same(s.take(5, window=1), 10, "used")


@check()
def refund_opens_no_window(s: ProviderStoreSubject) -> None:
    """A refund to a window that nobody knows is not an error, and changes nothing."""
    s.take(6)
    s.store.refund(LANE, s.window(1), 3)
    s.store.refund(LANE, s.window(-1), 3)
    same(s.take(4), 10, "used")
    s.must_refuse()


@check()
def changed_limit_of_the_next_window(s: ProviderStoreSubject) -> None:
    """A window has the limit that its first caller names, whatever it was before."""
    s.take(2, limit=2)
    same(
        s.reserve(5, window=1, limit=7),
        QuotaGrant(QuotaUsage(s.window(1), 7, 5), True),
        "the answer",
    )


@check()
def summary_has_the_newest_window(s: ProviderStoreSubject) -> None:
    """Of several windows, the summary shows the newest."""
    s.take(9)
    s.take(2, window=1)
    same(s.lane().account, QuotaUsage(s.window(1), 10, 2), "the account")


@check()
def windows_of_any_length(s: ProviderStoreSubject) -> None:
    """A window may be a fraction of a second or a month."""
    brief = QuotaWindow(s.start, s.start + 0.25)
    expect(s.store.reserve(LANE, brief, 1, 1).is_granted, "a unit was refused")
    after = QuotaWindow(brief.end, brief.end + 0.25)
    same(s.store.reserve(LANE, after, 1, 1), QuotaGrant(QuotaUsage(after, 1, 1), True), "the next")
    same(
        s.store.reserve(LANE, brief, 1, 1),
        QuotaGrant(QuotaUsage(after, 1, 1), False),
        "the one before",
    )
    month = QuotaWindow(after.end, after.end + 31 * 24 * HOUR)
    same(s.store.reserve(LANE, month, 9, 1), QuotaGrant(QuotaUsage(month, 9, 1), True), "a month")


@check(CLOCK)
def window_ends_in_the_summary(s: ProviderStoreSubject) -> None:
    """The account is shown until its window ends, and at that instant no more."""
    s.take(3)
    end = s.window().end
    s.clock.to(end - 0.5)
    same(s.lane().account, QuotaUsage(s.window(), 10, 3), "the account just before the end")
    s.clock.to(end)
    same(s.store.health(LANE.tenant_id), [], "the summary of a lane that has nothing else")


@check(CLOCK)
def lane_outlives_its_window(s: ProviderStoreSubject) -> None:
    """A lane of which more is known stays in the summary, without an account."""
    s.take(3)
    s.ran(SUCCESS)
    s.clock.to(s.window().end + 1.0)
    same(s.lane().account, None, "the account")
    same(s.lane().last_success_at, s.start, "last_success_at")


@check(CLOCK)
def clock_that_is_set_back(s: ProviderStoreSubject) -> None:
    """A clock that steps back an hour gives no budget a second time."""
    s.clock.to(s.window(1).start)
    s.take(10, window=1)
    s.clock.forward(-HOUR)
    same(s.must_refuse().account, QuotaUsage(s.window(1), 10, 10), "the account")


@check(CLOCK)
def window_of_a_clock_that_ran_ahead(s: ProviderStoreSubject) -> None:
    """A clock that was a year ahead and is put right leaves today its budget, and gives it once."""
    s.clock.forward(365 * DAY)
    ahead = QuotaWindow(s.clock(), s.clock() + HOUR)
    expect(s.store.reserve(LANE, ahead, 10, 10).is_granted, "units were refused a year ahead")
    s.clock.forward(-365 * DAY)
    same(s.reserve(3), QuotaGrant(QuotaUsage(s.window(), 10, 3), True), "the answer")
    s.must_refuse(8)
    same(s.lane().account, QuotaUsage(s.window(), 10, 3), "the account in the summary")
    same(s.take(10, window=1), 10, "used of the next window")
    same(s.must_refuse().account, QuotaUsage(s.window(1), 10, 10), "the newest that counts")
