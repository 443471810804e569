"""``ergon doctor`` and ``ergon check`` on the store of everything, whoever uses it."""

from __future__ import annotations

import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import psycopg
import pytest

from ergon_framework.app.diagnostics.check import check
from ergon_framework.app.diagnostics.doctor import examine
from ergon_framework.app.diagnostics.findings import Finding, FindingStatus
from ergon_framework.app.diagnostics.servers import examine_store
from ergon_framework.cli import invoke
from ergon_framework.errors import SettingsError
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.providers.migrations import VERSION_TABLE
from ergon_framework.providers.migrations.commands import upgrade
from ergon_framework.providers.migrations.database import database_of
from ergon_framework.testing.suites.jobstore.claim import worker_with

pytestmark = pytest.mark.req("SCALE:doctor")


def found(tmp_path: Path, text: str) -> dict[str, Finding]:
    """Everything that the doctor finds with such settings, by what it looked at."""
    file = tmp_path / "ergon.toml"
    file.write_text(text)
    return {each.check: each for each in examine(file)}


def test_a_store_beside_that_of_the_jobs_is_looked_at(tmp_path: Path) -> None:
    """Commands and parts without a store of their own still use it."""
    url = "postgresql://me:hunter2@127.0.0.1:1/none"
    seen = found(tmp_path, f'[store]\nurl = "{url}"\n[jobs]\nstore = "sqlite:///work.db"\n')
    assert seen["job store"].status is FindingStatus.OK
    assert seen["postgresql (store)"].status is FindingStatus.BAD
    assert "hunter2" not in f"{seen}"


def refused_jobs(tmp_path: Path, url: str) -> None:
    """What a command that enqueues is refused, the doctor says beforehand."""
    seen = found(tmp_path, f'[store]\nurl = "{url}"\n')["job store"]
    assert (seen.status, "99" in seen.found, bool(seen.remedy)) == (FindingStatus.BAD, True, True)
    assert invoke(["enqueue", "mail", "--config", str(tmp_path / "ergon.toml")]) != 0


def test_tables_in_a_file_that_are_too_new(tmp_path: Path) -> None:
    """Also when the settings name nothing but the store."""
    url = f"sqlite:///{tmp_path}/work.db"
    open_store(url).close()
    assert found(tmp_path, f'[store]\nurl = "{url}"\n')["job store"].status is FindingStatus.OK
    with closing(sqlite3.connect(tmp_path / "work.db")) as connection:
        connection.execute("UPDATE ergon_schema SET version = 99 WHERE part = 'jobs'")
        connection.commit()
    refused_jobs(tmp_path, url)


@pytest.mark.parametrize("jobs", ["", "[jobs]\n"])
def test_a_queue_that_is_pinned_to_a_version_of_no_worker(tmp_path: Path, jobs: str) -> None:
    """Its jobs would wait for ever: the doctor names the version and both ways out."""
    url = f"sqlite:///{tmp_path}/work.db"
    text = f'[store]\nurl = "{url}"\n{jobs}'
    with closing(open_store(url)) as store:
        store.set_queue("mail", pinned_version="2")
        seen = found(tmp_path, text)
        assert seen["job store"].status is FindingStatus.OK
        pinned = seen["queue mail"]
        assert pinned.status is FindingStatus.NOTE
        assert "pinned to version '2', and no living worker runs that version" in pinned.found
        assert "ergon worker --version 2 --store" in pinned.remedy
        assert "ergon queues unpin mail --store" in pinned.remedy
        store.heartbeat(msgspec.structs.replace(worker_with("w2"), app_version="2"))
        assert "queue mail" not in found(tmp_path, text)


def test_tables_on_a_server_that_are_too_new(tmp_path: Path, postgres_url: str) -> None:
    """The server itself is in order."""
    open_store(postgres_url).close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE ergon_schema SET version = 99, compatible = 99")
    refused_jobs(tmp_path, postgres_url)


@pytest.mark.parametrize("providers", ["", "[providers]\n"])
def test_tables_of_provider_calls_that_are_too_new(
    tmp_path: Path, postgres_url: str, providers: str
) -> None:
    """In the store of everything as in one of their own, whether the settings speak of them."""
    for url in (f"sqlite:///{tmp_path}/work.db", postgres_url):
        text = f'[store]\nurl = "{url}"\n{providers}'
        with database_of(url).connect(creates=True) as connection:
            upgrade(connection)
        assert found(tmp_path, text)["provider store"].status is not FindingStatus.BAD
        with database_of(url).connect() as connection:
            connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '0099'")  # noqa: S608
        seen = found(tmp_path, text)["provider store"]
        assert (seen.status, "0099" in seen.found, bool(seen.remedy)) == (
            FindingStatus.BAD,
            True,
            True,
        )


def test_a_store_without_tables_gets_none_by_looking(tmp_path: Path, postgres_url: str) -> None:
    """Nobody asked for them."""
    for url in (f"sqlite:///{tmp_path}/work.db", postgres_url, "memory://"):
        seen = found(tmp_path, f'[store]\nurl = "{url}"\n')
        assert not {"job store", "provider store"} & seen.keys()
    assert not (tmp_path / "work.db").exists()
    with psycopg.connect(postgres_url) as connection:
        tables = connection.execute(
            "SELECT to_regclass('ergon_jobs'), to_regclass(%s)", (VERSION_TABLE,)
        ).fetchall()
    assert tables == [(None, None)]


@pytest.mark.parametrize("url", ["mysql://me:hunter2@127.0.0.1:1/x", "sqlite:work.db"])
def test_a_store_of_no_known_kind(tmp_path: Path, url: str) -> None:
    """Whether somebody answers there does not matter: no part could use it."""
    seen = found(tmp_path, f'[store]\nurl = "{url}"\n')["store"]
    assert (seen.status, bool(seen.remedy)) == (FindingStatus.BAD, True)
    assert "store" in seen.found
    assert "hunter2" not in f"{seen}"
    with pytest.raises(SettingsError, match=r"store\.url"):
        check(tmp_path / "ergon.toml", {})


def test_the_file_of_a_store_is_beside_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever somebody asks from."""
    (tmp_path / "etc" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    seen = found(tmp_path / "etc", '[store]\nurl = "sqlite:///data/work.db"\n')["store"]
    assert seen.status is FindingStatus.OK


def test_a_folder_without_room_for_the_store(tmp_path: Path) -> None:
    """An empty file can be made on a full disk; the store that is said to be fine could not."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # Python ignores the signal
    try:
        seen = examine_store(f"sqlite:///{tmp_path / 'work.db'}", 5.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (seen.status, "File too large" in seen.found) == (FindingStatus.BAD, True)
    assert "free some disk space" in seen.remedy


@pytest.mark.parametrize("settings", ["store", "jobs"])
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("emptied", "is empty"),
        ("folder", "is a folder"),
        ("unmarked", "has lost the table ergon_schema"),
        ("dropped", "has lost jobs tables that were made: ergon_jobs"),
    ],
)
def test_a_file_that_has_lost_its_tables_is_found(
    tmp_path: Path, damage: str, settings: str, told: str
) -> None:
    """And what is missing is said; looking makes nothing anew, which would hide it."""
    file = tmp_path / "work.db"
    url = f"sqlite:///{file}"
    open_store(url).close()
    if damage in ("emptied", "folder"):
        for each in tmp_path.glob("work.db*"):
            if each.is_file():
                each.unlink()
        file.mkdir() if damage == "folder" else file.touch()
    else:
        table = "ergon_schema" if damage == "unmarked" else "ergon_jobs"
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(f"DROP TABLE {table}")
            connection.commit()
    before = file.stat().st_size
    text = f'[store]\nurl = "{url}"\n' if settings == "store" else f'[jobs]\nstore = "{url}"\n'
    found = [each for each in seen_by_doctor(tmp_path, text) if told in each.found]
    assert {each.status for each in found} == {FindingStatus.BAD}
    assert all(each.remedy for each in found)
    assert file.stat().st_size == before


def seen_by_doctor(tmp_path: Path, text: str) -> list[Finding]:
    """Everything that the doctor finds with such settings."""
    return [*found(tmp_path, text).values()]
