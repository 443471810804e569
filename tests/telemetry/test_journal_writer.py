"""Notices on their way into a journal: in the background, bounded, and never in the way."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.journal import JournalEntry, JournalQuery, SpanRecord
from ergon_framework.ports.notice import Notice
from ergon_framework.storage.journal import SqliteJournal
from ergon_framework.telemetry.journal import BATCH_SIZE, JournalListener, JournalWriter

WAIT = 30.0


def entry(number: int = 0) -> JournalEntry:
    """Something to write."""
    return JournalEntry(at=1e9, name="job.late", source="test", fields={"n": number})


def span(span_id: str) -> SpanRecord:
    """A span to write."""
    return SpanRecord(
        trace_id="a" * 32, span_id=span_id, name="x", source="test", began_at=1e9, ended_at=1e9
    )


class Held:
    """A journal that writes when it is let, and may be told to fail."""

    def __init__(self) -> None:
        self.let = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.batches: list[list[Any]] = []
        self.error: Exception | None = None
        self.closed = 0

    def write(self, entries: Sequence[JournalEntry], spans: Sequence[SpanRecord] = ()) -> None:
        self.begun.release()
        assert self.let.acquire(timeout=WAIT)
        if self.error is not None:
            raise self.error
        self.batches.append([*entries, *spans])

    def close(self) -> None:
        self.closed += 1

    def go_on(self, times: int = 1000) -> None:
        """Let so many writes through."""
        self.let.release(times)


@pytest.fixture
def held() -> Held:
    """A journal that waits."""
    return Held()


def writer_on(held: Held, **options: Any) -> JournalWriter:
    """A writer that does not wait for company."""
    return JournalWriter(lambda: held, flush_interval=0.0, **options)  # type: ignore[arg-type, return-value]


def test_everything_told_is_written_in_order(tmp_path: Path) -> None:
    """Entries and spans are in the journal when flush has returned."""
    path = tmp_path / "journal.db"
    writer = JournalWriter(lambda: SqliteJournal(path, clock=lambda: 1e9))
    for n in range(3 * BATCH_SIZE):
        writer.tell(entry(n))
    writer.keep(span("b" * 16))
    assert writer.flush(WAIT)
    with SqliteJournal(path, read_only=True) as journal:
        told = journal.read(JournalQuery(), limit=10_000)
        assert [each.fields["n"] for each in told] == list(range(3 * BATCH_SIZE))
        assert journal.trace("a" * 32) == [span("b" * 16)]
    writer.close()
    assert writer.dropped == 0


def test_a_commit_has_a_bounded_size(held: Held) -> None:
    """However much waits, it is written in pieces."""
    writer = writer_on(held)
    writer.tell(entry())
    assert held.begun.acquire(timeout=WAIT)
    for n in range(2 * BATCH_SIZE + 5):
        writer.tell(entry(n))
    held.go_on()
    writer.close(WAIT)
    assert [len(batch) for batch in held.batches] == [1, BATCH_SIZE, BATCH_SIZE, 5]
    assert held.closed == 1


def test_what_finds_no_room_is_dropped_and_counted(
    held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    """The work never waits for the journal: what is too much is left out, and the end says so."""
    writer = writer_on(held, max_waiting=3)
    writer.tell(entry())
    assert held.begun.acquire(timeout=WAIT)
    for n in range(10):
        writer.tell(entry(n))
    assert writer.dropped == 7
    held.go_on()
    writer.close(WAIT)
    assert sum(map(len, held.batches)) == 4
    assert "7 entries were not kept" in caplog.text


def test_a_journal_in_trouble_is_told_once(held: Held, caplog: pytest.LogCaptureFixture) -> None:
    """One warning, no further try for a while, then it goes on and says so."""
    now = [0.0]
    writer = writer_on(held, monotonic=lambda: now[0])
    held.error = StoreUnavailableError("the disk is away")
    held.go_on()
    for _ in range(3):
        writer.tell(entry())
        assert writer.flush(WAIT)
    now[0] = 10.0
    writer.tell(entry())
    assert writer.flush(WAIT)
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.getMessage() for each in warnings] == [
        "the journal cannot be written, and the work goes on: the disk is away"
    ]
    held.error, now[0] = None, 20.0
    with caplog.at_level(logging.INFO, logger="ergon.journal"):
        writer.tell(entry())
        assert writer.flush(WAIT)
    assert "written again; 4 entries are missing" in caplog.text
    writer.close(WAIT)
    assert len(held.batches) == 1


def test_a_damaged_file_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is wrong with the file, telling raises nothing."""
    path = tmp_path / "journal.db"
    path.write_bytes(b"no database at all" * 100)
    writer = JournalWriter(lambda: SqliteJournal(path))
    writer.tell(entry())
    assert writer.flush(WAIT)
    writer.tell(entry())
    writer.close(WAIT)
    assert caplog.text.count("cannot be written") == 1
    assert writer.dropped == 2


def test_a_closed_writer_takes_nothing(held: Held) -> None:
    """What comes after the end is dropped; closing twice is fine."""
    writer = writer_on(held)
    writer.close()
    writer.tell(entry())
    writer.close()
    assert writer.dropped == 1
    assert held.batches == []


def test_the_end_does_not_wait_for_ever(held: Held) -> None:
    """A journal that hangs keeps nobody from leaving."""
    writer = writer_on(held)
    writer.tell(entry())
    assert held.begun.acquire(timeout=WAIT)
    writer.close(0.01)
    held.go_on()


@pytest.mark.slow
def test_a_forked_child_writes_its_own(tmp_path: Path) -> None:
    """What waited in the parent is written once, and the child's entries too."""
    path = tmp_path / "journal.db"
    writer = JournalWriter(lambda: SqliteJournal(path, clock=lambda: 1e9), flush_interval=60.0)
    writer.tell(entry(1))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            writer.tell(entry(2))
            code = 0 if writer.flush(WAIT) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    writer.close(WAIT)
    with SqliteJournal(path, read_only=True) as journal:
        assert sorted(each.fields["n"] for each in journal.read(JournalQuery())) == [1, 2]


# ---- the listener --------------------------------------------------------------------------------


class Kept:
    """A writer that keeps what it is told."""

    def __init__(self) -> None:
        self.entries: list[JournalEntry] = []

    def tell(self, entry: JournalEntry) -> None:
        self.entries.append(entry)


@pytest.fixture
def kept() -> Kept:
    """What the listener passed on."""
    return Kept()


@pytest.mark.req("ONE:notices")
def test_the_happy_path_is_left_out(kept: Kept) -> None:
    """Routine notices are not kept, unless everything is wanted."""
    told = [
        Notice("job.completed", 1.0, {"job_id": "j1"}),
        Notice("job.late", 1.0, {"job_id": "j1"}),
        Notice("transaction.ended", 1.0, {"ending": "succeeded", "failure": None}),
        Notice("somebody.invented", 1.0, {}),
    ]
    for keeps_all in (False, True):
        listener = JournalListener(kept, "worker w1", keeps_all=keeps_all, clock=lambda: 7.0)
        for notice in told:
            before = len(kept.entries)
            listener(notice)
            assert notice.name not in listener.passes_over or before == len(kept.entries)
        assert ("job.completed" in listener.passes_over) is not keeps_all
    names = [each.name for each in kept.entries]
    assert names[:2] == ["job.late", "somebody.invented"]
    assert names[2:] == [each.name for each in told]
    assert kept.entries[0] == JournalEntry(at=7.0, name="job.late", source="worker w1", unit="j1")


@pytest.mark.req("ONE:notices")
def test_the_good_end_after_trouble(kept: Kept) -> None:
    """It is kept once for each of the last transactions that were in trouble."""
    listener = JournalListener(kept, "task orders", max_troubled=2)

    def ended(unit: str, ending: str) -> None:
        listener(Notice("transaction.ended", 1.0, {"transaction_id": unit, "ending": ending}))

    for unit in ("t1", "t2", "t3"):
        ended(unit, "parked")
    listener(Notice("job.late", 1.0, {"job_id": "j1"}))
    for unit in ("t1", "t2", "t3", "t3", "j1", "never"):
        ended(unit, "succeeded")
    told = [each.unit for each in kept.entries if each.fields.get("ending") == "succeeded"]
    assert told == ["t2", "t3"]
