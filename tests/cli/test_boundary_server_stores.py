"""Nodes of one zone that share a PostgreSQL server and a bucket, as an operator runs them."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from ergon_framework.boundary.settings import ZoneSettings
from tests.boundary.node.cables import Cable
from tests.cli.boundary_node import BoundaryCommands, message, running
from tests.cli.test_boundary_serve import serving, url_in
from tests.jobs.real_worker import wait_until
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:boundary-postgres", "SCALE:objects-s3")]


@pytest.fixture
def commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> BoundaryCommands:
    """The command line, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return BoundaryCommands(tmp_path, capsys, monkeypatch)


@pytest.fixture
def place(commands: BoundaryCommands, postgres_url: str, s3_url: str) -> Path:
    """A folder with the settings of a zone on two servers."""
    (commands.place / "ergon.toml").write_text(
        f'[store]\nurl = "{postgres_url}"\n\n'
        f'[zones.plant-a]\nobjects = "{s3_url}"\nlisten = "127.0.0.1:0"\ninsecure = true\n'
    )
    return commands.place


def test_two_nodes_share_a_zone(commands: BoundaryCommands, place: Path) -> None:
    """What one of them took the other gives, also when the first was killed; no folder is made."""
    data = os.urandom(100_000)
    (place / "report").write_bytes(data)
    with serving(place, []) as (first, line), serving(place, []) as (_second, other):
        commands.url = url_in(line)
        assert commands.ask("put", "reports", "daily", "report").code == 0
        commands.append("x")
        first.send_signal(signal.SIGKILL)
        first.wait(60)
        commands.url = url_in(other)
        commands.append("y")
        again = commands.ask("append", "--batch", "-", typed=message("x") + b"\n")
        assert "duplicate" in again.out
        assert commands.ask("get", "reports", "daily", "-o", "copy").code == 0
        assert (place / "copy").read_bytes() == data
        status = commands.ask("status", "--json").json
        assert [log["head_offset"] for log in status["logs"]] == [2]
        assert "PostgreSQL" in status["acknowledgement"]
        assert commands.ask("quarantine", "list", "--json").json == []
    assert not (place / "boundary").exists()


def test_the_zone_is_verified_where_it_is(commands: BoundaryCommands, place: Path) -> None:
    """Without its node too, and a backup says why not."""
    with serving(place, []) as (_node, line):
        commands.url = url_in(line)
        commands.append("x")
    assert "no flaws in 1 facts" in commands("verify").out
    told = commands("backup", "copy")
    assert (told.code, "not in an SQLite file" in told.err) == (2, True)
    assert not (place / "copy").exists()


def test_a_node_without_its_server_says_so(commands: BoundaryCommands, s3_url: str) -> None:
    """The server of facts is away: one clear error, without the password."""
    url = "postgresql://me:hunter2@127.0.0.1:1/db"
    given = ["--zone", "plant-a", "--listen", "127.0.0.1:0", "--insecure", "--objects", s3_url]
    told = commands("serve", *given, "--store", url)
    assert told.code == 1
    assert "Traceback" not in told.err
    assert "hunter2" not in told.err
    assert "127.0.0.1:1" in told.err


@pytest.mark.req("SCALE:fleet-outage")
def test_a_bucket_that_goes_away_and_comes_back(
    commands: BoundaryCommands, s3_server: S3Server
) -> None:
    """Facts go on, artifacts are refused as long as it lasts, and nobody has to restart."""
    cable = Cable(s3_server.port)
    (commands.place / "report").write_bytes(b"abc")
    settings = ZoneSettings.model_validate(
        {
            "data": commands.data,
            "objects": f"s3://{s3_server.bucket()}?endpoint=http://127.0.0.1:{cable.port}",
            "listen": "127.0.0.1:0",
            "insecure": True,
        }
    )
    try:
        with running(settings) as address:
            commands.url = f"http://{address}"
            cable.cut()
            commands.append("x")
            refused = commands.ask("put", "reports", "daily", "report", "--timeout", "5")
            assert refused.code == 1
            assert "does not answer" in refused.err
            cable.heal()
            assert commands.ask("put", "reports", "daily", "report").code == 0
            assert commands.ask("get", "reports", "daily").out == "abc"
    finally:
        cable.close()


@pytest.mark.req("SCALE:fleet-outage")
def test_a_node_whose_server_is_away_is_not_ready(
    tmp_path: Path, own_postgres: PostgresServer
) -> None:
    """A probe hears it, and hears when it is back."""
    settings = ZoneSettings.model_validate(
        {
            "data": str(tmp_path / "data"),
            "store": own_postgres.new_database(),
            "listen": "127.0.0.1:0",
            "insecure": True,
        }
    )

    def ready(address: str) -> int:
        with closing(HTTPConnection(address, timeout=50)) as line:
            line.request("GET", "/readyz")
            return line.getresponse().status

    with running(settings) as address:
        assert ready(address) == 200
        own_postgres.kill()
        assert ready(address) == 503
        own_postgres.start()
        wait_until(lambda: ready(address) == 200)
