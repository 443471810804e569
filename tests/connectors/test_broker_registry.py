"""Connectors by URL: in Python, in the settings, and what is said of mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ergon_framework import App
from ergon_framework.app.diagnostics.check import check
from ergon_framework.app.factories import connector_factory
from ergon_framework.app.settings import load_settings
from ergon_framework.cli import invoke
from ergon_framework.connector import from_url
from ergon_framework.connector.broker.options import declared_options
from ergon_framework.connector.broker.registry import BROKERS, class_of
from ergon_framework.connector.broker.url import BrokerUrl, import_client, tls_files
from ergon_framework.connector.redis_streams import RedisStreamsConnector
from ergon_framework.errors import (
    ConfigurationError,
    MissingExtraError,
    SettingsError,
    WiringError,
)

SECRET = "hunter2"  # noqa: S105 - of nobody
URL = f"redis://app:{SECRET}@127.0.0.1:1/0?stream=orders"


def url_of(text: str) -> BrokerUrl:
    """Taken apart as the Redis connector does."""
    return BrokerUrl.of(text, port=6379, schemes=("redis", "rediss"), example="redis://host/0")


@pytest.mark.parametrize("broker", BROKERS, ids=lambda each: each.name)
def test_every_broker_is_found_by_its_schemes(broker: Any) -> None:
    """And its class can be looked at without connecting; it takes a URL and TLS files."""
    options = declared_options(class_of(broker))
    wanted = {"url", "name"}
    if broker.name != "database":  # rows are no messages
        wanted |= {"format", "max_message_bytes", "max_in_flight"}
    assert wanted <= options.keys()


def test_a_url_makes_a_connector() -> None:
    """Texts become what the options take, and options may stand beside the URL."""
    made = from_url("redis://127.0.0.1:1/0?stream=orders&group=billing", name="orders")
    assert isinstance(made, RedisStreamsConnector)
    assert made.name == "orders"
    assert made.health()
    made.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://host/0?stream=orders&grop=billing", "did you mean 'group'"),
        ("nats://host/?stream=orders&durable=billing", "'durable' (known options are stream"),
        ("redis://host/0?stream=orders&wait=soon", "wait must be a number"),
        ("redis://host/0?stream=orders&max_in_flight=1.5", "max_in_flight must be a whole"),
        ("redis://host/0", "'stream' is missing"),
        ("redis://host/0?stream=a&stream=b", "twice"),
        ("redis://host/x?stream=a", "number of a database"),
        ("redis://host:port/0?stream=a", "cannot be read"),
        ("redis://a:b/c@host/0?stream=a", "cannot be read"),
        ("rediss+x://host/0?stream=a", "no connector for the URL"),
        ("reddis://host/0?stream=a", "did you mean redis"),
        ("redis://host/0?stream=a&ca=file", "rediss://"),
        ("rediss://host/0?stream=a&cert=file", "belong together"),
        ("redis://host/0?stream=a&format=xml", "json, text or bytes"),
        ("redis://host/0?stream=a&claim_idle=0", "claim_idle"),
        ("redis://host/0?stream=a&wait=nan", "wait must be a number"),
        ("rediss://host/0?stream=a&ca=/of-nobody.pem", "ca cannot be read: /of-nobody.pem"),
    ],
)
def test_a_mistake_in_a_url_is_told(url: str, message: str) -> None:
    """What is wrong, and what to write."""
    with pytest.raises(ConfigurationError) as caught:
        from_url(url)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://app:{SECRET}@host/x?stream=a",
        f"redis://app:{SECRET}@host:port/0?stream=a",
        f"redis://app:{SECRET}@host/0?sream=a",
        f"redis://app:{SECRET}/@host/0?stream=a",
        f"redis://app:half?{SECRET}@host/0?stream=a",
        f"amqq://app:{SECRET}@host",
        f"postgresql://app:%ff{SECRET}@host/db?table=orders",
        f"nats://app:{SECRET}@[::1?stream=S&consumer=c",
    ],
)
def test_no_mistake_shows_a_password(url: str) -> None:
    """Wherever it stands."""
    with pytest.raises(ConfigurationError) as caught:
        from_url(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("odd", ["%ff", "%C3", "%ED%A0%80", "\udcff"])
@pytest.mark.parametrize(
    "url",
    [
        "redis://u:ODD@host/0?stream=a",
        "redis://host/0?stream=ODD",
        "amqp://host/ODD",
        "kafka://host:9092/ODD?group=g",
        "mqtt://host/t?client_id=ODD",
        "nats://u:ODD@host?stream=S&consumer=c",
        "postgresql://u:ODD@host/db?table=t",
        "post+https://host/x?name=ODD",
        "rows+postgresql://u:ODD@host/db?table=t",
        "sqs://us-east-1/ODD",
    ],
)
def test_what_is_no_utf_8_text_in_a_url_is_refused(url: str, odd: str) -> None:
    """Read as another character, it would be another password, queue or stream."""
    with pytest.raises(ConfigurationError, match="UTF-8"):
        from_url(url.replace("ODD", odd))


def test_an_app_refuses_the_url_of_a_consumer_at_once() -> None:
    """A mistyped option, or a scheme that no connector has, without the password."""
    app = App()
    for url in (f"{URL}&grop=x", f"amqq://app:{SECRET}@host"):
        with pytest.raises(WiringError, match="URL of a consumer") as caught:
            app.consumer(url)
        assert SECRET not in str(caught.value)
    app.close()


def test_a_connector_shows_no_password() -> None:
    """In no repr, and in no error of a server that is away."""
    connector = from_url(URL)
    with pytest.raises(Exception, match="cannot be reached") as caught:
        connector.get_transactions_count()
    assert SECRET not in str(caught.value) + repr(connector) + repr(url_of(URL))
    assert not connector.health()
    connector.close()


def test_the_parts_of_a_url() -> None:
    """Several hosts, an IPv6 address, encoded credentials, a name that is safe to show."""
    url = url_of("redis://us%40er:p%3Ass@a:1,[::1]:2,c/path/x?y=1")
    assert (url.user, url.password, url.path) == ("us@er", "p:ss", "path/x")
    assert url.hosts == (("a", 1), ("::1", 2), ("c", 6379))
    assert url.name == "redis://a:1,[::1]:2,c:6379"
    assert url.query == {"y": "1"}
    assert (url_of("redis:///0").host, url.port) == ("localhost", 1)


def test_the_class_refuses_options_in_its_url() -> None:
    """They would be left out without a word."""
    with pytest.raises(ConfigurationError, match="from_url"):
        RedisStreamsConnector("redis://host/0?group=billing", stream="orders")


def test_tls_is_asked_for_by_the_scheme(tmp_path: Path) -> None:
    """And files of certificates belong to it."""
    ca = tmp_path / "ca.pem"
    ca.touch()
    assert tls_files(url_of("rediss://host"), ("rediss",), ca=str(ca), cert=None, key=None)
    assert not tls_files(url_of("redis://host"), ("rediss",), ca=None, cert=None, key=None)


def test_a_missing_extra_is_named() -> None:
    """With the command that installs it."""
    with pytest.raises(MissingExtraError, match=r"pip install 'ergon-framework\[kafka\]'"):
        import_client("a_package_nobody_has", extra="kafka", connector="to Kafka")


# ---- in an App and in the settings --------------------------------------------------------------


def test_a_consumer_of_an_app_names_a_url() -> None:
    """A mistake is told where it is declared, and the password is no name of anything."""
    app = App()

    @app.consumer(URL)
    def orders(order: dict[str, Any]) -> None: ...

    assert SECRET not in repr(orders)
    assert orders.policy is not None
    with pytest.raises(WiringError, match="only a URL") as caught:
        orders.task()
    assert SECRET not in str(caught.value)
    app.close()


def settings_file(folder: Path, text: str) -> Path:
    """An ergon.toml."""
    path = folder / "ergon.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "table",
    [
        'url = "redis://127.0.0.1:1/0?stream=orders&group=billing"',
        'url = "redis://127.0.0.1:1/0"\nstream = "orders"\ngroup = "billing"',
        'type = "redis-streams"\nurl = "redis://127.0.0.1:1/0"\nstream = "orders"',
        'url = "env:BROKER"',
    ],
)
def test_settings_name_a_url(tmp_path: Path, table: str) -> None:
    """Its scheme says the type; options stand in the URL or beside it, secrets elsewhere."""
    file = settings_file(tmp_path, f"[connectors.orders]\n{table}\n")
    settings = load_settings(file, {"BROKER": URL})
    assert settings.connectors["orders"].type == "redis-streams"
    factory = connector_factory("orders", settings.connectors["orders"], settings)
    factory.check()
    assert SECRET not in repr(factory)
    made = factory.make()
    assert isinstance(made, RedisStreamsConnector)
    made.close()
    check(file, {"BROKER": URL})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('url = "redis://h/0?stream=orders&grop=x"', "did you mean 'group'"),
        ('url = "redis://h/0?stream=orders"\nmax_in_flight = "many"', "max_in_flight"),
        ('url = "redis://h/0?stream=orders"\ngrop = "x"', "did you mean 'group'"),
        ('url = "amqq://h/0"', "no connector for the URL"),
        ('url = "redis://h/zero?stream=orders"', "number of a database"),
        ('url = "redis://h/0?stream=orders"\nstream = "more"', "twice"),
        ('type = "rabbitmq"', "'url' is missing (write url ="),
    ],
)
def test_check_tells_what_is_wrong_without_connecting(
    tmp_path: Path, table: str, message: str
) -> None:
    """By the key of the settings that is to be corrected."""
    with pytest.raises(SettingsError) as caught:
        check(settings_file(tmp_path, f"[connectors.orders]\n{table}\n"), {})
    assert message in str(caught.value)


def test_the_doctor_says_that_a_broker_is_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its address and without its password."""
    file = settings_file(tmp_path, f'[connectors.orders]\nurl = "{URL}"\n')
    invoke(["doctor", "--config", str(file), "--json"])
    text = capsys.readouterr().out
    found = {each["check"]: each for each in json.loads(text)}["connector orders"]
    assert found["status"] == "bad"
    assert "redis://127.0.0.1:1/0 cannot be reached" in found["found"]
    assert SECRET not in text
