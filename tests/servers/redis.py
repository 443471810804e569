"""A real Redis server for tests: private, temporary, on loopback and on a socket in its folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from benchmarks.server_programs import MissingProgramError, redis_program
from tests.servers.server import Server, free_port, started
from tests.servers.skip_loudly import MissingServerError

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
FORGETFUL = ("--appendonly", "no")


class RedisServer(Server):
    """One server; it can be stopped, killed and started again, with what its options keep."""

    NAME = "redis"

    def __init__(self, options: Sequence[str] = FORGETFUL) -> None:
        try:
            self._program = redis_program()
        except MissingProgramError as error:
            raise MissingServerError(str(error)) from error
        self._settings = tuple(options)
        super().__init__()
        self.socket = self.folder / "redis.sock"
        self.port = free_port()

    @property
    def url(self) -> str:
        """How to reach it."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def broker_url(self) -> str:
        """As Celery wants it."""
        return f"redis+socket://{self.socket}"

    def connect(self) -> Any:
        """A client of it, whose answers are texts."""
        import redis

        return redis.Redis(
            unix_socket_path=str(self.socket), decode_responses=True, socket_timeout=None
        )

    def _words(self) -> list[str]:
        words = [str(self._program), "--port", str(self.port), "--bind", "127.0.0.1"]
        words += ["--unixsocket", str(self.socket), "--save", "", "--dir", str(self.folder)]
        return [*words, *self._settings]

    def _answers(self) -> bool:
        import redis

        try:
            with self.connect() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis server for all tests of a run; it keeps nothing on disk."""
    with started(RedisServer) as server:
        yield server


@pytest.fixture(scope="session")
def durable_redis() -> Iterator[RedisServer]:
    """A Redis server for all tests of a run, which syncs every write to disk."""
    with started(lambda: RedisServer(DURABLE)) as server:
        yield server


@pytest.fixture
def redis_url(durable_redis: RedisServer) -> Iterator[str]:
    """An empty Redis database of the test's own, on disk before it answers."""
    yield durable_redis.url
    with durable_redis.connect() as client:
        client.flushdb()
