"""Turns the options of a connector into settings of librdkafka."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ergon_framework.errors import ConfigurationError

OURS = frozenset(
    {
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "error_cb",
        "group.id",
        "message.max.bytes",
        "message.timeout.ms",
        "on_commit",
        "sasl.password",
        "sasl.username",
    }
)
"""Settings that belong to the connector: with other values it could not keep its promises."""
LONGEST_POLL = 300.0
"""Seconds without a poll after which the group takes a member for dead, at least."""
TLS = "kafka+ssl"
SCHEMES = ("kafka", TLS)
PORT = 9092
EXAMPLE = "kafka://host:9092/topic"
HEADROOM = 40_000
"""Bytes that a message may have beyond ``max_message_bytes``: its key, and the reason of a dead
letter. With it the default stays below what brokers take by default."""


_TOPIC = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
MAX_MESSAGE = 1_000_000_000
"""Bytes of a message that the client library has room for."""
MAX_QUEUED = 10_000_000
MAX_QUEUED_KIB = 2_097_151
"""What the client library can fetch ahead at most: fewer than may be in flight is fine."""
LONGEST = {"revoke_wait": 43_200.0, "send_timeout": 2_147_483.0}
"""Seconds that its settings can hold."""
FULL_QUEUE_BACKOFF = 20
"""Milliseconds after which a full queue is looked at again. The client library's own default is a
second, for queues a hundred times as long: ours would be empty for most of it."""
UNKNOWN = 10.0
"""Seconds for which brokers may not have heard yet of a topic that was made just now."""
_of_parents: list[Any] = []


def leave_to_parent(client: object) -> None:
    """Keep a reference to a client from before a fork, because freeing it would wait for threads of
    the parent.
    """
    _of_parents.append(client)


def check_topics(place: str, **given: str | None) -> None:
    """Refuse invalid topic names, and one topic in two roles, because it would feed itself."""
    parts: dict[str, str] = {}
    for part, topic in given.items():
        if topic is None:
            continue
        if not _TOPIC.fullmatch(topic):
            raise ConfigurationError(
                f"{place}: {part} is {topic[:80]!r}, which is no name of a topic",
                remedy="give up to 249 letters, digits, dots, hyphens and underscores",
            )
        if topic in parts:
            raise ConfigurationError(
                f"{place}: {part} is {topic!r}, as {parts[topic]} is",
                remedy=f"give {part} a topic of its own",
            )
        parts[topic] = part


@dataclass(frozen=True, slots=True)
class Login:
    """The credentials, and how the connection is secured."""

    is_tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    mechanism: str = "PLAIN"
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def settings(self) -> dict[str, Any]:
        """The settings for both ends."""
        protocol = ("SASL_" if self.user else "") + ("SSL" if self.is_tls else "PLAINTEXT")
        found: dict[str, Any] = {"security.protocol": protocol}
        if self.user:
            found |= {"sasl.mechanism": self.mechanism, "sasl.username": self.user}
            found["sasl.password"] = self.password or ""
        files = {"ca": self.ca, "certificate": self.cert, "key": self.key}
        return found | {f"ssl.{name}.location": each for name, each in files.items() if each}


@dataclass(frozen=True, slots=True)
class ClientRule:
    """What both ends are made from."""

    servers: str
    login: Login
    group: str
    max_message_bytes: int
    max_count: int
    max_bytes: int
    revoke_wait: float
    send_timeout: float
    more: Mapping[str, Any]
    """Settings of librdkafka that the user wants otherwise."""

    def __post_init__(self) -> None:
        for name in sorted(OURS & set(self.more)):
            raise ConfigurationError(
                f"client must not hold {name}: the connector sets it",
                remedy=f"leave {name} out; see the options of KafkaConnector",
            )
        if not self.group:
            raise ConfigurationError("group is empty", remedy='name one, group="billing"')

    def consumer(self) -> dict[str, Any]:
        """The settings of a group member."""
        return {
            **self._both(),
            "auto.offset.reset": "earliest",  # what was sent before the first start is work too
            "partition.assignment.strategy": "cooperative-sticky",
            "max.poll.interval.ms": int(max(LONGEST_POLL, 2 * self.revoke_wait) * 1000),
            "queued.min.messages": min(self.max_count, MAX_QUEUED),
            "queued.max.messages.kbytes": min(max(1, self.max_bytes // 1024), MAX_QUEUED_KIB),
            "fetch.queue.backoff.ms": FULL_QUEUE_BACKOFF,
            **self.more,
            "group.id": self.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
        }

    def producer(self) -> dict[str, Any]:
        """The settings of the sender."""
        return {
            **self._both(),
            # A topic that is not there is said to be missing in time, and not that time ran out.
            "topic.metadata.propagation.max.ms": int(min(self.send_timeout / 2, UNKNOWN) * 1000),
            **{name: value for name, value in self.more.items() if name not in _CONSUMERS_ONLY},
            "enable.idempotence": True,
            "message.timeout.ms": int(self.send_timeout * 1000),
        }

    def _both(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.servers,
            "client.id": "ergon",
            "message.max.bytes": self.max_message_bytes + HEADROOM,
            "log.connection.close": False,
            "log_level": 2,  # what is less than critical comes as an error, which we log ourselves
            **self.login.settings(),
        }


_CONSUMERS_ONLY = frozenset(
    {
        "auto.offset.reset",
        "fetch.error.backoff.ms",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "group.instance.id",
        "heartbeat.interval.ms",
        "isolation.level",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "partition.assignment.strategy",
        "queued.max.messages.kbytes",
        "queued.min.messages",
        "session.timeout.ms",
    }
)
"""Settings at which librdkafka warns when a producer has them."""
