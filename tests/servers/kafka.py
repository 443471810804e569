"""A Kafka cluster for tests: librdkafka's own, in this process, on loopback.

It speaks the protocol, groups included, and keeps messages in memory: of each partition the last
five mebibytes or 100,000 messages. So it is never killed; connections to it are cut by a
:class:`KafkaLink`. Python's client shows only a part of what its library has, so the cluster is
made through ctypes: topics need a number of partitions, and groups must not wait three seconds.
"""

from __future__ import annotations

import ctypes
import itertools
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any, Self

import pytest

from tests.servers.skip_loudly import MissingServerError, missing

FAST: Mapping[str, Any] = {
    # The cluster answers a fetch that finds nothing only at its end, also when something comes.
    "fetch.wait.max.ms": 20,
    # The cluster lets a group rebalance for a second less than a session.
    "session.timeout.ms": 2000,
    "heartbeat.interval.ms": 200,
    # The library looks whether a heartbeat is due when one of its timers ends: each second, or so.
    "statistics.interval.ms": 100,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "socket.connection.setup.timeout.ms": 2000,
}
"""Settings of clients in tests."""
_PRODUCER = 0
_HOST = b"127.0.0.1"


@cache
def _library() -> ctypes.CDLL:
    try:
        import confluent_kafka
    except ImportError as error:
        raise MissingServerError("confluent-kafka is not installed") from error
    beside = Path(confluent_kafka.__file__).parent
    folders = (beside.parent / "confluent_kafka.libs", beside / ".dylibs")
    found = [file for folder in folders for file in sorted(folder.glob("librdkafka*"))]
    if not found:
        raise MissingServerError("confluent-kafka comes without librdkafka, so without a cluster")
    library = ctypes.CDLL(str(found[0]))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_conf_set", number, [pointer, text, text, text, ctypes.c_size_t]),
        ("rd_kafka_new", pointer, [number, pointer, text, ctypes.c_size_t]),
        ("rd_kafka_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_new", pointer, [pointer, number]),
        ("rd_kafka_mock_cluster_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_bootstraps", text, [pointer]),
        ("rd_kafka_mock_topic_create", number, [pointer, text, number, number]),
        ("rd_kafka_mock_group_initial_rebalance_delay_ms", None, [pointer, ctypes.c_int32]),
        ("rd_kafka_mock_topic_set_error", None, [pointer, text, number]),
        (
            "rd_kafka_mock_push_request_errors_array",
            None,
            [pointer, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(number)],
        ),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class KafkaCluster:
    """One broker, in this process."""

    def __init__(self) -> None:
        self._library = _library()
        said = ctypes.create_string_buffer(500)
        conf = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(conf, b"log_level", b"3", said, len(said))
        self._handle = self._library.rd_kafka_new(_PRODUCER, conf, said, len(said))
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._handle, 1)
        if not self._cluster:
            raise MissingServerError(f"librdkafka made no cluster: {said.value.decode()}")
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 1)
        servers: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        self.server = servers.decode()  # asked once: later the library has answered with garbage
        """Its only broker, as ``host:port``."""
        self._numbers = itertools.count(1)
        self._is_closed = False

    @property
    def port(self) -> int:
        """Where the broker listens."""
        return int(self.server.rpartition(":")[2])

    def new_topic(self, partitions: int = 1, name: str = "topic") -> str:
        """A topic that holds nothing yet, with its dead letters and its retries beside it."""
        topic = f"{name}-{next(self._numbers)}"
        for each in (topic, f"{topic}.dlq", f"{topic}.retry"):
            count = partitions if each == topic else 1
            self._library.rd_kafka_mock_topic_create(self._cluster, each.encode(), count, 1)
        return topic

    def refuse(self, topic: str, code: int) -> None:
        """Answer with this error to whoever asks for the topic; 0 ends that."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), code)

    def refuse_next(self, request: int, code: int) -> None:
        """Answer with this error to the next request of a kind."""
        codes = (ctypes.c_int * 1)(code)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, request, 1, codes)

    def close(self) -> None:
        """End it; what it held is gone. Closing twice is fine."""
        if self._is_closed:
            return
        self._is_closed = True
        # The library waits for the cluster's own thread, at times for ever: then the process ends
        # without it.
        ending = threading.Thread(target=self._destroy, daemon=True)
        ending.start()
        ending.join(10)

    def _destroy(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)


class KafkaLink:
    """A link to one broker that can be cut, and that brokers' answers do not lead around.

    Clients connect to the address that a broker tells them. In every answer that has it, the port
    becomes the one of the link, which takes the same four bytes.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._told = _HOST + struct.pack(">i", port), _HOST + struct.pack(">i", self.port)
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_cut = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def server(self) -> str:
        """The way through the link."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break every connection, and let none come about."""
        with self._lock:
            self._is_cut = True
            for end in self._ends:
                _shut(end)

    def heal(self) -> None:
        """Let connections come about again."""
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        """Take the link down."""
        self.cut()
        _shut(self._door)
        self._door.close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        with near, closing(socket.socket()) as far:
            with suppress(OSError):
                far.connect(self._target)
                with self._lock:
                    self._ends |= {near, far}
                    if self._is_cut:
                        _shut(near)
                back = threading.Thread(target=self._answer, args=(far, near), daemon=True)
                back.start()
                while data := near.recv(1 << 16):
                    far.sendall(data)
            _shut(far)
            with self._lock:
                self._ends -= {near, far}

    def _answer(self, far: socket.socket, near: socket.socket) -> None:
        with suppress(OSError), far.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                body = stream.read(struct.unpack(">i", head)[0])
                near.sendall(head + body.replace(*self._told))
        _shut(near)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """A Kafka cluster for all tests of a run.

    It ends with the process: when the library destroys a cluster that had many clients, it reads at
    times what it has freed.
    """
    try:
        yield KafkaCluster()
    except MissingServerError as error:
        missing(error)


@pytest.fixture
def kafka_link(kafka: KafkaCluster) -> Iterator[KafkaLink]:
    """A way to the cluster that can be cut."""
    with KafkaLink(kafka.port) as link:
        yield link
