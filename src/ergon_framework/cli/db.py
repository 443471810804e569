"""``ergon db``: the tables of a store, brought up to date or taken away again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli.output import show_list, show_one
from ergon_framework.cli.provider_desk import store_in_settings
from ergon_framework.cli.session import ConfigPath, JsonFlag
from ergon_framework.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ergon_framework.providers.migrations.database import Database

app = typer.Typer(help="Bring a store's tables up to date, look at their version, or remove them.")

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store", "--url", metavar="URL", help="The store [default: as in the settings]."
    ),
]
SqlFlag = Annotated[
    bool, typer.Option("--sql", help="Print the SQL instead of running it; nothing is opened.")
]
_COLUMNS = ["part", "before", "now", "latest"]


@app.command()
def upgrade(
    config: ConfigPath = None,
    store: StoreUrl = None,
    sql: SqlFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Make the tables of provider calls, or bring them up to date.

    Only adds: other tables are left alone. An SQLite file that holds jobs has their tables brought
    up to date as well.
    """
    from ergon_framework.providers.migrations import HEAD, running

    database = _database(config, store)
    if sql:
        _show_sql(running.upgrade_script(database.dialect), as_json=as_json)
        return
    with database.connect(creates=True) as connection:
        before = running.upgrade(connection)
        rows = [_row("providers", running.current(connection), HEAD, before)]
        jobs = _jobs_in(connection)
    if database.file is not None and jobs is not None:
        rows.append(_upgraded_jobs(database.file, jobs))
    show_list(rows, _COLUMNS, as_json=as_json)


@app.command()
def current(config: ConfigPath = None, store: StoreUrl = None, as_json: JsonFlag = False) -> None:
    """Show the version of a store's tables, and the latest one that this program knows."""
    from ergon_framework.jobs.stores.sqlite.ground import SCHEMA
    from ergon_framework.providers.migrations import HEAD, running

    with _database(config, store).connect() as connection:
        rows = [{"part": "providers", "now": running.current(connection), "latest": HEAD}]
        jobs = _jobs_in(connection)
    if jobs is not None:
        rows.append({"part": "jobs", "now": jobs, "latest": str(SCHEMA.version)})
    show_list(rows, ["part", "now", "latest"], as_json=as_json)


@app.command()
def downgrade(
    revision: Annotated[
        str, typer.Argument(metavar="REVISION", help="The revision to go back to.")
    ] = "base",
    config: ConfigPath = None,
    store: StoreUrl = None,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, delete what is in the tables.")] = False,
    sql: SqlFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Take the tables of provider calls away again, with everything in them.

    Other tables are left alone, those of jobs too.
    """
    from ergon_framework.providers.migrations import HEAD, running

    database = _database(config, store)
    if sql:
        _show_sql(running.downgrade_script(database.dialect, revision), as_json=as_json)
        return
    if not yes:
        raise ConfigurationError(
            f"this deletes quotas, health, metrics and dead letters in {database.name} for good",
            remedy="give --yes if that is what you want; --sql shows what would be done",
        )
    with database.connect() as connection:
        before = running.downgrade(connection, revision)
        rows = [_row("providers", running.current(connection), HEAD, before)]
    show_list(rows, _COLUMNS, as_json=as_json)


def _database(config: Path | None, store: str | None) -> Database:
    from ergon_framework.providers.migrations.database import database_of

    return database_of(store or store_in_settings(config))


def _jobs_in(connection: Connection) -> str | None:
    """The version of the tables of jobs; None when there are none, as in a server's database."""
    from sqlalchemy import inspect, text

    if not inspect(connection).has_table("ergon_schema"):
        return None
    found = connection.scalar(text("SELECT version FROM ergon_schema WHERE part = 'jobs'"))
    return None if found is None else str(found)


def _upgraded_jobs(file: Path, before: str) -> dict[str, Any]:
    """What opening a store of jobs did to its tables: that brings them up to date."""
    from ergon_framework.jobs.stores.sqlite.ground import SCHEMA
    from ergon_framework.jobs.stores.sqlite.store import SqliteJobStore

    with closing(SqliteJobStore(file)):
        return _row("jobs", str(SCHEMA.version), str(SCHEMA.version), before)


def _row(part: str, now: str | None, latest: str, before: str | None) -> dict[str, Any]:
    return {"part": part, "before": before, "now": now, "latest": latest}


def _show_sql(text: str, *, as_json: bool) -> None:
    if as_json:
        show_one({"sql": text}, as_json=True)
    else:
        print(text, end="")
