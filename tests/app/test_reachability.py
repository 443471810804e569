"""Whether what the settings name can be had, and that nothing secret is told about it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ergon_framework.app.diagnostics.findings import Finding, FindingStatus
from ergon_framework.app.diagnostics.servers import (
    ENDPOINT,
    address_of,
    examine_endpoint,
    examine_parts,
    examine_server,
    examine_store,
)
from ergon_framework.app.settings import load_settings
from ergon_framework.app.settings.secrets import masked
from tests.app.workplace import Workplace

PATIENCE = 30.0
PARTS = """
import asyncio
import threading

never = threading.Event()
seen = []

class Server:
    def __init__(self, url="", password="", health=True):
        self.url, self.password, self.answer = url, password, health

    def open(self):
        seen.append("open")
        if self.url:
            raise ConnectionError(f"cannot log in to {self.url} with {self.password}")

    def health(self):
        seen.append("health")
        return self.answer

    def close(self):
        seen.append("close")

class AsyncServer:
    def __init__(self):
        self.loop = None

    async def aopen(self):
        self.loop = asyncio.get_running_loop()

    async def health(self):
        return self.loop is asyncio.get_running_loop()

    async def aclose(self):
        assert self.loop is asyncio.get_running_loop()
        seen.append("aclose")

class OwnLoop:
    def open(self):
        asyncio.run(asyncio.sleep(0))

class Hanging:
    def health(self):
        never.wait()

class Leaving:
    def open(self):
        raise SystemExit(5)

class BadlyClosed(Server):
    def close(self):
        raise RuntimeError("stuck")

def plain():
    return object()
"""


@pytest.fixture
def listener() -> Iterator[int]:
    """The port of a server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def look(workplace: Workplace, kind: str, options: str, **environ: str) -> Finding:
    """The finding of one part."""
    workplace.module(PARTS, "parts")
    workplace.settings(f"[{kind}.it]\n{options}\n")
    (finding,) = examine_parts(load_settings(environ=environ), PATIENCE)
    return finding


@pytest.mark.parametrize(
    ("factory", "status", "found"),
    [
        ("Server", "ok", "can be used"),
        ("AsyncServer", "ok", "can be used"),
        ("OwnLoop", "ok", "can be used"),
        ("plain", "note", "neither open() nor health()"),
        ("Leaving", "bad", "SystemExit: 5"),
        ("BadlyClosed", "bad", "RuntimeError: stuck"),
        ("Missing", "bad", "there is no 'Missing' in parts"),
    ],
)
def test_parts(workplace: Workplace, factory: str, status: str, found: str) -> None:
    """Each is made, opened, asked and closed, whatever its colour; what breaks is a finding."""
    finding = look(workplace, "services", f'factory = "parts:{factory}"')
    assert (finding.check, finding.status) == ("service it", status)
    assert found in finding.found
    assert bool(finding.remedy) == (status != "ok")


def test_a_part_is_closed_also_when_it_cannot_be_opened(workplace: Workplace) -> None:
    """A look leaves nothing open."""
    import sys

    look(workplace, "connectors", 'type = "parts:Server"\nurl = "x"')
    assert sys.modules["parts"].seen == ["open", "close"]


def test_ill_health(workplace: Workplace) -> None:
    """A part that says it cannot be used is believed."""
    finding = look(workplace, "connectors", 'type = "parts:Server"\nhealth = false')
    assert (finding.check, finding.status) == ("connector it", FindingStatus.BAD)
    assert "health()" in finding.found


def test_a_part_that_hangs(workplace: Workplace) -> None:
    """Nobody waits longer than was said."""
    import sys

    workplace.module(PARTS, "parts")
    workplace.settings('[services.it]\nfactory = "parts:Hanging"\n')
    (finding,) = examine_parts(load_settings(environ={}), 0.01)
    never: threading.Event | None = getattr(sys.modules.get("parts"), "never", None)
    if never is not None:  # the import itself may have taken longer
        never.set()
    assert finding.status is FindingStatus.BAD
    assert "did not answer within 0.01 s" in finding.found


def test_nothing_secret_is_told(workplace: Workplace) -> None:
    """Marked or not: neither a password nor the URL it stands in."""
    options = 'type = "parts:Server"\nurl = "db://me:hunter1@host/"\npassword = "hunter2"'
    finding = look(workplace, "connectors", options)
    assert finding.found.endswith("cannot log in to db://***@host/ with ***")
    options = 'type = "parts:Server"\nurl = "env:URL"\npassword = "text:other"'
    finding = look(workplace, "connectors", options, URL="db://me:hunt%65r3@host/")
    assert "hunt" not in finding.found
    secret = load_settings(environ={"URL": "db://me:hunt%65r3@host/"}).connectors["it"].options
    assert masked("hunter3 and hunt%65r3 are refused", secret) == "*** and *** are refused"
    key = "".join(("gh", "p_", "a1B2c3D4e5F6g7H8i9J0" * 2))
    told = masked(f"{key} and Authorization: Bearer abc, api_key=abc; see ?sslmode=require", {})
    assert told == "ghp_*** and Authorization: ***"
    assert (
        masked("api_key=abc; see redis://h/0?prefix=x", {})
        == "api_key=***; see redis://h/0?prefix=x"
    )


def test_an_inbox(workplace: Workplace) -> None:
    """One that a run has right now is in order; one that is not there is not."""
    options = 'type = "jsonl"\ninbox = "in"'
    assert look(workplace, "connectors", options).status is FindingStatus.BAD
    Path("in").mkdir()
    assert look(workplace, "connectors", options).status is FindingStatus.OK
    from ergon_framework.connector.jsonl import JsonlConnector

    with JsonlConnector("in"):
        finding = look(workplace, "connectors", options)
    assert finding.status is FindingStatus.NOTE
    assert "is already being read" in finding.found


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("postgresql://me:secret@db/shop", ("db", 5432)),
        ("postgresql+psycopg://db:6000/shop", ("db", 6000)),
        ("https://collector", ("collector", 443)),
        ("localhost:4317", ("localhost", 4317)),
        ("http://[::1]:4318/v1", ("::1", 4318)),
        ("other://host", None),
        ("db://host:port/", None),
        ("postgresql://me:12/34@db/shop", None),
        ("db://[", None),
        ("/var/store", None),
    ],
)
def test_addresses(url: str, address: tuple[str, int] | None) -> None:
    """Only what is clearly a host and a port is tried, and shown."""
    assert address_of(url) == address


def test_a_store_that_is_a_server(listener: int, closed_port: int) -> None:
    """It answers or not; its URL is not repeated."""
    finding = examine_store(f"db://me:secret@127.0.0.1:{listener}/shop", PATIENCE)
    assert (finding.status, finding.found) == (FindingStatus.OK, f"127.0.0.1:{listener} answers")
    finding = examine_store(f"db://me:secret@127.0.0.1:{closed_port}/shop", PATIENCE)
    assert finding.status is FindingStatus.BAD
    assert finding.found == f"127.0.0.1:{closed_port}: Connection refused"
    finding = examine_store("db:secret", PATIENCE)
    assert finding.status is FindingStatus.NOTE
    assert "secret" not in json.dumps(finding.to_dict())


def test_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding the address is part of the time: resolvers wait long."""
    never = threading.Event()
    monkeypatch.setattr(socket, "create_connection", lambda *_: never.wait())
    finding = examine_server("store", "db://127.0.0.1:1", 0.01)
    never.set()
    assert finding.status is FindingStatus.BAD
    assert "did not answer within 0.01 s" in finding.found


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("sqlite:///{}/ergon.db", "ok"),
        ("sqlite:///{}/ergon.db?key=secret", "ok"),
        ("sqlite:ergon.db", "ok"),
        ("sqlite://", "ok"),
        ("sqlite:///:memory:", "ok"),
        ("sqlite:///{}/missing/ergon.db", "bad"),
    ],
)
def test_a_store_that_is_a_file(workplace: Workplace, url: str, status: str) -> None:
    """Its directory must take files; nothing is left there."""
    finding = examine_store(url.format(workplace.directory), PATIENCE)
    assert finding.status == status
    assert "secret" not in finding.found
    assert list(workplace.directory.iterdir()) == []


def test_the_store_of_the_settings(workplace: Workplace) -> None:
    """It is looked at when there is one."""
    workplace.settings('[store]\nurl = "sqlite:///ergon.db"\n')
    assert [each.check for each in examine_parts(load_settings(environ={}))] == ["store"]


def test_the_telemetry_endpoint(closed_port: int) -> None:
    """It is looked at when it is set."""
    assert list(examine_endpoint({})) == []
    (finding,) = examine_endpoint({ENDPOINT: f"http://127.0.0.1:{closed_port}"}, PATIENCE)
    assert (finding.check, finding.status) == ("telemetry endpoint", FindingStatus.BAD)
