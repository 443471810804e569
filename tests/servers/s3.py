"""A real S3 server for tests: moto as a process of its own, on loopback; it keeps all in memory."""

from __future__ import annotations

import http.client
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import pytest

from tests.servers.server import Server, free_port, started
from tests.servers.skip_loudly import STARTUP, MissingServerError

KEYS = {"AWS_ACCESS_KEY_ID": "ergon", "AWS_SECRET_ACCESS_KEY": "ergon-secret"}
REGION = "us-east-1"


class S3Server(Server):
    """One server. What it holds is gone when it ends."""

    NAME = "s3"

    def __init__(self) -> None:
        if util.find_spec("moto") is None:
            raise MissingServerError("no S3 server: the package moto is not installed")
        super().__init__()
        self.port = free_port()
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

    def _words(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def _answers(self) -> bool:
        try:
            return self.ask("GET", "/moto-api/data.json")[0] == 200
        except OSError:
            return False


@pytest.fixture(scope="session")
def s3_running() -> Iterator[S3Server]:
    """An S3 server for all tests of a run."""
    with started(S3Server) as server:
        yield server


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
