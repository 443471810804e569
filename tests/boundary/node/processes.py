"""Nodes as users run them: real processes, a real folder, real HTTP."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests import fork_server

PATIENCE = 90.0
CORE, ADMIN = "/bsfg.v1.Boundary/", "/bsfg.v1.BoundaryAdmin/"


class Answer(dict[str, Any]):
    """The JSON of an answer, and its status."""

    status: int = 0


class NodeProcess:
    """One ``ergon boundary serve``; it may be started again on the same folder and port."""

    def __init__(
        self, zone: str, folder: Path, *options: str, failpoints: str = "", port: int = 0
    ) -> None:
        self.zone = zone
        self.folder = folder
        self.options = options
        self.port = port or self._reserved()
        self.tls: ssl.SSLContext | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.start(failpoints)

    def start(self, failpoints: str = "") -> None:
        """Start it, and wait until it says that it is ready."""
        is_secure = "--cert" in self.options
        command = [sys.executable, "-m", "ergon_framework.cli", "boundary", "serve"]
        command += ["--zone", self.zone, "--data", str(self.folder)]
        command += ["--listen", f"127.0.0.1:{self.port}", *self.options]
        environment = dict(os.environ) | ({"ERGON_FAILPOINTS": failpoints} if failpoints else {})
        with open(f"{self.folder}.log", "ab") as log:
            self._process = fork_server.start(
                command if is_secure else [*command, "--insecure"],
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        line = self._line()
        if not line and failpoints and self.wait() == -9:  # it got no further than its failpoint
            self.start()
            return
        assert line.startswith(f"ready zone={self.zone} listen=127.0.0.1:"), self.log()
        self.port = int(line.rpartition(":")[2])

    @property
    def url(self) -> str:
        """Where it is."""
        return f"{'https' if '--cert' in self.options else 'http'}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        """What it wrote to its standard error stream."""
        return Path(f"{self.folder}.log").read_text(encoding="utf-8")

    def kill(self) -> None:
        """End it at once, as a power switch would end the process."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it as an operator would; its exit code."""
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        """Until it ends by itself; its exit code."""
        assert self._process is not None
        code = self._process.wait(PATIENCE)
        self._close()
        return code

    def revive(self) -> None:
        """Start it again if it has ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            self.wait()
            self.start()

    def ask(self, path: str, body: Any) -> Answer:
        """A unary call; the answer's JSON, whatever its status."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, _headers, data = self.request("POST", path, raw)
        answer = Answer(json.loads(data))
        answer.status = status
        return answer

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Any request: status, headers in lower case, body."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        if self.tls is not None:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=PATIENCE, context=self.tls
            )
        else:
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read()
        finally:
            connection.close()

    def append(self, message_id: str, content: Any = 1, **envelope: Any) -> Answer:
        """Append a small fact to plant-b."""
        return self.ask(f"{CORE}AppendFact", fact(message_id, content, self.zone, **envelope))

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self.wait()

    def _reserved(self) -> int:
        """A port that is given to nobody else, also while this node is down.

        Linux lets the node listen there all the same; elsewhere it finds a port by itself.
        """
        if not sys.platform.startswith("linux"):
            return 0
        place = socket.socket()
        weakref.finalize(self, place.close)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])

    def _close(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def _line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        assert readable, f"the node said nothing: {self.log()}"
        return self._process.stdout.readline().decode().strip()


def fact(
    message_id: str, content: Any = 1, zone: str = "plant-a", to_zone: str = "plant-b", **more: Any
) -> dict[str, Any]:
    """The body of an append."""
    envelope = {
        "message_id": message_id,
        "from_zone": zone,
        "to_zone": to_zone,
        "produced_at_unix_ms": 1_741_248_600_000,
    }
    return {
        "envelope": envelope | more,
        "fact": {"subject": "order:1", "predicate": "created", "object_json": content},
    }


@contextmanager
def running(zone: str, folder: Path, *options: str, failpoints: str = "") -> Iterator[NodeProcess]:
    """A node for a while."""
    node = NodeProcess(zone, folder, *options, failpoints=failpoints)
    try:
        yield node
    finally:
        node.kill()
