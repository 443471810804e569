"""Which connector a URL means, and its options with their types.

The options of a connector are the keyword arguments of its class, and their annotations say what a
text in a URL becomes. So a connector declares each option once.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

from ergon_framework.connector.broker.url import ENCODED
from ergon_framework.errors import ConfigurationError, WiringError


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
_BY_SCHEME = {scheme: each for each in BROKERS for scheme in each.schemes}
_SWITCHES = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


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
        for name, value in parse_qsl(query, keep_blank_values=True):
            if name in options:
                raise _refused(name, f"the option {name!r} is given twice", "write it once")
            options[name] = value
    declared = declared_options(factory)
    for name in options:
        if name not in declared:
            raise _unknown(name, declared)
    for name, parameter in inspect.signature(factory).parameters.items():
        if parameter.default is parameter.empty and name not in options:
            raise _refused(name, f"the option {name!r} is missing", f"write {name}=… in the URL")
    return {name: _typed(name, value, declared[name]) for name, value in options.items()}


def _is_half(bare: str) -> bool:
    """Whether a URL may end within its password, where a bare ``?`` was."""
    login = bare.partition("://")[2].partition("/")[0]
    return ":" in login and "@" not in login


def declared_options(factory: Callable[..., Any]) -> dict[str, tuple[type, ...]]:
    """The arguments of a connector, each with the types it may have."""
    maker = inspect.getattr_static(factory, "__init__") if isinstance(factory, type) else factory
    hints = get_type_hints(maker)
    names = inspect.signature(factory).parameters
    return {name: tuple(_plain(hints.get(name, str))) for name in names}


def _plain(hint: Any) -> Iterable[type]:
    if get_origin(hint) in (Union, types.UnionType):
        return [each for part in get_args(hint) for each in _plain(part)]
    origin = get_origin(hint)
    return [type(get_args(hint)[0]) if origin is not None and get_args(hint) else hint]


def _typed(name: str, value: Any, kinds: tuple[type, ...]) -> Any:
    """The value of an option; texts, which URLs and variables give, become what it takes."""
    if Any in kinds or (value is None and type(None) in kinds):
        return value
    if isinstance(value, str) and str not in kinds:
        return _parsed(name, value, kinds)
    fits = any(kind in kinds for kind in type(value).__mro__ if kind is not object)
    if fits and not (isinstance(value, bool) and bool not in kinds) and not _is_nan(value):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and float in kinds:
        return float(value)
    if not any(kind in _KINDS for kind in kinds):
        return value  # an object that only code can give
    raise _mistyped(name, kinds)


def _parsed(name: str, text: str, kinds: tuple[type, ...]) -> Any:
    try:
        if bool in kinds:
            return _SWITCHES[text.lower()]
        if int in kinds:
            return int(text)
        if float in kinds and not _is_nan(number := float(text)):
            return number
    except (KeyError, ValueError):
        pass  # the text may be a secret in the wrong place, so it is not shown
    raise _mistyped(name, kinds)


def _is_nan(value: Any) -> bool:
    """Whether it is the number that is above and below nothing: no bound would hold it."""
    return isinstance(value, float) and math.isnan(value)


def _mistyped(name: str, kinds: tuple[type, ...]) -> ConfigurationError:
    wanted = " or ".join(_KINDS[each] for each in kinds if each in _KINDS)
    return _refused(name, f"the option {name!r} must be {wanted or 'something else'}", "correct it")


def _unknown(name: str, declared: Mapping[str, Any]) -> ConfigurationError:
    near = get_close_matches(name, declared, 1)
    known = f"known options are {', '.join(each for each in declared if each != 'url')}"
    hint = f"did you mean {near[0]!r}?" if near else known
    return _refused(name, f"unknown option {name[:32]!r}", hint)


def _refused(name: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(problem, remedy=remedy, details={"key": [name]})
