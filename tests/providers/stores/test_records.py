from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.core.quota import QuotaUsage, QuotaWindow
from ergon_framework.core.rollup import Rollup
from ergon_framework.errors import StoreError
from ergon_framework.ports.providerstore import LaneHealth, LaneKey, ProviderStore, RecordBatch
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.database import PACKAGE
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.storage.sql_files import load
from tests.providers.stores.conftest import Opener
from tests.providers.stores.store_factory import LANE, START, HandClock, attempt, letter

HOUR = QuotaWindow(START, START + 3600)


def only(store: ProviderStore) -> LaneHealth:
    """The one lane of the tenant."""
    [lane] = store.health(LANE.tenant_id)
    return lane


@pytest.mark.req("PEF:M-1", "PEF:M-2", "PEF:M-4")
def test_attempts_come_back_as_they_were_written(store: ProviderStore) -> None:
    """Every field, oldest first, whatever the order of writing."""
    first = attempt(correlation_id="one", outcome="retry", reason_code="timeout", retryable=True)
    second = attempt(
        correlation_id="one",
        attempt_number=2,
        created_at=START + 0.25,
        http_status=503,
        idempotency_key="k",
        task_execution_id="task",
        campaign_id="campaign",
        timeout_budget_ms=None,
        outcome="dead_letter",
        reason_code="dependency_unavailable",
    )
    store.record(RecordBatch([second, attempt(correlation_id="other"), first]))
    assert store.attempts_of("one") == [first, second]
    assert store.attempts_of("nobody") == []


@pytest.mark.req("PEF:M-1")
def test_a_batch_may_be_written_again(store: ProviderStore) -> None:
    """Rows and letters that are there already change nothing, roll-ups included."""
    rows = [attempt(correlation_id="one", duration_ms=number) for number in range(5)]
    store.record(RecordBatch(rows, [letter(1)]))
    before = only(store)
    store.record(RecordBatch([*rows, *rows], [letter(1), letter(1)]))
    assert only(store) == before
    new = attempt(outcome="failed", reason_code="timeout")
    store.record(RecordBatch([*rows, new, new], [letter(1)]))
    assert only(store).success_rate_1h == pytest.approx(5 / 6)
    assert len(store.attempts_of("one")) == 5
    assert len(store.letters()) == 1


@pytest.mark.req("PEF:A-18", "PEF:A-19")
def test_a_letter_that_cannot_be_kept_takes_the_batch_with_it(store: ProviderStore) -> None:
    """Attempts and letters are written together or not at all."""
    with pytest.raises(StoreError, match="JSON"):
        store.record(
            RecordBatch([attempt(correlation_id="one")], [letter(1, payload={"a": object()})])
        )
    assert store.attempts_of("one") == []
    assert store.health(LANE.tenant_id) == []


@pytest.mark.req("PEF:A-21", "PEF:A-22", "PEF:H-4")
def test_what_counts_for_rates(store: ProviderStore) -> None:
    """Ends count for the success rate, attempts for durations, refused calls for neither."""
    store.record(
        RecordBatch(
            [
                attempt(duration_ms=10),
                attempt(duration_ms=400, outcome="retry", reason_code="timeout"),
                attempt(duration_ms=20, outcome="failed", reason_code="bad_request"),
                attempt(duration_ms=30, outcome="dead_letter", reason_code="timeout"),
                attempt(
                    duration_ms=0, attempt_number=0, outcome="failed", reason_code="circuit_open"
                ),
            ]
        )
    )
    lane = only(store)
    assert lane.success_rate_1h == pytest.approx(1 / 3)
    assert lane.p95_latency_ms_1h == 400


@pytest.mark.req("PEF:A-21", "PEF:A-29")
def test_a_lane_that_only_refused_has_no_rates(store: ProviderStore) -> None:
    """Nobody was called: there is a lane, but no number."""
    store.record(
        RecordBatch([attempt(attempt_number=0, outcome="failed", reason_code="circuit_open")])
    )
    lane = only(store)
    assert (lane.success_rate_1h, lane.p95_latency_ms_1h) == (None, None)
    assert (lane.last_error_code, lane.last_error_at) == (None, None)


@pytest.mark.req("PEF:H-2")
def test_success_and_failure_do_not_erase_each_other(store: ProviderStore) -> None:
    """Both last instants stay, and neither ever goes back."""
    store.record(RecordBatch([attempt(created_at=START + 5)]))
    store.record(
        RecordBatch([attempt(created_at=START + 7, outcome="failed", reason_code="timeout")])
    )
    store.record(RecordBatch([attempt(created_at=START + 2)]))
    store.record(
        RecordBatch([attempt(created_at=START + 6, outcome="retry", reason_code="rate_limited")])
    )
    lane = only(store)
    assert lane.last_success_at == START + 5
    assert (lane.last_error_at, lane.last_error_code) == (START + 7, "timeout")


@pytest.mark.req("PEF:A-23", "PEF:H-4")
def test_rates_fade_when_traffic_stops(store: ProviderStore, clock: HandClock) -> None:
    """Rates are of the last sixty minutes as of reading, not of the last write."""
    store.record(RecordBatch([attempt(outcome="failed", reason_code="timeout", duration_ms=900)]))
    clock.at = START + 59 * 60
    store.record(RecordBatch([attempt(created_at=clock.at, duration_ms=10)]))
    assert only(store).success_rate_1h == 0.5
    clock.at = START + 60 * 60
    assert (only(store).success_rate_1h, only(store).p95_latency_ms_1h) == (1.0, 10)
    clock.at = START + 119 * 60
    assert (only(store).success_rate_1h, only(store).p95_latency_ms_1h) == (None, None)
    assert only(store).last_error_code == "timeout"


@pytest.mark.req("PEF:A-22")
def test_rates_are_those_of_a_scan(store: ProviderStore, clock: HandClock) -> None:
    """Over hours of random traffic, reading at random, the answer is what all rows would give."""
    dice = random.Random(7)  # noqa: S311 - the same every time
    model: list[tuple[int, Rollup]] = []
    for _ in range(60):
        clock.at += dice.choice([1, 20, 61, 300, 1500])
        rows = []
        for _ in range(dice.randrange(40)):
            late = dice.choice([0, 0, 0, 30, 130, 2000])
            row = attempt(
                created_at=clock.at - late,
                duration_ms=round(dice.lognormvariate(5, 1)),
                outcome=dice.choice(["success", "success", "failed"]),
            )
            rows.append(row)
            one = Rollup(row.outcome == "success", row.outcome == "failed")
            one.durations.add(row.duration_ms)
            model.append((int(row.created_at // 60), one))
        store.record(RecordBatch(rows))
        expected = Rollup()
        for minute, one in model:
            if minute > clock.at // 60 - 60:
                expected.merge(one)
        found = {lane.key: lane for lane in store.health(LANE.tenant_id)}
        if LANE in found:
            assert found[LANE].success_rate_1h == expected.success_rate
            assert found[LANE].p95_latency_ms_1h == expected.p95


@pytest.mark.req("PEF:A-22", "PEF:A-14")
def test_what_another_process_adds_late_is_seen(opened: Opener, clock: HandClock) -> None:
    """A minute that was read and closed is read again when somebody added to it."""
    one, two = opened(), opened()
    one.record(RecordBatch([attempt(created_at=START - 1800, duration_ms=5)]))
    for _ in range(2):
        assert only(two).p95_latency_ms_1h == 5
    one.record(RecordBatch([attempt(created_at=START - 1790, duration_ms=700)]))
    assert only(two).p95_latency_ms_1h == 700
    clock.at -= 600
    assert only(two).p95_latency_ms_1h == 700
    one.prune(START + 1)
    assert only(two).p95_latency_ms_1h is None


@pytest.mark.req("PEF:A-27", "PEF:A-API-3", "PEF:G-3")
def test_a_summary_has_health_and_running_windows(store: ProviderStore, clock: HandClock) -> None:
    """Lanes with either, in order, of this tenant alone."""
    store.reserve(LaneKey("tenant", "zeta", "a"), HOUR, 5, 2)
    store.reserve(LANE, HOUR, 5, 1)
    store.record(RecordBatch([attempt(), attempt(LaneKey("tenant", "alpha", "z"))]))
    store.record(RecordBatch([attempt(LaneKey("other", "rank", "snapshot"))]))
    found = store.health("tenant")
    assert [(lane.key.provider_name, lane.account) for lane in found] == [
        ("alpha", None),
        ("rank", QuotaUsage(HOUR, 5, 1)),
        ("zeta", QuotaUsage(HOUR, 5, 2)),
    ]
    assert found[2].breaker_state == "closed"
    assert found[2].updated_at == START
    clock.at = HOUR.end
    assert [lane.key.provider_name for lane in store.health("tenant")] == ["alpha", "rank"]
    assert store.health("nobody") == []


@pytest.mark.req("PEF:A-23", "PEF:H-4")
def test_the_table_has_a_snapshot_of_the_rates(tmp_path: Path, clock: HandClock) -> None:
    """Who reads the columns and not the summary finds numbers that were right a moment ago."""
    store = open_store(f"sqlite:///{tmp_path}/work.db", clock=clock)

    def columns() -> tuple[float, int]:
        look = sqlite3.connect(tmp_path / "work.db")
        found: tuple[float, int] = look.execute(
            "SELECT success_rate_1h, p95_latency_ms_1h FROM provider_health_states"
        ).fetchone()
        look.close()
        return found

    store.record(RecordBatch([attempt(duration_ms=30)]))
    assert columns() == (1.0, 30)
    store.record(RecordBatch([attempt(outcome="failed", duration_ms=90)]))
    assert columns() == (1.0, 30)
    clock.at += 20
    store.record(RecordBatch([attempt(created_at=clock.at, duration_ms=50)]))
    assert columns() == (2 / 3, 90)
    store.close()


@pytest.mark.req("PROVIDERS:storage")
def test_old_rows_are_pruned_a_few_at_a_time(store: ProviderStore, clock: HandClock) -> None:
    """What is older goes, what waits or is newer stays, and no call deletes more than asked."""
    old = [attempt(correlation_id="old", created_at=START - 90) for _ in range(7)]
    store.record(RecordBatch([*old, attempt(correlation_id="new")], [letter(-100), letter(1)]))
    assert store.prune(START - 30, limit=3) == 3
    assert len(store.attempts_of("old")) == 4
    assert store.prune(START - 30) == 5
    assert store.prune(START - 30) == 0
    assert len(store.attempts_of("new")) == 1
    assert len(store.letters()) == 2
    assert only(store).success_rate_1h == 1.0


@pytest.mark.req("PROVIDERS:storage")
def test_windows_are_pruned_but_for_the_latest(opened: Opener) -> None:
    """Windows pile up one by one; the latest keeps older ones from being opened again."""
    store = opened()
    for start in range(5):
        store.reserve(LANE, QuotaWindow(START + start, START + start + 1), 5, 1)
    assert store.prune(START + 100) == 4
    late = store.reserve(LANE, QuotaWindow(START, START + 1), 5, 1)
    assert late.account.window.start == START + 4


@pytest.mark.req("PROVIDERS:badinput")
def test_a_strange_row_does_not_hold_up_the_others(store: ProviderStore) -> None:
    """Texts that are too long or no text, and durations from a broken clock, are made to fit."""
    strange = attempt(
        correlation_id="one",
        operation="o" * 500,
        idempotency_key="k\0\ud800" + "k" * 500,
        campaign_id="ü" * 300,
        duration_ms=-(10**15),
    )
    store.record(RecordBatch([strange, attempt(correlation_id="two")]))
    assert len(store.attempts_of("two")) == 1
    assert len(store.attempts_of("one")) == 1
    assert only(store).p95_latency_ms_1h == 20


@pytest.mark.req("PROVIDERS:storage")
def test_an_empty_batch_writes_nothing(store: ProviderStore) -> None:
    """Nothing to write is not an error."""
    store.record(RecordBatch())
    assert store.health(LANE.tenant_id) == []


@pytest.mark.req("PROVIDERS:storage")
def test_memory_is_bounded(clock: HandClock) -> None:
    """The oldest rows, letters and keys make room; the roll-ups keep what they said."""
    store = MemoryProviderStore(clock, rows=10)
    for number in range(25):
        store.record(RecordBatch([attempt(correlation_id="one")], [letter(number)]))
        store.claim("tenant", f"key-{number}", "f", "me", 5, 50)
    assert len(store.attempts_of("one")) == 10
    assert [each.letter.dead_letter_id for each in store.letters(limit=1)] == ["letter-24"]
    assert len(store.letters()) == 10
    assert only(store).success_rate_1h == 1.0
    assert store.prune(START + 100) == 10 + 1 + 10


def test_summing_a_tenants_roll_ups_reads_the_index_alone(tmp_path: Path) -> None:
    """Of the older minutes only the sums are asked for; their histograms are not touched."""
    path = tmp_path / "work.db"
    open_store(f"sqlite:///{path}").close()
    sums = load(PACKAGE, "attempts.sql")["sums"]
    values = {"tenant_id": "t", "since": "2030", "until": "2031"}
    with closing(sqlite3.connect(path)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {sums}", values).fetchall()
    assert "USING COVERING INDEX ix_provider_metric_rollups_tenant_minute" in plan[0][3]
