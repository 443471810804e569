"""What is peculiar to the SQLite store: opening, faults of the disk, backups, appending soon."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.boundary.factstore.sql.session import BatchLimits
from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.boundary.factstore.sqlite.session import SQL
from ergon_framework.errors import (
    ConfigurationError,
    DataLossError,
    StoreBrokenError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.factstore import (
    OUTBOUND,
    Appended,
    AppendOutcome,
    Conflict,
    Corruption,
    Link,
    MissingReference,
    Reference,
)
from ergon_framework.storage.failpoints import armed
from ergon_framework.storage.sql_files import load
from ergon_framework.testing.suites.factstore.under_test import new, other
from tests.boundary.sqlite.conftest import ZONE, Open

WAIT = 20.0
pytestmark = pytest.mark.req("BOUNDARY:store")


def put(store: SqliteFactStore, *ids: str, **fields: object) -> list[AppendOutcome]:
    """Append new facts in one call."""
    return store.append(OUTBOUND, [new(each, **fields) for each in ids])


def ids(store: SqliteFactStore, to_zone: str | None = None) -> list[str]:
    """What the outbound log keeps."""
    return [each.message_id for each in store.page(OUTBOUND, 0, 1000, 1 << 20, to_zone).facts]


def change(path: Path, statement: str, *values: object) -> int:
    """Change the file behind the store's back; how many rows."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement, values).rowcount


# ---- opening ------------------------------------------------------------------------------------


def test_who_watches_is_told_before_the_disk_is_waited_for(
    store: SqliteFactStore, path: Path
) -> None:
    """All is written by then, and nothing is committed."""
    seen: list[int] = []

    def look(_: object = None, /) -> None:
        with closing(sqlite3.connect(path)) as other:
            [[found]] = other.execute("SELECT count(*) FROM ergon_boundary_facts").fetchall()
            seen.append(found)

    store.watch_waits(look)
    put(store, "a")
    put(store, "b")
    assert seen == [0, 1]


def test_who_watches_is_told_before_the_file_is_waited_for(open_store: Open, path: Path) -> None:
    """Another process may have it for longer than anybody should be kept."""
    store = open_store(busy_timeout=0.05)
    put(store, "a")
    told: list[str] = []
    store.watch_waits(lambda _=None, /: told.append("waiting"))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError):
            put(store, "b")
        assert told == ["waiting"]
        other.execute("ROLLBACK")


def test_a_file_of_another_zone(open_store: Open) -> None:
    """It is refused with both names, and nothing is changed."""
    first = open_store()
    epoch = first.info().epoch
    with pytest.raises(ConfigurationError, match=r"'plant-a'.*'plant-z'"):
        open_store(zone="plant-z")
    with pytest.raises(ConfigurationError, match=r"'plant-a'.*'plant-z'"):
        open_store(zone="plant-z", read_only=True)
    assert open_store().info().epoch == epoch


def test_reading_only(open_store: Open, path: Path) -> None:
    """What is there can be read and nothing can be changed."""
    writer = open_store()
    put(writer, "a", "b")
    reader = open_store(read_only=True)
    assert (ids(reader), reader.info()) == (["a", "b"], writer.info())
    with pytest.raises(StoreReadOnlyError):
        put(reader, "c")
    assert ids(reader) == ["a", "b"]


def test_reading_only_creates_nothing(open_store: Open, path: Path) -> None:
    """A file that is not there is not made."""
    with pytest.raises(StoreUnavailableError):
        open_store(read_only=True)
    assert not path.exists()


def test_reading_only_what_has_no_zone(open_store: Open, path: Path) -> None:
    """A file with the tables and no owner is refused."""
    open_store().close()
    change(path, "DELETE FROM ergon_boundary_store")
    with pytest.raises(StoreSchemaError, match="no zone"):
        open_store(read_only=True)


def test_jobs_and_facts_share_a_file(open_store: Open, path: Path) -> None:
    """Each has tables of its own."""
    with closing(SqliteJobStore(path)) as jobs:
        store = open_store()
        put(store, "a")
        assert jobs.find("a") is None
    assert ids(store) == ["a"]


def test_opening_syncs_what_others_left(open_store: Open, path: Path) -> None:
    """A repeated append is answered without a commit, so what it repeats is synced at opening."""
    first = open_store(clock=lambda: 1.0)
    put(first, "a")
    first.close()
    open_store(clock=lambda: 2.0)
    with closing(sqlite3.connect(path)) as connection:
        row = connection.execute("SELECT created_at, opened_at FROM ergon_boundary_store")
        assert row.fetchone() == (1.0, 2.0)


def test_a_closed_store_says_so(open_store: Open) -> None:
    """Every call is refused; closing again is fine."""
    store = open_store()
    put(store, "a")
    store.close()
    store.close()
    for call in (lambda: put(store, "b"), lambda: ids(store), lambda: store.find(ZONE, "a")):
        with pytest.raises(StoreUnavailableError, match="closed"):
            call()
    with pytest.raises(StoreUnavailableError, match="closed"):
        store.append_soon(OUTBOUND, [new("b")], lambda _: None)


# ---- faults -------------------------------------------------------------------------------------


@pytest.mark.req("BOUNDARY:badinput")
def test_a_full_disk(store: SqliteFactStore) -> None:
    """The error says so, what was acknowledged stays, and room makes it work again."""
    put(store, "a")

    def bound(pages: int) -> None:
        def work(connection: sqlite3.Connection) -> None:
            [count] = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {count + pages}")

        store.database.file.write(work)

    bound(0)
    with pytest.raises(StoreFullError, match="no room left"):
        put(store, "big", fact=b"x" * 100_000)
    assert ids(store) == ["a"]
    assert store.find("plant-a", "big") is None
    bound(100_000)
    assert put(store, "big", fact=b"x" * 100_000) == [Appended(2)]
    assert not [each for each in store.verify(OUTBOUND) if isinstance(each, Corruption)]


@pytest.mark.req("BOUNDARY:badinput", "P11")
def test_a_disk_that_does_not_confirm(open_store: Open, path: Path) -> None:
    """Nothing more is acknowledged by this process, and what was acknowledged can be read."""
    store = open_store()
    put(store, "a")
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC

    def fail(_: sqlite3.Connection) -> None:
        raise error

    with pytest.raises(StoreBrokenError):
        store.database.file.write(fail)
    for call in (
        lambda: put(store, "b"),
        lambda: store.bind("files", "k", bytes(32), 1),
        lambda: store.receive("plant-b", [new("c")], Link("plant-b")),
    ):
        with pytest.raises(StoreBrokenError):
            call()
    assert ids(store) == ["a"]
    found = store.find("plant-a", "a")  # beside the writer, which is of no use any more
    assert found is not None
    assert found.offset == 1


@pytest.mark.req("P11", "P12")
@pytest.mark.parametrize("point", ["boundary.append.before", "boundary.append.after"])
def test_an_error_around_the_commit(store: SqliteFactStore, point: str) -> None:
    """Nobody is told that it worked; the same again ends in one fact."""
    put(store, "a")
    with armed(f"{point}=error"), pytest.raises(OSError, match=point):
        put(store, "b")
    assert put(store, "b")[0] in (Appended(2), Appended(2, True, new("b").envelope))
    assert ids(store) == ["a", "b"]


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("view", 77),
        ("total", 1),
        ("recorded_at", 7.5),
        ("recorded_at", "late"),
        ("proof", b"x"),
        ("proof", "text"),
        ("proof", b"y" * 90),
        ("envelope", b"{}"),
        ("envelope", "text"),
        ("fact", b""),
        ("fact", 5),
    ],
)
def test_a_changed_column_is_noticed(
    open_store: Open, path: Path, column: str, value: object
) -> None:
    """Whatever changes in a row, it is not given out, the others are, and the store goes on."""
    store = open_store()
    put(store, "a", "b", "c")
    store.create_consumer("c", OUTBOUND)
    with closing(sqlite3.connect(path)) as connection, connection:
        statement = f"UPDATE ergon_boundary_facts SET {column} = ? WHERE id & 15 = 2"  # noqa: S608
        assert connection.execute(statement, (value,)).rowcount == 1
    assert [each.offset for each in store.serve("c", 9, 1 << 20).page.facts] == [1]
    assert {each.offset for each in store.verify(OUTBOUND) if isinstance(each, Corruption)} == {2}
    with pytest.raises(DataLossError):
        store.page(OUTBOUND, 1, 9, 1 << 20)
    store.confirm("c", 1)
    assert [each.offset for each in store.serve("c", 9, 1 << 20).page.facts] == [3]
    assert [each.reason for each in store.quarantine("c")] == ["corrupted"]
    assert put(store, "d") == [Appended(4)]


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("view", 99),
        ("total", "text"),
        ("proof", b"x"),
        ("proof", "text"),
        ("proof", b"y" * 90),
        ("envelope", b"{}"),
        ("envelope", "text"),
        ("fact", b""),
        ("fact", 5),
    ],
)
def test_a_changed_column_is_repaired_by_a_duplicate(
    open_store: Open, path: Path, column: str, value: object
) -> None:
    """The row is what it was, by its mark or by the hash chain around it; other content is not."""
    store = open_store()
    put(store, "a", "b", "c")
    before = store.page(OUTBOUND, 0, 9, 1 << 20)
    change(path, f"UPDATE ergon_boundary_facts SET {column} = ? WHERE id & 15 = 2", value)  # noqa: S608
    assert isinstance(store.append(OUTBOUND, [other("b")])[0], Conflict)
    assert 2 in {each.offset for each in store.verify(OUTBOUND) if isinstance(each, Corruption)}
    [told] = put(store, "b")
    assert isinstance(told, Appended)
    assert told.is_repaired
    assert store.page(OUTBOUND, 0, 9, 1 << 20) == before
    assert [each for each in store.verify(OUTBOUND) if isinstance(each, Corruption)] == []


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize(("column", "value"), [("recorded_at", 7.5), ("envelope", b"{}")])
def test_what_a_duplicate_does_not_tell_stays_damaged(
    open_store: Open, path: Path, column: str, value: object
) -> None:
    """Nothing is made up: the instant, and an envelope that came with other advisory fields."""
    store = open_store()
    put(store, "a", "b", "c")
    change(path, f"UPDATE ergon_boundary_facts SET {column} = ? WHERE id & 15 = 2", value)  # noqa: S608
    told = put(store, "b", envelope=b'{"later":1}')
    assert told == [Appended(2, True, is_damaged=True)]
    assert 2 in {each.offset for each in store.verify(OUTBOUND) if isinstance(each, Corruption)}


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize("column", ["view", "total", "recorded_at", "proof"])
def test_a_changed_last_row_does_not_stop_the_log(
    open_store: Open, path: Path, column: str
) -> None:
    """What the next append stands on may be damaged: it is appended all the same."""
    store = open_store()
    put(store, "a", "b")
    statement = f"UPDATE ergon_boundary_facts SET {column} = 'x' WHERE id & 15 = 2"  # noqa: S608
    change(path, statement)
    assert put(store, "c", "d") == [Appended(3), Appended(4)]
    assert 2 in {each.offset for each in store.verify(OUTBOUND) if isinstance(each, Corruption)}
    assert [each.offset for each in store.page(OUTBOUND, 2, 9, 1 << 20).facts] == [3, 4]
    assert store.logs()[0].head == 4


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize("to_zone", [None, "x"])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_missing_row_is_noticed(
    open_store: Open, path: Path, to_zone: str | None, lost: int
) -> None:
    """A row that is gone is never passed in silence, in no view."""
    store = open_store()
    put(store, "a", "b", "c", to_zone="x")
    put(store, "d", to_zone="y")
    store.create_consumer("c", OUTBOUND, to_zone=to_zone)
    assert change(path, "DELETE FROM ergon_boundary_facts WHERE id & 15 = ?", lost) == 1
    seen: list[int] = []
    for _ in range(4):
        page = store.serve("c", 9, 1 << 20).page
        seen += [each.offset for each in page.facts]
        store.confirm("c", page.through)
    wanted = [1, 2, 3] if to_zone else [1, 2, 3, 4]
    assert seen == [each for each in wanted if each != lost]
    assert [each.offset for each in store.quarantine("c")] == [lost]
    assert [each.offset for each in store.verify(OUTBOUND) if isinstance(each, Corruption)] == [
        lost
    ]


def test_a_broken_chain_is_found(open_store: Open, path: Path) -> None:
    """A row that was put in the place of another, with a checksum that fits, breaks the chain."""
    store = open_store()
    put(store, "a", "b", "c")
    with closing(sqlite3.connect(path)) as connection, connection:
        select = "SELECT id, proof FROM ergon_boundary_facts WHERE id & 15 = 2"
        number, proof = connection.execute(select).fetchone()
        broken = proof[:4] + bytes(32) + proof[36:]
        connection.execute(
            "UPDATE ergon_boundary_facts SET proof = ? WHERE id = ?", (broken, number)
        )
    flaws = [each for each in store.verify(OUTBOUND) if isinstance(each, Corruption)]
    assert [each.offset for each in flaws] == [2, 3]
    assert "chain" in flaws[0].what


def test_verification_finds_what_the_books_do_not_know(open_store: Open, path: Path) -> None:
    """A fact that its zone cannot see, or that could be appended twice, is a flaw."""
    store = open_store()
    put(store, "a", to_zone="x")
    put(store, "b", to_zone="y")
    change(path, "DELETE FROM ergon_boundary_runs WHERE last IS NULL")
    assert [
        "zone" in each.what for each in store.verify(OUTBOUND) if isinstance(each, Corruption)
    ] == [True]
    store.truncate(OUTBOUND, 0)
    store.appender.ledger.memtable[:] = [{} for _ in range(256)]
    flaws = [each for each in store.verify(OUTBOUND) if isinstance(each, Corruption)]
    assert sum("ledger" in each.what for each in flaws) == 2


def test_many_corrupted_facts_take_several_calls(open_store: Open, path: Path) -> None:
    """One call passes a bounded number of them."""
    store = open_store(limits=BatchLimits(serve_attempts=2))
    put(store, *"abcdef")
    store.create_consumer("c", OUTBOUND)
    change(path, "UPDATE ergon_boundary_facts SET fact = x'00' WHERE id & 15 < 6")
    first = store.serve("c", 9, 1 << 20)
    assert (first.page.facts, first.page.through, first.consumer.cursor) == ([], 2, 2)
    store.serve("c", 9, 1 << 20)
    last = store.serve("c", 9, 1 << 20)
    assert [each.offset for each in last.page.facts] == [6]


# ---- truncation in slices -----------------------------------------------------------------------


def test_a_long_truncation_is_done_in_slices(open_store: Open) -> None:
    """Its gap is one, and everything behind it is as before."""
    store = open_store(limits=BatchLimits(dropped_facts=7))
    put(store, *(f"id-{n}" for n in range(50)))
    assert store.truncate(OUTBOUND, 40, loss_reason="no room") == 40
    [gap] = store.gaps()
    assert (gap.first, gap.last, gap.reason) == (1, 40, "no room")
    assert len(ids(store)) == 10
    assert not [each for each in store.verify(OUTBOUND) if isinstance(each, Corruption)]
    store.create_consumer("c", OUTBOUND)
    assert store.consumer("c").lag == 10


def test_ageing_looks_at_each_fact_once(open_store: Open) -> None:
    """Over several reads, and with a clock that went back."""
    now = [100.0]
    store = open_store(clock=lambda: now[0], limits=BatchLimits(aged_facts=3))
    for number, at in enumerate([100, 101, 102, 103, 90, 91, 200, 104, 105]):
        now[0] = float(at)
        put(store, f"id-{number}")
    assert [store.aged(OUTBOUND, at) for at in (50, 101.5, 150, 150, 101.5, 300)] == [
        *(0, 2, 6, 6, 2, 9),
    ]
    assert store.aged("inbound:nobody", 300) == 0


# ---- backups ------------------------------------------------------------------------------------


@pytest.mark.req("BOUNDARY:operator")
def test_a_backup_is_a_store_of_a_new_epoch(open_store: Open, tmp_path: Path) -> None:
    """It has everything, its epoch is new once and for all, and the journal tells the old one."""
    store = open_store()
    put(store, "a", "b")
    store.backup(str(tmp_path / "copy"))
    put(store, "c")
    epoch = store.info().epoch
    copy = tmp_path / "copy" / "facts.db"
    with closing(SqliteFactStore(copy, zone=ZONE)) as restored:
        again = restored.info().epoch
        assert again != epoch
        assert ids(restored) == ["a", "b"]
        assert epoch in restored.journal()[0][2]
        assert put(restored, "c") == [Appended(3)]
    with closing(SqliteFactStore(copy, zone=ZONE)) as restored:
        assert restored.info().epoch == again
    assert open_store().info().epoch == epoch


def test_a_backup_overwrites_nothing(store: SqliteFactStore, tmp_path: Path) -> None:
    """A folder that has one, or that is none, is refused and left as it is."""
    store.backup(str(tmp_path / "copy"))
    before = (tmp_path / "copy" / "facts.db").read_bytes()
    with pytest.raises(StoreError, match="there already"):
        store.backup(str(tmp_path / "copy"))
    assert (tmp_path / "copy" / "facts.db").read_bytes() == before
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnavailableError, match="no backup"):
        store.backup(str(tmp_path / "file" / "copy"))


def test_a_backup_put_in_the_place_of_an_open_store(open_store: Open, tmp_path: Path) -> None:
    """It is refused until the store is opened anew: nobody would notice its new epoch otherwise."""
    store = open_store()
    put(store, "a")
    store.backup(str(tmp_path / "copy"))
    put(store, "b")
    epoch, path = store.info().epoch, store.path
    for leftover in path.parent.glob(f"{path.name}*"):
        leftover.unlink()
    (tmp_path / "copy" / "facts.db").rename(path)
    with pytest.raises(StoreUnavailableError, match="removed or replaced"):
        put(store, "c")
    for _again in range(2):
        with pytest.raises(StoreUnavailableError, match="is another file"):
            put(store, "b")
        with pytest.raises(StoreUnavailableError, match="is another file"):
            store.logs()
        with pytest.raises(StoreUnavailableError, match="is another file"):
            store.find("plant-a", "b")
    store.close()
    restored = open_store()
    assert restored.info().epoch != epoch
    assert put(restored, "b") == [Appended(2)]


# ---- together -----------------------------------------------------------------------------------


@pytest.mark.req("P8")
@pytest.mark.slow
def test_the_same_fact_from_many_threads(store: SqliteFactStore) -> None:
    """One of them stored it, and all are told the same offset."""
    start = threading.Barrier(32)
    answers: list[AppendOutcome] = []

    def call() -> None:
        start.wait(WAIT)
        answers.extend(put(store, "same"))

    threads = [threading.Thread(target=call) for _ in range(32)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT)
    assert all(isinstance(each, Appended) and each.offset == 1 for each in answers)
    assert sum(isinstance(each, Appended) and not each.is_duplicate for each in answers) == 1


def test_appending_soon(store: SqliteFactStore) -> None:
    """The outcome comes after the commit, each caller's own, and the group's end after them."""
    told: list[object] = []
    woken: list[int] = []
    ended = threading.Semaphore(0)
    store.subscribe(lambda: woken.append(len(ids(store))))

    def group_done() -> None:
        told.append("end")
        ended.release()

    asked = [[new("a"), new("b")], [new("a")], [other("b")]]
    for facts in asked:
        store.log.append_soon(OUTBOUND, facts, told.append, group_done=group_done)
    while len([each for each in told if each != "end"]) < 3 or told[-1] != "end":
        assert ended.acquire(timeout=WAIT)
    answers = [each for each in told if each != "end"]
    assert answers[0] == [Appended(1), Appended(2)]
    assert answers[1] == [Appended(1, True, new("a").envelope)]
    assert answers[2] == [Conflict(2, new("b").digest)]
    assert (told[-1], woken) == ("end", [2])


def test_an_error_is_told_to_who_appends_soon(store: SqliteFactStore) -> None:
    """``done`` is given the exception."""
    told: list[object] = []
    ended = threading.Event()
    with armed("storage.commit.before=error"):
        store.log.append_soon(OUTBOUND, [new("a")], told.append, group_done=ended.set)
        assert ended.wait(WAIT)
    assert [type(each) for each in told] == [StoreUnavailableError]
    assert ids(store) == []


def test_a_waiter_that_fails_harms_nobody(
    store: SqliteFactStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The append is answered, and the others are woken."""
    woken: list[int] = []

    def fail() -> None:
        raise ZeroDivisionError

    store.subscribe(fail)
    store.subscribe(lambda: woken.append(1))
    assert put(store, "a") == [Appended(1)]
    store.unsubscribe(fail)
    store.unsubscribe(fail)
    assert woken == [1]
    assert "waits for facts failed" in caplog.text


# ---- views --------------------------------------------------------------------------------------


def test_facts_to_many_zones_in_one_batch(open_store: Open, path: Path) -> None:
    """Each zone sees its own facts in order, each with the one before it."""
    store = open_store()
    zones = "xxyxyyzxzzxy"
    batches = (zones[:5], zones[5:6], zones[6:])
    number = 0
    for batch in batches:
        facts = []
        for zone in batch:
            number += 1
            facts.append(new(f"id-{number}", to_zone=zone))
        store.append(OUTBOUND, facts)
    for zone in "xyz":
        wanted = [n for n, each in enumerate(zones, 1) if each == zone]
        facts_of = store.page(OUTBOUND, 0, 100, 1 << 20, zone).facts
        assert [each.offset for each in facts_of] == wanted
        assert [each.previous for each in facts_of] == [0, *wanted[:-1]]
        for after in range(13):
            store.create_consumer(f"{zone}{after}", OUTBOUND, to_zone=zone)
            store.seek(f"{zone}{after}", after, reason="test")
            info = store.consumer(f"{zone}{after}")
            assert info.lag == sum(each > after for each in wanted)


def test_a_page_of_one_view_needs_no_sorting(store: SqliteFactStore) -> None:
    """Reading a view is a walk along its runs: bounded, however long the log is."""
    put(store, "a")

    def plan(connection: sqlite3.Connection) -> list[str]:
        statement = "EXPLAIN QUERY PLAN " + load(SQL, "logs.sql")["facts_of_view"]
        return [row[3] for row in connection.execute(statement, (1, 0, 0, 9, 9)).fetchall()]

    found = store.database.file.read(plan)
    assert not any("TEMP B-TREE" in each or "SCAN" in each for each in found)


def test_an_unfounded_fact_leaves_nothing(store: SqliteFactStore) -> None:
    """It has no id and no offset."""
    reference = Reference("files", "k", bytes(32), 1)
    [answer] = put(store, "a", references=(reference,))
    assert answer == MissingReference(reference, None)
    assert store.find("plant-a", "a") is None
    assert put(store, "a") == [Appended(1)]
