"""Enqueueing in a transaction of Django, on both databases that it shares with jobs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests import fork_server
from tests.servers.postgres import PostgresServer

PROGRAM = Path(__file__).parent / "programs" / "django_shop.py"
pytestmark = pytest.mark.req("SCALE:transaction")


def run(*words: str) -> dict[str, object]:
    """What the program says."""
    command = [sys.executable, str(PROGRAM), *words]
    done = fork_server.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def check(told: dict[str, object]) -> None:
    """Jobs come and go with Django's blocks; without one they are refused."""
    assert told["jobs"] == ["b", "a"]
    assert "no transaction open" in str(told["refused"])
    assert "transaction.atomic()" in str(told["refused"])
    assert "the connection of Django cannot be used" in str(told["away"])
    assert "can be reached" in str(told["away"])
    assert "not asynchronous" in str(told["asynchronous"])


def test_on_sqlite(tmp_path: Path) -> None:
    """One file for both."""
    path = tmp_path / "work.db"
    check(run(f"sqlite:///{path}", "sqlite3", str(tmp_path / "gone" / "work.db"), str(path)))


def test_on_postgresql(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """One database for both."""
    url = postgres_server.new_database()
    parts = urlsplit(url)
    host = parts.hostname or parse_qs(parts.query)["host"][0]
    away = str(tmp_path)  # a folder in which no server listens
    check(run(url, "postgresql", away, parts.path.strip("/"), host, parts.username or ""))
    postgres_server.drop_database(url)
