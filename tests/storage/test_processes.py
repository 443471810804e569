"""Several processes on one file, and forks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.storage.sqlite.connections import SqliteLimits
from ergon_framework.storage.sqlite.database import Database
from tests import fork_server
from tests.storage import crash_child
from tests.storage.conftest import SAMPLE, WAIT, Script, add, items, seen_by_others

pytestmark = pytest.mark.slow


def in_child(body: Callable[[], object]) -> int:
    """Fork, run, and return the child's exit code: 0 when it returned something true."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if body() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.req("JOBS:store")
def test_processes_open_a_fresh_file_at_once_and_write(path: Path) -> None:
    """All succeed, nobody starves, nothing is lost, and no log is left behind."""
    command = [sys.executable, crash_child.__file__, str(path), "3"]
    children = [fork_server.start([*command, each], stdout=subprocess.PIPE) for each in "abc"]
    acked = set()
    for child in children:
        output, _ = child.communicate(timeout=WAIT)
        assert child.returncode == 0
        lines = output.decode().splitlines()
        acked |= {line.split()[1] for line in lines if line.startswith("acked")}
    assert len(acked) == 3 * 3 * crash_child.ITEMS
    assert seen_by_others(path) == acked
    assert not path.with_name("store.db-wal").exists()


def test_a_child_uses_its_parents_database(database: Database, path: Path) -> None:
    """After a fork each has connections of its own, and what either commits is kept."""
    database.write(add("before"))
    items(database)
    database.data_version()
    assert in_child(lambda: database.write(add("child")) and "before" in items(database)) == 0
    assert database.write(add("parent")) == "parent"
    assert items(database).keys() == {"before", "child", "parent"}


@pytest.mark.req("JOBS:store")
def test_a_childs_commits_survive_its_parents_close(path: Path) -> None:
    """SQLite alone loses them: the parent would not see the child and remove its log."""
    database = Database(path, schema=SAMPLE)
    database.write(add("before"))
    to_child, from_child = os.pipe(), os.pipe()

    def body() -> bool:
        database.write(add("one"))
        os.write(from_child[1], b"!")
        os.read(to_child[0], 1)
        return database.write(add("two")) == "two"

    child = os.fork()
    if child == 0:
        os._exit(0 if body() else 1)
    os.read(from_child[0], 1)
    database.close()
    os.write(to_child[1], b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for end in (*to_child, *from_child):
        os.close(end)
    assert seen_by_others(path) == {"before", "one", "two"}


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_waits_for_transactions_of_other_threads(database: Database) -> None:
    """The child starts with a file that nobody was in the middle of using."""
    inside, go_on = threading.Event(), threading.Event()

    def work(connection: object) -> None:
        inside.set()
        assert go_on.wait(WAIT)

    writer = threading.Thread(target=database.write, args=(work,))
    reader = threading.Thread(target=database.read, args=(work,))
    writer.start()
    assert inside.wait(WAIT)
    inside.clear()
    reader.start()
    assert inside.wait(WAIT)
    threading.Timer(0.05, go_on.set).start()
    assert in_child(lambda: database.write(add("child"))) == 0
    for thread in (writer, reader):
        thread.join(WAIT)
    assert items(database).keys() == {"child"}


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_transaction(open_database: Callable[..., Database]) -> None:
    """The child may not use the file, and is told why; the parent goes on."""
    database = open_database(limits=SqliteLimits(fork_timeout=0.01))

    def refused() -> bool:
        with pytest.raises(StoreUnavailableError, match="was in use when this process was forked"):
            items(database)
        with pytest.raises(StoreUnavailableError, match="was in use"):
            database.write(add("child"))
        return True

    def work(connection: object) -> int:
        add("a")(connection)  # type: ignore[arg-type]
        return in_child(refused)

    assert database.write(work) == 0
    assert database.read(lambda _: in_child(refused)) == 0
    assert items(database) == {"a": 0}
    assert database.write(add("b")) == "b"


def test_a_fork_after_closing_changes_nothing(database: Database) -> None:
    """Files that are closed are not touched."""
    database.close()
    assert in_child(lambda: True) == 0


def test_a_fork_in_the_middle_of_a_checkpoint(
    open_database: Callable[..., Database], script: Script
) -> None:
    """The child does not use the file: it would have half of the checkpoint's connection."""
    limits = SqliteLimits(checkpoint_bytes=32, fork_timeout=0.5)
    database = open_database(connect=script.connect, limits=limits)
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        over.wait(WAIT)

    script.before("PRAGMA wal_checkpoint(PASSIVE)", hold)

    def write() -> bool:
        with pytest.raises(StoreUnavailableError, match="was in use when this process was forked"):
            database.write(add("child"))
        database.close()
        return True

    database.write(add("a"))
    assert begun.wait(WAIT)
    try:
        assert in_child(write) == 0
    finally:
        over.set()
    assert database.write(add("b")) == "b"
    assert in_child(lambda: database.write(add("child"))) == 0
    assert items(database).keys() == {"a", "b", "child"}
