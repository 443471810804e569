"""Step by step, on a clock of its own: what happens to rows while their store is away."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ergon_framework.errors import (
    StoreBrokenError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from ergon_framework.ports.providerstore import AttemptRow, RecordBatch
from ergon_framework.providers.spill import Spill
from ergon_framework.providers.write_behind import FlushMarker, WriteBehindQueue
from tests.providers.recorder_fakes import Ear, FakeClock, ScriptedStore, away, row, rows

pytestmark = pytest.mark.req("PROVIDERS:storage", "PEF:B-11")


class Bench:
    """A writer with a small queue, and everything it depends on."""

    def __init__(
        self, folder: Path, *, capacity: int = 100, batch: int = 10, room: int = 1 << 20
    ) -> None:
        self.clock = FakeClock()
        self.store = ScriptedStore()
        self.ear = Ear()
        self.spill = Spill(folder, max_bytes=room, clock=self.clock)
        self.writer = WriteBehindQueue(
            self.store.as_store,
            self.spill,
            capacity=capacity,
            batch=batch,
            linger=0.05,
            clock=self.clock,
            emit=self.ear,
        )

    def add(self, given: list[AttemptRow]) -> None:
        """As the recorder does it."""
        if len(self.writer.queue) < self.writer.calm:
            self.writer.queue.extend(given)
        else:
            self.writer.add_when_full(given)

    def run(self, seconds: float) -> None:
        """Come back when told to, for so long."""
        until = self.clock.now + seconds
        while True:
            wait = self.writer.step()
            if wait is None or self.clock.now + wait > until:
                break
            self.clock.now += wait
        self.clock.now = until

    @property
    def sums(self) -> tuple[int, ...]:
        """Written, dropped, lost, spilled, replayed."""
        counts = self.writer.counter.counts()
        return counts.written, counts.dropped, counts.lost, counts.spilled, counts.replayed


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A writer and its folder."""
    return Bench(tmp_path / "spill")


def test_a_step_says_when_to_come_back(bench: Bench) -> None:
    """At once while there is more, a moment later for what may follow, then when rows come."""
    bench.add(rows(25))
    assert [bench.writer.step() for _ in range(4)] == [0.0, 0.05, 0.05, None]
    assert bench.store.sizes == [10, 10, 5]


def test_a_database_that_is_down_for_thirty_seconds(bench: Bench) -> None:
    """Few calls to it, each later than the one before; then every row is written once."""
    bench.store.fault = away
    for second in range(30):
        bench.add([row(f"{second}-1", outcome="retry"), row(f"{second}-2", number=2)])
        bench.run(1.0)
    assert 6 <= bench.store.calls <= 15
    bench.store.fault = None
    bench.run(10.0)
    assert len(bench.store.rows) == 60
    assert set(bench.store.sent.values()) == {1}
    assert bench.sums == (30, 0, 0, 30, 30)
    assert [name for name in bench.ear.names if "store" in name] == ["store.lost", "store.back"]


def test_a_full_queue_does_without_retries_first(bench: Bench) -> None:
    """The last quarter is for final rows; when it is used up they go to disk; none is lost."""
    bench.store.fault = away
    bench.add(rows(1, "first"))
    bench.run(0.1)
    retries = [row(f"r{n}", outcome="retry") for n in range(75)]
    bench.add(retries)
    bench.add([row("late", outcome="retry")])
    bench.add([row("refused", number=0, outcome="failed")])
    assert bench.sums == (0, 2, 0, 0, 0)
    for each in rows(30, "final"):
        bench.add([each])
    assert bench.sums == (0, 2, 0, 5, 0)
    bench.store.fault = None
    bench.run(60.0)
    assert {each.id for each in rows(30, "final")} < set(bench.store.rows)
    written, dropped, lost, spilled, replayed = bench.sums
    assert (lost, spilled - replayed) == (0, 0)
    assert written + replayed + dropped == 1 + 75 + 2 + 30
    assert {"records.dropped", "records.spilled", "records.replayed"} <= set(bench.ear.names)
    assert sum(int(str(f["rows"])) for name, f in bench.ear.heard if "dropped" in name) == dropped


def test_room_is_made_before_there_is_none(bench: Bench) -> None:
    """While the store is away, the oldest final rows go to disk as soon as the queue is crowded."""
    bench.store.fault = away
    bench.add(rows(1, "first"))
    bench.run(0.05)
    bench.add(rows(100))
    bench.run(0.05)
    assert len(bench.writer.queue) < bench.writer.calm
    assert bench.sums == (0, 0, 0, 30, 0)
    bench.store.fault = None
    bench.run(60.0)
    assert len(bench.store.rows) == 101


def test_final_rows_are_on_disk_soon_after_the_store_went_away(bench: Bench) -> None:
    """A process that is killed then takes only retries with it; whoever waits is answered."""
    bench.store.fault = away
    marker = FlushMarker()
    for n in range(20):
        bench.add([row(f"{n}-1", outcome="retry"), row(f"{n}-2", number=2)])
    bench.writer.queue.append(marker)
    bench.run(2.5)
    assert bench.sums == (0, 0, 0, 20, 0)
    assert bench.writer.queued == 20 + 1
    bench.add(rows(3, "later"))
    bench.run(1.5)
    assert bench.sums == (0, 0, 0, 23, 0)
    assert not marker.is_set()
    bench.store.fault = None
    bench.run(60.0)
    assert marker.is_set()
    assert len(bench.store.rows) == 43
    assert bench.sums == (20, 0, 0, 23, 23)


def test_a_kill_loses_about_a_second_of_calls(tmp_path: Path) -> None:
    """Before, during and after an outage: what ended longer ago is in the store or on disk."""
    bench = Bench(tmp_path / "spill", capacity=1000)
    worst = 0
    for tick in range(120):  # ten calls end in a second
        bench.store.fault = away if 20 <= tick < 80 else None
        bench.add(rows(1, f"{tick}"))
        bench.run(0.1)
        written, _dropped, lost, spilled, _replayed = bench.sums
        assert lost == 0
        worst = max(worst, tick + 1 - written - spilled)
    assert 1 <= worst <= 12


def test_an_outage_with_a_full_disk_keeps_rows_in_memory(tmp_path: Path) -> None:
    """And batches stay small when the store is back."""
    bench = Bench(tmp_path / "spill", room=3000)
    bench.store.fault = away
    bench.add(rows(60))
    bench.run(5.0)
    written, _, lost, spilled, _ = bench.sums
    assert (written, lost) == (0, 0)
    assert spilled + bench.writer.queued == 60
    bench.store.fault = None
    bench.run(60.0)
    assert len(bench.store.rows) == 60
    assert max(bench.store.sizes) <= 10


def test_rows_stay_in_memory_while_the_disk_fails_too(tmp_path: Path) -> None:
    """Lost only when there is no place at all, and then counted exactly."""
    (tmp_path / "file").touch()
    bench = Bench(tmp_path / "file" / "spill")
    bench.store.fault = away
    bench.add(rows(10, "hand"))
    bench.run(0.05)
    for each in rows(120):
        bench.add([each])
    bench.run(30.0)
    assert bench.sums == (0, 0, 20, 0, 0)
    bench.store.fault = None
    bench.run(30.0)
    assert len(bench.store.rows) == 110
    assert bench.sums == (110, 0, 20, 0, 0)


def test_who_waits_is_answered_when_all_before_is_in_the_store(bench: Bench) -> None:
    """What was spilled in between counts too, and so does what could not be spilled."""
    bench.store.fault = away
    bench.add(rows(10, "hand"))
    bench.run(0.01)
    bench.add(rows(50, "a"))
    marker = FlushMarker()
    bench.writer.queue.append(marker)
    bench.add(rows(49, "b"))
    bench.writer.step()
    assert bench.sums == (0, 0, 0, 30, 0)
    bench.store.fault = None
    while not marker.is_set():
        bench.clock.now += 1.0
        bench.writer.step()
    assert {f"a{n}" for n in range(50)} <= set(bench.store.rows)


def test_who_waits_is_not_passed_by_rows_that_were_put_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marker goes back into the queue together with the rows before it."""
    bench.store.fault = away
    bench.add(rows(10, "hand"))
    bench.run(0.01)
    bench.add(rows(5, "a"))
    marker = FlushMarker()
    bench.writer.queue.append(marker)
    bench.add(rows(90, "b"))

    def refuse(*_: object, **__: object) -> None:
        raise StoreReadOnlyError("no")

    with monkeypatch.context() as patch:
        patch.setattr(bench.spill, "keep", refuse)
        bench.writer.step()
    bench.store.fault = None
    while not marker.is_set():
        bench.clock.now += 1.0
        bench.writer.step()
    assert {f"a{n}" for n in range(5)} <= set(bench.store.rows)


def test_who_gave_up_waiting_is_forgotten(bench: Bench) -> None:
    """Markers do not pile up while a store stays away."""
    bench.store.fault = away
    bench.writer.write_now(RecordBatch(rows(1, "spilt")))
    bench.clock.now += 60.0
    bench.store.faults = [lambda: None]
    marker = FlushMarker()
    marker.is_abandoned = True
    bench.writer.queue.append(marker)
    bench.writer.step()
    bench.store.fault = None
    bench.run(60.0)
    assert bench.writer.pending_flushes == 0


def test_a_row_that_no_store_takes_holds_up_nobody(bench: Bench) -> None:
    """It is counted as lost; its neighbours are written; its text is told to nobody."""
    bench.store.refuses = {"r3", "r7"}
    bench.add(rows(10))
    bench.run(30.0)
    assert len(bench.store.rows) == 8
    assert bench.sums[:3] == (8, 0, 2)
    assert bench.writer.counter.last_error == "ValueError"
    assert "secret" not in repr(bench.ear.heard)


def test_a_lone_row_that_is_refused_waits_for_company(bench: Bench) -> None:
    """Whether it is the row or the store can only be told by another row."""
    bench.store.refuses = {"bad0"}
    bench.add(rows(1, "bad"))
    bench.run(60.0)
    assert bench.sums[:3] == (0, 0, 0)
    bench.add(rows(2, "good"))
    bench.run(60.0)
    assert bench.sums[:3] == (2, 0, 1)


def test_a_store_that_fails_strangely_is_away(bench: Bench) -> None:
    """An error nobody knows loses nothing as long as no row gets through."""

    def strange() -> None:
        raise RuntimeError("what is this")

    bench.store.fault = strange
    bench.add(rows(30))
    bench.run(30.0)
    assert bench.sums == (0, 0, 0, 0, 0)
    bench.store.fault = None
    bench.run(30.0)
    assert bench.sums == (30, 0, 0, 0, 0)


@pytest.mark.parametrize("kind", [StoreFullError, StoreReadOnlyError, StoreBrokenError])
def test_a_store_that_takes_some_rows_and_is_full_then(
    bench: Bench, kind: type[StoreError]
) -> None:
    """A store that says what is wrong with it blames no row: all of them wait."""

    def full() -> None:
        if bench.store.calls % 2:
            raise kind("no room")

    bench.store.fault = full
    bench.add(rows(8))
    bench.run(0.0)
    assert bench.sums == (0, 0, 0, 0, 0)
    bench.store.fault = None
    bench.run(30.0)
    assert bench.sums == (8, 0, 0, 0, 0)


def test_a_store_that_goes_while_its_rows_are_tried_one_by_one(bench: Bench) -> None:
    """Nothing is given up then."""
    bench.store.refuses = {"r3"}
    bench.add(rows(5))
    bench.store.faults = [lambda: None, lambda: None, away]
    bench.run(0.0)
    assert bench.sums == (0, 0, 0, 0, 0)
    bench.run(30.0)
    assert bench.sums == (4, 0, 1, 0, 0)


def test_nobody_is_woken_when_nothing_can_be_done(tmp_path: Path) -> None:
    """Neither the store nor the disk: a crowded queue must not keep a thread busy."""
    (tmp_path / "file").touch()
    bench = Bench(tmp_path / "file" / "spill")
    bench.store.fault = away
    assert not bench.writer.write_now(RecordBatch(rows(1)))
    could = bench.writer.can_make_room
    bench.clock.now += 60.0
    assert (could, bench.writer.can_make_room) == (False, True)


@pytest.mark.parametrize("with_neighbour", [True, False])
def test_a_spilled_batch_that_no_store_takes(
    bench: Bench, tmp_path: Path, with_neighbour: bool
) -> None:
    """Its file is put aside, and what comes after it is not held up."""
    bench.store.fault = away
    bench.writer.write_now(RecordBatch(rows(1, "bad")))
    if with_neighbour:
        bench.writer.write_now(RecordBatch(rows(1, "near")))
    bench.store.fault = None
    bench.store.refuses = {"bad0"}
    bench.add(rows(2, "new"))
    bench.clock.now += 60.0
    bench.run(60.0)
    assert set(bench.store.rows) == {"new0", "new1"} | ({"near0"} if with_neighbour else set())
    assert bench.sums[2] == 1
    assert [path.suffix for path in (tmp_path / "spill").iterdir()] == [".bad"]


def test_a_line_that_was_spoilt_is_counted_as_lost(bench: Bench, tmp_path: Path) -> None:
    """Found in a file that a dead process left."""
    (tmp_path / "spill").mkdir()
    (tmp_path / "spill" / "1-x.jsonl").write_bytes(b'{"sum":"nonsense"}\n{"sum":"more"}\n')
    bench.run(1.0)
    assert bench.sums == (0, 0, 1, 0, 0)


def test_files_of_dead_processes_are_looked_for_now_and_then(bench: Bench, tmp_path: Path) -> None:
    """Not only at the start."""
    bench.run(1.0)
    dead = Spill(tmp_path / "spill")
    dead.keep([RecordBatch(rows(3))], is_synced=True)
    dead.close()
    bench.run(1.0)
    assert bench.store.rows == {}
    bench.clock.now += 30.0
    bench.run(1.0)
    assert len(bench.store.rows) == 3


def test_a_mistake_of_ours_ends_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step never raises; it is tried again later."""

    def fail() -> None:
        raise ZeroDivisionError

    bench.add(rows(3))
    with monkeypatch.context() as patch:
        patch.setattr(bench.writer, "_answer", fail)
        wait = bench.writer.step()
    assert wait is not None
    assert bench.writer.counter.last_error == "ZeroDivisionError"
    bench.run(60.0)
    assert len(bench.store.rows) == 3


FAULTS = st.sampled_from(["ok", "ok", "away", "ambiguous", "strange"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "crowd", "retry", "now", "step", "store", "disk", "close"]),
        st.integers(1, 12),
        FAULTS,
    ),
    max_size=40,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps=STEPS, room=st.sampled_from([0, 3000, 1 << 20]))
def test_every_final_row_is_written_once_or_counted_as_lost(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, str]], room: int
) -> None:
    """Whatever fails in whatever order: the store, its answer, the disk, the process's end."""
    bench = Bench(tmp_path_factory.mktemp("p"), capacity=20, batch=4, room=room)
    given = {"final": 0, "retry": 0, "unsafe": 0}
    for n, (what, count, fault) in enumerate(steps):
        _set(bench.store, fault)
        batch = rows(count, f"{n}-")
        if what in {"add", "crowd", "now"}:
            given["final"] += count
        if what == "add":
            for each in batch:
                bench.add([each])
        elif what == "crowd":
            bench.add(batch)
        elif what == "retry":
            given["retry"] += count
            bench.add([each._replace(id=f"x{each.id}", outcome="retry") for each in batch])
        elif what == "now":
            given["unsafe"] += 0 if bench.writer.write_now(RecordBatch(batch)) else count
        elif what == "disk":
            bench.spill.max_bytes = room if count > 6 else 0
        elif what == "close":
            bench.writer.spill_rest(0.0)
        else:
            bench.run(float(count))
    _set(bench.store, "ok")
    bench.clock.now += 60.0
    bench.run(120.0)
    assert bench.writer.is_idle
    written, dropped, lost, spilled, replayed = bench.sums
    finals = sum(not each.startswith("x") for each in bench.store.rows)
    retries = len(bench.store.rows) - finals
    missing = given["final"] - finals, given["retry"] - retries
    gone = lost + given["unsafe"], dropped
    if any(fault == "ambiguous" for _, _, fault in steps):
        # What the store took without saying so may have been given up; never the other way round.
        assert missing[0] <= gone[0]
        assert missing[1] <= gone[1]
    else:
        assert missing == gone
        assert written + replayed == len(bench.store.rows)
    assert replayed <= spilled


def _set(store: ScriptedStore, fault: str) -> None:
    def strange() -> None:
        raise RuntimeError("what is this")

    store.fault = {"away": away, "strange": strange}.get(fault)
    store.fault_after = away if fault == "ambiguous" else None
