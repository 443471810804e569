"""What the classes of the boundary are given is refused where it is given, if it is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary import (
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    Inbox,
    LocalZone,
    Node,
    Outbox,
    Producer,
    ZoneSettings,
)
from ergon_framework.boundary.arguments import check_given, one_of
from ergon_framework.boundary.client.consumer import CONSUMER, FactConsumerOptions
from ergon_framework.boundary.client.options import PRODUCER, ProducerOptions
from ergon_framework.boundary.model import Delivery
from ergon_framework.core.retry import Backoff, RetryRule
from ergon_framework.errors import ConfigurationError, FactInvalidError
from ergon_framework.testing.clock import VirtualClock
from tests.boundary.client.scripted import MemoryNode

pytestmark = pytest.mark.req("BOUNDARY:badinput")

URL = "http://127.0.0.1:1"
WRONG = object()
"""Nothing takes that."""

NO_SECONDS: list[object] = [True, "1", None, -1, 0, float("nan"), float("inf"), 10**400]
NO_COUNTS: list[object] = [True, "1", None, -1, 0, 1.5]


@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
def test_seconds_are_no_backoff(kind: Callable[..., Any]) -> None:
    """It was taken, and met at the first handler that failed."""
    with pytest.raises(ConfigurationError, match=r"backoff is 0\.05 \(give a Backoff of ergon"):
        kind(URL, "c", backoff=0.05)


@pytest.mark.parametrize("name", sorted(CONSUMER))
@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
def test_every_option_of_a_consumer_is_looked_at(kind: Callable[..., Any], name: str) -> None:
    """It is named, with what it is and what it has to be."""
    with pytest.raises(ConfigurationError, match=rf"^{name} is ") as caught:
        kind(URL, "c", **{name: WRONG})
    assert caught.value.remedy


@pytest.mark.parametrize("name", sorted(PRODUCER))
@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
def test_every_option_of_a_producer_is_looked_at(kind: Callable[..., Any], name: str) -> None:
    """The same for those who tell."""
    with pytest.raises(ConfigurationError, match=rf"^{name} is ") as caught:
        kind(URL, **{name: WRONG})
    assert caught.value.remedy


def test_no_option_is_forgotten() -> None:
    """What may be given is what is looked at."""
    assert CONSUMER.keys() == FactConsumerOptions.__optional_keys__
    assert PRODUCER.keys() == ProducerOptions.__optional_keys__


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in ("timeout", "lease") for value in NO_SECONDS]
    + [(name, value) for name in ("limit", "max_attempts", "connections") for value in NO_COUNTS]
    + [("required", 1), ("start", "middle"), ("start", []), ("retry", Backoff())],
)
def test_what_looks_alike_is_refused(name: str, value: object) -> None:
    """Numbers are no booleans, and a limit is a whole one."""
    with pytest.raises(ConfigurationError, match=rf"^{name} is "):
        Consumer(URL, "c", **{name: value})  # type: ignore[arg-type]


def test_what_is_right_is_taken() -> None:
    """Whole numbers are seconds, paths are files, and None is none where there need be none."""
    none: Any = dict.fromkeys(("log", "to_zone", "holder", "on_gap", "expected_zone", "cert"))
    with Consumer(
        URL, "c", lease=5, timeout=1, backoff=Backoff(base=0.05), retry=RetryRule(), **none
    ):
        pass
    with Producer(URL, deadline=0, jitter="full", from_zone=None):
        pass
    check_given({"word": "a"}, {"word": one_of("a", "b")})


def test_a_fact_may_be_tried_without_end() -> None:
    """For who wants nothing to be set aside, ever."""
    node = MemoryNode(VirtualClock())
    node.fill(1)
    seen: list[Delivery] = []

    def handle(delivery: Delivery) -> None:
        seen.append(delivery)
        assert len(seen) > 10

    at_once = Backoff(base=0.0)
    consumer = Consumer(node, "c", log="outbound", max_attempts=math.inf, backoff=at_once)
    report = consumer.run(handle, until_empty=True)
    assert len(seen) == 11
    assert report.quarantined == 0


@pytest.mark.parametrize("node", [None, 5, b"http://127.0.0.1:1", WRONG])
@pytest.mark.parametrize("kind", [Producer, AsyncProducer, Consumer, AsyncConsumer])
def test_a_node_is_a_url_or_can_be_called(kind: Callable[..., Any], node: object) -> None:
    """Anything else was taken for a transport."""
    with pytest.raises(ConfigurationError, match=r"^node is .*give the URL"):
        kind(node, **({} if kind in (Producer, AsyncProducer) else {"consumer_name": "c"}))


@pytest.mark.parametrize("name", [None, 5, b"c", ""])
def test_a_consumer_has_a_name(name: Any) -> None:
    """Which is a text."""
    with pytest.raises(ConfigurationError, match=r"^consumer_name is "):
        Consumer(URL, name)


def test_a_handler_that_cannot_be_called_sets_nothing_aside() -> None:
    """It would have looked like one that fails at every fact."""
    node = MemoryNode(VirtualClock())
    node.fill(1)
    consumer = Consumer(node, "c", log="outbound", max_attempts=1)
    with pytest.raises(ConfigurationError, match=r"^handler is None"):
        consumer.run(None, until_empty=True)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"^wait is 'x'"):
        consumer.run(print, wait="x")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"^wait is None"):
        consumer.fetch(1, None)  # type: ignore[arg-type]
    seen: list[Delivery] = []
    consumer.run(seen.append, until_empty=True)
    assert len(seen) == 1


@pytest.mark.parametrize(
    "name",
    [
        *("producer", "clock", "max_items", "max_bytes", "limits", "strict_ids", "on_refusal"),
        *("recover", "backoff", "batch_items", "batch_bytes", "poll", "busy_timeout", "dice"),
    ],
)
def test_every_argument_of_an_outbox_is_looked_at(tmp_path: Path, name: str) -> None:
    """And no file is made."""
    with pytest.raises(ConfigurationError, match=rf"^{name} is "):
        Outbox(tmp_path / "outbox.db", **{name: WRONG})  # type: ignore[arg-type]
    assert not [*tmp_path.iterdir()]
    with pytest.raises(ConfigurationError, match=r"^path is 5"):
        Outbox(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"consumer": 5}, {"table": 5}, {"paramstyle": []}, {"clock": 5}])
def test_every_argument_of_an_inbox_is_looked_at(given: dict[str, Any]) -> None:
    """A clock, for one, would be met at the first fact."""
    with pytest.raises(ConfigurationError):
        Inbox(**{"consumer": "c", **given})


@pytest.mark.parametrize("kind", [LocalZone.open, Node])
@pytest.mark.parametrize("settings", [None, {"data": "plant-a"}, "plant-a"])
def test_a_zone_has_settings(kind: Callable[..., Any], settings: object) -> None:
    """A dict is none."""
    with pytest.raises(ConfigurationError, match=r"^settings is .*give ZoneSettings"):
        kind("plant-a", settings)


@pytest.mark.parametrize("kind", [LocalZone.open, Node])
def test_a_zone_has_a_name(kind: Callable[..., Any], tmp_path: Path) -> None:
    """Nothing is made for one that has none."""
    with pytest.raises(ConfigurationError, match=r"^name is 5"):
        kind(5, ZoneSettings(data=str(tmp_path / "zone")))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("fact", [None, 5, "fact", []])
def test_what_is_published_is_a_fact(fact: Any) -> None:
    """As it is when it is appended."""
    with Producer(URL) as producer, pytest.raises(FactInvalidError, match="a fact has subject"):
        producer.publish(fact, message_id="m")
