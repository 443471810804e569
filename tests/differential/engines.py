"""The engines that stores live on, each with as many empty places for a store as wanted."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from tests.differential.places import Place


class Engine(Protocol):
    """What a store lives on."""

    is_server: bool
    """Whether it has a life of its own, and may die."""

    def place(self) -> Place:
        """An empty place."""

    def remove(self) -> None:
        """End it, and delete what it held."""


class SqliteEngine:
    """Files in a folder."""

    is_server = False

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ergon-files-"))
        self._numbers = count(1)

    def place(self) -> Place:
        """A new file."""
        return Place(f"sqlite:///{self._folder / f'{next(self._numbers)}.db'}")

    def remove(self) -> None:
        """Delete the files."""
        shutil.rmtree(self._folder)


class ServerEngine(ABC):
    """A server of the tests."""

    is_server = True

    def __init__(self, server: Any) -> None:
        self.server = server
        self._numbers = count(1)
        server.start()

    @abstractmethod
    def place(self) -> Place:
        """An empty place."""

    def freeze(self) -> None:
        """Let it answer nobody, neither with words nor with the end of a connection."""
        self.server.freeze()

    def thaw(self) -> None:
        """Let it go on."""
        self.server.thaw()

    def remove(self) -> None:
        """End it."""
        self.server.remove()


class PostgresEngine(ServerEngine):
    """A PostgreSQL server."""

    def __init__(self, *, is_durable: bool) -> None:
        from tests.servers.postgres import PostgresServer

        super().__init__(PostgresServer(is_durable=is_durable))
        self._last: str | None = None

    def place(self) -> Place:
        """A new database; the one before it is gone."""
        if self._last is not None:
            self.server.drop_database(self._last)
        self._last = self.server.new_database()
        return Place(self._last)

    def freeze(self) -> None:
        """The one that takes connections, then those that serve them."""
        super().freeze()
        self._signal_children(signal.SIGSTOP)

    def thaw(self) -> None:
        """All of them."""
        self._signal_children(signal.SIGCONT)
        super().thaw()

    def _signal_children(self, number: int) -> None:
        parent = (self.server.folder / "data" / "postmaster.pid").read_text().split()[0]
        listed = Path(f"/proc/{parent}/task/{parent}/children")
        for pid in listed.read_text(encoding="ascii").split():
            os.kill(int(pid), number)


class RedisEngine(ServerEngine):
    """A Redis server; there is only one place on it at a time."""

    def __init__(self, *, is_durable: bool) -> None:
        from tests.servers.redis import DURABLE, FORGETFUL, RedisServer

        super().__init__(RedisServer(DURABLE if is_durable else FORGETFUL))
        self._options = "" if is_durable else "?persistence=none"

    def place(self) -> Place:
        """The emptied server."""
        with self.server.connect() as client:
            client.flushall()
        return Place(self.server.url + self._options)


class NatsEngine(ServerEngine):
    """A NATS server."""

    def __init__(self, *, is_durable: bool) -> None:
        from tests.servers.nats import NatsServer

        super().__init__(NatsServer(sync="always" if is_durable else "2m"))
        self._options = "" if is_durable else "?acknowledge=unsynced"

    def place(self) -> Place:
        """A new zone."""
        return Place(self.server.url(options=self._options), f"plant-{next(self._numbers)}")


def _sqlite(*, is_durable: bool) -> Engine:
    return SqliteEngine()


ENGINES: dict[str, Callable[..., Engine]] = {
    "sqlite": _sqlite,
    "postgres": PostgresEngine,
    "redis": RedisEngine,
    "nats": NatsEngine,
}
STORES = (
    "jobs-sqlite",
    "jobs-postgres",
    "jobs-redis",
    "facts-sqlite",
    "facts-postgres",
    "facts-nats",
)
"""What is kept, and on which engine."""


@contextmanager
def running(name: str, *, is_durable: bool = False) -> Iterator[Engine]:
    """An engine from here to the end; ``is_durable``: what it acknowledged survives its death."""
    engine = ENGINES[name](is_durable=is_durable)
    try:
        yield engine
    finally:
        engine.remove()
