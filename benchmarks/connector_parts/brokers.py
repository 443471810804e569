"""The brokers: private, temporary, on loopback; those that the tests use, set to run at full speed.

All contestants of a race share one. What is not installed is reported as missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from comparison import ContestantError

ROOT = Path(__file__).resolve().parent.parent.parent


@contextmanager
def broker(kind: str) -> Iterator[Any]:
    """A broker that answers."""
    sys.path.insert(0, str(ROOT))  # for the tests' servers
    os.environ.setdefault("TEST_SERVER_STARTUP", "300")
    try:
        import pytest

        from tests.servers.server import started
    except ImportError as error:
        raise ContestantError(f"the tests' servers cannot be loaded: {error}") from error
    try:
        with started(_MAKES[kind]) as server:
            yield server
    except pytest.skip.Exception as error:
        raise ContestantError(f"no broker: {error}") from error


def _redis() -> Any:
    """In memory: it forgets what it holds when it ends."""
    from tests.servers.redis import RedisServer

    return RedisServer()


def _postgres() -> Any:
    from tests.servers.postgres import PostgresServer

    return PostgresServer(is_durable=True)


def _nats() -> Any:
    """On disk; the server syncs every two minutes, as it does by default."""
    from tests.servers.nats import NatsServer

    return NatsServer(sync="2m")


def _rabbitmq() -> Any:
    from tests.servers.rabbitmq import RabbitServer

    return RabbitServer()


def _mosquitto() -> Any:
    """Its sessions are written to disk every half hour, as they are by default.

    It sends a hundred messages ahead also to clients that name no receive maximum.
    """
    from tests.servers.mosquitto import Mosquitto

    made = Mosquitto()
    settings = made.folder / "mosquitto.conf"
    text = settings.read_text().replace("autosave_interval 1\n", "autosave_interval 1800\n")
    text = text.replace("autosave_on_changes true\n", "max_inflight_messages 100\n")
    settings.write_text(text)
    return made


class _Sqs:
    """The server that the tests use, which is written in Python and keeps all in memory."""

    def __init__(self) -> None:
        from tests.servers.s3 import S3Server

        self._server = S3Server()

    def start(self) -> None:
        """Start it, with credentials for it in the environment."""
        from tests.servers.s3 import KEYS
        from tests.servers.sqs import SqsServer

        os.environ.update(KEYS)
        self._server.start()
        made = SqsServer(self._server)
        self.endpoint, self.client, self.new_queue = made.endpoint, made.client, made.new_queue

    def remove(self) -> None:
        """End it."""
        self._server.remove()


class _Kafka:
    """librdkafka's own cluster, in a process of its own: its work is not counted as ours."""

    def start(self) -> None:
        """Start it and learn its address."""
        words = [sys.executable, "-m", "benchmarks.connector_parts.kafka_cluster"]
        self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._asked: Any = self._process.stdin
        self._told: Any = self._process.stdout
        self.server = self._answer()

    def new_topic(self, partitions: int = 1) -> str:
        """A topic that holds nothing yet."""
        self._asked.write(f"{partitions}\n")
        self._asked.flush()
        return self._answer()

    def _answer(self) -> str:
        found = self._told.readline().strip()
        if not found:
            raise ContestantError("librdkafka's cluster did not start")
        return found

    def remove(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


_MAKES: dict[str, Callable[[], Any]] = {
    "redis": _redis,
    "postgres": _postgres,
    "nats": _nats,
    "rabbitmq": _rabbitmq,
    "mosquitto": _mosquitto,
    "sqs": _Sqs,
    "kafka": _Kafka,
}
