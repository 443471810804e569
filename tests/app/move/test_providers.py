"""Moving what is kept about provider calls."""

from __future__ import annotations

import signal
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import String, Table, update

from ergon_framework.app.move.run import Asked, reopen
from ergon_framework.app.move.transfer import digest_of
from ergon_framework.app.store_location import StoreLocation
from ergon_framework.errors import (
    ConfigurationError,
    StoreError,
    StoreReadOnlyError,
    StoreSchemaError,
)
from ergon_framework.jobs.store_urls import open_store as open_job_store
from ergon_framework.ports.transfer import Fence, OvertakenMoveError
from ergon_framework.providers.migrations import commands
from ergon_framework.providers.migrations.database import database_of
from ergon_framework.providers.models import ProviderDeadLetter, UtcDateTime, metadata
from ergon_framework.providers.store_urls import open_store as open_provider_store
from ergon_framework.providers.stores.records import ProviderRecords, ProviderRowRecord
from ergon_framework.providers.stores.sql.store import SqlProviderStore
from tests.app.move.stock import copied, discarded, ergon, job_sums, moved, with_jobs
from tests.campaign.parameter_sample import campaign, sampled
from tests.servers.postgres import name_of

pytestmark = pytest.mark.req("SCALE:move")

START = datetime(2030, 3, 17, 12, 0, 0, 123456, tzinfo=UTC)
_WORDS = {"breaker_state": "open", "outcome": "dead_letter", "status": None}


def value_of(table: Table, column: Any, number: int) -> Any:
    """Something that fits into a column; keys differ from row to row."""
    if column.name == "status":
        return "pending" if "letters" in table.name else "failed"
    if column.name in _WORDS:
        return _WORDS[column.name]
    if isinstance(column.type, UtcDateTime):
        return START + timedelta(minutes=number)
    if isinstance(column.type, String):
        return f"{'éa'[number % 2]}{number:04}"
    return {bool: True, bytes: b"\x00\xff", float: 0.25}.get(column.type.python_type, number)


def with_calls(url: str, rows: int = 7) -> str:
    """A database with some rows of each table."""
    with database_of(url).connect(creates=True) as connection:
        commands.upgrade(connection)
        for table in metadata.sorted_tables:
            values = [
                {each.name: value_of(table, each, number) for each in table.columns}
                for number in range(rows)
            ]
            connection.execute(table.insert(), values)
    return url


def sums(url: str) -> Any:
    """What a database holds about provider calls."""
    return digest_of(ProviderRecords(database_of(url)), ProviderRowRecord)


def test_rows_of_all_tables_arrive(tmp_path: Path) -> None:
    """Dead letters, quotas, circuits, keys, attempts and roll-ups, with the jobs beside them."""
    source, target = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db"
    with_jobs(with_calls(source))
    outcome = moved(source, target)
    assert copied(outcome)["provider rows"] == 7 * len(metadata.tables)
    assert {each.part for each in outcome.moved} == {"jobs", "provider calls"}
    assert sums(target) == sums(source)
    assert copied(moved(source, target)) == {}


def test_only_what_changed_is_copied_again(tmp_path: Path) -> None:
    """Rows that changed, that are new and that are gone; also without any jobs."""
    source, target = with_calls(f"sqlite:///{tmp_path}/old.db"), f"sqlite:///{tmp_path}/new.db"
    moved(source, target)
    letters = ProviderDeadLetter.__table__
    assert isinstance(letters, Table)
    with database_of(source).connect() as connection:
        first = letters.c.dead_letter_id == "é0000"
        connection.execute(update(letters).where(first).values(status="redriven"))
        connection.execute(letters.delete().where(letters.c.dead_letter_id == "a0001"))
        row = {each.name: value_of(letters, each, 99) for each in letters.columns}
        connection.execute(letters.insert(), [row])
    again = moved(source, target)
    assert (copied(again), discarded(again)) == ({"provider rows": 2}, {"provider rows": 1})
    assert sums(target) == sums(source)


@pytest.mark.parametrize("place", ["file", pytest.param("postgres_url", marks=pytest.mark.slow)])
def test_rows_are_not_written_by_a_move_that_was_overtaken(
    place: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """It was stopped before it wrote: the database compares the state in the same transaction."""
    url = f"sqlite:///{tmp_path}/calls.db"
    url = with_calls(url if place == "file" else request.getfixturevalue(place), 1)
    records = ProviderRecords(database_of(url))
    rows, before = records.dump(ProviderRowRecord, None, 100), sums(url)
    records.set_move_state(b"first", Fence(None))
    first, second = Fence(b"first"), Fence(b"second")
    records.load(rows, first)
    records.set_move_state(b"second", first)
    records.set_move_state(b"second", first)  # an answer that was lost is asked for again
    for write in (
        partial(records.load, rows, first),
        partial(records.discard, rows, first),
        partial(records.freeze, "elsewhere", first),
        partial(records.set_move_state, None, first),
    ):
        with pytest.raises(OvertakenMoveError):
            write()
    assert (sums(url), records.move_state()) == (before, b"second")
    records.discard(rows, second)
    assert records.dump(ProviderRowRecord, None, 100) == []


def test_a_row_may_take_the_place_of_another(tmp_path: Path) -> None:
    """A lane that was forgotten and came back has another id and the same unique key."""
    source, target = with_calls(f"sqlite:///{tmp_path}/old.db"), f"sqlite:///{tmp_path}/new.db"
    moved(source, target)
    lanes = metadata.tables["provider_health_states"]
    with database_of(source).connect() as connection:
        connection.execute(update(lanes).where(lanes.c.id == "é0000").values(id="0-new"))
    moved(source, target)
    assert sums(target) == sums(source)


def test_a_database_with_other_rows_is_refused(tmp_path: Path) -> None:
    """Nothing of it is changed."""
    source, target = with_calls(f"sqlite:///{tmp_path}/old.db"), f"sqlite:///{tmp_path}/new.db"
    with_calls(target, rows=2)
    before = sums(target)
    with pytest.raises(StoreError, match="holds provider calls already"):
        moved(source, target)
    assert sums(target) == before


def test_tables_of_another_version_are_refused(tmp_path: Path) -> None:
    """They are brought up to date first."""
    source = with_calls(f"sqlite:///{tmp_path}/old.db")
    with database_of(source).connect() as connection:
        connection.exec_driver_sql("UPDATE ergon_provider_alembic_version SET version_num = '0'")
    with pytest.raises(StoreSchemaError, match="ergon db upgrade"):
        moved(source, f"sqlite:///{tmp_path}/new.db")


def test_a_trial_makes_no_tables(tmp_path: Path) -> None:
    """It tells how many rows would be copied."""
    source = with_calls(f"sqlite:///{tmp_path}/old.db")
    outcome = moved(source, f"sqlite:///{tmp_path}/new.db", is_trial=True)
    assert copied(outcome) == {"provider rows": 7 * len(metadata.tables)}
    assert not (tmp_path / "new.db").exists()


@pytest.mark.slow
def test_rows_go_to_postgresql_and_back(tmp_path: Path, postgres_url: str) -> None:
    """Whatever the server thinks about the order of letters."""
    source, target = with_calls(f"sqlite:///{tmp_path}/old.db"), f"sqlite:///{tmp_path}/new.db"
    moved(source, postgres_url)
    assert sums(postgres_url) == sums(source)
    moved(postgres_url, target)
    assert sums(target) == sums(source)
    name = name_of(postgres_url)
    same = postgres_url.replace(f"/{name}?", "/?") + f"&dbname={name}"  # the server tells
    assert copied(moved(same, target)) == {}
    with pytest.raises(ConfigurationError, match="into itself"):
        moved(same, postgres_url)


@pytest.mark.slow
def test_redis_keeps_no_provider_calls(tmp_path: Path, redis_url: str) -> None:
    """They stay where they are, and that is said."""
    source = with_jobs(with_calls(f"sqlite:///{tmp_path}/old.db"))
    outcome = moved(source, redis_url)
    assert {each.part for each in outcome.moved} == {"jobs"}
    assert outcome.notes == [
        "provider calls and their dead letters stay: only SQLite and PostgreSQL keep them"
    ]


def test_calls_alone_have_no_place_on_redis(tmp_path: Path) -> None:
    """Why nothing can be moved is told, and no server is asked."""
    source = with_calls(f"sqlite:///{tmp_path}/old.db")
    with pytest.raises(ConfigurationError, match=r"redis://.* cannot keep provider calls"):
        moved(source, "redis://127.0.0.1:1/0")


def test_nothing_is_written_when_one_part_is_refused(tmp_path: Path) -> None:
    """Jobs stay away from a database that holds other provider calls."""
    source, target = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db"
    with_jobs(with_calls(source))
    with_calls(target, rows=1)
    with pytest.raises(StoreError, match="holds provider calls already"):
        moved(source, target)
    assert job_sums(target)["JobRecord"].count == 0


def opened(url: str) -> SqlProviderStore:
    """Tables of provider calls as whoever calls providers opens them."""
    store = open_provider_store(url)
    assert isinstance(store, SqlProviderStore)
    return store


@pytest.mark.slow
@pytest.mark.parametrize("server", ["file", campaign("postgres_url")])
@pytest.mark.parametrize(
    "step",
    sampled(
        [
            *("move.part.begun=kill", "move.rows.before=kill", "move.rows.after=kill@2"),
            *("move.part.copied=kill", "move.part.shut=kill", "move.part.verified=kill"),
        ],
        ["move.rows.after=kill@2", "move.part.shut=kill"],
    ),
)
def test_half_moved_rows_are_not_worked_with(
    step: str, server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Also where there are no jobs beside them; the same command again ends it."""
    source = with_calls(f"sqlite:///{tmp_path}/old.db", rows=120)
    file = f"sqlite:///{tmp_path}/new.db"
    target = file if server == "file" else request.getfixturevalue(server)
    died = ergon("move", source, target, "--shut", failpoints=step)
    assert died.returncode == -signal.SIGKILL, died.stderr
    with pytest.raises(StoreSchemaError, match=r"a move of provider calls .*has not ended"):
        opened(target)
    moved(source, target, shuts=True)
    assert sums(target) == sums(source)
    opened(target).close()


@pytest.mark.slow
@pytest.mark.parametrize("server", ["file", campaign("postgres_url")])
@pytest.mark.parametrize(
    "step",
    sampled(
        [
            *("move.part.begun=kill", "move.jobs.after_commit=kill"),
            *("move.part.copied=kill@2", "move.part.verified=kill@2"),
        ],
        ["move.jobs.after_commit=kill", "move.part.copied=kill@2"],
    ),
)
def test_nobody_works_with_rows_before_the_jobs_are_there(
    step: str, server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Else the same command could not end: it would undo the calls that were made meanwhile."""
    source = with_jobs(with_calls(f"sqlite:///{tmp_path}/old.db"))
    file = f"sqlite:///{tmp_path}/new.db"
    target = file if server == "file" else request.getfixturevalue(server)
    died = ergon("move", source, target, failpoints=step)
    assert died.returncode == -signal.SIGKILL, died.stderr
    with pytest.raises(StoreSchemaError, match=r"a move of provider calls .*has not ended"):
        opened(target)
    with pytest.raises(StoreError, match="has not ended"):
        open_job_store(target)
    moved(source, target)
    assert (sums(target), job_sums(target)) == (sums(source), job_sums(source))
    opened(target).close()
    open_job_store(target).close()


@pytest.mark.slow
@pytest.mark.parametrize("server", ["file", "postgres_url"])
def test_rows_and_jobs_are_opened_at_once(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Killed as soon as one of them may be worked with, the move has left nothing to do."""
    source = with_jobs(with_calls(f"sqlite:///{tmp_path}/old.db"))
    file = f"sqlite:///{tmp_path}/new.db"
    target = file if server == "file" else request.getfixturevalue(server)
    died = ergon("move", source, target, failpoints="move.part.ended=kill")
    assert died.returncode == -signal.SIGKILL, died.stderr
    opened(target).close()
    open_job_store(target).close()
    assert copied(moved(source, target)) == {}


@pytest.mark.parametrize("server", ["file", pytest.param("postgres_url", marks=pytest.mark.slow)])
def test_rows_that_were_moved_are_not_worked_with(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Neither by who has them open nor by who opens them, until they are opened again."""
    file = f"sqlite:///{tmp_path}/old.db"
    source = with_calls(file if server == "file" else request.getfixturevalue(server))
    target = f"sqlite:///{tmp_path}/new.db"
    with closing(opened(source)) as forgotten:
        moved(source, target, shuts=True)
        with pytest.raises(StoreReadOnlyError, match=r"was moved to .*new\.db"):
            forgotten.delete_letters(["é0000"])
    with pytest.raises(StoreSchemaError, match=r"were moved to .*new\.db"):
        opened(source)
    assert copied(moved(source, target)) == {}
    assert reopen(Asked(StoreLocation(source), StoreLocation(target))) == ["provider calls"]
    opened(source).close()
