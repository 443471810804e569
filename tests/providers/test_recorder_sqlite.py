"""The recorder on a real database: written once, roll-ups included, whatever happened between."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import LetterStatus, ProviderStore, RecordBatch
from ergon_framework.providers.recorder import Recorder, recorder_of
from ergon_framework.providers.service import ProviderHealthService
from ergon_framework.providers.spill import find_replayable
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.memory import MemoryProviderStore
from tests.providers.recorder_fakes import WAIT, letter, row

pytestmark = pytest.mark.req("PROVIDERS:storage")


class Doubtful:
    """A store that does what it is asked, and then cannot say so, for a number of times."""

    def __init__(self, store: ProviderStore) -> None:
        self._store = store
        self.is_away = False
        self.silent = 0

    def record(self, batch: RecordBatch) -> None:
        if self.is_away:
            raise StoreUnavailableError("the store is away")
        self._store.record(batch)
        if self.silent:
            self.silent -= 1
            raise StoreUnavailableError("the connection was lost")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ProviderStore]:
    """A database file."""
    opened = open_store(f"sqlite:///{tmp_path}/work.db")
    yield opened
    opened.close()


def fresh(id: str, **values: Any) -> Any:
    """A row of this hour."""
    return row(id, **values)._replace(created_at=time.time())


def test_what_is_written_again_counts_once(store: ProviderStore, tmp_path: Path) -> None:
    """An answer that got lost, a spill and a replay change no number."""
    doubtful = Doubtful(store)
    recorder = Recorder(cast("ProviderStore", doubtful), spill=tmp_path / "spill")
    doubtful.silent = 2
    for n in range(9):
        recorder.add([fresh(f"ok{n}")])
    assert recorder.flush(WAIT)
    doubtful.is_away = True
    bad = fresh("bad", outcome="dead_letter", reason="timeout")
    assert recorder.write_now(RecordBatch([bad], [letter("d1", {"q": "ü"})]))
    doubtful.is_away = False
    doubtful.silent = 2
    assert recorder.flush(WAIT)
    [lane] = store.health("t1")
    assert lane.success_rate_1h == 0.9
    assert lane.last_error_code == "timeout"
    assert len(store.attempts_of("c1")) == 10
    [stored] = store.letters()
    assert (stored.letter, stored.status) == (letter("d1", {"q": "ü"}), LetterStatus.PENDING)
    assert find_replayable(tmp_path / "spill") == []
    recorder.close(WAIT)


def test_a_file_has_its_spill_beside_it(store: ProviderStore, tmp_path: Path) -> None:
    """A store that was closed under its recorder loses nothing: the next one finds the rows."""
    recorder = recorder_of(store)
    store.close()
    recorder.add([fresh("late")])
    assert not recorder.flush(0.0)
    recorder.close(WAIT)
    assert len(find_replayable(tmp_path / "work.db-spill")) == 1
    again = open_store(f"sqlite:///{tmp_path}/work.db")
    heir = recorder_of(again)
    assert heir is not recorder
    assert heir.flush(WAIT)
    heir.drain()
    assert [each.id for each in again.attempts_of("c1")] == ["late"]
    heir.close(WAIT)
    again.close()


@pytest.mark.req("PEF:H-4")
def test_health_as_plain_values() -> None:
    """Rows that are on their way are in it, and everything can be shown as JSON."""
    memory = MemoryProviderStore()
    recorder = recorder_of(memory)
    recorder.add([fresh("a", outcome="failed", reason="timeout")])
    shown = ProviderHealthService(memory).summary("t1", detail=True)
    assert shown["is_current"] is True
    assert recorder.stats().written_rows == 1
    [lane] = shown["providers"]
    assert (shown["tenant_id"], lane["provider_name"], lane["capability"]) == (
        "t1",
        "rank",
        "snapshot",
    )
    assert (lane["success_rate_1h"], lane["last_error_code"], lane["quota"]) == (0, "timeout", None)


def test_the_quota_of_a_lane_is_shown() -> None:
    """With the names the summary uses."""
    from ergon_framework.core.quota import QuotaWindow
    from ergon_framework.ports.providerstore import LaneKey

    memory = MemoryProviderStore()
    start = time.time() - 10.0
    memory.reserve(LaneKey("t1", "rank", "snapshot"), QuotaWindow(start, start + 3600.0), 100, 7)
    [lane] = ProviderHealthService(memory).summary("t1", detail=True)["providers"]
    assert lane["quota"] == {
        "limit_count": 100,
        "used_count": 7,
        "remaining_count": 93,
        "window_start": format_rfc3339(start),
        "window_end": format_rfc3339(start + 3600.0),
    }
