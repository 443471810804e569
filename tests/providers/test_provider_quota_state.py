"""Quota: reserved, used up, refunded, and fresh in the next window; on both stores."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.quota import QuotaUsage, QuotaWindow
from ergon_framework.errors import ConfigurationError, StoreError
from ergon_framework.ports.providerstore import LaneHealth, LaneKey, ProviderStore, QuotaGrant
from ergon_framework.providers.errors import (
    ProviderBadRequestError,
    ProviderConnectionError,
    ProviderTimeoutError,
)
from ergon_framework.providers.quota import QuotaLimiter, QuotaPolicy
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import (
    EPOCH,
    LANE,
    Scripted,
    WatchedStore,
    call,
    new_store,
    rows,
    used,
    wall_of,
)

UNSENT = ProviderConnectionError("refused", never_sent=True)


def health_of(store: ProviderStore, tenant_id: str = "t") -> LaneHealth:
    """The one lane of a tenant."""
    [health] = store.health(tenant_id)
    return health


def account_of(store: ProviderStore, tenant_id: str = "t") -> QuotaUsage:
    """The window that is running."""
    account = health_of(store, tenant_id).account
    assert account is not None
    return account


# -- reservation ---------------------------------------------------------------------------------


@pytest.mark.req("PEF:Q-1", "PEF:X-1")
def test_a_call_takes_what_it_costs(store: ProviderStore) -> None:
    """One unit unless its context says otherwise."""
    provider = Scripted(quota=QuotaPolicy(limit=10), store=store)
    for units, taken in ((1, 1), (3, 4), (1, 5)):
        result = call(provider, units=units)
        assert result.quota is not None
        assert (result.quota.limit_count, result.quota.used_count) == (10, taken)
        assert (result.quota.remaining_count, result.quota.window_end) == (10 - taken, EPOCH + 3600)
    account = account_of(store)
    assert (account.used, account.remaining) == (5, 5)


@pytest.mark.req("PEF:Q-2", "PEF:B-7", "PEF:X-1", "PEF:X-2")
def test_what_is_used_up_refuses_before_the_provider_is_called(
    clock: VirtualClock, store: ProviderStore
) -> None:
    """With the reason, the end of the window, and a mark on the row."""
    provider = Scripted(quota=QuotaPolicy(limit=2), store=store, wall=wall_of(clock))
    clock.advance(600.0)
    assert [call(provider).success for _ in range(2)] == [True, True]
    for number in range(3):
        result = call(provider, correlation_id=f"r{number}")
        assert (result.reason_code, result.stop_reason) == ("quota_exhausted", "quota_exhausted")
        assert (result.attempts, result.retry_after_seconds) == (0, 3000.0)
        [row] = rows(provider, f"r{number}")
        assert (row.attempt_number, row.outcome, row.reason_code) == (
            0,
            "failed",
            "quota_exhausted",
        )
    assert provider.calls == 2
    assert account_of(store).used == 2


@pytest.mark.req("PEF:Q-2", "PROVIDERS:quota")
def test_a_refusal_says_what_is_left_and_for_how_long(
    clock: VirtualClock, store: ProviderStore
) -> None:
    """A window that has too few units is not called used up, and a day is so many seconds."""
    policy = QuotaPolicy(limit=5, window_seconds=86_400.0)
    provider = Scripted(quota=policy, store=store, wall=wall_of(clock))
    assert call(provider, units=2).success
    begins = f"the next begins in {policy.window(EPOCH).end - EPOCH:.1f} seconds"
    for units, told in (
        (4, "has only 3 left, too few for this call"),
        (3, None),
        (1, "is used up"),
    ):
        for _ in range(1 if told is None else 20):  # most of them take the short way
            error = call(provider, units=units).error
            wanted = f"the quota of this window {told}; {begins}"
            assert (None if error is None else str(error)) == (wanted if told else None)


@pytest.mark.req("PEF:Q-2")
def test_the_refusal_is_marked_on_the_row(clock: VirtualClock, tmp_path: Path) -> None:
    """``last_exhausted_at`` is empty before it, and the instant of it afterwards."""
    import sqlite3
    from contextlib import closing

    def marks() -> list[Any]:
        with closing(sqlite3.connect(tmp_path / "work.db")) as connection:
            found = connection.execute("SELECT last_exhausted_at FROM provider_quota_states")
            return [mark for (mark,) in found]

    with new_store("sqlite", clock, tmp_path) as store:
        provider = Scripted(quota=QuotaPolicy(limit=1), store=store)
        call(provider)
        assert marks() == [None]
        clock.advance(60.0)
        call(provider)
        [mark] = marks()
        assert datetime.fromisoformat(mark).timestamp() == EPOCH + 60.0


@pytest.mark.req("PEF:Q-3")
def test_what_is_used_and_what_remains_make_the_limit(store: ProviderStore) -> None:
    """Through successes, refunds and refusals."""
    provider = Scripted({}, UNSENT, UNSENT, UNSENT, {}, quota=QuotaPolicy(limit=3), store=store)
    for _ in range(8):
        call(provider)
        account = account_of(store)
        assert account.used + account.remaining == account.limit == 3
        assert 0 <= account.used <= 3


@pytest.mark.req("PEF:Q-3", "PEF:trap-check-then-act")
def test_a_burst_for_the_last_unit_admits_one(store: ProviderStore) -> None:
    """Twenty at once."""
    provider = Scripted(quota=QuotaPolicy(limit=1), store=store, timeout_budget_seconds=None)
    start = threading.Barrier(20)

    def one(_: int) -> bool:
        start.wait()
        return call(provider).success

    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(one, range(20))) == 1
    assert (provider.calls, account_of(store).used) == (1, 1)


@pytest.mark.req("PEF:Q-6", "PEF:trap-row-absent-race")
def test_concurrent_first_use_makes_one_row_and_loses_nothing(store: ProviderStore) -> None:
    """All twenty find no row for the window."""
    provider = Scripted(quota=QuotaPolicy(limit=50), store=store, timeout_budget_seconds=None)
    start = threading.Barrier(20)

    def one(_: int) -> bool:
        start.wait()
        return call(provider).success

    with ThreadPoolExecutor(20) as pool:
        assert all(pool.map(one, range(20)))
    assert account_of(store).used == 20


@pytest.mark.req("PEF:Q-6")
def test_threads_that_take_and_give_back_lose_no_unit(store: ProviderStore) -> None:
    """Also units that a store in memory grants ahead, and takes back from the caller's list."""
    limit, threads, each = 300, 8, 60
    policy = QuotaPolicy(limit=limit, window_seconds=10 * 365 * 86_400)
    limiters = [QuotaLimiter(store, LANE, policy) for _ in range(2)]
    start = threading.Barrier(threads)

    def work(number: int) -> int:
        limiter, kept = limiters[number % 2], 0
        start.wait()
        for turn in range(each):
            taken = limiter.reserve(3 if turn % 20 == 7 else 1)
            if taken is not None and turn % 10 == 3:
                limiter.refund(taken)
            elif taken is not None:
                kept += taken.units
        return kept

    with ThreadPoolExecutor(threads) as pool:
        kept = sum(pool.map(work, range(threads)))
    while limiters[0].reserve() is not None:
        kept += 1
    assert (kept, account_of(store, LANE.tenant_id).used) == (limit, limit)


def test_units_ahead_are_no_used_ones() -> None:
    """A store in memory grants them to calls that do not come; a closed one takes them back."""
    store = MemoryProviderStore()
    policy = QuotaPolicy(limit=100, window_seconds=10 * 365 * 86_400)
    limiter, other = QuotaLimiter(store, LANE, policy), QuotaLimiter(store, LANE, policy)
    taken = None
    for number in range(1, 41):
        taken = limiter.reserve()
        assert taken is not None
        assert (taken.account.used, account_of(store, LANE.tenant_id).used) == (number, number)
    assert (other.reserve(60) is not None, limiter.reserve()) == (True, None)
    assert taken is not None
    other.refund(taken)
    assert limiter.account is not None
    assert account_of(store, LANE.tenant_id).used == 99
    store.close()
    with pytest.raises(StoreError):
        other.reserve()


class LimitedStore(MemoryProviderStore):
    """A store of the user's, which decides about each unit itself."""

    asked = 0

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        """Count the question."""
        self.asked += 1
        return super().reserve(key, window, limit, units)


def test_a_store_with_its_own_way_to_reserve_is_asked_for_every_unit() -> None:
    """Nothing is granted ahead past it."""
    store = LimitedStore()
    limiter = QuotaLimiter(store, LANE, QuotaPolicy(limit=100))
    assert all(limiter.reserve() for _ in range(20))
    assert store.asked == 20


def test_a_store_that_reserves_as_a_mixin_says_is_asked_for_every_unit() -> None:
    """Whichever of its base classes the method comes from."""

    class Counting:
        asked = 0

        def reserve(self, *given: Any, **named: Any) -> Any:
            self.asked += 1
            return MemoryProviderStore.reserve(self, *given, **named)  # type: ignore[arg-type]

    class Mixed(Counting, MemoryProviderStore):
        pass

    store = Mixed()
    limiter = QuotaLimiter(store, LANE, QuotaPolicy(limit=100))
    assert all(limiter.reserve() for _ in range(20))
    assert store.asked == 20


@pytest.mark.req("PEF:Q-5", "PEF:G-3")
def test_budgets_are_not_shared(store: ProviderStore) -> None:
    """Neither between tenants nor between providers nor between capabilities."""

    class Other(Scripted):
        provider_name = "other"

    class Further(Scripted):
        capability = "further"

    policy = QuotaPolicy(limit=1)
    providers = [kind(quota=policy, store=store) for kind in (Scripted, Other, Further)]
    for tenant in ("a", "b"):
        for provider in providers:
            assert call(provider, tenant).success
            assert call(provider, tenant).reason_code == "quota_exhausted"


def test_without_a_policy_there_is_no_quota(store: ProviderStore) -> None:
    """Neither in the result nor in the store."""
    provider = Scripted(store=store)
    assert call(provider).quota is None
    provider.flush()
    assert health_of(store).account is None


# -- windows -------------------------------------------------------------------------------------


@pytest.mark.req("PEF:Q-4")
def test_the_next_window_has_a_fresh_budget(clock: VirtualClock, store: ProviderStore) -> None:
    """And its first instant belongs to it."""
    provider = Scripted(quota=QuotaPolicy(limit=1, window_seconds=60), store=store)
    assert call(provider).success
    clock.advance(59.999)
    assert call(provider).reason_code == "quota_exhausted"
    clock.advance(60.0 - clock.now())
    result = call(provider)
    assert result.success
    assert result.quota is not None
    assert (result.quota.used_count, result.quota.window_end) == (1, EPOCH + 120.0)


@pytest.mark.req("PEF:Q-4", "PEF:trap-rollover")
def test_a_window_that_begins_under_load_is_begun_once(
    clock: VirtualClock, store: ProviderStore
) -> None:
    """Nobody resets what the others have taken already."""
    provider = Scripted(
        quota=QuotaPolicy(limit=10, window_seconds=60), store=store, timeout_budget_seconds=None
    )
    for _ in range(12):
        call(provider)
    clock.advance(60.0)
    start = threading.Barrier(32)

    def one(_: int) -> bool:
        start.wait()
        return call(provider).success

    with ThreadPoolExecutor(32) as pool:
        assert sum(pool.map(one, range(32))) == 10
    assert account_of(store).used == 10


@pytest.mark.req("PEF:Q-4", "PEF:trap-clock-back")
def test_a_clock_that_is_set_back_opens_no_old_window(
    clock: VirtualClock, store: ProviderStore
) -> None:
    """The newest window holds, in this process and in one that starts then."""
    policy = QuotaPolicy(limit=2, window_seconds=60)
    provider = Scripted(quota=policy, store=store)
    call(provider)
    clock.advance(60.0)
    call(provider)
    clock.advance(-60.0)
    fresh = Scripted(quota=policy, store=store)
    assert call(fresh).success
    refused = call(provider)
    assert refused.reason_code == call(fresh).reason_code == "quota_exhausted"
    assert refused.retry_after_seconds == 120.0


@pytest.mark.req("PEF:Q-4", "PEF:trap-clock-back")
@pytest.mark.parametrize("block", [1, 4])
def test_a_clock_that_ran_a_year_ahead_refuses_nobody_for_a_year(
    clock: VirtualClock, store: ProviderStore, block: int
) -> None:
    """Once it is put right, this process and one that starts then use the windows of today."""
    policy = QuotaPolicy(limit=2, window_seconds=60, block=block)
    provider = Scripted(quota=policy, store=store)
    for seconds in (0.0, 365 * 86_400.0, -365 * 86_400.0 + 60.0):
        clock.advance(seconds)
        assert [call(provider).success for _ in range(3)] == [True, True, False]
    clock.advance(60.0)
    fresh = Scripted(quota=policy, store=store)
    assert [call(each).success for each in (fresh, provider, fresh)] == [True, True, False]
    assert call(fresh).retry_after_seconds == 60.0


@pytest.mark.req("PEF:A-12")
def test_windows_may_be_days_and_months_of_a_time_zone() -> None:
    """From midnight to midnight there, whatever the sun and the law do."""

    def at(*when: int) -> float:
        return datetime(*when, tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]

    day = QuotaPolicy(limit=1, period="day", tz="Europe/Athens")
    assert day.window(at(2026, 7, 1, 22, 30)) == QuotaWindow(at(2026, 7, 1, 21), at(2026, 7, 2, 21))
    short = day.window(at(2026, 3, 29, 12))  # an hour is left out
    assert short.end - short.start == 23 * 3600
    month = QuotaPolicy(limit=1, period="month")
    assert month.window(at(2028, 2, 29, 23, 59)) == QuotaWindow(at(2028, 2, 1), at(2028, 3, 1))
    assert month.window(at(2026, 12, 31)) == QuotaWindow(at(2026, 12, 1), at(2027, 1, 1))
    read_anchor = QuotaPolicy(limit=1, window_seconds=3600, anchor=900.0)
    assert read_anchor.window(EPOCH) == QuotaWindow(EPOCH - 2700.0, EPOCH + 900.0)


@pytest.mark.req("PEF:A-12")
def test_a_changed_limit_holds_at_once(store: ProviderStore) -> None:
    """Raised or lowered, even below what is used."""
    for limit, granted in ((2, 2), (5, 3), (1, 0)):
        provider = Scripted(quota=QuotaPolicy(limit=limit), store=store)
        assert sum(call(provider).success for _ in range(4)) == granted
    account = account_of(store)
    assert (account.limit, account.used, account.remaining) == (1, 5, 0)


# -- what a unit pays for ------------------------------------------------------------------------


@pytest.mark.req("PEF:A-11")
@pytest.mark.parametrize(("unit", "taken"), [("execution", 1), ("attempt", 3)])
def test_a_unit_pays_for_the_execution_or_for_each_attempt(
    store: ProviderStore, unit: str, taken: int
) -> None:
    """By default for all attempts together."""
    slow = ProviderTimeoutError("slow")
    provider = Scripted(slow, slow, quota=QuotaPolicy(limit=9), quota_unit=unit, store=store)
    assert call(provider).attempts == 3
    assert account_of(store).used == taken


@pytest.mark.req("PEF:A-11")
def test_attempts_end_where_the_units_end(store: ProviderStore) -> None:
    """The error is the real one, the stop says why there was no third attempt."""
    slow = ProviderTimeoutError("slow")
    provider = Scripted(slow, slow, quota=QuotaPolicy(limit=2), quota_unit="attempt", store=store)
    result = call(provider, correlation_id="c")
    assert (result.reason_code, result.stop_reason) == ("timeout", "quota_exhausted")
    assert (result.attempts, result.retry_after_seconds) == (2, 3600.0 - 1.5)
    assert [row.outcome for row in rows(provider, "c")] == ["retry", "failed"]


@pytest.mark.req("PEF:A-11", "PEF:trap-refund-window")
def test_each_attempt_settles_its_own_unit(store: ProviderStore) -> None:
    """One may have been served, the others certainly were not."""
    slow = ProviderTimeoutError("slow")
    for steps in ((slow, UNSENT, UNSENT), (UNSENT, slow, UNSENT), (UNSENT, UNSENT, slow)):
        tenant = f"t{[type(step).__name__ for step in steps].index('ProviderTimeoutError')}"
        provider = Scripted(*steps, quota=QuotaPolicy(limit=9), quota_unit="attempt", store=store)
        assert call(provider, tenant).attempts == 3
        assert account_of(store, tenant).used == 1


# -- refunds -------------------------------------------------------------------------------------


@pytest.mark.req("PEF:trap-refund-window")
def test_a_reservation_is_given_back_once(store: ProviderStore) -> None:
    """However often it is tried, and from however many threads."""
    limiter = QuotaLimiter(store, LANE, QuotaPolicy(limit=9))
    kept, taken = limiter.reserve(2), limiter.reserve(3)
    assert kept is not None
    assert taken is not None
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: limiter.refund(taken), range(16)))
    assert account_of(store).used == 2


@pytest.mark.req("PEF:trap-refund-window")
def test_units_go_back_to_the_window_they_came_from(
    clock: VirtualClock, store: ProviderStore
) -> None:
    """A call that began in the last window does not lengthen this one."""
    policy = QuotaPolicy(limit=5, window_seconds=60)
    limiter = QuotaLimiter(store, LANE, policy)
    old = limiter.reserve(3)
    assert old is not None
    clock.advance(60.0)
    limiter.reserve(2)
    limiter.refund(old)
    assert account_of(store).used == 2


@pytest.mark.req("PEF:Q-3")
def test_a_refund_is_seen_at_once_by_those_who_were_refused(store: ProviderStore) -> None:
    """A refusal is believed for a moment, but not against better knowledge."""
    limiter = QuotaLimiter(store, LANE, QuotaPolicy(limit=1))
    taken = limiter.reserve()
    assert taken is not None
    assert limiter.reserve() is None
    limiter.refund(taken)
    assert limiter.reserve() is not None


@pytest.mark.req("PEF:A-5")
def test_a_refusal_is_believed_for_a_second(clock: VirtualClock) -> None:
    """A thousand refused calls ask the store once; what another gave back is found afterwards."""
    store = WatchedStore(clock)
    policy = QuotaPolicy(limit=1)
    provider = Scripted(quota=policy, store=store)
    other = QuotaLimiter(store, LANE, policy)
    taken = other.reserve()
    assert taken is not None
    store.asked.clear()
    for _ in range(1000):
        assert call(provider).reason_code == "quota_exhausted"
    assert store.written.count("reserve") == 1
    other.refund(taken)
    clock.advance(1.0)
    assert call(provider).success


class LateAnswer(WatchedStore):
    """Its first answer about quota comes when another call was refused."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self._told, self.now = self.now, self._now
        self.is_asked, self.may_answer = threading.Event(), threading.Event()
        self.first: threading.Thread | None = None

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        grant = super().reserve(key, window, limit, units)
        if not self.is_asked.is_set():
            self.is_asked.set()
            self.may_answer.wait(60)
        elif not grant.is_granted:
            self.may_answer.set()
        return grant

    def _now(self) -> float:
        if self.may_answer.is_set() and self.first not in (None, threading.current_thread()):
            assert self.first is not None
            self.first.join()
        return self._told()


@pytest.mark.req("PROVIDERS:quota")
def test_a_refusal_is_told_by_what_it_was_decided_by(clock: VirtualClock) -> None:
    """Not by an answer to another call, which was given before and came after."""
    store = LateAnswer(clock)
    provider = Scripted(quota=QuotaPolicy(limit=2), store=store)
    store.first = threading.Thread(target=call, args=(provider,))
    store.first.start()
    assert store.is_asked.wait(60)
    assert call(provider).success
    result = call(provider)
    assert "the quota of this window is used up" in str(result.error)
    assert result.quota is not None
    assert result.quota.remaining_count == 0


# -- blocks --------------------------------------------------------------------------------------


@pytest.mark.req("PROVIDERS:quota")
def test_a_hot_lane_takes_blocks_and_still_ends_at_the_limit(clock: VirtualClock) -> None:
    """Two processes on one budget: the store is asked far less often than they call."""
    store = WatchedStore(clock)
    policy = QuotaPolicy(limit=1000, block=50)
    limiters = [QuotaLimiter(store, LANE, policy) for _ in range(2)]
    granted = 0
    for number in range(1200):
        granted += limiters[number % 2].reserve() is not None
    assert granted + sum(limiter.block_remaining for limiter in limiters) <= 1000
    assert granted >= 1000 - 2 * 50
    assert store.asked.count("reserve") < 300


@pytest.mark.req("PROVIDERS:quota")
def test_the_last_units_are_taken_one_by_one(store: ProviderStore) -> None:
    """So that nobody holds back what another could use: all of them are given out."""
    policy = QuotaPolicy(limit=100, block=64)
    limiters = [QuotaLimiter(store, LANE, policy) for _ in range(3)]
    granted, refused = 0, 0
    while refused < 3:
        refused = 0
        for limiter in limiters:
            taken = limiter.reserve()
            granted += taken is not None
            refused += taken is None
    assert (granted, account_of(store).used) == (100, 100)


@pytest.mark.req("PROVIDERS:quota")
def test_a_block_that_is_not_used_comes_back(store: ProviderStore) -> None:
    """When the provider is closed, and when its lane makes room for others."""
    policy = QuotaPolicy(limit=1000, block=50)
    provider = Scripted(quota=policy, store=store, max_lanes=2)
    for _ in range(3):
        call(provider)
    assert account_of(store).used > 3
    provider.close()
    assert account_of(store).used == 3
    for _ in range(3):
        call(provider)
    assert account_of(store).used > 6
    for tenant in "abcd":
        call(provider, tenant)
    assert account_of(store).used == 6


@pytest.mark.req("PROVIDERS:quota")
def test_a_block_of_the_last_window_is_not_used_in_this_one(
    clock: VirtualClock, store: ProviderStore
) -> None:
    """Its units are gone with the window."""
    limiter = QuotaLimiter(store, LANE, QuotaPolicy(limit=100, window_seconds=60, block=50))
    for _ in range(3):
        limiter.reserve()
    clock.advance(60.0)
    assert sum(limiter.reserve() is not None for _ in range(150)) == 100
    assert account_of(store).used == 100


# -- a store that is away ------------------------------------------------------------------------


@pytest.mark.req("PEF:trap-store-down")
@pytest.mark.parametrize(("fails_open", "calls"), [(False, 0), (True, 1)])
def test_without_its_store_quota_fails_as_it_was_told(
    clock: VirtualClock, fails_open: bool, calls: int
) -> None:
    """Closed by default: nobody can say whether something is left."""
    store = WatchedStore(clock)
    provider = Scripted(quota=QuotaPolicy(limit=5), store=store, quota_fails_open=fails_open)
    store.is_away = True
    result = call(provider)
    assert (provider.calls, result.success) == (calls, fails_open)
    if not fails_open:
        assert (result.reason_code, result.stop_reason) == (
            "dependency_unavailable",
            "store_unavailable",
        )
    store.is_away = False
    clock.advance(1.0)
    assert call(provider).success
    assert used(provider) == 1


@pytest.mark.req("PEF:B-11", "PROVIDERS:quota")
def test_a_refund_that_the_store_does_not_take_is_counted(clock: VirtualClock) -> None:
    """It is not tried again: nobody knows whether it was taken, and twice would be too much."""
    store = WatchedStore(clock)

    def gone(_: object) -> Exception:
        store.is_away = True
        return UNSENT

    provider = Scripted(gone, UNSENT, UNSENT, quota=QuotaPolicy(limit=5), store=store)
    assert call(provider, units=2).reason_code == "connection_error"
    assert provider.runtime.retries.unreturned_units == 2
    store.is_away = False
    provider.close()
    assert used(provider) == 2


def test_closing_without_the_store_is_no_error(clock: VirtualClock) -> None:
    """A block that cannot be given back is used up."""
    store = WatchedStore(clock)
    provider = Scripted(quota=QuotaPolicy(limit=1000, block=50), store=store)
    for _ in range(3):
        call(provider)
    store.is_away = True
    provider.close()
    store.is_away = False
    assert used(provider) > 3


# -- wrong settings ------------------------------------------------------------------------------


@pytest.mark.req("PROVIDERS:badinput")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", 0),
        ("limit", -5),
        ("limit", 1.5),
        ("limit", True),
        ("window_seconds", 0),
        ("window_seconds", -1),
        ("window_seconds", 1e-320),
        ("window_seconds", float("inf")),
        ("window_seconds", "60"),
        ("anchor", "x"),
        ("anchor", float("nan")),
        ("anchor", 1e18),
        ("anchor", -1e300),
        ("block", 0),
        ("period", "week"),
    ],
)
def test_wrong_settings_are_named(name: str, value: Any) -> None:
    """When the policy is made."""
    settings = {"limit": 5, name: value}
    with pytest.raises(ConfigurationError, match=name):
        QuotaPolicy(**settings)


@pytest.mark.req("PROVIDERS:badinput")
@pytest.mark.parametrize("zone", ["Mars/Phobos", "", "../etc/passwd", 5])
def test_an_unknown_time_zone_is_refused(zone: Any) -> None:
    """Also one that is no name at all."""
    with pytest.raises(ConfigurationError, match="time zone"):
        QuotaPolicy(limit=5, period="day", tz=zone)


@pytest.mark.req("PROVIDERS:badinput", "PEF:B-10")
def test_a_call_that_costs_more_than_a_window_has_is_a_mistake(store: ProviderStore) -> None:
    """It would be put off for ever."""
    provider = Scripted(quota=QuotaPolicy(limit=3), store=store)
    with pytest.raises(ProviderBadRequestError, match="units"):
        call(provider, units=4)
    assert provider.calls == 0
    assert store.health("t") == []
    assert call(provider).success
    for _ in range(50):  # also when there are many of them
        with pytest.raises(ProviderBadRequestError, match="units"):
            call(provider, units=4)
    assert account_of(store).used == 1


def test_the_lane_is_named_by_tenant_provider_and_capability(store: ProviderStore) -> None:
    """As the unique index has it."""
    call(Scripted(quota=QuotaPolicy(limit=3), store=store))
    assert health_of(store).key == LaneKey("t", "scripted", "test")


def test_a_limit_that_no_database_can_count_is_refused() -> None:
    """Instead of being another one there."""
    with pytest.raises(ConfigurationError, match="limit must be at most 4611686018427387903"):
        QuotaPolicy(limit=2**62)
    assert QuotaPolicy(limit=2**62 - 1).limit == 2**62 - 1


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("5/s", QuotaPolicy(5, 1)),
        ("5/seconds", QuotaPolicy(5, 1)),
        ("100/min", QuotaPolicy(100, 60)),
        ("300/15min", QuotaPolicy(300, 900)),
        (" 1_000 / 2 hours ", QuotaPolicy(1000, 7200)),
        ("1000/day", QuotaPolicy(1000, period="day")),
        ("1000/2days", QuotaPolicy(1000, 172_800)),
        ("20000/month", QuotaPolicy(20_000, period="month")),
    ],
)
def test_a_quota_may_be_written_as_a_text(text: str, meant: QuotaPolicy) -> None:
    """A day and a month are those of the calendar, everything else is so many seconds."""
    assert QuotaPolicy.parse(text) == meant


def test_the_day_of_a_text_may_begin_in_another_time_zone() -> None:
    """For a provider that counts by its own midnight."""
    assert QuotaPolicy.parse("9/day", tz="Asia/Tokyo") == QuotaPolicy(
        9, period="day", tz="Asia/Tokyo"
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "5", "5/", "/s", "-1/s", "5/0s", "5/year", "5/2months", "5/ss", "1.5/s", 5, None),
        *("\u0661\u0660/day", "5/\u0662h"),  # digits that TOML and cron do not take either
    ],
)
def test_a_text_that_is_no_quota_is_refused_with_examples(text: Any) -> None:
    """It says what was written, and how to write it."""
    with pytest.raises(ConfigurationError, match=r"is no quota.*'1000/day'") as refused:
        QuotaPolicy.parse(text)
    assert repr(text) in str(refused.value)


def test_a_quota_of_nothing_is_refused() -> None:
    """Like the policy itself; so is one that no database could count."""
    for text in ("0/day", f"{2**62}/day", "1" * 5000 + "/day"):
        with pytest.raises(ConfigurationError, match=r"is no quota.*'1000/day'"):
            QuotaPolicy.parse(text)
    with pytest.raises(ConfigurationError, match="limit must be an integer of 1 or more"):
        QuotaPolicy(0)
    assert QuotaPolicy.parse("1_000/day").limit == 1000
