"""Who watches a store is told before an append waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ergon_framework.boundary.factstore.postgres import PostgresFactStore
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.storage.postgres.pool import ConnectionPool
from tests.boundary.postgres.test_store import ids, put

LOOKS = 10_000_000
"""More than fit into the time of a test."""
pytestmark = pytest.mark.req("SCALE:boundary-postgres")


def test_who_watches_is_told_before_an_append_waits(store: PostgresFactStore) -> None:
    """With care, with hope, and with a statement that was forgotten: each time it is sent."""
    told: list[int] = []

    def look(_: object = None, /) -> None:
        told.append(store.appender.cache.logs[OUTBOUND].head if told else 0)

    store.watch_waits(look)
    put(store, "a")
    assert told
    count = len(told)
    put(store, "b", "c")  # in one statement
    assert told[count:][-1] == 3  # decided and sent, and no answer yet: nobody else is told of it
    assert ids(store) == ["a", "b", "c"]


def test_who_watches_is_told_before_a_connection_is_waited_for(store: PostgresFactStore) -> None:
    """A server that is away for long must not keep those who were served before."""
    put(store, "a")
    told: list[str] = []

    store.watch_waits(lambda _=None, /: told.append("waiting"))
    store.database.server.run(lambda connection: connection.close())  # the one that was idle

    def refused(*_: object) -> Any:
        assert told == ["waiting"]
        raise StoreUnavailableError("away", details={"is_lost": False})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConnectionPool, "connect", refused)
        with pytest.raises(StoreUnavailableError, match="away"):
            put(store, "b")
    put(store, "b")
    assert ids(store) == ["a", "b"]


def test_who_watches_hears_when_the_answer_is_there(store: PostgresFactStore) -> None:
    """So that it can do something else meanwhile, and no longer than that."""
    ends: list[bool] = []

    def look(is_over: Callable[[], bool] | None = None, /) -> None:
        if is_over is not None:
            ends.append(any(is_over() for _ in range(LOOKS)))

    put(store, "a")
    store.watch_waits(look)
    put(store, "b")
    assert ends
    assert all(ends)
    assert ids(store) == ["a", "b"]
