"""Which protocol is spoken at an address, and what ``ergon doctor`` says of the wrong one."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.app.diagnostics.servers import server_kind_at
from tests.servers.by_url import doctor
from tests.servers.kafka import KafkaCluster
from tests.servers.mosquitto import Mosquitto
from tests.servers.nats import NatsServer
from tests.servers.rabbitmq import RabbitServer
from tests.servers.redis import RedisServer
from tests.servers.skip_loudly import MissingServerError, missing


@contextmanager
def answering(greeting: bytes, answers: dict[bytes, bytes]) -> Iterator[int]:
    """A server that says something at first, and answers what begins in these ways; its port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(greeting)
            asked = self.request.recv(1000)
            for begins, answer in answers.items():
                if asked.startswith(begins):
                    self.request.sendall(answer)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, *args: object) -> None: ...

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("kind", "greeting", "answers"),
    [
        ("NATS", b'INFO {"server_id":"x"} \r\n', {}),
        ("SSH", b"SSH-2.0-OpenSSH_9.2\r\n", {}),
        ("SMTP or FTP", b"220 mail.example.org ESMTP\r\n", {}),
        ("MySQL", b"\x4a\x00\x00\x00\x0a8.0.36\x00", {}),
        ("HTTP", b"", {b"GET": b"HTTP/1.1 404 Not Found\r\n\r\n"}),
        ("TLS", b"", {b"GET": b"\x15\x03\x01\x00\x02\x02\x46"}),
        ("Redis", b"", {b"GET": b"-NOAUTH Authentication required.\r\n"}),
        ("PostgreSQL", b"", {b"\x00\x00\x00\x08": b"N"}),
        (None, b"", {}),
        (None, b"", {b"": b"what?\r\n"}),
        (None, b"\x00", {}),
    ],
)
def test_a_protocol_is_known_by_its_answers(
    kind: str | None, greeting: bytes, answers: dict[bytes, bytes]
) -> None:
    """By a greeting, or by what it says to a request that no login is needed for."""
    patience = 0.05 if kind is None else 1.0  # who is silent costs all of it, a busy machine some
    with answering(greeting, answers) as port:
        assert server_kind_at("127.0.0.1", port, timeout=patience) == kind
    assert server_kind_at("127.0.0.1", port, timeout=0.05) is None  # nothing listens any more


@pytest.fixture
def own_kafka() -> KafkaCluster:
    """That of a run, in librdkafka's memory, may not answer any more after its other tests."""
    try:
        return KafkaCluster()
    except MissingServerError as error:
        missing(error)


@pytest.mark.slow
def test_real_servers_are_known(
    redis_server: RedisServer,
    nats_server: NatsServer,
    mosquitto: Mosquitto,
    own_kafka: KafkaCluster,
) -> None:
    """Each by its own protocol."""
    found = {
        "Redis": redis_server.port,
        "NATS": nats_server.port,
        "MQTT": mosquitto.port,
        "Kafka": own_kafka.port,
    }
    assert {
        kind: server_kind_at("127.0.0.1", port, timeout=10.0) for kind, port in found.items()
    } == {kind: kind for kind in found}


@pytest.mark.slow
def test_rabbitmq_is_known(rabbit_server: RabbitServer) -> None:
    """It answers every other protocol with the name of its own."""
    assert server_kind_at("127.0.0.1", rabbit_server.port) == "RabbitMQ"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mqtt://app:secret@127.0.0.1:{}/orders", "MQTT"),
        ("amqp://app:secret@127.0.0.1:{}/orders", "RabbitMQ"),
        ("redis://app:secret@127.0.0.1:{}/0?stream=orders", "Redis"),
        ("postgresql://app:secret@127.0.0.1:{}/shop?table=orders", "PostgreSQL"),
    ],
)
def test_the_doctor_says_that_another_protocol_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, expected: str
) -> None:
    """Of a connector, and what is sent there to find out holds no credentials."""
    with answering(b'INFO {"server_id":"x"} \r\n', {}) as port:
        settings = f'[connectors.orders]\nurl = "{url.format(port)}"\n'
        found: Any = doctor(settings, tmp_path, capsys)["connector orders"]
    assert found["status"] == "bad"
    assert f"127.0.0.1:{port} speaks NATS, and the URL is for {expected}" in found["found"]
    assert f"host and port of the {expected} server" in found["remedy"]
    assert "secret" not in str(found)


@pytest.mark.slow
def test_the_doctor_says_it_of_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where all parts keep their work."""
    with answering(b'INFO {"server_id":"x"} \r\n', {}) as port:
        found = doctor(f'[store]\nurl = "redis://127.0.0.1:{port}/0"\n', tmp_path, capsys)
    assert any("speaks NATS, and the URL is for Redis" in each["found"] for each in found.values())
