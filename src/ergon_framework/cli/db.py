"""``ergon db``: the tables of a store, and what a store holds written to a file and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli import forget, record_files
from ergon_framework.cli.output import show_list, show_one, waiting
from ergon_framework.cli.provider_stores import store_in_settings
from ergon_framework.cli.session import ConfigPath, JsonFlag
from ergon_framework.errors import ConfigurationError

if TYPE_CHECKING:
    from ergon_framework.app.schema import Tables
    from ergon_framework.providers.migrations.database import MigrationDatabase

app = typer.Typer(
    help="Upgrade tables or look at their version; export and import stores; forget a subject."
)

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
    jobs: Annotated[
        bool, typer.Option("--jobs", help="With --store: make the tables of jobs, too.")
    ] = False,
    sql: SqlFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Make tables or bring them up to date.

    Those of provider calls, jobs and zones.

    Only adds: other tables are left alone, and programs that run may go on. Jobs and zones have
    their tables made where the settings have such parts, and brought up to date where they are; in
    an SQLite file they are made by whoever opens it first.
    """
    if sql:
        scripts = [each.script() for each in _tables(config, store, has_jobs=jobs, is_offline=True)]
        _show_sql("".join(scripts), as_json=as_json)
        return
    rows = []
    for each in _tables(config, store, has_jobs=jobs):
        with waiting(f"upgrading {each.part}"):
            before = each.upgrade()
        rows.append(_row(each.part, each.current(), each.latest, before))
    _show(rows, _COLUMNS, as_json=as_json)


@app.command()
def current(config: ConfigPath = None, store: StoreUrl = None, as_json: JsonFlag = False) -> None:
    """Show the version of a store's tables, and the latest."""
    rows = [
        {"part": each.part, "now": each.current(), "latest": each.latest}
        for each in _tables(config, store)
    ]
    _show(rows, ["part", "now", "latest"], as_json=as_json)


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
    """Remove the tables of provider calls, with everything in them.

    Other tables are left alone, those of jobs too.
    """
    from ergon_framework.providers.migrations import HEAD, commands

    database = _database(config, store)
    if sql:
        _show_sql(commands.downgrade_script(database.dialect, revision), as_json=as_json)
        return
    if not yes:
        raise ConfigurationError(
            f"this deletes quotas, health, metrics and dead letters in {database.name} for good",
            remedy="give --yes if that is what you want; --sql shows what would be done",
        )
    with database.connect() as connection:
        before = commands.downgrade(connection, revision)
        rows = [_row("providers", commands.current(connection), HEAD, before)]
    show_list(rows, _COLUMNS, as_json=as_json)


app.command()(record_files.export)
app.command("import")(record_files.import_)
app.command()(forget.forget)


def _database(config: Path | None, store: str | None) -> MigrationDatabase:
    from ergon_framework.providers.migrations.database import database_of

    return database_of(store or store_in_settings(config))


def _tables(
    config: Path | None, store: str | None, *, has_jobs: bool = False, is_offline: bool = False
) -> Iterator[Tables]:
    from ergon_framework.app.schema import has_own_stores, tables_in, tables_of
    from ergon_framework.app.settings import load_settings

    if store:
        return tables_in(store, has_jobs=has_jobs, is_offline=is_offline)
    settings = load_settings(config)
    if not has_own_stores(settings):
        store_in_settings(config)  # says so when there is none
    return tables_of(settings)


def _row(part: str, now: str | None, latest: str, before: str | None) -> dict[str, Any]:
    return {"part": part, "before": before, "now": now, "latest": latest}


def _show(rows: list[dict[str, Any]], columns: list[str], *, as_json: bool) -> None:
    if rows or as_json:
        show_list(rows, columns, as_json=as_json)
    else:
        print("the stores of the settings have no tables: there is nothing to bring up to date")


def _show_sql(text: str, *, as_json: bool) -> None:
    if as_json:
        show_one({"sql": text}, as_json=True)
    else:
        print(text, end="")
