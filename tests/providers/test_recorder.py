"""The recorder, its thread included: rows reach the store, and no call waits for it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from ergon_framework.errors import StoreFullError
from ergon_framework.ports.notice import Notice
from ergon_framework.ports.providerstore import LaneKey, RecordBatch
from ergon_framework.providers import Provider, ProviderConnectionError
from ergon_framework.providers import recorder as module
from ergon_framework.providers.recorder import (
    Recorder,
    RefusalSampler,
    close_recorders,
    recorder_of,
)
from ergon_framework.providers.spill import find_replayable
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.telemetry import add_listener, remove_listener
from tests.providers.recorder_fakes import (
    WAIT,
    Ear,
    FakeClock,
    ScriptedStore,
    away,
    letter,
    row,
    rows,
)
from tests.waiting import until

pytestmark = pytest.mark.req("PROVIDERS:storage", "PEF:B-11")


@pytest.fixture
def store() -> ScriptedStore:
    """A store that works until told otherwise."""
    return ScriptedStore()


@pytest.fixture
def ear() -> Ear:
    """Who is told."""
    return Ear()


@pytest.fixture
def recorder(store: ScriptedStore, tmp_path: Path, ear: Ear) -> Iterator[Recorder]:
    """A recorder with a thread, closed in the end."""
    made = Recorder(store.as_store, spill=tmp_path / "spill", emit=ear)
    yield made
    made.close(WAIT)


def test_rows_are_written_behind_the_caller(recorder: Recorder, store: ScriptedStore) -> None:
    """After a flush everything added before it can be read."""
    given = rows(1200)
    for each in given:
        recorder.add([each])
    assert recorder.flush(WAIT)
    assert store.rows == {each.id: each for each in given}
    assert max(store.sizes) <= 500
    assert recorder.stats().written_rows == 1200


def test_a_flush_of_nothing(recorder: Recorder, store: ScriptedStore) -> None:
    """It says yes, and nothing is written."""
    recorder.add([])
    assert recorder.flush(WAIT)
    assert store.calls == 0


def test_many_threads_add_at_once(recorder: Recorder, store: ScriptedStore) -> None:
    """Each row is written once, however the threads come and go."""

    def add(prefix: str) -> None:
        for each in rows(500, prefix):
            recorder.add([each])

    threads = [threading.Thread(target=add, args=(f"{n}-",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert recorder.flush(WAIT)
    assert len(store.rows) == 4000
    assert set(store.sent.values()) == {1}


@pytest.mark.req("PEF:B-11")
def test_no_call_waits_for_a_store_that_hangs(recorder: Recorder, store: ScriptedStore) -> None:
    """Rows are taken while the store is stuck, and written when it goes on."""
    entered, released = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        assert released.wait(WAIT)

    store.faults = [hang]
    recorder.add(rows(1, "first"))
    assert entered.wait(WAIT)
    recorder.add(rows(100))
    assert not recorder.flush(0.0)
    assert recorder.stats().queued_rows >= 100
    released.set()
    assert recorder.flush(WAIT)
    assert len(store.rows) == 101


def test_a_store_that_comes_back(recorder: Recorder, store: ScriptedStore, ear: Ear) -> None:
    """Told once when it goes and once when it is back; nothing is lost or written twice."""
    store.faults = [away, away, away]
    recorder.add(rows(3))
    assert recorder.flush(WAIT)
    assert set(store.sent.values()) == {1}
    assert ear.names == ["store.lost", "store.back"]
    assert recorder.stats().last_error == "StoreUnavailableError: the store is away"


def test_who_listens_badly_harms_nobody(store: ScriptedStore, tmp_path: Path) -> None:
    """An error of the listener is noted, and that is all."""

    def deaf(name: str, /, **fields: object) -> None:
        raise RuntimeError(name)

    recorder = Recorder(store.as_store, spill=tmp_path, emit=deaf)
    store.faults = [away]
    recorder.add(rows(3))
    assert recorder.flush(WAIT)
    assert len(store.rows) == 3
    recorder.close(WAIT)


# -- written before it returns -----------------------------------------------------------------


@pytest.mark.req("PEF:A-18", "PEF:A-19")
def test_write_now_writes_to_the_store(recorder: Recorder, store: ScriptedStore) -> None:
    """The letter and its row, in one batch, before it returns."""
    assert recorder.write_now(RecordBatch([row("last", outcome="dead_letter")], [letter("d1")]))
    assert list(store.rows) == ["last"]
    assert list(store.letters) == ["d1"]


@pytest.mark.req("PEF:A-18", "PEF:A-19")
def test_write_now_keeps_on_disk_what_the_store_does_not_take(
    recorder: Recorder, store: ScriptedStore, tmp_path: Path
) -> None:
    """It is safe all the same, and reaches the store when that is back, whole."""
    store.fault = away
    assert recorder.write_now(RecordBatch([row("last", outcome="dead_letter")], [letter("d1")]))
    assert find_replayable(tmp_path / "spill")
    assert not recorder.flush(0.0)
    store.fault = None
    assert recorder.flush(WAIT)
    assert (list(store.rows), list(store.letters)) == (["last"], ["d1"])
    assert find_replayable(tmp_path / "spill") == []
    stats = recorder.stats()
    assert (stats.spilled_rows, stats.replayed_rows, stats.lost_rows) == (2, 2, 0)


def test_write_now_says_when_it_is_safe_nowhere(store: ScriptedStore, tmp_path: Path) -> None:
    """Neither the store nor the disk: the caller is told, and nothing appears later."""
    (tmp_path / "file").touch()
    for spill in (None, tmp_path / "file" / "spill"):
        recorder = Recorder(store.as_store, spill=spill)
        store.fault = away
        assert not recorder.write_now(RecordBatch(rows(1)))
        store.fault = None
        recorder.close(WAIT)
    assert store.rows == {}


def test_write_now_does_not_ask_a_store_that_is_known_to_be_away(
    store: ScriptedStore, tmp_path: Path
) -> None:
    """A call should not wait for a time-out that another one has just waited for."""
    clock = FakeClock()
    recorder = Recorder(store.as_store, spill=tmp_path, is_threaded=False, clock=clock)
    store.fault = away
    assert recorder.write_now(RecordBatch(rows(1, "a")))
    asked = store.calls
    store.fault = None
    assert recorder.write_now(RecordBatch(rows(1, "b")))
    assert store.calls == asked
    clock.now += 60.0
    assert recorder.drain()
    assert set(store.rows) == {"a0", "b0"}
    recorder.close(WAIT)


def test_a_payload_that_is_no_json(store: ScriptedStore, tmp_path: Path) -> None:
    """What cannot be kept is not said to be safe."""
    recorder = Recorder(store.as_store, spill=tmp_path, is_threaded=False)
    store.fault = away
    assert not recorder.write_now(RecordBatch([], [letter("d1", {"x": object()})]))
    assert recorder.write_now(RecordBatch([], [letter("d2", {"x": 1})]))
    recorder.close(WAIT)


# -- ends --------------------------------------------------------------------------------------


def test_closing_writes_what_is_there(recorder: Recorder, store: ScriptedStore) -> None:
    """Then the thread is gone; adding afterwards begins again."""
    recorder.add(rows(700, "a"))
    recorder.close(WAIT)
    assert len(store.rows) == 700
    assert not recorder.is_running
    recorder.close(WAIT)
    recorder.add(rows(3, "b"))
    assert recorder.flush(WAIT)
    assert len(store.rows) == 703


def test_closing_while_the_store_is_away(
    recorder: Recorder, store: ScriptedStore, tmp_path: Path, ear: Ear
) -> None:
    """Final rows wait on disk for the next process; retries are dropped and counted."""
    store.fault = away
    for n in range(10):
        recorder.add([row(f"{n}-1", outcome="retry"), row(f"{n}-2", number=2)])
    recorder.close(WAIT)
    stats = recorder.stats()
    assert (stats.spilled_rows, stats.dropped_rows, stats.lost_rows) == (10, 10, 0)
    assert {"records.spilled", "records.dropped"} <= set(ear.names)
    store.fault = None
    heir = Recorder(store.as_store, spill=tmp_path / "spill")
    heir.add(rows(1, "new"))
    assert heir.flush(WAIT)
    heir.close(WAIT)
    heir.drain()
    assert set(store.rows) == {f"{n}-2" for n in range(10)} | {"new0"}
    assert find_replayable(tmp_path / "spill") == []


def test_closing_while_the_store_hangs(
    recorder: Recorder, store: ScriptedStore, tmp_path: Path
) -> None:
    """What the thread has in its hands is kept too: written twice is harmless, lost is not."""
    entered, released = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        assert released.wait(WAIT)

    store.faults = [hang]
    recorder.add(rows(3, "a"))
    assert entered.wait(WAIT)
    recorder.add(rows(3, "b"))
    recorder.close(0.0)
    assert recorder.stats().spilled_rows == 6
    released.set()
    assert recorder.flush(WAIT)
    assert set(store.rows) == {f"{name}{n}" for name in "ab" for n in range(3)}


def test_nothing_to_spill_to(store: ScriptedStore) -> None:
    """Final rows are counted as lost then, exactly."""
    recorder = Recorder(store.as_store, spill=None)
    store.fault = away
    recorder.add(rows(5))
    recorder.add([row(outcome="retry")])
    recorder.close(WAIT)
    stats = recorder.stats()
    assert (stats.lost_rows, stats.dropped_rows, stats.queued_rows) == (5, 1, 0)


def test_a_process_with_no_thread_left(
    recorder: Recorder, store: ScriptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows wait for the next one who adds; when the interpreter ends, they are written at once."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        recorder.add(rows(1, "a"))
        assert store.rows == {}
        patch.setattr(module, "_is_ending", True)
        for n, name in enumerate("bcd"):
            recorder.add(rows(1, name))
            assert len(store.rows) == n + 2
    recorder.add(rows(1, "e"))
    assert recorder.flush(WAIT)
    assert len(store.rows) == 5


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.req("PEF:A-29")
def test_refusals_beyond_a_rate_have_no_row(store: ScriptedStore) -> None:
    """Ten in the first second, then one in each while it lasts; the counts stay exact."""
    clock = FakeClock()
    recorder = Recorder(store.as_store, spill=None, is_threaded=False, clock=clock)
    written = []
    for count in (5000, 5000, 3, 12):
        for _ in range(count):
            recorder.add([row(number=0, outcome="failed", reason="circuit_open")])
        recorder.add([row(number=0, outcome="failed", reason="circuit_open", tenant="t2")])
        assert recorder.flush(WAIT)
        written.append(sum(each.tenant_id == "t1" for each in store.rows.values()))
        clock.now += 1.0
    assert written == [10, 11, 12, 22]  # 3 were no flood: the one row of its second, then 10 again
    assert len(store.rows) == 26
    stats = recorder.stats()
    assert stats.refused_total == {"circuit_open": 10_019}
    assert stats.coalesced_rows == 10_019 - 26
    assert stats.dropped_rows == 0


@pytest.mark.req("PEF:A-29")
def test_a_refusal_that_needs_no_row_is_counted_before_one_is_built(
    store: ScriptedStore,
) -> None:
    """Asking counts only when the answer is that no row is needed; ``add`` counts otherwise."""
    recorder = Recorder(
        store.as_store, spill=None, is_threaded=False, refusal_rate=2, clock=FakeClock()
    )
    key = LaneKey("t1", "rank", "snapshot")
    refused = row(number=0, outcome="failed", reason="rate_limited")
    for _ in range(2):
        assert not recorder.skips_refusal(key, "rate_limited")
        recorder.add([refused])
    assert recorder.skips_refusal(key, "rate_limited")
    assert recorder.write_now(RecordBatch([refused]))  # counted, and there is nothing else to keep
    assert recorder.stats().refused_total == {"rate_limited": 4}
    assert recorder.stats().coalesced_rows == 2
    assert recorder.stats().queued_rows == 2


@pytest.mark.req("PEF:A-29")
def test_a_refusal_that_is_written_at_once_is_counted_once(store: ScriptedStore) -> None:
    """Whether the store takes it, or its caller adds it afterwards, or it has a letter."""
    recorder = Recorder(store.as_store, spill=None, is_threaded=False)
    refused = row("a", number=0, outcome="failed", reason="quota_exhausted")
    assert recorder.write_now(RecordBatch([refused]))
    assert recorder.write_now(RecordBatch([refused._replace(id="b")], [letter()]))
    store.fault = away
    assert not recorder.write_now(RecordBatch([refused._replace(id="c")]))
    recorder.add([refused._replace(id="c")])
    assert recorder.stats().refused_total == {"quota_exhausted": 3}
    assert recorder.stats().coalesced_rows == 0


def test_lanes_that_were_refused_once_are_forgotten() -> None:
    """The sampler's memory is bounded."""
    sampler = RefusalSampler(10, max_lanes=8)
    for n in range(100):
        sampler.admits(row(number=0, outcome="failed", reason="timeout", tenant=f"t{n}"))
        assert sampler.lane_count <= 8
    assert sampler.totals == {"timeout": 100}


# -- one for each store ------------------------------------------------------------------------


def test_a_store_has_one_recorder(store: ScriptedStore, tmp_path: Path) -> None:
    """All its providers share it; another store has its own; forgotten ones go."""
    first = recorder_of(store.as_store, spill=str(tmp_path / "here"))
    assert recorder_of(store.as_store) is first
    assert first.spill_folder == tmp_path / "here"
    other = recorder_of(ScriptedStore().as_store)
    assert other is not first
    assert other.spill_folder is None
    gone = weakref.ref(other)
    del other
    gc.collect()
    assert gone() is None


def test_it_spills_where_its_store_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its address; nowhere if that is not certain."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    store = ScriptedStore()
    store.url = "postgresql:///work?host=/run/pg"  # type: ignore[attr-defined]
    folder = recorder_of(store.as_store).spill_folder
    assert folder is not None
    assert folder.parent == tmp_path / "ergon" / "spill"
    vague = ScriptedStore()
    vague.name = "postgresql:///work"  # type: ignore[attr-defined]
    assert recorder_of(vague.as_store).spill_folder is None


def test_all_are_closed_at_once(store: ScriptedStore) -> None:
    """For a worker process that ends without exit hooks."""
    recorder = recorder_of(store.as_store)
    recorder.add(rows(3))
    close_recorders(WAIT)
    assert len(store.rows) == 3
    assert not recorder.is_running


def test_memory_needs_no_thread() -> None:
    """Rows are written by whoever reads; health is right after a flush."""
    memory = MemoryProviderStore()
    recorder = recorder_of(memory)
    recorder.add(rows(20, number=1))
    assert not recorder.is_running
    assert memory.attempts_of("c1") == []
    assert recorder.flush(WAIT)
    assert len(memory.attempts_of("c1")) == 20


def test_memory_stays_bounded_when_nobody_reads(store: ScriptedStore) -> None:
    """Whoever finds the queue full writes a batch: no number is wrong, no row dropped."""
    recorder = Recorder(store.as_store, spill=None, is_threaded=False, capacity=100, batch=50)
    for each in rows(1000, outcome="failed"):
        recorder.add([each])
        assert recorder.stats().queued_rows <= 101
    assert recorder.drain()
    assert len(store.rows) == 1000
    assert recorder.stats().dropped_rows == 0


def test_the_limit_of_the_spill_is_counted(store: ScriptedStore, tmp_path: Path) -> None:
    """Rows that do not fit are lost, and the statistics say why."""
    recorder = Recorder(store.as_store, spill=tmp_path, max_spill_bytes=700, is_threaded=False)
    store.fault = away  # a thread that asks again would have the last error
    recorder.write_now(RecordBatch(rows(1)))
    assert not recorder.write_now(RecordBatch(rows(1)))
    assert recorder.stats().spill_full == 1
    assert StoreFullError.__name__ in (recorder.stats().last_error or "")
    store.fault = None
    recorder.close(WAIT)


# ---- a store in memory ---------------------------------------------------------------------------


def recorder_threads() -> int:
    """Threads of this process that write rows."""
    return sum(each.name == "ergon-recorder" for each in threading.enumerate())


def test_failures_are_told_while_the_process_lives_also_without_a_store() -> None:
    """Rows in memory wait for a reader, but whoever listens is told now; the thread then ends."""
    before = recorder_threads()
    failed: list[str] = []

    def listen(notice: Notice) -> None:
        if notice.name == "provider.failed":
            failed.append(str(notice.fields["operation"]))

    rates = Provider("rates", attempts=1, circuit_breaker=False)

    @rates.call
    def quote() -> int:
        raise ConnectionError

    def fail_often(times: int) -> None:
        for _ in range(times):
            with pytest.raises(ProviderConnectionError):
                quote()

    fail_often(3)
    assert (failed, recorder_threads()) == ([], before)  # nobody listens, and nothing is done
    add_listener(listen)
    try:
        for told in (4, 5):  # those of before as well
            fail_often(1)
            until(lambda told=told: len(failed) == told)  # type: ignore[misc]
        fail_often(50)
        until(lambda: len(failed) == 55)
    finally:
        remove_listener(listen)
    until(lambda: recorder_threads() == before)
