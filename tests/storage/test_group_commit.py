"""Callers that arrive together share one commit: what each of them gets."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.errors import StoreError, StoreFullError, StoreUnavailableError
from ergon_framework.storage.sqlite.connections import SqliteLimits
from ergon_framework.storage.sqlite.database import Database
from tests.storage.conftest import WAIT, Script, add, fail, items, seen_by_others, until

Work = Callable[[sqlite3.Connection], Any]
Open = Callable[..., Database]
SAVEPOINT = "SAVEPOINT ergon_caller"
NORMAL, FULL = 1, 2
"""How SQLite calls a commit that does not wait for the disk, and one that does."""


class ConcurrentWriters:
    """Threads whose works queue up behind one that is held, so that they share a commit."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.pool = ThreadPoolExecutor(32)
        self.go_on = threading.Event()
        self.held: Future[str] | None = None

    def hold(self) -> None:
        """Let somebody lead until :meth:`release`."""
        inside = threading.Event()

        def work(connection: sqlite3.Connection) -> str:
            add("held")(connection)
            inside.set()
            assert self.go_on.wait(WAIT)
            return "held"

        self.held = self.pool.submit(self.database.write, work)
        assert inside.wait(WAIT)

    def join(
        self, work: Work, *, is_synced: bool = True, within: float | None = None
    ) -> Future[Any]:
        """One more caller; returns when it is in line."""
        before = self.database.pending_writes
        write = self.database.write
        future = self.pool.submit(write, work, is_synced=is_synced, within=within)
        until(lambda: self.database.pending_writes > before)
        return future

    def release(self) -> None:
        """Let the one that holds the others up go on."""
        self.go_on.set()
        assert self.held is not None
        assert self.held.result(WAIT) == "held"


@pytest.fixture
def limits() -> SqliteLimits:
    """Of the database; a test may have others."""
    return SqliteLimits()


@pytest.fixture
def writers(
    open_database: Open, script: Script, limits: SqliteLimits
) -> Iterator[ConcurrentWriters]:
    """Writers before a database whose statements are recorded."""
    writers = ConcurrentWriters(open_database(connect=script.connect, limits=limits))
    with writers.pool:
        yield writers
        writers.go_on.set()


def commits_of(script: Script) -> int:
    """How often something was committed."""
    return script.executed.count("COMMIT")


def failing(name: str) -> Work:
    """Work that inserts and then raises."""

    def work(connection: sqlite3.Connection) -> None:
        add(name)(connection)
        raise LookupError(name)

    return work


@pytest.mark.req("JOBS:store")
def test_those_who_wait_share_one_commit(writers: ConcurrentWriters, script: Script) -> None:
    """Ten callers behind one that is committing: two commits, and all of it is there."""
    before = commits_of(script)
    writers.hold()
    futures = [writers.join(add(f"n{n}", n)) for n in range(10)]
    writers.release()
    assert [future.result(WAIT) for future in futures] == [f"n{n}" for n in range(10)]
    assert commits_of(script) - before == 2
    assert items(writers.database) == {f"n{n}": n for n in range(10)} | {"held": 0}


@pytest.mark.parametrize(
    ("wishes", "level"),
    [([False], NORMAL), ([True], FULL), ([False, False], NORMAL), ([False, True, False], FULL)],
)
def test_a_commit_waits_for_the_disk_if_one_asks_for_it(
    writers: ConcurrentWriters, wishes: list[bool], level: int
) -> None:
    """Those in line who were promised nothing do not make a commit wait, alone or together."""

    def synchronous(connection: sqlite3.Connection) -> int:
        return int(connection.execute("PRAGMA synchronous").fetchone()[0])

    writers.hold()
    futures = [writers.join(synchronous, is_synced=wish) for wish in wishes]
    writers.release()
    assert {future.result(WAIT) for future in futures} == {level}


def test_one_that_raises_is_undone_alone(writers: ConcurrentWriters) -> None:
    """The others' changes are kept, before and after it, and the error is its own."""
    writers.hold()
    first = writers.join(add("first"))
    bad = writers.join(failing("bad"))
    taken = writers.join(add("first"))
    last = writers.join(add("last"))
    writers.release()
    assert (first.result(WAIT), last.result(WAIT)) == ("first", "last")
    with pytest.raises(LookupError, match="bad"):
        bad.result(WAIT)
    with pytest.raises(sqlite3.IntegrityError):
        taken.result(WAIT)
    assert items(writers.database).keys() == {"held", "first", "last"}


def test_a_lone_caller_needs_no_savepoint(writers: ConcurrentWriters, script: Script) -> None:
    """Neither one that finds nobody nor one that leads a group of one."""
    writers.hold()
    single = writers.join(add("single"))
    writers.release()
    assert single.result(WAIT) == "single"
    assert not [each for each in script.executed if "SAVEPOINT" in each]


def test_a_failed_commit_fails_everyone_in_it(writers: ConcurrentWriters, script: Script) -> None:
    """Each caller gets the store's error, as an exception of its own, and nothing is there."""
    writers.hold()
    futures = [writers.join(add(f"n{n}")) for n in range(3)]
    script.before(SAVEPOINT, lambda: script.fail("COMMIT", sqlite3.SQLITE_FULL))
    writers.release()
    errors = [future.exception(WAIT) for future in futures]
    assert [type(error) for error in errors] == [StoreFullError] * 3
    assert len({id(error) for error in errors}) == 3
    assert items(writers.database) == {"held": 0}
    assert writers.database.write(add("later")) == "later"


def executing(sql: str) -> Work:
    """Work that executes one statement."""
    return lambda connection: connection.execute(sql)


def test_an_io_error_in_one_work_fails_everyone(writers: ConcurrentWriters, script: Script) -> None:
    """The connection is gone, and with it what the others had done; the next call works."""
    writers.hold()
    futures = [
        writers.join(add("first")),
        writers.join(executing("SELECT 1")),
        writers.join(add("last")),
    ]
    script.fail("SELECT 1", sqlite3.SQLITE_IOERR_READ)
    opened = len(script.opened)
    writers.release()
    for future in futures:
        with pytest.raises(StoreUnavailableError, match="cannot be used for now"):
            future.result(WAIT)
    assert writers.database.write(add("later")) == "later"
    assert len(script.opened) == opened + 1


def limit(connection: sqlite3.Connection) -> None:
    """Let the file grow by two pages only."""
    [pages] = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")


def test_one_that_does_not_fit_costs_the_others_theirs(writers: ConcurrentWriters) -> None:
    """SQLite gives up the whole transaction when the disk is full, and everyone is told."""
    fill = "UPDATE ergon_item SET value = zeroblob(100000) WHERE name = 'held'"
    writers.database.write(limit)
    writers.hold()
    futures = [writers.join(each) for each in (add("first"), executing(fill), add("last"))]
    writers.release()
    for future in futures:
        with pytest.raises(StoreFullError):
            future.result(WAIT)
    assert items(writers.database) == {"held": 0}
    assert writers.database.write(add("later")) == "later"


def test_a_statement_that_did_not_fit_by_itself(writers: ConcurrentWriters) -> None:
    """When SQLite undid no more than the statement, nobody else loses anything."""

    def full(connection: sqlite3.Connection) -> None:
        add("bad")(connection)
        fail(sqlite3.SQLITE_FULL)

    writers.hold()
    first, bad, last = (writers.join(each) for each in (add("first"), full, add("last")))
    writers.release()
    with pytest.raises(StoreFullError):
        bad.result(WAIT)
    assert (first.result(WAIT), last.result(WAIT)) == ("first", "last")
    assert items(writers.database).keys() == {"held", "first", "last"}


def test_one_that_ends_the_transaction_costs_the_others_theirs(writers: ConcurrentWriters) -> None:
    """Nobody is told that a change was kept which the offender has thrown away."""
    writers.hold()
    futures = [
        writers.join(add("first")),
        writers.join(executing("ROLLBACK")),
        writers.join(add("last")),
    ]
    writers.release()
    for future in futures:
        with pytest.raises(StoreError, match="ended the transaction"):
            future.result(WAIT)
    assert items(writers.database) == {"held": 0}
    assert writers.database.write(add("later")) == "later"


def test_an_insert_or_rollback_is_such_an_offender(writers: ConcurrentWriters) -> None:
    """A conflict clause can end the transaction, too."""
    writers.hold()
    first = writers.join(add("first"))
    bad = writers.join(executing("INSERT OR ROLLBACK INTO ergon_item (name) VALUES ('held')"))
    writers.release()
    for future in (first, bad):
        with pytest.raises(StoreError, match="ended the transaction"):
            future.result(WAIT)
    assert items(writers.database) == {"held": 0}


@pytest.mark.parametrize("limits", [SqliteLimits(max_group_size=4)])
def test_groups_are_bounded(writers: ConcurrentWriters, script: Script) -> None:
    """More callers than fit into one commit get several."""
    before = commits_of(script)
    writers.hold()
    futures = [writers.join(add(f"n{n}")) for n in range(10)]
    writers.release()
    for future in futures:
        future.result(WAIT)
    assert commits_of(script) - before == 1 + 3


def test_maintenance_waits_for_its_turn(writers: ConcurrentWriters) -> None:
    """It is not served as part of a group, and those behind it come after it."""
    writers.hold()
    first = writers.join(add("first"))
    maintained = writers.pool.submit(writers.database.maintain)
    until(lambda: writers.database.pending_writes == 2)
    last = writers.join(add("last"))
    writers.release()
    assert first.result(WAIT) == "first"
    assert maintained.result(WAIT) is False
    assert last.result(WAIT) == "last"


class Interrupt(BaseException):
    """What a signal handler raises in the main thread."""


def interrupting(*_: object) -> None:
    """A signal handler that raises."""
    raise Interrupt


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGUSR1 raises in the main thread during the test."""
    before = signal.signal(signal.SIGUSR1, interrupting)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupted_waiter_leaves_the_line(writers: ConcurrentWriters) -> None:
    """What it wanted is not done behind its back, and the others are served."""
    writers.hold()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        until(lambda: writers.database.pending_writes)
        signal.pthread_kill(main, signal.SIGUSR1)

    threading.Thread(target=interrupt).start()
    with pytest.raises(Interrupt):
        writers.database.write(add("mine"))
    last = writers.join(add("last"))
    writers.release()
    assert last.result(WAIT) == "last"
    assert items(writers.database).keys() == {"held", "last"}


@pytest.mark.usefixtures("interrupts")
def test_an_interrupted_leader_keeps_nobody_waiting(writers: ConcurrentWriters) -> None:
    """Those it was serving hear that nothing was written; the interrupt is the leader's alone."""
    writers.hold()
    others: list[Future[Any]] = []

    def interrupted(connection: sqlite3.Connection) -> None:
        signal.raise_signal(signal.SIGUSR1)

    def fill() -> None:
        until(lambda: writers.database.pending_writes)
        others.append(writers.join(add("other")))
        others.append(writers.join(interrupted))  # is run by the main thread, which leads
        writers.release()

    filler = threading.Thread(target=fill)
    filler.start()
    with pytest.raises(Interrupt):
        writers.database.write(add("mine"))
    filler.join(WAIT)
    for other in others:
        with pytest.raises(StoreUnavailableError, match="given up"):
            other.result(WAIT)
    assert items(writers.database) == {"held": 0}
    assert writers.database.write(add("later")) == "later"


@pytest.mark.usefixtures("interrupts")
def test_interrupted_after_the_commit(writers: ConcurrentWriters, script: Script) -> None:
    """The commit was made, so the others are told that theirs is kept."""
    writers.hold()
    others: list[Future[Any]] = []

    def interrupt() -> None:
        signal.raise_signal(signal.SIGUSR1)

    def fill() -> None:
        until(lambda: writers.database.pending_writes)
        others.append(writers.join(add("other")))
        script.before(SAVEPOINT, lambda: script.after("COMMIT", interrupt))
        writers.release()

    filler = threading.Thread(target=fill)
    filler.start()
    with pytest.raises(Interrupt):
        writers.database.write(add("mine"))
    filler.join(WAIT)
    assert others[0].result(WAIT) == "other"
    assert items(writers.database).keys() == {"held", "mine", "other"}


# -- callers in a hurry ----------------------------------------------------------------------------


def test_one_in_a_hurry_leaves_the_line(writers: ConcurrentWriters) -> None:
    """Nothing of it is written, and those behind it are served."""
    writers.hold()
    with pytest.raises(StoreUnavailableError, match="was busy for"):
        writers.database.write(add("hasty"), within=0.0)
    other = writers.join(add("other"))
    writers.release()
    assert other.result(WAIT) == "other"
    assert items(writers.database).keys() == {"held", "other"}


def test_those_in_a_hurry_share_one_commit(writers: ConcurrentWriters, script: Script) -> None:
    """Whoever leads has as little time as the rest: each alone would take the disk for itself."""
    before = commits_of(script)
    writers.hold()
    futures = [writers.join(add(f"n{n}", n), within=WAIT) for n in range(10)]
    futures.append(writers.join(add("patient")))
    writers.release()
    names = [future.result(WAIT) for future in futures]
    assert names == [*(f"n{n}" for n in range(10)), "patient"]
    assert commits_of(script) - before == 2
    assert items(writers.database).keys() == {"held", *names}


def test_a_leader_in_a_hurry_fails_alone(
    writers: ConcurrentWriters, script: Script, path: Path
) -> None:
    """Another process has the lock: those it led wait on, and one of them leads."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writers.hold()
    hasty = writers.join(add("hasty"), within=0.5)
    patient = [writers.join(add(name)) for name in ("a", "b")]
    script.after("COMMIT", lambda: other.execute("BEGIN IMMEDIATE"))
    with contextlib.closing(other):
        writers.release()
        with pytest.raises(StoreUnavailableError):
            hasty.result(WAIT)
        other.execute("ROLLBACK")
    assert [future.result(WAIT) for future in patient] == ["a", "b"]
    assert items(writers.database).keys() == {"held", "a", "b"}


def test_one_in_a_hurry_is_served_by_others(writers: ConcurrentWriters, script: Script) -> None:
    """And leaves them when they have to wait for somebody else first."""
    writers.hold()
    leader = writers.join(add("leader"))
    hasty = writers.pool.submit(writers.database.write, add("hasty"), within=WAIT)
    until(lambda: writers.database.pending_writes == 2)
    writers.release()
    assert (leader.result(WAIT), hasty.result(WAIT)) == ("leader", "hasty")
    assert script.executed.count(SAVEPOINT) == 2


def test_one_in_a_hurry_leaves_a_group_that_waits(
    writers: ConcurrentWriters, script: Script
) -> None:
    """The leader waits for a lock that somebody else holds; the rest of its group goes on."""
    writers.hold()
    leader, left = writers.join(add("leader")), threading.Event()
    hasty = writers.pool.submit(writers.database.write, add("hasty"), within=0.2)
    until(lambda: writers.database.pending_writes == 2)

    def wait_for_the_lock() -> None:
        assert left.wait(WAIT)

    script.after("COMMIT", lambda: script.before("BEGIN IMMEDIATE", wait_for_the_lock))
    writers.release()
    with pytest.raises(StoreUnavailableError, match="was busy for"):
        hasty.result(WAIT)
    left.set()
    assert leader.result(WAIT) == "leader"
    assert items(writers.database).keys() == {"held", "leader"}


def test_a_write_in_a_hurry_may_not_be_nested(database: Database) -> None:
    """It would wait for itself."""

    def work(_: sqlite3.Connection) -> None:
        database.write(add("inner"), within=WAIT)

    with pytest.raises(StoreError, match="tried to write again"):
        database.write(work)


@pytest.mark.req("JOBS:store")
def test_many_threads_lose_nothing(database: Database, path: Path) -> None:
    """Sixteen threads, some of whose works raise: exactly what was acknowledged is there."""
    acknowledged: set[str] = set()
    refused: list[str] = []

    def run(thread: int) -> None:
        for n in range(40):
            name = f"{thread}-{n}"
            if n % 7 == 3:
                with contextlib.suppress(LookupError):
                    database.write(failing(name))
                    refused.append(name)
            else:
                acknowledged.add(database.write(add(name)))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(run, range(16)))
    assert refused == []
    assert seen_by_others(path) == acknowledged
    assert len(acknowledged) == 16 * 34
