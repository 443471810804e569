from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from ergon_framework.core.quota import QuotaUsage, QuotaWindow
from ergon_framework.ports.providerstore import LaneKey, ProviderStore
from ergon_framework.providers.store_urls import open_store
from tests.providers.stores.conftest import Opener
from tests.providers.stores.store_factory import LANE, START, HandClock, race

HOUR = QuotaWindow(START, START + 3600)
NEXT = QuotaWindow(HOUR.end, HOUR.end + 3600)
DAY_BEFORE = QuotaWindow(START - 3600, START)


@pytest.mark.req("PEF:Q-1", "PEF:Q-2")
def test_units_are_taken_until_there_are_too_few(store: ProviderStore) -> None:
    """All or none, and the answer says how the account stands."""
    assert store.reserve(LANE, HOUR, 5, 3).account == QuotaUsage(HOUR, 5, 3)
    refused = store.reserve(LANE, HOUR, 5, 3)
    assert not refused.is_granted
    assert refused.account == QuotaUsage(HOUR, 5, 3)
    assert store.reserve(LANE, HOUR, 5, 2).is_granted
    assert not store.reserve(LANE, HOUR, 5, 1).is_granted


@pytest.mark.req("PEF:Q-2")
def test_more_units_than_the_limit_are_refused_from_the_start(store: ProviderStore) -> None:
    """A window that nobody used yet is not used by a refusal."""
    assert not store.reserve(LANE, HOUR, 5, 6).is_granted
    assert store.reserve(LANE, HOUR, 5, 5).is_granted


@pytest.mark.req("PEF:Q-4")
def test_a_new_window_has_its_own_budget(store: ProviderStore, clock: HandClock) -> None:
    """What was used before does not count."""
    assert store.reserve(LANE, HOUR, 1, 1).is_granted
    assert not store.reserve(LANE, HOUR, 1, 1).is_granted
    clock.at = NEXT.start
    assert store.reserve(LANE, NEXT, 1, 1).account == QuotaUsage(NEXT, 1, 1)


@pytest.mark.req("PEF:trap-clock-skew")
def test_an_old_window_is_not_opened_again(store: ProviderStore) -> None:
    """Who asks for a window before the newest one gets units of the newest, or none."""
    assert store.reserve(LANE, HOUR, 2, 1).is_granted
    found = store.reserve(LANE, DAY_BEFORE, 2, 1)
    assert found.is_granted
    assert found.account == QuotaUsage(HOUR, 2, 2)
    found = store.reserve(LANE, DAY_BEFORE, 2, 1)
    assert not found.is_granted
    assert found.account == QuotaUsage(HOUR, 2, 2)


@pytest.mark.req("PEF:trap-clock-skew")
def test_a_window_that_is_there_is_old_too(store: ProviderStore) -> None:
    """A clock that is set back does not give the rest of an old budget away."""
    assert store.reserve(LANE, HOUR, 10, 1).is_granted
    assert store.reserve(LANE, NEXT, 10, 1).is_granted
    assert store.reserve(LANE, HOUR, 10, 1).account == QuotaUsage(NEXT, 10, 2)


@pytest.mark.req("PEF:A-12")
def test_a_changed_limit_holds_from_now_on(store: ProviderStore) -> None:
    """Lowered below what is used, nothing is left; raised, there is room again."""
    assert store.reserve(LANE, HOUR, 10, 6).is_granted
    lowered = store.reserve(LANE, HOUR, 4, 1)
    assert not lowered.is_granted
    assert (lowered.account.limit, lowered.account.used, lowered.account.remaining) == (4, 6, 0)
    [lane] = store.health(LANE.tenant_id)
    assert lane.account == QuotaUsage(HOUR, 4, 6)
    raised = store.reserve(LANE, HOUR, 7, 1)
    assert raised.is_granted
    assert raised.account == QuotaUsage(HOUR, 7, 7)


@pytest.mark.req("PEF:trap-refund-window")
def test_a_refund_goes_to_its_own_window(store: ProviderStore) -> None:
    """Units of an old window do not make room in the new one."""
    store.reserve(LANE, HOUR, 2, 2)
    store.reserve(LANE, NEXT, 2, 2)
    store.refund(LANE, HOUR, 1)
    assert not store.reserve(LANE, NEXT, 2, 1).is_granted
    store.refund(LANE, NEXT, 1)
    assert store.reserve(LANE, NEXT, 2, 1).is_granted


@pytest.mark.req("PEF:Q-3")
def test_a_refund_never_leaves_less_than_nothing_used(store: ProviderStore) -> None:
    """Units that were never taken cannot be given back."""
    store.refund(LANE, HOUR, 5)
    store.reserve(LANE, HOUR, 3, 1)
    store.refund(LANE, HOUR, 50)
    assert store.reserve(LANE, HOUR, 3, 3).is_granted
    assert not store.reserve(LANE, HOUR, 3, 1).is_granted


@pytest.mark.req("PEF:A-12")
def test_a_refund_below_a_lowered_limit(store: ProviderStore) -> None:
    """What comes back makes room only once less than the limit is used."""
    store.reserve(LANE, HOUR, 10, 8)
    store.reserve(LANE, HOUR, 5, 1)
    store.refund(LANE, HOUR, 2)
    [lane] = store.health(LANE.tenant_id)
    assert lane.account is not None
    assert (lane.account.used, lane.account.remaining) == (6, 0)
    store.refund(LANE, HOUR, 2)
    assert store.reserve(LANE, HOUR, 5, 1).is_granted


@pytest.mark.req("PEF:Q-5", "PEF:G-3")
def test_lanes_share_no_budget(store: ProviderStore) -> None:
    """Another tenant, provider or capability has its own."""
    store.reserve(LANE, HOUR, 1, 1)
    for key in (
        LaneKey("other", "rank", "snapshot"),
        LaneKey("tenant", "other", "snapshot"),
        LaneKey("tenant", "rank", "other"),
    ):
        assert store.reserve(key, HOUR, 1, 1).is_granted


@pytest.mark.req("PEF:Q-6", "PEF:trap-row-absent-race")
def test_the_first_use_of_a_window_loses_no_unit(opened: Opener) -> None:
    """Thirty threads of two processes' stores find no row: one row is made, and all are counted."""
    stores = [opened(), opened()]
    found = race(30, lambda number: stores[number % 2].reserve(LANE, HOUR, 20, 1))
    assert Counter(each.is_granted for each in found) == {True: 20, False: 10}
    assert {each.account.used for each in found} == set(range(1, 21))
    [lane] = stores[0].health(LANE.tenant_id)
    assert lane.account == QuotaUsage(HOUR, 20, 20)


@pytest.mark.req("PEF:Q-2")
def test_a_refusal_is_marked_at_most_once_a_second(tmp_path: Path, clock: HandClock) -> None:
    """Thousands who are refused do not write thousands of times."""
    path = tmp_path / "work.db"
    store = open_store(f"sqlite:///{path}", clock=clock)
    marks = []
    for later in (0.0, 0.4, 0.8, 1.0, 1.5, -50.0):
        clock.at = START + later
        store.reserve(LANE, HOUR, 1, 1)
        store.reserve(LANE, HOUR, 1, 1)
        look = sqlite3.connect(path)
        row = look.execute(
            "SELECT last_exhausted_at, used_count, remaining_count FROM provider_quota_states"
        ).fetchone()
        look.close()
        marks.append(row[0][17:21])
        assert row[1:] == (1, 0)
    store.close()
    assert marks == ["00.0", "00.0", "00.0", "01.0", "01.0", "10.0"]


@pytest.mark.req("PEF:Q-3")
def test_odd_windows_keep_their_identity(store: ProviderStore) -> None:
    """The account names the very window that was asked for, whatever a database rounds."""
    odd = QuotaWindow(START + 0.30000000000000004, START + 0.6000000000000001)
    assert store.reserve(LANE, odd, 10**30, 1).account.window == odd
    assert store.reserve(LANE, odd, 10**30, 1).account.used == 2
    store.refund(LANE, odd, 2)
    assert store.reserve(LANE, odd, 5, 5).is_granted
