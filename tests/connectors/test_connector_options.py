"""Every connector refuses options that cannot be meant, in Python, by URL and in the settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework import App
from ergon_framework.app.diagnostics.check import check
from ergon_framework.app.factories import CONNECTORS
from ergon_framework.app.imports import load
from ergon_framework.connector import WebhookReceiver, from_url
from ergon_framework.connector.broker.options import declared_options
from ergon_framework.connector.broker.registry import REFERENCES
from ergon_framework.connector.webhook import github_signature
from ergon_framework.errors import ConfigurationError, SettingsError, WiringError

NAN = float("nan")
GIVEN: dict[str, dict[str, Any]] = {
    "boundary": {"node": "http://127.0.0.1:1", "from_zone": "plant"},
    "database": {"url": "rows+sqlite:////nowhere/of-nobody.db", "table": "orders"},
    "files": {"url": "files:///nowhere/of-nobody"},
    "http-poll": {"url": "poll+http://127.0.0.1:1/orders", "state": "/nowhere/polls.db"},
    "http-post": {"url": "post+http://127.0.0.1:1/orders"},
    "jobs": {"store": "memory://"},
    "jsonl": {"inbox": "/"},
    "kafka": {"url": "kafka://127.0.0.1:1/orders"},
    "memory": {},
    "mqtt": {"url": "mqtt://127.0.0.1:1/plant/orders"},
    "nats": {"url": "nats://127.0.0.1:1", "subject": "orders"},
    "postgres": {"url": "postgresql://127.0.0.1:1/shop", "table": "orders"},
    "rabbitmq": {"url": "amqp://127.0.0.1:1/orders"},
    "redis-streams": {"url": "redis://127.0.0.1:1/0", "stream": "orders"},
    "sqs": {"url": "sqs://eu-central-1/orders"},
}
"""What each needs, which is right, and leads nowhere."""
MAY_BE_UNBOUNDED = (("postgres", "max_deliveries"), ("redis-streams", "max_deliveries"))
"""Options of connectors for which 0 means that there is no bound."""
MAY_BE_ZERO = {
    *("wait", "late", "settle", "interval", "first_page", "commit_interval", "revoke_wait"),
    *("heartbeat", "max_deliver", "max_dead", "drain"),
}
OUT_OF_BOUNDS: dict[str, list[tuple[str, Any]]] = {
    "http-poll": [("timeout", 3601)],
    "kafka": [
        ("max_message_bytes", 10**9),
        ("revoke_wait", 43_201),
        ("send_timeout", 2_147_484),
        ("wait", float("inf")),
    ],
    "mqtt": [("keepalive", 65_536), ("session_expiry", 2**32)],
    "nats": [("wait", 1e10)],
    "postgres": [("lease", 1e10)],
    "rabbitmq": [("delivery_limit", 2**31), ("heartbeat", 65_536), ("prefetch", 65_536)],
    "redis-streams": [("claim_idle", 864_001)],
    "sqs": [("visibility", 43_201), ("wait", 21)],
}
"""What there is no room for."""
WITH_TLS = {
    "http-poll": "poll+https://127.0.0.1:1/orders",
    "http-post": "post+https://127.0.0.1:1/orders",
    "kafka": "kafka+ssl://127.0.0.1:1/orders",
    "mqtt": "mqtts://127.0.0.1:1/plant/orders",
    "nats": "tls://127.0.0.1:1",
    "rabbitmq": "amqps://127.0.0.1:1/orders",
    "redis-streams": "rediss://127.0.0.1:1/0",
}
"""Addresses of those that take files of certificates only with another scheme."""
FILES = ("ca", "cert", "key", "creds", "nkey")


def class_of(kind: str) -> Any:
    """The class of a connector."""
    return load(CONNECTORS[kind])


def bare(kind: str) -> dict[str, Any]:
    """What its class is given in Python."""
    given = GIVEN[kind]
    url = given.get("url", "").partition("+")
    return given | ({"url": url[2]} if url[1] and kind == "database" else {})


def wrong_numbers(kind: str) -> Iterator[tuple[str, Any]]:
    """Values that nobody can mean, of each option of a connector that is a number."""
    for name, types in declared_options(class_of(kind)).items():
        if str in types or not {int, float} & {*types}:
            continue
        yield from ((name, value) for value in (-1, True, "5", NAN))
        if type(None) not in types:
            yield name, None
        if float not in types:
            yield name, 1.5
        if name not in MAY_BE_ZERO and (kind, name) not in MAY_BE_UNBOUNDED:
            yield name, 0
    yield from OUT_OF_BOUNDS.get(kind, ())


@pytest.mark.parametrize("kind", GIVEN)
def test_a_number_that_cannot_be_meant_is_refused(kind: str) -> None:
    """In words that name the option and the value, and say what to give; nothing is opened."""
    given = bare(kind)
    for name, value in wrong_numbers(kind):
        with pytest.raises(ConfigurationError) as caught:
            class_of(kind)(**{**given, name: value})
        problem, _, shown = caught.value.message.rpartition(", not ")
        assert problem.startswith(f"{name} must be"), (name, value)
        assert shown.startswith(repr(value).removesuffix(".0")), (name, value)
        assert f"give {name} " in caught.value.remedy


@pytest.mark.parametrize("kind", GIVEN)
def test_what_is_right_is_taken(kind: str, tmp_path: Path) -> None:
    """The same without the mistake: nothing is connected, and it can be closed."""
    given = bare(kind) | ({"inbox": str(tmp_path)} if kind == "jsonl" else {})
    class_of(kind)(**given).close()


@pytest.mark.parametrize("kind", GIVEN)
def test_a_name_that_is_no_option_is_refused_with_the_one_that_was_meant(kind: str) -> None:
    """In Python as in the settings: it is no TypeError deep in a traceback."""
    factory = class_of(kind)
    meant = list(inspect.signature(factory).parameters)[-1]
    with pytest.raises(ConfigurationError, match=f"did you mean '{meant}'"):
        factory(**{**GIVEN[kind], f"{meant}x": 1})


@pytest.mark.parametrize("kind", GIVEN)
def test_an_empty_text_is_that_of_a_variable_that_is_not_set(kind: str) -> None:
    """An option that has another default than an empty text has no use for one."""
    factory = class_of(kind)
    with pytest.raises(ConfigurationError, match="name is empty"):
        factory(**{**GIVEN[kind], "name": ""})
    with pytest.raises(ConfigurationError, match="name must be text, not 5"):
        factory(**{**GIVEN[kind], "name": 5})


@pytest.mark.parametrize("kind", REFERENCES)
def test_a_url_and_the_settings_are_refused_alike(kind: str, tmp_path: Path) -> None:
    """``from_url``, a consumer of an App, and ``ergon check`` name the option, and say the same."""
    name = "late" if kind == "database" else "max_in_flight" if kind != "http-post" else "attempts"
    more = "&".join(f"{each}={value}" for each, value in GIVEN[kind].items() if each != "url")
    url = f"{GIVEN[kind]['url']}?{more}{'&' if more else ''}{name}=-1"
    told = f"{name} must be at least .*, not -1"
    with pytest.raises(ConfigurationError, match=told):
        from_url(url)
    with App() as app, pytest.raises(WiringError, match=told):
        app.consumer(url)
    file = tmp_path / "ergon.toml"
    file.write_text(f'[connectors.orders]\nurl = "{url}"\n')
    with pytest.raises(SettingsError, match=told):
        check(file, {})


@pytest.mark.parametrize("kind", [*WITH_TLS, "postgres", "sqs"])
def test_a_file_that_cannot_be_read_is_refused_before_anything_is_connected(
    kind: str, tmp_path: Path
) -> None:
    """The client library would look for it each time it connects, which looks like an outage."""
    file = tmp_path / "right.pem"
    file.write_text("a file that can be read")
    given = bare(kind) | ({"url": WITH_TLS[kind]} if kind in WITH_TLS else {})
    for name in set(FILES) & {*declared_options(class_of(kind))}:
        beside = {"cert": "key", "key": "cert"}.get(name)
        for wrong in (tmp_path / "of-nobody.pem", tmp_path):
            options = {name: str(wrong)} | ({beside: str(file)} if beside else {})
            with pytest.raises(ConfigurationError) as caught:
                class_of(kind)(**given, **options)
            assert caught.value.message == f"the file of {name} cannot be read: {wrong}"
            assert caught.value.remedy


def test_postgresql_takes_the_authorities_of_the_system() -> None:
    """libpq has a word for them, in the place of a file."""
    class_of("postgres")(**GIVEN["postgres"], sslmode="verify-full", ca="system").close()


@pytest.mark.parametrize("name", ["max_body_bytes", "max_requests", "timeout"])
@pytest.mark.parametrize("value", [0, -1, True, "5", NAN, None])
def test_bounds_of_a_webhook_are_checked_as_those_of_connectors(name: str, value: Any) -> None:
    """With the option named."""
    make: Callable[..., Any] = WebhookReceiver
    with pytest.raises(ConfigurationError, match=f"^{name} must be"):
        make(object(), github_signature("a secret of nobody"), **{name: value})
