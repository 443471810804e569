from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from ergon_framework.errors import (
    ConfigurationError,
    StoreBrokenError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.ports.providerstore import RecordBatch
from ergon_framework.providers.migrations import VERSION_TABLE
from ergon_framework.providers.migrations.database import database_of
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.database import TaskMissingError
from ergon_framework.providers.stores.postgres import PostgresProviderDatabase
from ergon_framework.providers.stores.sql.store import SqlProviderStore
from ergon_framework.providers.stores.sqlite import SqliteProviderDatabase
from ergon_framework.storage.failpoints import armed
from ergon_framework.storage.server import ServerClock
from tests.providers.stores.conftest import Opener
from tests.providers.stores.store_factory import LANE, START, HandClock, attempt
from tests.servers.postgres import PostgresServer, name_of

pytestmark = pytest.mark.req("PROVIDERS:storage", "PROVIDERS:badinput")


def execute(url: str, *statements: str) -> None:
    """As somebody else would."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        for statement in statements:
            connection.execute(statement)
        connection.close()
        return
    import psycopg

    with psycopg.connect(url, autocommit=True) as server:
        for statement in statements:
            server.execute(statement.encode())


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """It is left as it was."""
    path = tmp_path / "notes.txt"
    path.write_text("not a database, whatever its length may be\n" * 50)
    before = path.read_bytes()
    with pytest.raises(StoreSchemaError, match="not an SQLite database"):
        open_store(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """The remedy is to create it, and then the store works."""
    store = open_store(f"sqlite:///{tmp_path}/none/work.db")
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="no folder"):
            store.lane_state(LANE)
    (tmp_path / "none").mkdir()
    store.record(RecordBatch([attempt()]))
    assert len(store.health(LANE.tenant_id)) == 1
    store.close()


def test_a_store_that_never_came_can_be_closed(tmp_path: Path) -> None:
    """It does not open afterwards either."""
    store = open_store(f"sqlite:///{tmp_path}/none/work.db")
    store.close()
    store.close()
    (tmp_path / "none").mkdir()
    with pytest.raises(StoreUnavailableError, match="closed"):
        store.lane_state(LANE)
    assert list((tmp_path / "none").iterdir()) == []


def test_tables_of_a_newer_program_are_refused(url: str) -> None:
    """What this program does not know it does not touch."""
    open_store(url).close()
    execute(url, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")  # noqa: S608 - our own name
    with pytest.raises(StoreSchemaError, match="9999"):
        open_store(url)


def test_tables_that_vanish_are_told(url: str) -> None:
    """A store whose tables were dropped under it says what to do."""
    store = open_store(url)
    execute(url, "DROP TABLE provider_execution_metrics")
    with pytest.raises(StoreError, match="provider_execution_metrics"):
        store.record(RecordBatch([attempt()]))
    store.close()


@pytest.mark.slow
def test_a_database_that_may_only_be_read(postgres_url: str) -> None:
    """A standby, or a server that was told so: reading goes on, writing is refused as such."""
    open_store(postgres_url).close()
    execute(
        postgres_url,
        f"ALTER DATABASE {name_of(postgres_url)} SET default_transaction_read_only = on",
    )
    store = open_store(postgres_url)
    assert store.health(LANE.tenant_id) == []
    with pytest.raises(StoreReadOnlyError, match="may not be written"):
        store.record(RecordBatch([attempt()]))
    store.close()


def test_a_file_that_somebody_holds(tmp_path: Path, clock: HandClock) -> None:
    """The wait for a lock has an end."""
    path = tmp_path / "work.db"
    store = SqlProviderStore(SqliteProviderDatabase(path, clock, busy_timeout=0.05))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="locked"):
        store.extend_cooldown(LANE, START + 1)
    other.execute("ROLLBACK")
    other.close()
    assert store.extend_cooldown(LANE, START + 1) == START + 1
    store.close()


@pytest.mark.slow
def test_a_row_that_somebody_holds(postgres_url: str) -> None:
    """The wait for a lock has an end, and nothing was written."""
    import psycopg

    store = open_store(postgres_url)
    store.extend_cooldown(LANE, 5.0)
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT 1 FROM provider_health_states FOR UPDATE")
        with pytest.raises(StoreUnavailableError, match="lock timeout"):
            store.extend_cooldown(LANE, 6.0)
    assert store.lane_state(LANE).cooldown_until == 5.0
    store.close()


@pytest.mark.slow
@pytest.mark.req("PEF:A-14")
def test_a_conflict_that_the_server_undid_is_tried_again(postgres_url: str) -> None:
    """A deadlock has a victim; its transaction is run again and nobody hears of it."""
    store = open_store(postgres_url)
    assert isinstance(store, SqlProviderStore)
    runs = []

    def work(cursor: object) -> int:
        runs.append(cursor)
        if len(runs) < 3:
            import psycopg

            raise psycopg.errors.DeadlockDetected
        return 7

    assert store.database.write("record", work) == 7
    assert len(runs) == 3
    store.close()


@pytest.mark.slow
@pytest.mark.req("PEF:trap-store-down")
def test_a_server_that_goes_away_and_comes_back() -> None:
    """While it is away that is what is said; afterwards the store works again by itself."""
    server = PostgresServer()
    try:
        server.start()
        store = open_store(server.new_database())
        store.extend_cooldown(LANE, 5.0)
        server.stop()
        with pytest.raises(StoreUnavailableError, match="cannot be used for now"):
            store.extend_cooldown(LANE, 6.0)
        with pytest.raises(StoreUnavailableError):
            store.lane_state(LANE)
        assert store.now() > 0
        server.start()
        assert store.lane_state(LANE).cooldown_until == 5.0
        assert store.extend_cooldown(LANE, 7.0) == 7.0
        server.stop()
        server.start()
        assert store.lane_state(LANE).cooldown_until == 7.0
        store.close()
    finally:
        server.remove()


def test_commits_wait_whatever_the_default_of_the_database_is(postgres_url: str) -> None:
    """What was recorded is on the disk, and who waited for a lock sees what happened meanwhile."""
    for setting in ("synchronous_commit = off", "default_transaction_isolation = serializable"):
        execute(postgres_url, f"ALTER DATABASE {name_of(postgres_url)} SET {setting}")
    asked = "SELECT current_setting('synchronous_commit'), current_setting('transaction_isolation')"
    with closing(PostgresProviderDatabase(database_of(postgres_url))) as database:
        assert database.read(lambda cursor: cursor.fetch(asked, {})) == [("on", "read committed")]
    with database_of(postgres_url).connect() as connection:  # as a move has it
        assert connection.exec_driver_sql(asked).fetchall() == [("on", "read committed")]


@pytest.mark.req("SCALE:url-errors")
@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("ergon@", "nobody@", "does not let this user in"),
        ("/postgres?", "/nowhere?", "no database of that name"),
        ("?host=", "?sslmod=require&host=", "has no option 'sslmod'"),
    ],
)
def test_a_url_that_has_to_change(
    postgres_server: PostgresServer, old: str, new: str, text: str
) -> None:
    """It is not taken for a server that is away, which might come back."""
    with pytest.raises(ConfigurationError, match=text) as told:
        open_store(postgres_server.url().replace(old, new))
    assert told.value.remedy


@pytest.mark.req("SCALE:url-errors")
def test_a_user_who_is_not_let_in_any_more(own_postgres: PostgresServer) -> None:
    """That is an outage like others, in the words of a password that is wrong from the start."""
    url = own_postgres.new_database()
    execute(url, "CREATE ROLE guest SUPERUSER LOGIN")
    with closing(open_store(url.replace("ergon@", "guest@"))) as store:
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'guest'"
        execute(url, "ALTER ROLE guest RENAME TO visitor", end.replace("guest", "visitor"))
        with pytest.raises(StoreUnavailableError, match="terminating"):
            store.extend_cooldown(LANE, 5.0)
        with pytest.raises(StoreUnavailableError, match="does not let this user in"):
            store.extend_cooldown(LANE, 5.0)
        execute(url, "ALTER ROLE visitor RENAME TO guest")
        assert store.extend_cooldown(LANE, 6.0) == 6.0


@pytest.mark.req("PROVIDERS:storage")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_fault_of_the_system_is_an_error_of_the_store(opened: Opener, moment: str) -> None:
    """Whatever goes wrong around a commit, callers hear of it as of any other."""
    store = opened()
    with armed(f"providers.cool.{moment}=error"), pytest.raises(StoreUnavailableError):
        store.extend_cooldown(LANE, START + 5)
    assert store.lane_state(LANE).cooldown_until == (0.0 if moment == "before" else START + 5)
    assert store.extend_cooldown(LANE, START + 9) == START + 9


@pytest.mark.req("PEF:A-24")
def test_a_task_that_the_host_does_not_have(empty_url: str, clock: HandClock) -> None:
    """An attempt is recorded all the same, without the task that is not there."""
    execute(
        empty_url,
        "CREATE TABLE task_executions (id VARCHAR(36) PRIMARY KEY)",
        "INSERT INTO task_executions VALUES ('known')",
    )
    store = open_store(empty_url, clock=clock)
    rows = [
        attempt(correlation_id="one", task_execution_id="known"),
        attempt(correlation_id="one", task_execution_id="unknown"),
        attempt(correlation_id="one"),
    ]
    store.record(RecordBatch(rows))
    found = {row.id: row.task_execution_id for row in store.attempts_of("one")}
    assert found == {rows[0].id: "known", rows[1].id: None, rows[2].id: None}
    [lane] = store.health(LANE.tenant_id)
    assert lane.success_rate_1h == 1.0
    store.close()


def test_a_tenant_that_does_not_fit_is_refused(url: str, clock: HandClock) -> None:
    """A key that a column cannot hold is an error of that call, and not of the store's."""
    store = open_store(url, clock=clock)
    key = LANE._replace(tenant_id="t" * 100 + "\ud800")
    with pytest.raises(StoreError) as caught:
        store.extend_cooldown(key, START)
    assert not isinstance(caught.value, StoreUnavailableError)
    assert store.extend_cooldown(LANE, START) == START
    store.close()


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("08006", StoreUnavailableError),
        ("57P01", StoreUnavailableError),
        ("57014", StoreUnavailableError),
        ("53300", StoreUnavailableError),
        ("40001", StoreUnavailableError),
        ("28P01", StoreUnavailableError),
        ("53100", StoreFullError),
        ("25006", StoreReadOnlyError),
        ("42501", StoreReadOnlyError),
        ("42P01", StoreSchemaError),
        ("XX001", StoreBrokenError),
        ("23503", TaskMissingError),
        ("22001", StoreError),
    ],
)
def test_what_a_server_says_is_told_in_our_words(state: str, kind: type[StoreError]) -> None:
    """Each kind of trouble has its error, and details that may show values are left out."""
    from ergon_framework.providers.stores.postgres import translate

    class Trouble(Exception):
        sqlstate = state
        diag = SimpleNamespace(message_primary="it is so")

    found = translate(Trouble("it is so\nDETAIL: secret"), "the server")
    assert type(found) is kind
    assert "secret" not in str(found)


def answered() -> None:
    """Wait until no clock asks its server any more."""
    for thread in threading.enumerate():
        if thread.name == "ergon-clock":
            thread.join(30.0)


def test_a_server_clock_counts_by_itself(clock: HandClock) -> None:
    """The server is asked now and then; steps of this machine's clock are not noticed."""
    ticks = HandClock(100.0)
    asked = []

    def ask() -> float:
        asked.append(ticks.at)
        return clock.at

    now = ServerClock(ask, ticks)
    assert now() == START
    ticks.at += 29
    assert now() == START + 29
    assert len(asked) == 1
    clock.at = START + 45
    ticks.at += 1
    now()
    answered()
    assert now() == START + 45
    assert len(asked) == 2


@pytest.mark.req("PEF:B-11")
def test_who_wants_the_time_does_not_wait_for_a_server_that_is_away() -> None:
    """It may be an event loop: a thread asks, one at a time, and not again for a while."""
    ticks = HandClock(100.0)
    asked: list[bool] = []
    may_answer = threading.Event()

    def ask() -> float:
        asked.append(threading.current_thread() is threading.main_thread())
        if len(asked) > 1:
            may_answer.wait(30.0)
            raise StoreUnavailableError("away")
        return START

    now = ServerClock(ask, ticks)
    ticks.at += 31
    assert [now() for _ in range(10)] == [START + 31] * 10
    ticks.at += 31  # the server was not heard of for as long again, and is not asked by a second
    assert now() == START + 62
    may_answer.set()
    answered()
    now()  # it is, now that nobody else is asking
    answered()
    assert [now() for _ in range(10)] == [START + 62] * 10
    ticks.at += 29
    now()
    answered()
    assert asked == [True, False, False]
    now.renew()


def test_a_url_is_read_by_one_function(tmp_path: Path) -> None:
    """What ``ergon db`` migrates and what a store opens is the same database."""
    url = f"sqlite:///{tmp_path}/work.db"
    open_store(url).close()
    assert database_of(url).file == tmp_path / "work.db"
