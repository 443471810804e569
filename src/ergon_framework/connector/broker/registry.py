"""Finds the connector of a URL, and its options with their types."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl

from ergon_framework.connector.broker.options import (
    declared_options,
    refuse_unknown,
    typed_options,
)
from ergon_framework.connector.broker.url import ENCODED
from ergon_framework.errors import ConfigurationError, WiringError
from ergon_framework.storage.urls import refuse_undecodable


@dataclass(frozen=True, slots=True)
class BrokerType:
    """A connector to a broker, before its module is imported."""

    name: str
    schemes: tuple[str, ...]
    reference: str


BROKERS: tuple[BrokerType, ...] = (
    BrokerType(
        "database",
        ("rows+sqlite", "rows+postgresql"),
        "ergon_framework.connector.database:DatabaseConnector",
    ),
    BrokerType("files", ("files", "s3"), "ergon_framework.connector.files:FilesConnector"),
    BrokerType(
        "http-poll",
        ("poll+https", "poll+http"),
        "ergon_framework.connector.http:HttpPollConnector",
    ),
    BrokerType(
        "http-post",
        ("post+https", "post+http"),
        "ergon_framework.connector.http:HttpPostConnector",
    ),
    BrokerType("kafka", ("kafka", "kafka+ssl"), "ergon_framework.connector.kafka:KafkaConnector"),
    BrokerType("mqtt", ("mqtt", "mqtts"), "ergon_framework.connector.mqtt:MqttConnector"),
    BrokerType("nats", ("nats", "tls"), "ergon_framework.connector.nats:NatsConnector"),
    BrokerType(
        "postgres",
        ("postgresql", "postgres"),
        "ergon_framework.connector.postgres:PostgresConnector",
    ),
    BrokerType("rabbitmq", ("amqp", "amqps"), "ergon_framework.connector.rabbitmq:RabbitConnector"),
    BrokerType(
        "redis-streams",
        ("redis", "rediss"),
        "ergon_framework.connector.redis_streams:RedisStreamsConnector",
    ),
    BrokerType("sqs", ("sqs",), "ergon_framework.connector.sqs:SqsConnector"),
)
"""One entry for each, in the order of the names."""
REFERENCES = {each.name: each.reference for each in BROKERS}
_DECODED = ("rows+postgresql://", "sqs://", "s3://")
"""URLs that their connectors do not take apart as that of a broker, and decode. An address of HTTP
is the API's to encode, and a folder may be called anything."""
_BY_SCHEME = {scheme: each for each in BROKERS for scheme in each.schemes}


def is_url(source: object) -> bool:
    """Whether a source is the URL of a broker, and not the name of a connector."""
    return isinstance(source, str) and "://" in source


def type_of_url(url: str) -> BrokerType:
    """The connector that the scheme of a URL stands for."""
    scheme, mark, _ = url.partition("://")
    known = _BY_SCHEME.get(scheme.lower()) if mark else None
    if known is not None:
        return known
    near = get_close_matches(scheme.lower(), _BY_SCHEME, 1) if mark else []
    # What stands before the mark may be anything, so it is not shown when it is long.
    shown = f"the URL {scheme.lower()}://" if mark and len(scheme) <= 16 else "that URL"
    raise ConfigurationError(
        f"there is no connector for {shown}",
        remedy=(
            f"did you mean {near[0]}://?"
            if near
            else f"known are {', '.join(f'{each}://' for each in sorted(_BY_SCHEME))}"
        ),
    )


def class_of(broker: BrokerType) -> Any:
    """The class of a connector."""
    module, _, name = broker.reference.partition(":")
    return getattr(import_module(module), name)


def check_url(source: object) -> None:
    """Refuse the URL of a consumer that means no connector, or has an option that it does not know.

    Anything else than a URL is let through.
    """
    if not isinstance(source, str) or not is_url(source):
        return
    try:
        complete_options(class_of(type_of_url(source)), {"url": source})
    except ConfigurationError as error:
        raise WiringError(
            f"the URL of a consumer is wrong: {error.message}", remedy=error.remedy
        ) from None


def from_url(url: str, **options: Any) -> Any:
    """The connector that a URL means, such as ``redis://host/0?stream=orders&group=billing``.

    Nothing is connected yet. An option may stand in the URL or be given here, not in both.
    """
    broker = type_of_url(url)
    factory = class_of(broker)
    return factory(**complete_options(factory, {"url": url, **options}))


def complete_options(factory: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a connector: the URL without its options, and the options with their types.

    Names are checked, too: a mistyped one is refused with the one that was meant.
    """
    options = dict(given)
    url = options.get("url")
    # The query of a plain address belongs to the API that is there.
    if isinstance(url, str) and "?" in url and not url.startswith(("http://", "https://")):
        bare, _, query = url.partition("?")
        if _is_half(bare) and "@" in query:
            raise _refused("url", "the URL of the connector cannot be read", ENCODED)
        options["url"] = bare
        refuse_undecodable(query, "the connector")
        for name, value in parse_qsl(query, keep_blank_values=True):
            if name in options:
                raise _refused(name, f"the option {name!r} is given twice", "write it once")
            options[name] = value
    if isinstance(url, str) and url.lower().startswith(_DECODED):
        refuse_undecodable(url, "the connector")
    refuse_unknown(options, declared_options(factory))
    for name, parameter in inspect.signature(factory).parameters.items():
        if parameter.default is parameter.empty and name not in options:
            remedy = (
                f"write {name}=… in the URL" if "url" in options else 'write url = "SCHEME://…"'
            )
            raise _refused(name, f"the option {name!r} is missing", remedy)
    return typed_options(factory, options)


def _is_half(bare: str) -> bool:
    """Whether a URL may end within its password, where a bare ``?`` was."""
    login = bare.partition("://")[2].partition("/")[0]
    return ":" in login and "@" not in login


def _refused(name: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(problem, remedy=remedy, details={"key": [name]})
