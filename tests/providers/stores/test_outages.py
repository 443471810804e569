"""What a store must bear: rows it cannot take or read, lanes without end, and who closes it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.circuit_breaker import Breaker, CircuitState
from ergon_framework.core.quota import QuotaUsage, QuotaWindow
from ergon_framework.core.rollup import Rollup
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import LaneKey, ProviderStore, RecordBatch
from ergon_framework.providers.recorder import Recorder, recorder_of
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.providers.stores.sql.attempts import add_minutes
from ergon_framework.providers.stores.sql.gates import breaker_of
from ergon_framework.providers.stores.sql.store import SqlProviderStore
from tests.providers.stores.conftest import Opener
from tests.providers.stores.store_factory import LANE, START, HandClock, attempt, letter

pytestmark = pytest.mark.req("PROVIDERS:storage")
HOUR = QuotaWindow(START, START + 3600.0)


def edit(store: ProviderStore, sql: str, **values: Any) -> None:
    """Change a table as an operator would."""
    assert isinstance(store, SqlProviderStore)
    assert store.database.write("cool", lambda cursor: cursor.execute(sql, values))


@pytest.mark.parametrize("detail", ["{not json", '{"generation":"two"}', "[]"])
def test_a_circuit_that_cannot_be_read_counts_as_closed(
    opened: Opener, detail: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A hand edit, or a later version's row, stops no call; the next change fixes it."""
    store = opened()
    assert store.compare_and_set(LANE, 0, Breaker(CircuitState.OPEN, 5, START + 60))
    edit(store, "UPDATE provider_health_states SET breaker_detail = :detail", detail=detail)
    found = store.lane_state(LANE)
    assert (found.breaker, found.version) == (Breaker(), 1)
    assert store.health(LANE.tenant_id)[0].breaker_state == "closed"
    assert store.compare_and_set(LANE, 1, Breaker(CircuitState.OPEN, 7, START + 90))
    assert store.lane_state(LANE).breaker.failures == 7


def test_a_state_that_nobody_knows_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The row is read again and again."""
    key = LaneKey("told", "once", "only")
    for _ in range(3):
        assert breaker_of(key, "half-open", 3, None, None) == Breaker()
    assert len([each for each in caplog.messages if "told/once/only" in each]) == 1


def test_a_row_that_the_database_refuses_is_set_aside(
    opened: Opener, url: str, tmp_path: Path
) -> None:
    """A constraint, or a text too long, holds up nobody: the row is counted and left for people."""
    store = opened()
    bad = [attempt(outcome="unheard-of", correlation_id="bad"), attempt(duration_ms=5)]
    if url.startswith("postgresql"):
        bad[1] = attempt(LANE._replace(tenant_id="t" * 200))
    else:
        bad[1] = attempt(max_attempts=-1)
    good = [attempt(correlation_id="good") for _ in range(3)]
    recorder = Recorder(store, spill=tmp_path / "spill", is_threaded=False)
    recorder.add([good[0], bad[0], good[1], bad[1], good[2]])
    assert recorder.drain()
    assert len(store.attempts_of("good")) == 3
    stats = recorder.stats()
    assert (stats.written_rows, stats.lost_rows, stats.queued_rows) == (3, 2, 0)
    [aside] = (tmp_path / "spill").iterdir()
    assert aside.name.endswith(".jsonl.bad")
    assert [bad[n].id in line for n, line in enumerate(aside.read_text().splitlines())] == [
        True,
        True,
    ]
    recorder.close()


def test_what_comes_twice_in_a_batch_is_kept_as_it_came_first(store: ProviderStore) -> None:
    """On every kind of store, rates included."""
    first = attempt(correlation_id="twice", duration_ms=10)
    second = first._replace(duration_ms=90, outcome="failed", reason_code="timeout")
    letters = [letter(1, error_message="one"), letter(1, error_message="two")]
    store.record(RecordBatch([first, second], letters))
    assert [row.duration_ms for row in store.attempts_of("twice")] == [10]
    assert [each.letter.error_message for each in store.letters()] == ["one"]
    assert store.health(LANE.tenant_id)[0].success_rate_1h == 1.0


def test_a_window_that_ended_is_not_replaced_by_an_older_one(
    store: ProviderStore, clock: HandClock
) -> None:
    """The policy became a shorter one: the longer window, which still runs, is history."""
    store.reserve(LANE, HOUR, 10, 1)
    store.reserve(LANE, QuotaWindow(START + 60, START + 120), 10, 1)
    clock.at = START + 90
    [lane] = store.health(LANE.tenant_id)
    assert lane.account == QuotaUsage(QuotaWindow(START + 60, START + 120), 10, 1)
    clock.at = START + 200
    assert [lane.account for lane in store.health(LANE.tenant_id)] == []


@pytest.mark.req("PEF:Q-2")
def test_a_window_with_units_left_is_not_marked_as_exhausted(opened: Opener) -> None:
    """Who wanted a whole block and takes one unit instead has exhausted nothing."""
    store = opened()
    assert isinstance(store, SqlProviderStore)

    def marked() -> bool:
        sql = "SELECT last_exhausted_at FROM provider_quota_states"
        [[mark]] = store.database.read(lambda cursor: cursor.fetch(sql, {}))
        return mark is not None

    assert not store.reserve(LANE, HOUR, 10, 20).is_granted
    assert not marked()
    assert store.reserve(LANE, HOUR, 10, 8).is_granted
    assert not store.reserve(LANE, HOUR, 10, 5).is_granted
    assert not marked()
    assert store.reserve(LANE, HOUR, 10, 2).is_granted
    assert not store.reserve(LANE, HOUR, 10, 1).is_granted
    assert marked()


class PruningCursor:
    """A minute that is there when it is to be inserted, and gone when it is to be read."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.added = 0

    def fetch(self, sql: str, values: Any) -> list[tuple[Any, ...]]:
        if not sql.lstrip().startswith("INSERT"):
            return []
        self.times -= 1
        self.added += self.times < 0
        return [(1,)] if self.times < 0 else []

    def fetch_each(self, sql: str, values: Any) -> list[list[tuple[Any, ...]]]:
        return [self.fetch(sql, each) for each in values]

    def executemany(self, sql: str, values: Any) -> None:
        assert not values


def test_a_minute_that_is_pruned_under_our_hands_is_written_anew() -> None:
    """Not for ever: who prunes what is being written must stop."""
    cursor: Any = PruningCursor(2)
    add_minutes(cursor, [({}, Rollup())])
    assert cursor.added == 1
    with pytest.raises(StoreUnavailableError, match="comes and goes"):
        add_minutes(PruningCursor(99), [({}, Rollup())])  # type: ignore[arg-type]


def test_a_memory_store_forgets_lanes_that_hold_nobody_back(clock: HandClock) -> None:
    """Tenants come and go; circuits that are open and windows that run are never forgotten."""
    store = MemoryProviderStore(clock, lanes=100)
    for n in range(20):
        store.compare_and_set(
            LaneKey(f"open{n}", "p", "c"), 0, Breaker(CircuitState.OPEN, 5, START + 60)
        )
        store.reserve(LaneKey(f"spent{n}", "p", "c"), HOUR, 1, 1)
        store.extend_cooldown(LaneKey(f"cool{n}", "p", "c"), START + 60)
    for n in range(1000):
        store.record(RecordBatch([attempt(LaneKey(f"t{n}", "p", "c"))]))
    assert store.lane_count <= 110
    assert [len(store.health("t999")), len(store.health("t0"))] == [1, 0]
    for n in range(20):
        assert store.lane_state(LaneKey(f"open{n}", "p", "c")).breaker.state is CircuitState.OPEN
        assert store.lane_state(LaneKey(f"cool{n}", "p", "c")).cooldown_until == START + 60
        assert not store.reserve(LaneKey(f"spent{n}", "p", "c"), HOUR, 1, 1).is_granted
    for n in range(1000):  # lanes that all hold somebody back are kept, whatever the limit
        store.extend_cooldown(LaneKey(f"more{n}", "p", "c"), START + 60)
    assert store.lane_count >= 1060


def test_closing_a_store_writes_what_waits_and_ends_its_thread(tmp_path: Path) -> None:
    """Many stores, one after the other, leave neither rows nor threads behind."""

    def threads() -> int:
        return sum(each.name == "ergon-recorder" for each in threading.enumerate())

    before = threads()
    url = f"sqlite:///{tmp_path}/work.db"
    for _ in range(3):
        store = open_store(url)
        recorder_of(store).add([attempt(correlation_id="last")])
        store.close()
    assert threads() == before
    store = open_store(url)
    assert len(store.attempts_of("last")) == 3
    store.close()
