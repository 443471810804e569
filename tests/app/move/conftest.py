"""Stores to be moved, of every kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from tests.app.move.stock import ZONE, with_facts, with_jobs
from tests.cli.boundary_node import message

SERVERS = pytest.mark.slow


@pytest.fixture(
    params=[
        "file",
        pytest.param("postgres_url", marks=SERVERS),
        pytest.param("redis_url", marks=SERVERS),
    ]
)
def jobs(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where jobs are."""
    file = f"sqlite:///{tmp_path}/old.db"
    url = file if request.param == "file" else request.getfixturevalue(request.param)
    return with_jobs(url, lambda s: s.put(*"abc"))


@pytest.fixture(
    params=[
        "file",
        pytest.param("postgres_url", marks=SERVERS),
        pytest.param("nats_url", marks=SERVERS),
    ]
)
def facts(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a zone's facts are."""
    (tmp_path / "old").mkdir()
    file = f"sqlite:///{tmp_path}/old/facts.db"
    url = file if request.param == "file" else request.getfixturevalue(request.param)
    return with_facts(url, lambda s: s.put(*"abc"))


@pytest.fixture
def zone(tmp_path: Path) -> Path:
    """The folder of a zone with objects."""
    with LocalZone.open(ZONE, ZoneSettings(data=str(tmp_path / "zone"))) as found:
        found.put("files", "one", b"one" * 1000)
        found.put("files", "also-one", b"one" * 1000)
        found.put("files", "two", b"two" * 500_000)
        asked = json.loads(message("m-1"))
        found.append(asked["envelope"], asked["fact"])
    return tmp_path / "zone"
