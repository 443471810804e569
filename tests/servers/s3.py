"""A real S3 server for tests: moto as a process of its own, on loopback; it keeps all in memory."""

from __future__ import annotations

import http.client
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import util
from pathlib import Path

import pytest

from tests.servers.missing import STARTUP, MissingServerError, missing
from tests.servers.redis import free_port

KEYS = {"AWS_ACCESS_KEY_ID": "ergon", "AWS_SECRET_ACCESS_KEY": "ergon-secret"}
REGION = "us-east-1"


class S3Server:
    """One server. What it holds is gone when it ends."""

    def __init__(self) -> None:
        if util.find_spec("moto") is None:
            raise MissingServerError("no S3 server: the package moto is not installed")
        self.folder = Path(tempfile.mkdtemp(prefix="ergon-s3-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)

    @property
    def endpoint(self) -> str:
        """How to reach it."""
        return f"http://127.0.0.1:{self.port}"

    def url(self, bucket: str, prefix: str = "") -> str:
        """The URL of a bucket, which need not exist."""
        path = f"/{prefix}" if prefix else ""
        return f"s3://{bucket}{path}?endpoint={self.endpoint}&region={REGION}"

    def bucket(self) -> str:
        """A new, empty bucket; its name."""
        name = f"bucket-{next(self._numbers)}"
        self.ask("PUT", f"/{name}")
        return name

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Ask it something; the status and what it said."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=STARTUP)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def let_in(self, *, everybody: bool) -> None:
        """Whether whoever asks may do everything; otherwise nobody may do anything."""
        self.ask("POST", "/moto-api/reset-auth", b"inf" if everybody else b"0")

    def start(self) -> None:
        """Start it and wait until it answers."""
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                words, stdout=log, stderr=log, env=dict(os.environ)
            )
        deadline = time.monotonic() + STARTUP
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                words_left = (self.folder / "log").read_text(errors="replace")[-500:]
                raise MissingServerError(f"the S3 server did not start: {words_left}")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)

    def _answers(self) -> bool:
        try:
            return self.ask("GET", "/moto-api/data.json")[0] == 200
        except OSError:
            return False

    def stop(self) -> None:
        """End it as an operator would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def remove(self) -> None:
        """End it and delete what it left."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(STARTUP)


@pytest.fixture(scope="session")
def s3_running() -> Iterator[S3Server]:
    """An S3 server for all tests of a run."""
    try:
        server = S3Server()
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
def s3_server(s3_running: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> S3Server:
    """The S3 server, with keys for it in the environment, and temporary files of the test's own."""
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return s3_running


@pytest.fixture
def s3_url(s3_server: S3Server) -> str:
    """An empty bucket of the test's own."""
    return s3_server.url(s3_server.bucket(), "zone/objects")
