"""Who uses the connection that listens."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import pytest

from ergon_framework.storage.redis.address import address_of
from ergon_framework.storage.redis.bells import Belfry
from ergon_framework.storage.redis.link import RedisLink

pytestmark = pytest.mark.req("SCALE:jobs-redis")
WAIT = 30.0


class Overheard:
    """A connection that knows which threads used it."""

    def __init__(self, line: Any, users: set[threading.Thread]) -> None:
        self._line = line
        self._users = users

    def __getattr__(self, name: str) -> Any:
        self._users.add(threading.current_thread())
        return getattr(self._line, name)


def test_one_thread_alone_uses_the_connection(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To listen to more, to go over to another server and to end: none of it is said by others."""
    users: set[threading.Thread] = set()
    link = RedisLink(address_of(redis_url))
    connect = link.connect
    monkeypatch.setattr(link, "connect", lambda: Overheard(connect(), users))
    with closing(link):
        belfry = Belfry(link)
        bells = {name: belfry.listen(name) for name in ("one", "two")}
        for name, bell in bells.items():
            link.call("PUBLISH", name, "")
            assert bell.wait(WAIT)
        link._when_left()
        for bell in bells.values():
            assert bell.wait(WAIT)  # as after every new connection
        belfry.close()
    assert [each.name for each in users] == ["ergon-listen"]
