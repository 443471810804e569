"""The options of a connector: URL, login, TLS and bounds, checked before anything is opened."""

from __future__ import annotations

import functools
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ergon_framework.connector.broker.url import BrokerUrl, import_client, tls_files
from ergon_framework.connector.rabbitmq.errors import TLS_OPTIONS
from ergon_framework.connector.rabbitmq.messages import MAX_SHORT
from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.connection_errors import context_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SCHEMES = ("amqp", "amqps")
PORTS = {"amqp": 5672, "amqps": 5671}
SASL = ("plain", "external")
MAX_HEARTBEAT = 65_535


@dataclass(frozen=True, slots=True)
class RabbitLogin:
    """Where the broker is, how to log in, and how to tell the two client libraries."""

    url: BrokerUrl
    sasl: str
    tls: ssl.SSLContext | None
    heartbeat: int
    name: str
    """The name of the connection that the broker shows."""

    @property
    def place(self) -> tuple[str, str]:
        """The virtual host and the queue. The path of the URL names one or both."""
        vhost, mark, queue = self.url.path.rpartition("/")
        return (vhost if mark else "/"), queue

    def pika_parameters(self) -> Iterator[Any]:
        """The connection parameters of pika, for each host."""
        pika = import_client("pika", extra="rabbitmq", connector="rabbitmq")
        for host, port in self.url.hosts:
            credentials = pika.credentials.ExternalCredentials()
            if self.sasl == "plain":
                credentials = pika.PlainCredentials(self._user, self._password)
            yield pika.ConnectionParameters(
                host=host,
                port=port,
                virtual_host=self.place[0],
                credentials=credentials,
                heartbeat=self.heartbeat,
                ssl_options=pika.SSLOptions(self.tls, host) if self.tls else None,
                client_properties={"connection_name": self.name},
                connection_attempts=1,
            )

    def aio_pika_connects(self) -> Iterator[Callable[[], Any]]:
        """Functions that connect with aio-pika, for each host."""
        aio_pika = import_client("aio_pika", extra="rabbitmq", connector="rabbitmq")
        for host, port in self.url.hosts:
            given: dict[str, Any] = {
                "host": host,
                "port": port,
                "login": self._user,
                "password": self._password,
                "virtualhost": self.place[0],
                "ssl": self.tls is not None,
                "ssl_context": self.tls,
                "client_properties": {"connection_name": self.name},
                "heartbeat": self.heartbeat,
                "auth": self.sasl,
            }
            yield functools.partial(_connected, aio_pika, given)

    @property
    def _user(self) -> str:
        return "guest" if self.url.user is None else self.url.user

    @property
    def _password(self) -> str:
        return "guest" if self.url.password is None else self.url.password


async def _connected(aio_pika: Any, given: Mapping[str, Any]) -> Any:
    """A connection with aio-pika; one that was refused is closed before its error is raised.

    Otherwise it would close itself where it is collected, which may be a thread without a loop.
    """
    made: list[Any] = []

    def make(*arguments: Any, **options: Any) -> Any:
        made.append(aio_pika.Connection(*arguments, **options))
        return made[0]

    try:
        return await aio_pika.connect(connection_class=make, **given)
    except BaseException:
        for each in made:
            with suppress(Exception):
                await each.close()
        raise


def login(
    url: str,
    *,
    sasl: str,
    ca: str | None,
    cert: str | None,
    key: str | None,
    heartbeat: int,
    name: str,
) -> RabbitLogin:
    """Check everything that can be checked without a broker."""
    example = "amqp://user:password@host/orders"
    port = PORTS.get(str(url).partition("://")[0].lower(), PORTS["amqp"])
    found = BrokerUrl.of(url, port=port, schemes=SCHEMES, example=example)
    found.refuse_query("RabbitConnector")
    if sasl not in SASL:
        raise ConfigurationError(
            f"sasl is {sasl[:16]!r}", remedy="plain sends user and password, external a certificate"
        )
    has_tls = tls_files(found, ("amqps",), ca=ca, cert=cert, key=key)
    if sasl == "external" and not cert:
        raise ConfigurationError(
            "sasl=external proves who you are with a certificate, and there is none",
            remedy="give cert and key, and write amqps://",
        )
    made = RabbitLogin(
        found, sasl, context_of(TLS_OPTIONS, ca, cert, key) if has_tls else None, heartbeat, name
    )
    if not made.place[1]:
        raise ConfigurationError(
            f"{found.name} names no queue",
            remedy=f"write {example}, or amqp://host/virtual-host/orders",
        )
    return made


def short_names(**given: str | None) -> None:
    """Refuse names that a field of AMQP has no room for."""
    for name, value in given.items():
        if value is not None and len(value.encode()) > MAX_SHORT:
            raise ConfigurationError(
                f"{name} is {len(value.encode())} bytes long",
                remedy=f"AMQP has room for {MAX_SHORT} bytes",
            )
