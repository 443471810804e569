"""Who watches a store and fails at it breaks no append."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.factstore.nats import NatsFactStore
from ergon_framework.boundary.factstore.postgres import PostgresFactStore
from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.ports.factstore import OUTBOUND, Appended
from ergon_framework.testing.suites.factstore.under_test import new

pytestmark = pytest.mark.req("BOUNDARY:badinput", "BOUNDARY:store")
ZONE = "plant-a"


@pytest.fixture(params=["memory", "sqlite", "postgres", "nats"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """One of each kind."""
    match request.param:
        case "memory":
            made: Any = MemoryFactStore(ZONE)
        case "sqlite":
            made = SqliteFactStore(tmp_path / "facts.db", zone=ZONE)
        case "postgres":
            made = PostgresFactStore(request.getfixturevalue("postgres_url"), zone=ZONE)
        case _:
            made = NatsFactStore(request.getfixturevalue("nats_url"), zone=ZONE)
    with closing(made) as opened:
        yield opened


def takes_nothing() -> None:
    """A watcher that was not made for what it is told."""


def raises(*_: object) -> None:
    """One that was, and stumbles."""
    raise RuntimeError("a mistake of the watcher")


@pytest.mark.parametrize("watcher", [takes_nothing, raises])
def test_a_watcher_that_fails_breaks_no_append(
    store: Any, watcher: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once for each thing it watches, however often it fails."""
    store.watch_waits(watcher)
    store.watch_commits(watcher)
    for offset, each in enumerate("abc", 1):
        assert store.append(OUTBOUND, [new(each)]) == [Appended(offset)]
    assert store.append(OUTBOUND, [new("d"), new("e")]) == [Appended(4), Appended(5)]
    told = [each.getMessage() for each in caplog.records if "which watches" in each.getMessage()]
    assert len(told) == len(set(told))
    if not isinstance(store, MemoryFactStore):
        assert any("watches the commits of a store, failed" in each for each in told)
        assert watcher is takes_nothing or len(told) == 2
    assert [each.message_id for each in store.page(OUTBOUND, 0, 10, 1 << 20).facts] == [*"abcde"]
