"""A real RabbitMQ server for tests: private, temporary, on loopback, and ended with its epmd."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.servers.server import Server, free_port, made, started
from tests.servers.skip_loudly import STARTUP, MissingServerError
from tests.servers.tls import Papers

HOMES = ("/usr/lib/rabbitmq", "/opt/homebrew/opt/rabbitmq", "/usr/local/opt/rabbitmq")
"""Where packages put the server; its own script is called, as the wrapper on PATH asks for root."""
USER, PASSWORD = "ergon", "not-so-secret"
HANDSHAKE = b"AMQP\x00\x00\x09\x01"


def rabbitmq_program() -> Path:
    """The script that starts a server as whoever calls it; without it the test is skipped.

    Also where all other servers must be there: no wheel has it, only packages of systems do.
    """
    if shutil.which("erl") is None or shutil.which("epmd") is None:
        pytest.skip("RabbitMQ is not installed; on Debian: apt-get install rabbitmq-server")
    for home in HOMES:
        for folder in ("bin", "sbin"):
            script = Path(home, folder, "rabbitmq-server")
            if os.access(script, os.X_OK):
                return script
    pytest.skip(f"there is an Erlang, but no rabbitmq-server in {', '.join(HOMES)}")


class RabbitServer(Server):
    """One node with a port mapper of its own; it keeps what it holds over a restart."""

    NAME = "rabbitmq"

    def __init__(self, papers: Papers | None = None) -> None:
        self._program = rabbitmq_program()
        super().__init__()
        self.port, self.tls_port = free_port(), free_port()
        self._mapper_port, self._node_port = free_port(), free_port()
        self._mapper: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        (self.folder / "plugins").write_text(
            "[rabbitmq_auth_mechanism_ssl].\n" if papers else "[].\n"
        )
        (self.folder / "env.conf").write_text("")
        (self.folder / "definitions.json").write_text(json.dumps(_definitions()))
        (self.folder / "rabbitmq.conf").write_text(self._settings(papers))

    def new_queue(self) -> str:
        """A URL of a queue that nobody has used."""
        return self.url(f"test{next(self._numbers)}")

    def url(self, queue: str = "", *, port: int | None = None, scheme: str = "amqp") -> str:
        """How to reach it, through another port if one is given."""
        return f"{scheme}://{USER}:{PASSWORD}@127.0.0.1:{port or self.port}/{queue}"

    def start(self) -> None:
        """Start the port mapper of Erlang, then the node."""
        self._mapper = subprocess.Popen(  # noqa: S603 - a server of the tests
            [str(shutil.which("epmd")), "-port", str(self._mapper_port), "-address", "127.0.0.1"],
            env=self._environment(),
        )
        # A node that finds no mapper starts one that would outlive it.
        deadline = time.monotonic() + STARTUP
        while not _listens(self._mapper_port):
            if self._mapper.poll() is not None or time.monotonic() > deadline:
                raise MissingServerError("epmd did not start")
            with suppress(subprocess.TimeoutExpired):
                self._mapper.wait(0.02)
        super().start()

    def control(self, *words: str) -> None:
        """Have rabbitmqctl do something."""
        program = self._program.with_name("rabbitmqctl")
        subprocess.run(  # noqa: S603 - a server of the tests
            [str(program), *words],
            env=self._environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def _end(self, how: Any) -> None:
        super()._end(how)
        mapper, self._mapper = self._mapper, None
        if mapper is not None:
            mapper.kill()
            mapper.wait()

    def _words(self) -> list[str]:
        return [str(self._program)]

    def _options(self) -> dict[str, Any]:
        return {"env": self._environment(), "cwd": self.folder, "stdin": subprocess.DEVNULL}

    def _environment(self) -> dict[str, str]:
        folder = str(self.folder)
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": folder,  # where Erlang keeps its cookie
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the server: one process to end
            "RABBITMQ_NODENAME": f"ergon{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_LOG_BASE": f"{folder}/logs",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{folder}/advanced.config",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/env.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_FEATURE_FLAGS_FILE": f"{folder}/feature_flags",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "+S 2:2 +A 8 -kernel inet_dist_use_interface {127,0,0,1}"
            ),
        }

    def _settings(self, papers: Papers | None) -> str:
        settings = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "load_definitions": f"{self.folder}/definitions.json",
            "log.console": "true",
            "log.console.level": "warning",
            "disk_free_limit.absolute": "10MB",
            "collect_statistics_interval": "60000",
        }
        if papers is not None:
            settings |= {
                "listeners.ssl.1": f"127.0.0.1:{self.tls_port}",
                "ssl_options.cacertfile": str(papers.ca),
                "ssl_options.certfile": str(papers.certificate("server")),
                "ssl_options.keyfile": str(papers.key("server")),
                "ssl_options.verify": "verify_peer",
                "ssl_options.fail_if_no_peer_cert": "false",
                "ssl_cert_login_from": "common_name",
                "auth_mechanisms.1": "PLAIN",
                "auth_mechanisms.2": "EXTERNAL",
            }
        return "".join(f"{name} = {value}\n" for name, value in settings.items())

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5.0) as asked:
                asked.sendall(HANDSHAKE)
                return bool(asked.recv(1))
        except OSError:
            return False


def _listens(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def _definitions() -> dict[str, Any]:
    """Two users, one of whom is known by a certificate only, and one virtual host beside ``/``."""
    salt = b"salt"
    digest = salt + hashlib.sha256(salt + PASSWORD.encode()).digest()
    known = {"hashing_algorithm": "rabbit_password_hashing_sha256", "tags": ""}
    users = [
        {"name": USER, "password_hash": base64.b64encode(digest).decode(), **known},
        {"name": "client", "password_hash": "", **known},
    ]
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    return {
        "users": users,
        "vhosts": [{"name": "/"}, {"name": "shop"}],
        "permissions": [
            {"user": user["name"], "vhost": vhost, **everything}
            for user in users
            for vhost in ("/", "shop")
        ],
    }


@pytest.fixture(scope="session")
def rabbit_server(signed: Papers) -> Iterator[RabbitServer]:
    """A RabbitMQ server for all tests of a run, with TLS on a port of its own."""
    with started(lambda: RabbitServer(signed)) as server:
        yield server


@pytest.fixture
def rabbit_url(rabbit_server: RabbitServer) -> str:
    """The URL of a queue that nobody has used."""
    return rabbit_server.new_queue()


@pytest.fixture
def own_rabbit() -> Iterator[RabbitServer]:
    """A RabbitMQ server of the test's own, not started, to be ended and started as it likes."""
    with made(RabbitServer) as server:
        yield server
