"""Who uses the connection that listens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from time import monotonic
from typing import Any

import pytest

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


class Watched(RedisClient):
    """A client with a look at each new connection, whose failovers the test makes."""

    def __init__(self, url: str, connected: Callable[[Any], Any]) -> None:
        super().__init__(address_of(url))
        self._connected = connected
        self.fail_over: Callable[[], None]

    def connect(self) -> Any:
        """A connection, as the test has it."""
        return self._connected(super().connect())

    def on_failover(self, call: Callable[[], None]) -> None:
        """Remember what to call."""
        self.fail_over = call


def test_one_thread_alone_uses_the_connection(redis_url: str) -> None:
    """To listen to more, to go over to another server and to end: none of it is said by others."""
    users: set[threading.Thread] = set()
    link = Watched(redis_url, lambda line: Overheard(line, users))
    with closing(link):
        own = PubSubNotifier(link)
        heard = {name: own.subscribe(name) for name in ("one", "two")}
        for name, subscription in heard.items():
            link.call("PUBLISH", name, "")
            assert subscription.wait(WAIT)
        link.fail_over()
        for subscription in heard.values():
            assert subscription.wait(WAIT)  # as after every new connection
        own.close()
    assert [each.name for each in users] == ["ergon-listen"]


def test_who_leaves_while_the_thread_connects(redis_url: str) -> None:
    """It may have been the old server still: the thread connects once more."""
    begun, left, again = (threading.Event() for _ in range(3))

    def slowly(line: Any) -> Any:
        if begun.is_set():
            again.set()
        begun.set()
        assert left.wait(WAIT)
        return line

    link = Watched(redis_url, slowly)
    with closing(link), ThreadPoolExecutor() as threads:
        own = PubSubNotifier(link)
        listening = threads.submit(own.subscribe, "one")
        assert begun.wait(WAIT)
        link.fail_over()
        left.set()
        assert again.wait(WAIT)
        listening.result(WAIT)
        own.close()


def test_a_server_that_is_frozen_is_noticed_whoever_rings(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever begins to listen meanwhile does not put that off."""
    again = threading.Event()
    lines: list[Any] = []

    def counted(line: Any) -> Any:
        lines.append(line)
        if len(lines) > 1:
            again.set()
        else:  # what it is asked from now on, nobody hears
            monkeypatch.setattr(lines[0], "send_command", lambda *_: None)
        return line

    link = Watched(redis_url, counted)
    with closing(link):
        own = PubSubNotifier(link, subscribe_timeout=0.0, keepalive_interval=0.2)
        numbers = count()
        until = monotonic() + WAIT
        while not again.wait(0.05) and monotonic() < until:
            own.subscribe(f"channel {next(numbers)}")
        assert again.is_set()
        own.close()
