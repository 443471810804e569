"""Redis stores and servers for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from ergon_framework.jobs.stores.redis import RedisJobStore
from tests.servers.redis import DURABLE, RedisServer
from tests.servers.server import started

Open = Callable[..., RedisJobStore]


def serving(*options: str) -> AbstractContextManager[RedisServer]:
    """A server of one's own."""
    return started(lambda: RedisServer(options or DURABLE))


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A durable server that the test may kill."""
    with serving() as server:
        yield server


@pytest.fixture
def open_store(redis_url: str) -> Iterator[Open]:
    """Opens stores, and closes them after the test."""
    opened: list[RedisJobStore] = []

    def open_one(url: str = redis_url, **options: Any) -> RedisJobStore:
        opened.append(RedisJobStore(url, **options))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()
