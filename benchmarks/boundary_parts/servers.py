"""Our node, Redis and NATS: real, private, temporary, on loopback."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import ssl
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs_parts.processes import Started, environment, wait_until
from comparison import FailedError
from server_programs import MissingProgramError, redis_program

from boundary_parts.messages import FROM
from boundary_parts.wire_protocols import STREAM, resp, stream_settings

STARTUP = 20.0
PATIENCE = 10.0


class Node:
    """``ergon boundary serve`` as a process."""

    def __init__(
        self,
        folder: Path,
        zone: str = FROM,
        *,
        certificates: Path | None = None,
        peers: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.tls = None if certificates is None else _client(certificates, zone)
        """How a client of the same zone calls it."""
        words = ["--zone", zone, "--data", str(folder), "--listen", "127.0.0.1:0"]
        if certificates is None:
            words += ["--insecure"]
        else:
            paths = {"cert": f"{zone}.pem", "key": f"{zone}.key", "ca": "ca.pem"}
            words += [word for option, name in paths.items()
                      for word in (f"--{option}", str(certificates / name))]  # fmt: skip
        for name, url in (peers or {}).items():
            words += ["--peer", f"{name}={url}"]
        command = [sys.executable, "-m", "ergon_framework.cli", "boundary", "serve", *words]
        log = folder.parent / f"{folder.name}.log"
        log.unlink(missing_ok=True)
        self._process = Started(command, environment(), log)
        self.port = self._await(log)
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def connect(self) -> http.client.HTTPConnection:
        """A connection of the standard library."""
        if self.tls is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        return http.client.HTTPSConnection(
            "localhost", self.port, timeout=PATIENCE, context=self.tls
        )

    def ask(self, method: str, patience: float = PATIENCE, **fields: Any) -> dict[str, Any]:
        """Call an operation."""
        link = self.connect()
        link.timeout = patience
        try:
            link.request("POST", f"/bsfg.v1.{method}", json.dumps(fields).encode())
            answer = link.getresponse()
            body: dict[str, Any] = json.loads(answer.read())
        finally:
            link.close()
        if answer.status != 200:
            raise FailedError(f"{method}: {body}")
        return body

    def head(self, log: str = "outbound") -> int:
        """How many facts a log has."""
        logs = self.ask("BoundaryAdmin/GetStatus")["logs"]
        return next((int(each["head_offset"]) for each in logs if each["log"] == log), 0)

    def stop(self) -> None:
        """Ask it to end."""
        self._process.stop()

    def _await(self, log: Path) -> int:
        wait_until(lambda: self._process.is_over() or "listen=" in log.read_text(), STARTUP, 0.01)
        told = log.read_text()
        if "listen=" not in told:
            self.stop()
            raise FailedError(f"the node did not start: {self._process.last_words()}")
        return int(told.partition("listen=")[2].split()[0].rpartition(":")[2])


class RedisServer:
    """Redis that syncs its log before it answers."""

    tls = None

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.port = free_port()
        words = [str(redis_program()), "--bind", "127.0.0.1", "--port", str(self.port)]
        words += ["--dir", str(folder), "--save", "", "--auto-aof-rewrite-percentage", "0"]
        words += ["--appendonly", "yes", "--appendfsync", "always"]
        self._process = Started(words, os.environ, folder / "log")
        self.pid = self._process.pid
        _await(self._process, lambda: self._ask(b"PING").startswith(b"+PONG"))

    def head(self) -> int:
        """How many entries there are."""
        return int(self._ask(b"XLEN", STREAM.encode())[1:])

    def stop(self) -> None:
        """Ask it to end."""
        self._process.stop()

    def _ask(self, *words: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as link:
            link.sendall(resp(*words))
            return link.recv(1024)


class NatsServer:
    """NATS with a stream on disk that is synced before it answers."""

    tls = None

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.port, self.monitor = free_port(), free_port()
        settings = folder / "nats.conf"
        settings.write_text(
            f'listen: "127.0.0.1:{self.port}"\nhttp: "127.0.0.1:{self.monitor}"\n'
            'ping_interval: "1h"\n'
            f'jetstream {{ store_dir: "{folder}", sync_interval: always }}\n'
        )
        words = [_program("nats-server"), "--config", str(settings)]
        self._process = Started(words, os.environ, folder / "log")
        self.pid = self._process.pid
        _await(self._process, lambda: "config" in self._ask("STREAM.CREATE", stream_settings()))

    def head(self) -> int:
        """How many messages there are."""
        return int(self._ask("STREAM.INFO")["state"]["messages"])

    def stop(self) -> None:
        """Ask it to end."""
        self._process.stop()

    def _ask(self, what: str, body: bytes = b"") -> dict[str, Any]:
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as link:
            link.sendall(b'CONNECT {"verbose":false}\r\nSUB answer 1\r\n')
            subject = f"$JS.API.{what}.{STREAM}".encode()
            link.sendall(b"PUB %b answer %d\r\n%b\r\n" % (subject, len(body), body))
            lines = link.makefile("rb")
            for line in lines:
                if line.startswith(b"MSG"):
                    found: dict[str, Any] = json.loads(lines.read(int(line.split()[-1])))
                    return found
        raise FailedError("NATS closed the connection")


class Servers:
    """Starts each server when somebody first asks for it; :meth:`stop` ends all of them."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def get(self, name: str, start: Callable[[], Any]) -> Any:
        """The server of that name; raises ``FailedError`` when there is none."""
        if name not in self._found:
            try:
                self._found[name] = start()
            except (FailedError, MissingProgramError, OSError) as error:
                self._found[name] = FailedError(f"no {name}: {error}")
        found = self._found[name]
        if isinstance(found, FailedError):
            raise found
        return found

    def stop(self) -> None:
        """End what was started."""
        for found in self._found.values():
            if not isinstance(found, FailedError):
                found.stop()


def make_certificates(folder: Path, zones: Sequence[str]) -> Path:
    """An authority and a certificate for each zone."""
    from ergon_framework.boundary.certs import issue, make_ca

    make_ca(folder)
    for zone in zones:
        issue(folder, zone)
    return folder


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _client(folder: Path, zone: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / f"{zone}.pem", folder / f"{zone}.key")
    return context


def _program(name: str) -> str:
    """Installed beside this Python, or anywhere on the path."""
    paths = (sysconfig.get_path("scripts"), os.environ.get("PATH", ""))
    found = shutil.which(name, path=os.pathsep.join(paths))
    if found is None:
        raise FailedError(f"{name} is not installed")
    return found


def _await(server: Started, answers: Callable[[], bool]) -> None:
    def is_there() -> bool:
        try:
            return server.is_over() or answers()
        except (FailedError, OSError, ValueError):
            return False

    if not wait_until(is_there, STARTUP, 0.05) or server.is_over():
        words = server.last_words()
        server.stop()
        raise FailedError(words or "it does not answer")
