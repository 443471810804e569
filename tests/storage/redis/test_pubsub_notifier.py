"""Who uses the connection that listens."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from time import monotonic
from typing import Any

import pytest

from ergon_framework.storage.redis import notifier
from ergon_framework.storage.redis.address import address_of
from ergon_framework.storage.redis.client import RedisClient
from ergon_framework.storage.redis.notifier import PubSubNotifier

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
    link = RedisClient(address_of(redis_url))
    connect = link.connect
    monkeypatch.setattr(link, "connect", lambda: Overheard(connect(), users))
    with closing(link):
        own = PubSubNotifier(link)
        heard = {name: own.subscribe(name) for name in ("one", "two")}
        for name, subscription in heard.items():
            link.call("PUBLISH", name, "")
            assert subscription.wait(WAIT)
        link._on_failover()
        for subscription in heard.values():
            assert subscription.wait(WAIT)  # as after every new connection
        own.close()
    assert [each.name for each in users] == ["ergon-listen"]


def test_who_leaves_while_the_thread_connects(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been the old server still: the thread connects once more."""
    link = RedisClient(address_of(redis_url))
    connect, begun, left, again = link.connect, *(threading.Event() for _ in range(3))

    def slowly() -> Any:
        line = connect()
        if begun.is_set():
            again.set()
        begun.set()
        assert left.wait(WAIT)
        return line

    monkeypatch.setattr(link, "connect", slowly)
    with closing(link), ThreadPoolExecutor() as threads:
        own = PubSubNotifier(link)
        listening = threads.submit(own.subscribe, "one")
        assert begun.wait(WAIT)
        link._on_failover()
        left.set()
        assert again.wait(WAIT)
        listening.result(WAIT)
        own.close()


def test_a_server_that_is_frozen_is_noticed_whoever_rings(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever begins to listen meanwhile does not put that off."""
    link = RedisClient(address_of(redis_url))
    monkeypatch.setattr(notifier, "READY", 0.0)
    monkeypatch.setattr(notifier, "_ALIVE", 0.2)
    connect, again = link.connect, threading.Event()
    lines: list[Any] = []

    def counted() -> Any:
        lines.append(connect())
        if len(lines) > 1:
            again.set()
        else:  # what it is asked from now on, nobody hears
            monkeypatch.setattr(lines[0], "send_command", lambda *_: None)
        return lines[-1]

    monkeypatch.setattr(link, "connect", counted)
    with closing(link):
        own = PubSubNotifier(link)
        numbers = count()
        until = monotonic() + WAIT
        while not again.wait(0.05) and monotonic() < until:
            own.subscribe(f"channel {next(numbers)}")
        assert again.is_set()
        own.close()
