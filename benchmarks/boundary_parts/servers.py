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

from comparison import ContestantError
from jobs_parts.processes import StartedProcess, environment, wait_until
from server_programs import MissingProgramError, redis_program

from boundary_parts.messages import FROM
from boundary_parts.wire_protocols import STREAM, resp, stream_settings

STARTUP_TIMEOUT = 20.0
TIMEOUT = 10.0


class Node:
    """``ergon boundary serve`` as a process."""

    def __init__(
        self,
        folder: Path,
        zone: str = FROM,
        *,
        certificates: Path | None = None,
        peers: Mapping[str, str] | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.tls = None if certificates is None else _client(certificates, zone)
        """How a client of the same zone calls it."""
        arguments = ["--zone", zone, "--data", str(folder), "--listen", "127.0.0.1:0"]
        if certificates is None:
            arguments += ["--insecure"]
        else:
            paths = {"cert": f"{zone}.pem", "key": f"{zone}.key", "ca": "ca.pem"}
            arguments += [word for option, name in paths.items()
                      for word in (f"--{option}", str(certificates / name))]  # fmt: skip
        for name, url in (peers or {}).items():
            arguments += ["--peer", f"{name}={url}"]
        if limits is not None:
            settings = folder.parent / f"{folder.name}.toml"
            lines = (f"{name} = {most}\n" for name, most in limits.items())
            settings.write_text(f"[zones.{zone}.limits]\n{''.join(lines)}")
            arguments += ["--config", str(settings)]
        command = [sys.executable, "-m", "ergon_framework.cli", "boundary", "serve", *arguments]
        log = folder.parent / f"{folder.name}.log"
        log.unlink(missing_ok=True)
        self._process = StartedProcess(command, environment(), log)
        self.port = self._await(log)
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def connect(self) -> http.client.HTTPConnection:
        """A connection of the standard library."""
        if self.tls is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        return http.client.HTTPSConnection(
            "localhost", self.port, timeout=TIMEOUT, context=self.tls
        )

    def ask(self, method: str, timeout: float = TIMEOUT, **fields: Any) -> dict[str, Any]:
        """Call an operation."""
        connection = self.connect()
        connection.timeout = timeout
        try:
            connection.request("POST", f"/bsfg.v1.{method}", json.dumps(fields).encode())
            answer = connection.getresponse()
            body: dict[str, Any] = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status != 200:
            raise ContestantError(f"{method}: {body}")
        return body

    def head(self, log: str = "outbound") -> int:
        """How many facts a log has."""
        logs = self.ask("BoundaryAdmin/GetStatus")["logs"]
        return next((int(each["head_offset"]) for each in logs if each["log"] == log), 0)

    def stop(self) -> None:
        """Ask it to end."""
        self._process.stop()

    def _await(self, log: Path) -> int:
        wait_until(
            lambda: self._process.is_over() or "listen=" in log.read_text(), STARTUP_TIMEOUT, 0.01
        )
        told = log.read_text()
        if "listen=" not in told:
            self.stop()
            raise ContestantError(f"the node did not start: {self._process.log_tail()}")
        return int(told.partition("listen=")[2].split()[0].rpartition(":")[2])


class RedisServer:
    """Redis that syncs its log before it answers."""

    tls = None

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.port = free_port()
        arguments = [str(redis_program()), "--bind", "127.0.0.1", "--port", str(self.port)]
        arguments += ["--dir", str(folder), "--save", "", "--auto-aof-rewrite-percentage", "0"]
        arguments += ["--appendonly", "yes", "--appendfsync", "always"]
        self._process = StartedProcess(arguments, os.environ, folder / "log")
        self.pid = self._process.pid
        _await(self._process, lambda: self._ask(b"PING").startswith(b"+PONG"))

    def head(self) -> int:
        """How many entries there are."""
        return int(self._ask(b"XLEN", STREAM.encode())[1:])

    def stop(self) -> None:
        """Ask it to end."""
        self._process.stop()

    def _ask(self, *arguments: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), TIMEOUT) as connection:
            connection.sendall(resp(*arguments))
            return connection.recv(1024)


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
        arguments = [_program("nats-server"), "--config", str(settings)]
        self._process = StartedProcess(arguments, os.environ, folder / "log")
        self.pid = self._process.pid
        _await(self._process, lambda: "config" in self._ask("STREAM.CREATE", stream_settings()))

    def head(self) -> int:
        """How many messages there are."""
        return int(self._ask("STREAM.INFO")["state"]["messages"])

    def stop(self) -> None:
        """Ask it to end."""
        self._process.stop()

    def _ask(self, what: str, body: bytes = b"") -> dict[str, Any]:
        with socket.create_connection(("127.0.0.1", self.port), TIMEOUT) as connection:
            connection.sendall(b'CONNECT {"verbose":false}\r\nSUB answer 1\r\n')
            subject = f"$JS.API.{what}.{STREAM}".encode()
            connection.sendall(b"PUB %b answer %d\r\n%b\r\n" % (subject, len(body), body))
            lines = connection.makefile("rb")
            for line in lines:
                if line.startswith(b"MSG"):
                    found: dict[str, Any] = json.loads(lines.read(int(line.split()[-1])))
                    return found
        raise ContestantError("NATS closed the connection")


class Servers:
    """Starts each server when somebody first asks for it; :meth:`stop` ends all of them."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def get(self, name: str, start: Callable[[], Any]) -> Any:
        """The server of that name; raises ``ContestantError`` when there is none."""
        if name not in self._found:
            try:
                self._found[name] = start()
            except (ContestantError, MissingProgramError, OSError) as error:
                self._found[name] = ContestantError(f"no {name}: {error}")
        found = self._found[name]
        if isinstance(found, ContestantError):
            raise found
        return found

    def stop(self) -> None:
        """End what was started."""
        for found in self._found.values():
            if not isinstance(found, ContestantError):
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
        raise ContestantError(f"{name} is not installed")
    return found


def _await(server: StartedProcess, answers: Callable[[], bool]) -> None:
    def is_there() -> bool:
        try:
            return server.is_over() or answers()
        except (ContestantError, OSError, ValueError):
            return False

    if not wait_until(is_there, STARTUP_TIMEOUT, 0.05) or server.is_over():
        tail = server.log_tail()
        server.stop()
        raise ContestantError(tail or "it does not answer")
