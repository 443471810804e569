"""The journal: what many processes told, bounded, and read while it is written."""

from __future__ import annotations

import multiprocessing
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.errors import StoreError, StoreSchemaError, StoreUnavailableError
from ergon_framework.ports.journal import Journal, JournalEntry, JournalQuery, SpanRecord
from ergon_framework.storage.journal import SqliteJournal

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def entry(name: str = "job.retrying", at: float = 100.0, **more: object) -> JournalEntry:
    """An entry with as little said as possible."""
    return JournalEntry(at=at, name=name, source=str(more.pop("source", "worker w1")), **more)  # type: ignore[arg-type]


def span(span_id: str, began_at: float, **more: object) -> SpanRecord:
    """A span of the one trace."""
    shape = {"trace_id": TRACE, "name": "job.run", "source": "worker w1", **more}
    return SpanRecord(span_id=span_id, began_at=began_at, ended_at=began_at + 1, **shape)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the journal will be."""
    return tmp_path / "ergon-journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[SqliteJournal]:
    """An empty journal at second 100."""
    with SqliteJournal(path, clock=lambda: 100.0) as opened:
        yield opened


def names(journal: Journal, **wanted: object) -> list[str]:
    """The names of the entries that match."""
    return [each.name for each in journal.read(JournalQuery(**wanted))]  # type: ignore[arg-type]


def test_entries_come_back_as_they_were_told(journal: SqliteJournal) -> None:
    """Every field survives, in the order of writing, with growing numbers."""
    journal.write([entry(unit="j1", trace_id=TRACE, fields={"delay": 2.5, "why": None})])
    journal.write([entry("worker.stopped")])
    first, second = journal.read(JournalQuery())
    assert first == entry(
        unit="j1", trace_id=TRACE, fields={"delay": 2.5, "why": None}, number=first.number
    )
    assert second.number > first.number
    assert journal.last() == second.number
    assert journal.read(JournalQuery(), after=first.number) == [second]
    assert journal.read(JournalQuery(), limit=1) == [first]


def test_nothing_written_is_nothing_there(journal: SqliteJournal) -> None:
    """An empty journal has the last number 0, and writing nothing changes nothing."""
    journal.write([])
    assert journal.last() == 0
    assert journal.read(JournalQuery()) == []
    assert journal.traces_of("") == []


def test_filters_must_all_match(journal: SqliteJournal) -> None:
    """A name means itself or all that come behind its dot; a source is a beginning."""
    journal.write(
        [
            entry("job.retrying", unit="j1", at=10),
            entry("job.late", unit="j2", at=20, source="worker w2"),
            entry("jobs.other", at=30, source="zone plant"),
            entry("circuit.opened", trace_id=TRACE, at=40, source="50%_off"),
        ]
    )
    assert names(journal, names=("job",)) == ["job.retrying", "job.late"]
    assert names(journal, names=("job.late", "circuit")) == ["job.late", "circuit.opened"]
    assert names(journal, unit="j2") == ["job.late"]
    assert names(journal, trace_id=TRACE) == ["circuit.opened"]
    assert names(journal, source="worker") == ["job.retrying", "job.late"]
    assert names(journal, source="50%") == ["circuit.opened"]
    assert names(journal, source="%") == []
    assert names(journal, since=20) == ["job.late", "jobs.other", "circuit.opened"]
    assert names(journal, names=("job",), since=15, source="worker w1") == []


def test_the_newest_are_the_last(journal: SqliteJournal) -> None:
    """In their order, and only of what is wanted."""
    journal.write([entry(unit=f"j{n % 2}", at=float(n)) for n in range(10)])
    assert [each.at for each in journal.newest(JournalQuery(unit="j1"), 2)] == [7.0, 9.0]
    assert len(journal.newest(JournalQuery())) == 10


def test_a_trace_is_read_by_its_beginning(journal: SqliteJournal) -> None:
    """Spans come sorted by when they began, each once however often it was offered."""
    late, early = span("b" * 16, 50.0, failure="timeout"), span("a" * 16, 40.0, unit="j1")
    journal.write([], [late, early])
    journal.write([], [late])
    assert journal.trace(TRACE) == [early, late]
    assert journal.trace("0" * 32) == []


def test_a_unit_leads_to_its_traces(journal: SqliteJournal) -> None:
    """Both spans and entries tell in which traces a unit took part, the newest first."""
    other = "a" * 32
    journal.write([entry(unit="j1", trace_id=other, at=90.0)], [span("b" * 16, 40.0, unit="j1")])
    assert journal.traces_of("j1") == [other, TRACE]
    assert journal.traces_of("j2") == []
    assert journal.traces_beginning("4bf92f") == [TRACE]
    assert journal.traces_beginning("4bf930") == []


def test_the_old_goes(journal: SqliteJournal) -> None:
    """Rows older than they may be are dropped, entries and spans alike."""
    journal.write([entry(at=10), entry(at=60)], [span("a" * 16, 10.0), span("b" * 16, 60.0)])
    assert journal.sweep(keep=50, most=1000) == 2
    assert [each.at for each in journal.read(JournalQuery())] == [60]
    assert [each.began_at for each in journal.trace(TRACE)] == [60]


def test_the_surplus_goes_and_numbers_are_not_given_again(journal: SqliteJournal) -> None:
    """Only so many rows stay; a reader who goes on after the last number misses nothing."""
    journal.write([entry(at=float(n)) for n in range(5000)])
    assert journal.sweep(keep=1e9, most=3) == 4997
    assert [each.at for each in journal.read(JournalQuery())] == [4997, 4998, 4999]
    last = journal.last()
    journal.sweep(keep=-1e9, most=3)
    assert journal.read(JournalQuery()) == []
    assert journal.last() == last
    journal.write([entry()])
    assert journal.last() == last + 1


def test_writers_sweep_by_themselves(path: Path) -> None:
    """A journal that is only ever written stays bounded."""
    with SqliteJournal(path, most=100, clock=lambda: 100.0) as journal:
        for _ in range(10):
            journal.write([entry() for _ in range(500)])
        assert len(journal.read(JournalQuery(), limit=10_000)) <= 100 + 2000


def test_a_bell_rings_at_a_write(journal: SqliteJournal, path: Path) -> None:
    """Who listens is woken by whoever writes, through another opening of the file as well."""
    with SqliteJournal(path) as other, closing(journal.subscribe()) as subscription:
        assert not subscription.wait(0)
        other.write([entry()])
        assert subscription.wait(30)


def test_reading_makes_no_file(path: Path) -> None:
    """Asking for a journal that is not there is an error, and leaves nothing behind."""
    with pytest.raises(StoreUnavailableError, match="is not there"):
        SqliteJournal(path, read_only=True)
    assert not path.exists()


def test_a_reader_does_not_write(journal: SqliteJournal, path: Path) -> None:
    """What was opened for reading refuses to be written."""
    journal.write([entry()])
    with SqliteJournal(path, read_only=True) as reader:
        assert len(reader.read(JournalQuery())) == 1
        with pytest.raises(StoreError):
            reader.write([entry()])


def test_a_newer_journal_is_refused_clearly(path: Path) -> None:
    """A file of a later version is not guessed at."""
    SqliteJournal(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE ergon_schema SET version = 99")
    for read_only in (True, False):
        with pytest.raises(StoreSchemaError, match=r"version 99.*upgrade"):
            SqliteJournal(path, read_only=read_only)


def test_a_damaged_journal_says_so(path: Path) -> None:
    """A file that is no database is an error of the store, not of SQLite."""
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError):
        SqliteJournal(path)


def test_a_closed_journal_refuses(path: Path) -> None:
    """Closing twice is fine; using it afterwards is not."""
    journal = SqliteJournal(path)
    journal.close()
    journal.close()
    with pytest.raises(StoreUnavailableError):
        journal.write([entry()])


def _tell(path: str, source: str, batches: int) -> None:
    with SqliteJournal(path, clock=lambda: 0.0) as journal:
        for n in range(batches):
            journal.write([entry(source=source, at=float(n)) for _ in range(20)])


@pytest.mark.slow
@pytest.mark.req("ONE:notices")
def test_several_processes_write_at_once(path: Path) -> None:
    """Nothing that was written is missing, and each process's entries are in its order."""
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_tell, args=(str(path), f"p{n}", 30)) for n in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
        writer.close()
    with SqliteJournal(path, read_only=True) as journal:
        assert journal.last() == 3 * 30 * 20
        for n in range(3):
            told = [each.at for each in journal.read(JournalQuery(source=f"p{n}"), limit=5000)]
            assert told == sorted(told)
            assert len(told) == 600
