"""Old records go by themselves: one process of a store deletes them, a slice at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from ergon_framework.ports.providerstore import RecordBatch
from ergon_framework.providers.recorder import Recorder, recorder_of
from ergon_framework.providers.retention import (
    DEFAULT_RETENTION,
    PRUNE_BATCH,
    PRUNE_INTERVAL,
    Retention,
)
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.providers.synthetic import SyntheticProvider
from tests.providers.recorder_fakes import row

pytestmark = pytest.mark.req("PROVIDERS:storage")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_old_records_go_and_one_process_does_it(kind: str, tmp_path: Path) -> None:
    """In slices; another process that runs leaves it to the one that began."""
    now = [1.8e9]
    url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path}/work.db"
    store = open_store(url, clock=lambda: now[0])
    old = now[0] - DEFAULT_RETENTION - 3600.0
    for at, count in ((old, PRUNE_BATCH + 5), (now[0], 3)):
        store.record(
            RecordBatch([row(f"{at:.0f}-{n}")._replace(created_at=at) for n in range(count)])
        )
    store.claim("t", "k", "f", "me", 1.0, 1.0)
    one, other = (Retention(store, lambda: now[0]) for _ in range(2))
    assert one.prune_when_due() == 0  # a process that just began
    now[0] += 61.0
    assert one.prune_when_due() == PRUNE_BATCH
    assert other.prune_when_due() == 0
    now[0] += 1.5
    gone = one.prune_when_due()
    assert 0 < gone < PRUNE_BATCH
    now[0] += 1.5
    assert one.prune_when_due() == 0
    now[0] += PRUNE_INTERVAL
    assert one.prune_when_due() <= 1  # a key at most
    assert len(store.attempts_of("c1")) == 3


def test_a_clock_that_was_set_deletes_nothing() -> None:
    """By a clock that is years ahead everything is old; when it is right again, nothing is lost."""
    ticks, ahead = [0.0], [0.0]
    store = MemoryProviderStore(lambda: 1.8e9 + ticks[0] + ahead[0])
    store.record(RecordBatch([row("kept")._replace(created_at=1.8e9)]))
    retention = Retention(store, lambda: ticks[0])
    for jump in (10 * 365 * 86_400.0, -10 * 365 * 86_400.0):
        ticks[0] += PRUNE_INTERVAL
        ahead[0] += jump
        assert retention.prune_when_due() == 0
    assert len(store.attempts_of("c1")) == 1
    ticks[0] += DEFAULT_RETENTION + PRUNE_INTERVAL
    assert retention.prune_when_due() > 0


def test_a_process_that_makes_calls_deletes_what_is_old(tmp_path: Path) -> None:
    """Nobody has to ask for it: the thread that writes rows does it beside them."""
    now = [1.8e9]
    store = open_store(f"sqlite:///{tmp_path}/work.db", clock=lambda: now[0])
    old = row("old")._replace(
        correlation_id="c-old", created_at=now[0] - DEFAULT_RETENTION - 3600.0
    )
    store.record(RecordBatch([old]))
    recorder = Recorder(store, spill=tmp_path / "spill", clock=lambda: now[0])
    now[0] += 61.0  # a process that just began leaves it alone
    recorder.add([row("new")._replace(correlation_id="c-new", created_at=now[0])])
    for _ in range(300):
        assert recorder.flush(30.0)
        if not store.attempts_of("c-old"):
            break
    assert store.attempts_of("c-old") == []
    assert len(store.attempts_of("c-new")) == 1
    recorder.close(30.0)
    store.close()


def test_the_one_that_keeps_longest_decides() -> None:
    """Of the providers that share a store; None keeps records for ever."""
    store = MemoryProviderStore()
    SyntheticProvider(store=store, keep_records_seconds=100.0)
    assert recorder_of(store).retention.keep == 100.0
    SyntheticProvider(store=store, keep_records_seconds=50.0)
    assert recorder_of(store).retention.keep == 100.0
    SyntheticProvider(store=store, keep_records_seconds=None)
    SyntheticProvider(store=store, keep_records_seconds=200.0)
    assert recorder_of(store).retention.keep is None
