"""Checks of budgets: what was granted was there, and no unit is granted twice."""

from __future__ import annotations

from ergon_framework.core.quota import Account
from ergon_framework.ports.providerstore import Quota
from ergon_framework.testing.suites.framework import Check, register
from ergon_framework.testing.suites.providerstore.subject import (
    LANE,
    NEIGHBOURS,
    Subject,
    same,
)

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


@check()
def first_units_are_taken(s: Subject) -> None:
    """The first reservation of a window opens its account and takes the units."""
    same(s.reserve(3), Quota(Account(s.window(), 10, 3), True), "the answer")
    same(s.lane().account, Account(s.window(), 10, 3), "the account in the summary")


@check()
def units_add_up(s: Subject) -> None:
    """Each reservation is on top of those before."""
    same([s.take(units) for units in (1, 2, 4, 1)], [1, 3, 7, 8], "used")
    same(s.lane().account, Account(s.window(), 10, 8), "the account in the summary")


@check()
def used_up_is_refused(s: Subject) -> None:
    """The last unit is granted, one more is not, and the answer says how it stands."""
    s.take(9)
    same(s.take(1), 10, "used")
    for _ in range(3):
        same(s.must_refuse(), Quota(Account(s.window(), 10, 10), False), "the answer")
    same(s.lane().account, Account(s.window(), 10, 10), "the account in the summary")


@check()
def all_units_or_none(s: Subject) -> None:
    """When too few units are left, none is taken, and fewer can still be had."""
    s.take(8)
    same(s.must_refuse(3), Quota(Account(s.window(), 10, 8), False), "the answer")
    same(s.take(2), 10, "used")


@check()
def more_than_the_limit_is_refused(s: Subject) -> None:
    """A first reservation that asks for more than there is takes nothing."""
    same(s.must_refuse(11), Quota(Account(s.window(), 10, 0), False), "the answer")
    same(s.take(10), 10, "used")


@check()
def large_budgets(s: Subject) -> None:
    """A budget may be of tokens or bytes, of which there are many."""
    limit = 5_000_000_000_000
    same(s.take(limit - 1, limit=limit), limit - 1, "used")
    s.must_refuse(2, limit=limit)
    same(s.take(1, limit=limit), limit, "used")


@check()
def raised_limit_holds(s: Subject) -> None:
    """A higher limit gives more at once."""
    s.take(2, limit=2)
    s.must_refuse(limit=2)
    same(s.reserve(limit=4), Quota(Account(s.window(), 4, 3), True), "the answer")
    same(s.lane().account, Account(s.window(), 4, 3), "the account in the summary")


@check()
def lowered_limit_holds(s: Subject) -> None:
    """A limit below what is used refuses, takes nothing away, and is what the summary shows."""
    s.take(5)
    answer = s.must_refuse(limit=3)
    same(answer.account, Account(s.window(), 3, 5), "the account")
    same(answer.account.remaining, 0, "what is left of it")
    same(s.lane().account, Account(s.window(), 3, 5), "the account in the summary")


@check()
def refund_is_for_others(s: Subject) -> None:
    """Units that came back can be taken again, and no more than they."""
    s.take(10)
    s.store.refund(LANE, s.window(), 3)
    same(s.lane().account, Account(s.window(), 10, 7), "the account after the refund")
    s.must_refuse(4)
    same(s.take(3), 10, "used")


@check()
def refund_stops_at_nothing_used(s: Subject) -> None:
    """More than was taken cannot come back, as after a refund that is made twice."""
    s.take(2)
    s.store.refund(LANE, s.window(), 2)
    s.store.refund(LANE, s.window(), 2)
    same(s.lane().account, Account(s.window(), 10, 0), "the account")
    s.must_refuse(11)
    same(s.take(10), 10, "used")


@check()
def refund_below_a_lowered_limit(s: Subject) -> None:
    """After a limit was lowered below what is used, a refund frees what is under it."""
    s.take(5)
    s.must_refuse(limit=3)
    s.store.refund(LANE, s.window(), 1)
    s.must_refuse(limit=3)
    s.store.refund(LANE, s.window(), 2)
    same(s.take(limit=3), 3, "used")
    s.must_refuse(limit=3)


@check()
def refund_of_nothing_known(s: Subject) -> None:
    """A refund to a lane without a budget is not an error, and opens none."""
    s.store.refund(LANE, s.window(), 1)
    same(s.store.health(LANE.tenant_id), [], "the summary")
    s.must_refuse(11)
    same(s.take(10), 10, "used")


@check()
def budgets_are_apart(s: Subject) -> None:
    """Tenants, providers and capabilities share no budget."""
    s.take(10)
    for key in NEIGHBOURS:
        same(s.take(4, key=key), 4, f"used by {key}")
        s.store.refund(key, s.window(), 4)
    s.must_refuse()


@check()
def budget_leaves_the_gates_alone(s: Subject) -> None:
    """A budget that is used up changes neither circuit, version nor cooldown."""
    s.store.cool(LANE, s.start + 9.0)
    s.must_swap(0, s.probing())
    before = s.store.standing(LANE)
    s.take(10)
    s.must_refuse()
    s.store.refund(LANE, s.window(), 1)
    same(s.store.standing(LANE), before, "the standing")
