"""``ergon doctor`` on the zones of the settings."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from ergon_framework.app.diagnostics.findings import Finding, FindingStatus
from ergon_framework.app.diagnostics.zones import examine_zones
from ergon_framework.app.settings import load_settings
from ergon_framework.boundary.factstore.nats import NatsFactStore
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.store_urls import open_fact_store
from ergon_framework.boundary.zone import LocalZone
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.req("SCALE:doctor")


def found(tmp_path: Path, text: str, *, connects: bool = True) -> Finding:
    """What the doctor finds about the one zone of such settings."""
    file = tmp_path / "ergon.toml"
    file.write_text(f"[zones.plant]\n{text}\n")
    [finding] = examine_zones(load_settings(file, {}), connects=connects)
    assert finding.check == "zone plant"
    assert (finding.status is FindingStatus.BAD) == bool(finding.remedy)
    return finding


def test_a_zone_that_is_not_there_yet(tmp_path: Path) -> None:
    """Its folder is not made by looking."""
    seen = found(tmp_path, 'data = "new/data"')
    assert (seen.status, "when its node first starts" in seen.found) == (FindingStatus.OK, True)
    assert not (tmp_path / "new").exists()


def test_a_zone_in_a_file_says_what_it_acknowledges(tmp_path: Path) -> None:
    """Also while its node runs; nothing is locked and nothing is written."""
    with LocalZone.open("plant", ZoneSettings(data=str(tmp_path / "data"))):
        seen = found(tmp_path, 'data = "data"')
    assert (seen.status, "disk" in seen.found) == (FindingStatus.OK, True)
    assert found(tmp_path, 'data = "data"', connects=False).status is FindingStatus.OK


def test_a_file_that_holds_no_facts(tmp_path: Path) -> None:
    """Its node would not start."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/facts.db").write_bytes(b"garbage" * 1000)
    seen = found(tmp_path, 'data = "data"')
    assert (seen.status, "not an SQLite database" in seen.found) == (FindingStatus.BAD, True)


@pytest.mark.parametrize("connects", [True, False])
@pytest.mark.parametrize(
    "text",
    ['data = "taken"', 'data = "taken/data"', 'data = "fine"\nobjects = "taken"'],
    ids=["folder", "above", "objects"],
)
def test_a_file_in_the_place_of_a_folder(tmp_path: Path, text: str, connects: bool) -> None:
    """For facts and for objects."""
    (tmp_path / "taken").write_text("a file")
    seen = found(tmp_path, text, connects=connects)
    assert (seen.status, "taken is no folder" in seen.found) == (FindingStatus.BAD, True)


@pytest.mark.parametrize(
    ("data", "told"),
    [("locked/data", "may not write to"), ("here", "may not write it"), ("x" * 300, "too long")],
    ids=["folder", "file", "name"],
)
def test_what_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str, told: str
) -> None:
    """Asked of the system as whoever asks; it would let root, who runs some tests, do anything."""
    (tmp_path / "locked").mkdir()
    LocalZone.open("plant", ZoneSettings(data=str(tmp_path / "here"))).close()
    refused = {str(tmp_path / "locked"), str(tmp_path / "here/facts.db")}
    monkeypatch.setattr(os, "access", lambda path, _: str(path) not in refused)
    seen = found(tmp_path, f'data = "{data}"')
    assert (seen.status, told in seen.found) == (FindingStatus.BAD, True)


@pytest.mark.parametrize("folder", ["data", "new/data"])
def test_a_disk_with_less_room_than_the_zone_wants(tmp_path: Path, folder: str) -> None:
    """Its node would not be ready; checked settings may be for another machine."""
    with LocalZone.open("plant", ZoneSettings(data=str(tmp_path / "data"))):
        pass
    text = f'data = "{folder}"\nlimits.free_bytes = '
    seen = found(tmp_path, text + str(1 << 60))
    assert (seen.status, "MiB left" in seen.found) == (FindingStatus.BAD, True)
    assert "free some disk space" in seen.remedy
    assert found(tmp_path, text + "1").status is FindingStatus.OK
    assert found(tmp_path, text + str(1 << 60), connects=False).status is FindingStatus.OK


def test_a_store_that_keeps_no_facts(tmp_path: Path) -> None:
    """However well its server is set up; nobody has to be asked."""
    seen = found(tmp_path, 'store = "redis://127.0.0.1:1"', connects=False)
    assert (seen.status, "Redis does not keep facts" in seen.found) == (FindingStatus.BAD, True)


def test_a_zone_on_a_server(tmp_path: Path, postgres_url: str) -> None:
    """It is opened as its node would open it."""
    seen = found(tmp_path, f'data = "data"\nstore = "{postgres_url}"')
    assert (seen.status, "PostgreSQL" in seen.found) == (FindingStatus.OK, True)
    with closing(open_fact_store(postgres_url, zone="plant", read_only=True)) as store:
        assert store.logs()


def test_a_server_that_takes_less_than_the_settings_allow(
    tmp_path: Path, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those facts would be refused."""
    monkeypatch.setattr(NatsFactStore, "largest", property(lambda _: 1000))
    file = tmp_path / "ergon.toml"
    file.write_text(f'[zones.plant]\ndata = "data"\nstore = "{nats_url}"\n')
    [seen] = examine_zones(load_settings(file, {}), connects=True)
    assert seen.status is FindingStatus.NOTE
    assert "1,000 bytes" in seen.found
    assert "max_payload" in seen.remedy


def test_a_user_who_may_make_no_tables(tmp_path: Path, postgres_server: PostgresServer) -> None:
    """The server takes writes, but not of this user."""
    url = postgres_server.new_database()
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            name = sql.Identifier(connection.info.dbname)
            connection.execute("CREATE ROLE weak LOGIN")
            connection.execute(sql.SQL("REVOKE CREATE ON DATABASE {} FROM PUBLIC").format(name))
            user = connection.info.user
        weak = url.replace(f"//{user}@", "//weak@")
        seen = found(tmp_path, f'data = "data"\nstore = "{weak}"')
        assert (seen.status, "permission denied" in seen.found) == (FindingStatus.BAD, True)
    finally:
        postgres_server.drop_database(url)
        with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
            connection.execute("DROP ROLE IF EXISTS weak")


def test_a_zone_that_lives_elsewhere_is_an_address(tmp_path: Path) -> None:
    """There is nothing here to look at."""
    file = tmp_path / "ergon.toml"
    file.write_text('[zones.far]\nlisten = "127.0.0.1:9443"\n')
    assert list(examine_zones(load_settings(file, {}), connects=True)) == []
