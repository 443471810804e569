"""A database that is away when a provider is built, and comes later: nothing is lost."""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.errors import StoreSchemaError, StoreUnavailableError
from ergon_framework.ports.providerstore import ProviderStore
from ergon_framework.providers.migrations.commands import upgrade
from ergon_framework.providers.migrations.database import database_of
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.database import LazyOpen
from tests.providers.scripted import WAIT_TIMEOUT, Scripted, call, rows, used
from tests.servers.postgres import PostgresServer
from tests.servers.server import started

pytestmark = pytest.mark.req("PEF:trap-store-down", "PROVIDERS:storage")


class Away:
    """A store whose database is not there, and what brings it."""

    def __init__(self, url: str, come: Callable[[], None]) -> None:
        self.store: ProviderStore = open_store(url)
        self.come = come


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def away(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Away]:
    """Both kinds of database: a folder that is missing, and a server that does not run."""
    if request.param == "sqlite":
        found = Away(f"sqlite:///{tmp_path}/disk/work.db", (tmp_path / "disk").mkdir)
        yield found
        found.store.close()
        return
    with started(PostgresServer) as server:
        url = server.new_database()
        server.stop()
        found = Away(url, server.start)
        yield found
        found.store.close()


@pytest.mark.req("PEF:A-14")
def test_calls_are_made_and_their_rows_written_later(away: Away, tmp_path: Path) -> None:
    """Nobody has to be asked without a quota; what was learned meanwhile is brought along."""
    provider = Scripted(store=away.store, spill=tmp_path / "spill")
    assert [call(provider, correlation_id=f"c{n}").success for n in range(3)] == [True] * 3
    assert provider.calls == 3
    assert provider.flush(0.0) is False
    away.come()
    assert [len(rows(provider, f"c{n}")) for n in range(3)] == [1, 1, 1]
    [lane] = provider.health("t")
    assert lane.success_rate_1h == 1.0
    provider.close()


@pytest.mark.req("PEF:Q-2")
def test_a_quota_that_cannot_be_asked_refuses(away: Away, tmp_path: Path) -> None:
    """With a canonical error, and without a call; once the database is there it is counted."""
    quota = QuotaPolicy(limit=10)
    provider = Scripted(store=away.store, quota=quota, spill=tmp_path / "spill")
    for _ in range(2):
        result = call(provider)
        assert (result.reason_code, result.stop_reason) == (
            "dependency_unavailable",
            "store_unavailable",
        )
    assert provider.calls == 0
    away.come()
    assert call(provider).success
    assert used(provider) == 1
    provider.close()


def test_what_is_durable_is_on_disk_meanwhile(away: Away, tmp_path: Path) -> None:
    """The rows are in the spill before the call returns, and in the store afterwards."""
    provider = Scripted(store=away.store, durable=True, spill=tmp_path / "spill")
    assert call(provider, correlation_id="c").success
    assert any((tmp_path / "spill").iterdir())
    away.come()
    assert len(rows(provider, "c")) == 1
    assert list((tmp_path / "spill").glob("*")) == []
    provider.close()


def test_a_file_that_others_lock_is_opened_in_the_time_of_a_call(tmp_path: Path) -> None:
    """Another writer may hold it for long: the call goes by what its process knows."""
    file = tmp_path / "disk" / "work.db"
    store = open_store(f"sqlite:///{file}")
    file.parent.mkdir()
    with database_of(f"sqlite:///{file}").connect(creates=True) as connection:
        upgrade(connection)
    provider = Scripted(store=store, spill=tmp_path / "spill")
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began_at = time.monotonic()
        assert call(provider, correlation_id="c").success
        assert time.monotonic() - began_at < 4, "the busy timeout is 5 s, that of the breaker 0.5 s"
    assert len(rows(provider, "c")) == 1
    provider.close()
    store.close()


def test_a_server_that_does_not_answer_keeps_no_other_store_closed() -> None:
    """The calls of a process that go elsewhere do not wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"postgresql://nobody@127.0.0.1:{mute.getsockname()[1]}/work?connect_timeout=20"
        waiting = threading.Thread(target=lambda: open_store(url).close())
        waiting.start()
        connection, _ = mute.accept()
        with connection:
            open_store("memory://").close()
            assert waiting.is_alive(), "it was opened meanwhile"
        waiting.join(WAIT_TIMEOUT)


def test_it_is_told_when_it_is_built(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A typing error in a path would otherwise be noticed late."""
    open_store(f"sqlite:///{tmp_path}/none/work.db").close()
    assert "store.lost" in caplog.text
    assert "no folder" in caplog.text


def test_a_file_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    """That does not fix itself."""
    (tmp_path / "work.db").write_text("not a database at all\n" * 100)
    with pytest.raises(StoreSchemaError):
        Scripted(store=f"sqlite:///{tmp_path}/work.db")


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    """It is an error of each call, and not of the program."""
    (tmp_path / "work.db").mkdir()
    store = open_store(f"sqlite:///{tmp_path}/work.db")
    with pytest.raises(StoreUnavailableError):
        store.letters()
    store.close()


# -- opening late ----------------------------------------------------------------------------------


class Door:
    """Opens when it is told to, and counts who tried."""

    def __init__(self) -> None:
        self.tries = 0
        self.is_shut = True
        self.reached, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()

    def __call__(self) -> str:
        self.tries += 1
        self.reached.set()
        assert self.goes_on.wait(WAIT_TIMEOUT)
        if self.is_shut:
            raise StoreUnavailableError("shut", remedy="open it")
        return "open"


def test_whoever_waited_in_vain_does_not_try_again() -> None:
    """A server that does not answer takes seconds: not for each thread after the other."""
    door = Door()
    waiting = threading.Semaphore(0)

    def ticks() -> float:
        now = time.monotonic()  # first: who is counted as waiting has asked before the next failure
        waiting.release()
        return now

    late = LazyOpen(door, ticks)
    late.open_early()
    assert (late.value, late.wait_opened(), door.tries) == (None, None, 1)
    while waiting.acquire(blocking=False):
        pass
    door.reached.clear()
    door.goes_on.clear()
    failures: list[str] = []

    def ask() -> None:
        try:
            late.get()
        except StoreUnavailableError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert waiting.acquire(timeout=WAIT_TIMEOUT)
    assert door.reached.wait(WAIT_TIMEOUT)
    door.goes_on.set()
    for thread in threads:
        thread.join(WAIT_TIMEOUT)
    assert failures == ["shut (open it)"] * 4
    assert door.tries == 2
    door.is_shut = False
    assert (late.get(), late.get(), door.tries) == ("open", "open", 3)


def test_a_forked_child_waits_for_nobody() -> None:
    """The lock may be held by a thread that only the parent has."""
    reached, goes_on = threading.Event(), threading.Event()

    def opening() -> str:
        if threading.current_thread() is holder:
            reached.set()
            assert goes_on.wait(WAIT_TIMEOUT)
        return "open"

    late = LazyOpen(opening)
    holder = threading.Thread(target=late.get)
    holder.start()
    assert reached.wait(WAIT_TIMEOUT)
    late.renew()
    assert late.get() == "open"
    goes_on.set()
    holder.join(WAIT_TIMEOUT)
