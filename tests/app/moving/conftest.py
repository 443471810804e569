"""Stores to be moved, of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.moving.stock import with_facts, with_jobs

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
