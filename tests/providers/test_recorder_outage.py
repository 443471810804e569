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


class RecorderCase:
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
def case(tmp_path: Path) -> RecorderCase:
    """A writer and its folder."""
    return RecorderCase(tmp_path / "spill")


def test_a_step_says_when_to_come_back(case: RecorderCase) -> None:
    """At once while there is more, a moment later for what may follow, then when rows come."""
    case.add(rows(25))
    assert [case.writer.step() for _ in range(4)] == [0.0, 0.05, 0.05, None]
    assert case.store.sizes == [10, 10, 5]


def test_a_database_that_is_down_for_thirty_seconds(case: RecorderCase) -> None:
    """Few calls to it, each later than the one before; then every row is written once."""
    case.store.fault = away
    for second in range(30):
        case.add([row(f"{second}-1", outcome="retry"), row(f"{second}-2", number=2)])
        case.run(1.0)
    assert 6 <= case.store.calls <= 15
    case.store.fault = None
    case.run(10.0)
    assert len(case.store.rows) == 60
    assert set(case.store.sent.values()) == {1}
    assert case.sums == (30, 0, 0, 30, 30)
    assert [name for name in case.ear.names if "store" in name] == ["store.lost", "store.back"]


def test_a_full_queue_does_without_retries_first(case: RecorderCase) -> None:
    """The last quarter is for final rows; when it is used up they go to disk; none is lost."""
    case.store.fault = away
    case.add(rows(1, "first"))
    case.run(0.1)
    retries = [row(f"r{n}", outcome="retry") for n in range(75)]
    case.add(retries)
    case.add([row("late", outcome="retry")])
    case.add([row("refused", number=0, outcome="failed")])
    assert case.sums == (0, 2, 0, 0, 0)
    for each in rows(30, "final"):
        case.add([each])
    assert case.sums == (0, 2, 0, 5, 0)
    case.store.fault = None
    case.run(60.0)
    assert {each.id for each in rows(30, "final")} < set(case.store.rows)
    written, dropped, lost, spilled, replayed = case.sums
    assert (lost, spilled - replayed) == (0, 0)
    assert written + replayed + dropped == 1 + 75 + 2 + 30
    assert {"records.dropped", "records.spilled", "records.replayed"} <= set(case.ear.names)
    assert sum(int(str(f["rows"])) for name, f in case.ear.heard if "dropped" in name) == dropped


def test_room_is_made_before_there_is_none(case: RecorderCase) -> None:
    """While the store is away, the oldest final rows go to disk as soon as the queue is crowded."""
    case.store.fault = away
    case.add(rows(1, "first"))
    case.run(0.05)
    case.add(rows(100))
    case.run(0.05)
    assert len(case.writer.queue) < case.writer.calm
    assert case.sums == (0, 0, 0, 30, 0)
    case.store.fault = None
    case.run(60.0)
    assert len(case.store.rows) == 101


def test_final_rows_are_on_disk_soon_after_the_store_went_away(case: RecorderCase) -> None:
    """A process that is killed then takes only retries with it; whoever waits is answered."""
    case.store.fault = away
    marker = FlushMarker()
    for n in range(20):
        case.add([row(f"{n}-1", outcome="retry"), row(f"{n}-2", number=2)])
    case.writer.queue.append(marker)
    case.run(2.5)
    assert case.sums == (0, 0, 0, 20, 0)
    assert case.writer.queued == 20 + 1
    case.add(rows(3, "later"))
    case.run(1.5)
    assert case.sums == (0, 0, 0, 23, 0)
    assert not marker.is_set()
    case.store.fault = None
    case.run(60.0)
    assert marker.is_set()
    assert len(case.store.rows) == 43
    assert case.sums == (20, 0, 0, 23, 23)


def test_a_kill_loses_about_a_second_of_calls(tmp_path: Path) -> None:
    """Before, during and after an outage: what ended longer ago is in the store or on disk."""
    case = RecorderCase(tmp_path / "spill", capacity=1000)
    worst = 0
    for tick in range(120):  # ten calls end in a second
        case.store.fault = away if 20 <= tick < 80 else None
        case.add(rows(1, f"{tick}"))
        case.run(0.1)
        written, _dropped, lost, spilled, _replayed = case.sums
        assert lost == 0
        worst = max(worst, tick + 1 - written - spilled)
    assert 1 <= worst <= 12


def test_an_outage_with_a_full_disk_keeps_rows_in_memory(tmp_path: Path) -> None:
    """And batches stay small when the store is back."""
    case = RecorderCase(tmp_path / "spill", room=3000)
    case.store.fault = away
    case.add(rows(60))
    case.run(5.0)
    written, _, lost, spilled, _ = case.sums
    assert (written, lost) == (0, 0)
    assert spilled + case.writer.queued == 60
    case.store.fault = None
    case.run(60.0)
    assert len(case.store.rows) == 60
    assert max(case.store.sizes) <= 10


def test_rows_stay_in_memory_while_the_disk_fails_too(tmp_path: Path) -> None:
    """Lost only when there is no place at all, and then counted exactly."""
    (tmp_path / "file").touch()
    case = RecorderCase(tmp_path / "file" / "spill")
    case.store.fault = away
    case.add(rows(10, "hand"))
    case.run(0.05)
    for each in rows(120):
        case.add([each])
    case.run(30.0)
    assert case.sums == (0, 0, 20, 0, 0)
    case.store.fault = None
    case.run(30.0)
    assert len(case.store.rows) == 110
    assert case.sums == (110, 0, 20, 0, 0)


def test_who_waits_is_answered_when_all_before_is_in_the_store(case: RecorderCase) -> None:
    """What was spilled in between counts too, and so does what could not be spilled."""
    case.store.fault = away
    case.add(rows(10, "hand"))
    case.run(0.01)
    case.add(rows(50, "a"))
    marker = FlushMarker()
    case.writer.queue.append(marker)
    case.add(rows(49, "b"))
    case.writer.step()
    assert case.sums == (0, 0, 0, 30, 0)
    case.store.fault = None
    while not marker.is_set():
        case.clock.now += 1.0
        case.writer.step()
    assert {f"a{n}" for n in range(50)} <= set(case.store.rows)


def test_who_waits_is_not_passed_by_rows_that_were_put_back(
    case: RecorderCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marker goes back into the queue together with the rows before it."""
    case.store.fault = away
    case.add(rows(10, "hand"))
    case.run(0.01)
    case.add(rows(5, "a"))
    marker = FlushMarker()
    case.writer.queue.append(marker)
    case.add(rows(90, "b"))

    def refuse(*_: object, **__: object) -> None:
        raise StoreReadOnlyError("no")

    with monkeypatch.context() as patch:
        patch.setattr(case.spill, "keep", refuse)
        case.writer.step()
    case.store.fault = None
    while not marker.is_set():
        case.clock.now += 1.0
        case.writer.step()
    assert {f"a{n}" for n in range(5)} <= set(case.store.rows)


def test_who_gave_up_waiting_is_forgotten(case: RecorderCase) -> None:
    """Markers do not pile up while a store stays away."""
    case.store.fault = away
    case.writer.write_now(RecordBatch(rows(1, "spilt")))
    case.clock.now += 60.0
    case.store.faults = [lambda: None]
    marker = FlushMarker()
    marker.is_abandoned = True
    case.writer.queue.append(marker)
    case.writer.step()
    case.store.fault = None
    case.run(60.0)
    assert case.writer.pending_flushes == 0


def test_a_row_that_no_store_takes_holds_up_nobody(case: RecorderCase) -> None:
    """It is counted as lost; its neighbours are written; its text is told to nobody."""
    case.store.refuses = {"r3", "r7"}
    case.add(rows(10))
    case.run(30.0)
    assert len(case.store.rows) == 8
    assert case.sums[:3] == (8, 0, 2)
    assert case.writer.counter.last_error == "ValueError"
    assert "secret" not in repr(case.ear.heard)


def test_a_lone_row_that_is_refused_waits_for_company(case: RecorderCase) -> None:
    """Whether it is the row or the store can only be told by another row."""
    case.store.refuses = {"bad0"}
    case.add(rows(1, "bad"))
    case.run(60.0)
    assert case.sums[:3] == (0, 0, 0)
    case.add(rows(2, "good"))
    case.run(60.0)
    assert case.sums[:3] == (2, 0, 1)


def test_a_store_that_fails_strangely_is_away(case: RecorderCase) -> None:
    """An error nobody knows loses nothing as long as no row gets through."""

    def strange() -> None:
        raise RuntimeError("what is this")

    case.store.fault = strange
    case.add(rows(30))
    case.run(30.0)
    assert case.sums == (0, 0, 0, 0, 0)
    case.store.fault = None
    case.run(30.0)
    assert case.sums == (30, 0, 0, 0, 0)


@pytest.mark.parametrize("kind", [StoreFullError, StoreReadOnlyError, StoreBrokenError])
def test_a_store_that_takes_some_rows_and_is_full_then(
    case: RecorderCase, kind: type[StoreError]
) -> None:
    """A store that says what is wrong with it blames no row: all of them wait."""

    def full() -> None:
        if case.store.calls % 2:
            raise kind("no room")

    case.store.fault = full
    case.add(rows(8))
    case.run(0.0)
    assert case.sums == (0, 0, 0, 0, 0)
    case.store.fault = None
    case.run(30.0)
    assert case.sums == (8, 0, 0, 0, 0)


def test_a_store_that_goes_while_its_rows_are_tried_one_by_one(case: RecorderCase) -> None:
    """Nothing is given up then."""
    case.store.refuses = {"r3"}
    case.add(rows(5))
    case.store.faults = [lambda: None, lambda: None, away]
    case.run(0.0)
    assert case.sums == (0, 0, 0, 0, 0)
    case.run(30.0)
    assert case.sums == (4, 0, 1, 0, 0)


def test_nobody_is_woken_when_nothing_can_be_done(tmp_path: Path) -> None:
    """Neither the store nor the disk: a crowded queue must not keep a thread busy."""
    (tmp_path / "file").touch()
    case = RecorderCase(tmp_path / "file" / "spill")
    case.store.fault = away
    assert not case.writer.write_now(RecordBatch(rows(1)))
    could = case.writer.can_make_room
    case.clock.now += 60.0
    assert (could, case.writer.can_make_room) == (False, True)


@pytest.mark.parametrize("with_neighbour", [True, False])
def test_a_spilled_batch_that_no_store_takes(
    case: RecorderCase, tmp_path: Path, with_neighbour: bool
) -> None:
    """Its file is put aside, and what comes after it is not held up."""
    case.store.fault = away
    case.writer.write_now(RecordBatch(rows(1, "bad")))
    if with_neighbour:
        case.writer.write_now(RecordBatch(rows(1, "near")))
    case.store.fault = None
    case.store.refuses = {"bad0"}
    case.add(rows(2, "new"))
    case.clock.now += 60.0
    case.run(60.0)
    assert set(case.store.rows) == {"new0", "new1"} | ({"near0"} if with_neighbour else set())
    assert case.sums[2] == 1
    assert [path.suffix for path in (tmp_path / "spill").iterdir()] == [".bad"]


def test_a_line_that_was_spoilt_is_counted_as_lost(case: RecorderCase, tmp_path: Path) -> None:
    """Found in a file that a dead process left."""
    (tmp_path / "spill").mkdir()
    (tmp_path / "spill" / "1-x.jsonl").write_bytes(b'{"sum":"nonsense"}\n{"sum":"more"}\n')
    case.run(1.0)
    assert case.sums == (0, 0, 1, 0, 0)


def test_files_of_dead_processes_are_looked_for_now_and_then(
    case: RecorderCase, tmp_path: Path
) -> None:
    """Not only at the start."""
    case.run(1.0)
    dead = Spill(tmp_path / "spill")
    dead.keep([RecordBatch(rows(3))], is_synced=True)
    dead.close()
    case.run(1.0)
    assert case.store.rows == {}
    case.clock.now += 30.0
    case.run(1.0)
    assert len(case.store.rows) == 3


def test_a_mistake_of_ours_ends_nothing(
    case: RecorderCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step never raises; it is tried again later."""

    def fail() -> None:
        raise ZeroDivisionError

    case.add(rows(3))
    with monkeypatch.context() as patch:
        patch.setattr(case.writer, "_answer", fail)
        wait = case.writer.step()
    assert wait is not None
    assert case.writer.counter.last_error == "ZeroDivisionError"
    case.run(60.0)
    assert len(case.store.rows) == 3


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
    case = RecorderCase(tmp_path_factory.mktemp("p"), capacity=20, batch=4, room=room)
    given = {"final": 0, "retry": 0, "unsafe": 0}
    for n, (what, count, fault) in enumerate(steps):
        _set(case.store, fault)
        batch = rows(count, f"{n}-")
        if what in {"add", "crowd", "now"}:
            given["final"] += count
        if what == "add":
            for each in batch:
                case.add([each])
        elif what == "crowd":
            case.add(batch)
        elif what == "retry":
            given["retry"] += count
            case.add([each._replace(id=f"x{each.id}", outcome="retry") for each in batch])
        elif what == "now":
            given["unsafe"] += 0 if case.writer.write_now(RecordBatch(batch)) else count
        elif what == "disk":
            case.spill.max_bytes = room if count > 6 else 0
        elif what == "close":
            case.writer.spill_rest(0.0)
        else:
            case.run(float(count))
    _set(case.store, "ok")
    case.clock.now += 60.0
    case.run(120.0)
    assert case.writer.is_idle
    written, dropped, lost, spilled, replayed = case.sums
    finals = sum(not each.startswith("x") for each in case.store.rows)
    retries = len(case.store.rows) - finals
    missing = given["final"] - finals, given["retry"] - retries
    gone = lost + given["unsafe"], dropped
    if any(fault == "ambiguous" for _, _, fault in steps):
        # What the store took without saying so may have been given up; never the other way round.
        assert missing[0] <= gone[0]
        assert missing[1] <= gone[1]
    else:
        assert missing == gone
        assert written + replayed == len(case.store.rows)
    assert replayed <= spilled


def _set(store: ScriptedStore, fault: str) -> None:
    def strange() -> None:
        raise RuntimeError("what is this")

    store.fault = {"away": away, "strange": strange}.get(fault)
    store.fault_after = away if fault == "ambiguous" else None
