"""``ergon check`` on settings with any value anywhere: there is a message, and never a crash."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.app.diagnostics.check import check
from ergon_framework.errors import SettingsError
from tests.app.processes import SAMPLES
from tests.app.workplace import Workplace, workplace_in

TEXT = """
[store]
url = "sqlite:///work.db"
[policies.careful]
loop = { limit = 3 }
[tasks.orders]
task = "counter:Orders"
policy = "careful"
connectors = ["inbox"]
services = ["mail"]
consumer = { loop = { limit = 3 } }
[connectors.inbox]
type = "memory"
[connectors.queue]
type = "jobs"
queue = "a"
lease = 10
options = { priority = 1 }
[connectors.facts]
type = "boundary"
node = "http://127.0.0.1:1"
consumer = "c"
wait = 1
[connectors.lines]
type = "jsonl"
outbox = "out"
[services.mailer]
factory = "counter:mailer"
host = "mail.example.org"
[providers]
store = "memory://"
[providers.mail]
provider = "counter:Mail"
quota = { limit = 3 }
breaker = { failure_threshold = 2 }
[jobs]
default_executor = "shell"
routes = { images = "shell" }
[executors.shell]
command = ["sh"]
[schedules.report]
every = 60
handler = "report"
[boundary]
insecure = true
[zones.plant]
data = "plant"
listen = "127.0.0.1:0"
peers = { office = "http://127.0.0.1:1" }
[server]
port = 0
[telemetry]
spans = true
"""
VALUES: list[Any] = [0, "x", "none", "env:NOT_SET", "\0", [1], {"a": 1}]


@pytest.fixture(autouse=True)
def in_samples(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    """Where the modules are that the file names."""
    with workplace_in(SAMPLES, monkeypatch) as place:
        yield place


def paths(table: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key there is."""
    for key, value in table.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


def written(value: Any) -> str:
    """A value as TOML on one line."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {written(item)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    return json.dumps(value)


def mistakes_in(file: Path, tables: dict[str, Any]) -> list[dict[str, Any]]:
    """What is wrong with these tables."""
    file.write_text("\n".join(f"{key} = {written(value)}" for key, value in tables.items()))
    try:
        check(file, {"PATH": os.environ["PATH"]})
    except SettingsError as error:
        return list(error.details["mistakes"])
    return []


def test_the_file_itself_is_in_order(tmp_path: Path) -> None:
    """So that every refusal below has one cause."""
    (tmp_path / "ergon.toml").write_text(TEXT)
    assert len(check(tmp_path / "ergon.toml", {"PATH": os.environ["PATH"]})) == 7


PATHS = [
    path if not number % 2 else pytest.param(path, marks=pytest.mark.campaign)
    for number, path in enumerate(paths(tomllib.loads(TEXT)))
]


@pytest.mark.slow
@pytest.mark.req("ONE:check")
@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_any_value_anywhere(path: tuple[str, ...], tmp_path: Path) -> None:
    """Each key with values of every kind, and without it."""
    for value in (*VALUES, None):
        tables = tomllib.loads(TEXT)
        place = tables
        for key in path[:-1]:
            place = place[key]
        if value is None:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        assert all(each["line"] for each in mistakes_in(tmp_path / "ergon.toml", tables))
