"""From a broker through two sites to a webhook: nothing is lost, each effect once, one trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from ergon_framework.connector.rabbitmq import RabbitConnector
from tests.connectors.kafka import kafka_topic
from tests.connectors.pipeline.http_services import RATE, HttpServices
from tests.connectors.pipeline.sites import Site, write_sites
from tests.connectors.rabbitmq import other_program
from tests.waiting import until

pytestmark = pytest.mark.slow


def trace_of(number: int) -> str:
    """The trace id of an order."""
    return f"{number + 1:032x}"


class Pipeline:
    """Both sites, the services around them, and the orders that were sent."""

    def __init__(
        self, folder: Path, orders: str, send: Callable[[bytes, dict[str, str]], None]
    ) -> None:
        self._send = send
        self._stack = ExitStack()
        self.services = HttpServices()
        write_sites(folder)
        self.shop = Site(folder, "shop", orders, self.services)
        self.warehouse = Site(folder, "warehouse", orders, self.services)
        self.sent = 0

    def __enter__(self) -> Self:
        for each in (self.services, self.shop, self.warehouse):
            self._stack.enter_context(each)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def order(self, count: int) -> None:
        """Send so many more orders, each as the next span of a trace of its own."""
        for number in range(self.sent, self.sent + count):
            trace = {"traceparent": f"00-{trace_of(number)}-00000000000000ff-01"}
            self._send(json.dumps({"id": f"o{number}", "eur": number}).encode(), trace)
        self.sent += count

    def until_told(self) -> None:
        """Wait until the receiver knows every order."""

        def is_told() -> bool:
            return len({each.key for each in self.services.hooks()}) >= self.sent

        try:
            until(is_told, "the rest")
        except AssertionError as error:
            error.add_note(f"{self.shop.log}\n{self.warehouse.log}")
            raise

    def check(self) -> None:
        """Every order has one effect, the right one, and all that it did is in its trace."""
        effects = {each.key: each.body for each in self.services.hooks()}
        assert effects.keys() == {f"priced:o{n}:1" for n in range(self.sent)}
        for number in range(self.sent):
            came = [each for each in self.services.hooks() if each.key == f"priced:o{number}:1"]
            # A repeat says the same: the fact was not made a second time.
            assert {json.loads(each.body)["object_json"]["usd"] for each in came} == {number * RATE}
            assert {each.trace.split("-")[1] for each in came} == {trace_of(number)}
        asked = {each.trace.split("-")[1] for each in self.services.calls if not each.key}
        assert asked == {trace_of(number) for number in range(self.sent)}
        assert self.services.refused == 0


@pytest.fixture(params=["rabbitmq", "kafka"])
def pipeline(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline behind each broker; nothing runs yet."""
    if request.param == "rabbitmq":
        rabbit = request.getfixturevalue("rabbit_server")
        url = rabbit.new_queue()
        queue = url.rpartition("/")[2]
        with RabbitConnector(url) as orders:
            orders.fetch_transactions(1, wait=0)  # it makes the queue

        def send(body: bytes, headers: dict[str, str]) -> None:
            other_program.publish(rabbit, queue, body, headers=headers)

    else:
        kafka = request.getfixturevalue("kafka")
        topic = kafka.new_topic(2)
        url = f"kafka://{kafka.server}/{topic}?group=shop"

        def send(body: bytes, headers: dict[str, str]) -> None:
            kafka_topic.send(kafka, topic, body, headers=headers)

    with Pipeline(tmp_path, url, send) as made:
        yield made


def test_from_the_broker_to_the_webhook(pipeline: Pipeline) -> None:
    """Orders that wait, and orders that come while everything runs."""
    pipeline.order(5)
    pipeline.shop.start()
    pipeline.warehouse.start()
    pipeline.until_told()
    pipeline.order(5)
    pipeline.until_told()
    pipeline.check()
    assert len(pipeline.services.hooks()) == pipeline.sent
