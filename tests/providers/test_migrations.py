"""The migration of provider calls: on an empty database, and inside a host's."""

from __future__ import annotations

import json
import os
import shutil
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, event, inspect, select, text

import ergon_framework.providers.migrations as package
from ergon_framework.cli import invoke
from ergon_framework.errors import (
    ConfigurationError,
    StoreError,
    StoreReadOnlyError,
    StoreSchemaError,
)
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.migrations import HEAD, REVISIONS, VERSION_TABLE, commands
from ergon_framework.providers.migrations.database import MigrationDatabase, database_of
from ergon_framework.providers.models import ProviderExecutionMetric, metadata
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.synthetic import SyntheticProvider
from tests.providers.schemas import build_host, rows_in, things_in

pytestmark = pytest.mark.req("PROVIDERS:storage", "PEF:X-4")
OURS = {*metadata.tables, VERSION_TABLE}
METRICS = "provider_execution_metrics"
NEWER = "UPDATE ergon_provider_alembic_version SET version_num = '0999'"
INSERT_METRIC = """
INSERT INTO provider_execution_metrics (id, tenant_id, task_execution_id, provider_name,
    capability, operation, correlation_id, attempt_number, max_attempts, duration_ms, outcome,
    retryable, created_at)
VALUES ('m', 't', 'e1', 'rank', 'snapshot', 'fetch', 'c', 1, 1, 5, 'success', false,
    '2026-03-01T12:00:00.000000+00:00')
"""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> MigrationDatabase:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return database_of(f"sqlite:///{tmp_path}/work.db")
    return database_of(request.getfixturevalue("postgres_url"))


def upgraded(database: MigrationDatabase) -> str | None:
    """Upgrade it; what it was before."""
    with database.connect(creates=True) as connection:
        return commands.upgrade(connection)


def tables_of(database: MigrationDatabase) -> set[str]:
    """The names of its tables."""
    with database.connect(creates=True) as connection:
        return set(inspect(connection).get_table_names())


def test_an_empty_database_gets_the_tables(database: MigrationDatabase) -> None:
    """Once; a second upgrade finds nothing to do."""
    assert upgraded(database) is None
    assert tables_of(database) == OURS
    assert upgraded(database) == HEAD
    with database.connect() as connection:
        assert commands.current(connection) == HEAD


def test_a_file_that_a_migration_makes_is_private(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the umask is, and nothing is said about a file that nobody else could open."""
    before = os.umask(0o022)
    try:
        with database_of(f"sqlite:///{tmp_path / 'upgraded.db'}").connect(creates=True) as one:
            commands.upgrade(one)
        open_store(f"sqlite:///{tmp_path / 'opened.db'}").close()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("*.db")}
    assert modes == {"upgraded.db": 0o600, "opened.db": 0o600}
    assert "was open to other users" not in caplog.text


@pytest.mark.req("PEF:G-1")
def test_the_models_are_what_the_migration_makes(database: MigrationDatabase) -> None:
    """Down to types, defaults, checks and names; and Alembic itself finds no difference."""
    with database.connect(creates=True) as connection:
        commands.upgrade(connection)
        migrated = things_in(connection)
        options = {"compare_server_default": True, "version_table": VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
        commands.downgrade(connection)
        metadata.create_all(connection)
        created = things_in(connection)
    assert {name: how for name, how in migrated.items() if VERSION_TABLE not in name} == created


@pytest.mark.req("PEF:G-1", "PEF:G-6", "PEF:A-24")
def test_a_host_keeps_everything_it_has(database: MigrationDatabase) -> None:
    """Its tables, rows and Alembic version are as before; going back removes exactly ours."""
    with database.connect(creates=True) as connection:
        build_host(connection)
    with database.connect() as connection:
        things, rows = things_in(connection), rows_in(connection)
        commands.upgrade(connection)
        after = things_in(connection)
        added = {name for name in after if name not in things}
        assert {name: after[name] for name in things} == things
        assert all("provider_" in name for name in added), added
        assert {name: rows_in(connection)[name] for name in rows} == rows
    with database.connect() as connection:
        connection.execute(text(INSERT_METRIC))
        assert commands.downgrade(connection) == HEAD
    with database.connect() as connection:
        assert (things_in(connection), rows_in(connection)) == (things, rows)


@pytest.mark.req("PEF:A-24")
def test_a_task_that_is_deleted_leaves_its_attempts(database: MigrationDatabase) -> None:
    """With a host's tasks there is a foreign key, which forgets a deleted one."""
    with database.connect(creates=True) as connection:
        build_host(connection)
        commands.upgrade(connection)
    with database.connect() as connection:
        if database.file is not None:
            connection.exec_driver_sql("PRAGMA foreign_keys = ON")
        (key,) = inspect(connection).get_foreign_keys(METRICS)
        assert key["referred_table"] == "task_executions"
        assert key["options"] == {"ondelete": "SET NULL"}
        indexed = [each["column_names"] for each in inspect(connection).get_indexes(METRICS)]
        assert ["task_execution_id"] in indexed  # or each deletion would read the whole table
        connection.execute(text(INSERT_METRIC))
        connection.execute(text("DELETE FROM task_executions WHERE id = 'e1'"))
        found = select(ProviderExecutionMetric.task_execution_id)
        assert connection.scalars(found).all() == [None]


@pytest.mark.req("PEF:A-24")
@pytest.mark.parametrize(
    "tasks",
    [
        "CREATE TABLE something_else (id VARCHAR(36) PRIMARY KEY)",
        "CREATE TABLE task_executions (id VARCHAR(36))",
        "CREATE TABLE task_executions (id VARCHAR(36), part INT, PRIMARY KEY (id, part))",
        "CREATE TABLE task_executions (number VARCHAR(36) PRIMARY KEY)",
        "CREATE VIEW task_executions AS SELECT 'e1' AS id",
    ],
)
def test_tasks_that_cannot_be_referred_to(database: MigrationDatabase, tasks: str) -> None:
    """The tables come without a foreign key, and rows may name any task."""
    with database.connect(creates=True) as connection:
        connection.execute(text(tasks))
        commands.upgrade(connection)
        assert inspect(connection).get_foreign_keys(METRICS) == []
        connection.execute(text(INSERT_METRIC))


@pytest.mark.slow
@pytest.mark.req("PEF:A-24")
def test_tasks_with_another_kind_of_id(postgres_url: str) -> None:
    """PostgreSQL compares no text with a uuid: the migration does without the foreign key."""
    with database_of(postgres_url).connect() as connection:
        connection.execute(text("CREATE TABLE task_executions (id UUID PRIMARY KEY)"))
        commands.upgrade(connection)
        assert inspect(connection).get_foreign_keys(METRICS) == []
        assert commands.current(connection) == HEAD


@pytest.mark.req("PEF:A-24")
def test_a_unique_id_is_enough(database: MigrationDatabase) -> None:
    """A primary key is not asked for."""
    with database.connect(creates=True) as connection:
        connection.execute(text("CREATE TABLE task_executions (number INT, id VARCHAR(36) UNIQUE)"))
        commands.upgrade(connection)
        assert len(inspect(connection).get_foreign_keys(METRICS)) == 1


# ---- what is refused ----------------------------------------------------------------------------


def test_a_newer_revision_is_refused(database: MigrationDatabase) -> None:
    """Nothing is changed, up or down, and the remedy is a newer program."""
    upgraded(database)
    with database.connect() as connection:
        connection.execute(text(NEWER))
    for attempt in (commands.upgrade, commands.downgrade):
        with (
            pytest.raises(StoreSchemaError, match="of revision '0999'") as caught,
            database.connect() as connection,
        ):
            attempt(connection)
        assert "upgrade ergon-framework" in caught.value.remedy
    assert tables_of(database) == OURS


@pytest.mark.req("PEF:G-1")
def test_somebody_elses_tables_of_our_names(database: MigrationDatabase) -> None:
    """They are named and left alone, and nothing is made beside them."""
    with database.connect(creates=True) as connection:
        connection.execute(text("CREATE TABLE provider_health_states (id INT)"))
    with pytest.raises(StoreSchemaError, match=r"not like ours: provider_health_states \("):
        upgraded(database)
    assert tables_of(database) == {"provider_health_states"}


@pytest.mark.req("PEF:G-1")
@pytest.mark.parametrize("names", [[*metadata.tables], [METRICS, "provider_quota_states"]])
def test_tables_that_a_host_made_from_the_models(
    database: MigrationDatabase, names: list[str]
) -> None:
    """They are taken over with what is in them, and are then as the migration would make them."""
    with database.connect(creates=True) as connection:
        metadata.create_all(connection, [metadata.tables[name] for name in names])
        connection.execute(text(INSERT_METRIC))
    assert upgraded(database) is None
    with database.connect() as connection:
        assert commands.current(connection) == HEAD
        assert len(connection.execute(select(ProviderExecutionMetric)).all()) == 1
        adopted = things_in(connection)
        commands.downgrade(connection)
        commands.upgrade(connection)
        assert things_in(connection) == adopted
    assert upgraded(database) == HEAD


@pytest.mark.req("PEF:G-1")
@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE provider_execution_metrics ADD COLUMN mine INT",
        "ALTER TABLE provider_execution_metrics RENAME COLUMN outcome TO ending",
        "DROP INDEX ix_provider_execution_metrics_correlation",
    ],
)
def test_tables_from_the_models_that_were_changed(database: MigrationDatabase, change: str) -> None:
    """They are refused: nobody knows what else the host did; those that are ours are not named."""
    with database.connect(creates=True) as connection:
        metadata.create_all(connection)
        connection.execute(text(change))
        before = things_in(connection)
    with pytest.raises(StoreSchemaError, match=rf"not like ours: {METRICS} \("):
        upgraded(database)
    with database.connect() as connection:
        assert things_in(connection) == before


@pytest.mark.req("PEF:G-1")
def test_a_provider_on_tables_that_a_host_made(database: MigrationDatabase) -> None:
    """Its store just works."""
    with database.connect(creates=True) as connection:
        metadata.create_all(connection)
    url = database.url.set(drivername=database.dialect).render_as_string(hide_password=False)
    with SyntheticProvider("ok", store=url) as provider:
        result = provider.execute(
            tenant_id="t",
            campaign_id=None,
            operation="fetch",
            payload={},
            context=ProviderExecutionContext(),
        )
    assert result.success
    with database.connect() as connection:
        assert commands.current(connection) == HEAD
        assert len(connection.execute(select(ProviderExecutionMetric)).all()) == 1


@pytest.mark.req("PEF:G-1")
def test_a_migration_that_fails_half_way_leaves_nothing(database: MigrationDatabase) -> None:
    """On SQLite too: here the last index of all has a name that is taken."""
    with database.connect(creates=True) as connection:
        connection.execute(text("CREATE TABLE mine (x INT)"))
        taken = "CREATE INDEX ix_provider_metric_rollups_tenant_minute ON mine (x)"
        connection.execute(text(taken))
        before = things_in(connection)
    with pytest.raises(StoreError, match="already exists"):
        upgraded(database)
    with database.connect() as connection:
        assert things_in(connection) == before


def test_the_callers_transaction_decides(database: MigrationDatabase) -> None:
    """What it takes back was never there."""
    with database.connect(creates=True) as connection:
        commands.upgrade(connection)
        assert commands.current(connection) == HEAD
        connection.rollback()
    assert tables_of(database) == set()


@pytest.mark.parametrize("revision", ["0002", "head", "", "0001; DROP TABLE x"])
def test_going_back_to_a_revision_that_is_not_known(
    database: MigrationDatabase, revision: str
) -> None:
    """It is refused, and the known ones are named."""
    upgraded(database)
    with (
        pytest.raises(ConfigurationError, match="there is no revision") as caught,
        database.connect() as connection,
    ):
        commands.downgrade(connection, revision)
    assert caught.value.remedy == "known are base, 0001"
    assert tables_of(database) == OURS


def test_going_back_to_where_it_is(database: MigrationDatabase) -> None:
    """Nothing changes; with no tables at all, nothing is taken away either."""
    with database.connect(creates=True) as connection:
        assert commands.downgrade(connection) is None
        commands.upgrade(connection)
        assert commands.downgrade(connection, HEAD) == HEAD
        assert commands.current(connection) == HEAD


# ---- several at once ----------------------------------------------------------------------------


def test_several_that_upgrade_at_once(database: MigrationDatabase) -> None:
    """One makes the tables, the others find them."""
    ready, before, errors = threading.Barrier(4), [], list[StoreError]()

    def upgrade() -> None:
        ready.wait(30)
        try:
            before.append(upgraded(database))
        except StoreError as error:
            errors.append(error)

    threads = [threading.Thread(target=upgrade) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert sorted(before, key=str) == [HEAD, HEAD, HEAD, None]
    assert tables_of(database) == OURS


def test_a_database_that_is_up_to_date_is_only_read(database: MigrationDatabase) -> None:
    """Opening a store costs no lock and no migration once the tables are there."""
    upgraded(database)
    said: list[str] = []
    with database.connect() as connection:

        def hear(_connection: Connection, _cursor: Any, statement: str, *_more: Any) -> None:
            said.append(statement.split(maxsplit=1)[0].upper())

        event.listen(connection.engine, "before_cursor_execute", hear)
        commands.upgrade(connection)
    assert {*said} <= {"SELECT", "PRAGMA"}
    assert not any("LOCK" in each for each in said)


# ---- without a connection -----------------------------------------------------------------------


def execute_script(database: MigrationDatabase, script: str) -> None:
    """Run it as psql or sqlite3 would."""
    with database.connect(creates=True) as connection:
        driver: Any = connection.connection.dbapi_connection
        connection.rollback()
        if database.file is not None:
            driver.executescript(script)
        else:
            with closing(driver.cursor()) as cursor:
                cursor.execute(script)


def test_the_scripts_do_the_same(database: MigrationDatabase) -> None:
    """What ``--sql`` prints makes the same tables, known to later upgrades, and removes them."""
    execute_script(database, commands.upgrade_script(database.dialect))
    with database.connect() as connection:
        scripted = things_in(connection)
        assert commands.upgrade(connection) == HEAD
        commands.downgrade(connection)
        commands.upgrade(connection)
        assert things_in(connection) == scripted
    execute_script(database, commands.downgrade_script(database.dialect))
    assert tables_of(database) == set()


@pytest.mark.slow
@pytest.mark.req("PEF:A-24")
def test_a_script_finds_the_hosts_tasks(postgres_url: str) -> None:
    """On PostgreSQL the script itself looks for them when it is run."""
    database = database_of(postgres_url)
    with database.connect() as connection:
        build_host(connection)
    execute_script(database, commands.upgrade_script("postgresql"))
    with database.connect() as connection:
        assert len(inspect(connection).get_foreign_keys(METRICS)) == 1


# ---- on a server -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.req("PROVIDERS:cli")
def test_the_command_on_postgresql(postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Up, a look, and down again, beside a host's tables."""
    database = database_of(postgres_url)
    with database.connect() as connection:
        build_host(connection)
        before = things_in(connection)
    for command, now in ((["upgrade"], HEAD), (["current"], HEAD), (["downgrade", "--yes"], None)):
        assert invoke(["db", *command, "--store", postgres_url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["now"] == now
    with database.connect() as connection:
        assert things_in(connection) == before


@pytest.mark.slow
@pytest.mark.req("PROVIDERS:badinput")
def test_a_user_who_may_make_no_tables(postgres_url: str) -> None:
    """It is told apart from a server that is away."""
    database = database_of(postgres_url)
    with database.connect() as connection:
        connection.execute(text("CREATE ROLE visitor LOGIN"))
        connection.execute(text("REVOKE CREATE ON SCHEMA public FROM PUBLIC"))
    try:
        with pytest.raises(StoreReadOnlyError, match="permission denied"):
            upgraded(MigrationDatabase(database.url.set(username="visitor")))
    finally:
        with database.connect() as connection:
            connection.execute(text("DROP ROLE visitor"))
    assert tables_of(database) == set()


# ---- the files ----------------------------------------------------------------------------------


@pytest.fixture
def scripts(tmp_path: Path) -> Config:
    """A copy of the migrations, to be added to."""
    shutil.copytree(Path(package.__path__[0]), tmp_path / "copy")
    config = Config()
    config.set_main_option("script_location", str(tmp_path / "copy"))
    return config


def test_the_revisions_are_those_of_the_files(scripts: Config) -> None:
    """In order, one after the other."""
    found = ScriptDirectory.from_config(scripts).walk_revisions()
    assert tuple(each.revision for each in found)[::-1] == REVISIONS


def test_the_next_revision_can_be_written(scripts: Config) -> None:
    """The template gives a file that follows the newest one."""
    directory = ScriptDirectory.from_config(scripts)
    made = directory.generate_revision("0002", "One more column", head=HEAD)
    assert made is not None
    assert (made.revision, made.down_revision, made.doc) == ("0002", HEAD, "One more column")
    compile(Path(made.path).read_text(), made.path, "exec")
