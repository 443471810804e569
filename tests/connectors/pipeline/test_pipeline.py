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
from tests.connectors.pipeline.http_services import RATE, Call, HttpServices
from tests.connectors.pipeline.sites import Site, write_sites
from tests.connectors.rabbitmq import other_program
from tests.servers.kafka import FAST, KafkaCluster
from tests.servers.rabbitmq import RabbitServer
from tests.waiting import until

pytestmark = pytest.mark.slow


def trace_of(number: int) -> str:
    """The trace id of an order."""
    return f"{number + 1:032x}"


class Pipeline:
    """Both sites, the services around them, and the orders that were sent."""

    def __init__(
        self,
        folder: Path,
        orders: str,
        send: Callable[[bytes, dict[str, str]], None],
        connectors: str = "",
    ) -> None:
        self._send = send
        self._stack = ExitStack()
        self.services = HttpServices()
        write_sites(folder, connectors)
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


@pytest.fixture
def behind_rabbitmq(rabbit_server: RabbitServer, tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline behind RabbitMQ; nothing runs yet."""
    url = rabbit_server.new_queue()
    queue = url.rpartition("/")[2]
    with RabbitConnector(url) as orders:
        orders.fetch_transactions(1, wait=0)  # it makes the queue

    def send(body: bytes, headers: dict[str, str]) -> None:
        other_program.publish(rabbit_server, queue, body, headers=headers)

    with Pipeline(tmp_path, url, send) as made:
        yield made


@pytest.fixture
def behind_kafka(kafka: KafkaCluster, tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline behind Kafka; nothing runs yet."""
    topic = kafka.new_topic(2)

    def send(body: bytes, headers: dict[str, str]) -> None:
        kafka_topic.send(kafka, topic, body, headers=headers)

    client = ", ".join(f'"{name}" = {value}' for name, value in FAST.items())
    connector = f'\n[connectors.orders]\nurl = "kafka://{kafka.server}/{topic}"\ngroup = "shop"\n'
    settings = f"{connector}client = {{ {client} }}\n"
    with Pipeline(tmp_path, "orders", send, settings) as made:
        yield made


@pytest.fixture(params=["rabbitmq", "kafka"])
def pipeline(request: pytest.FixtureRequest) -> Pipeline:
    """A pipeline behind each broker."""
    made: Pipeline = request.getfixturevalue(f"behind_{request.param}")
    return made


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


SHOP_DIES = (
    "jobs.add.before_commit",  # the provider has answered, and there is no job
    "jobs.add.after_commit",  # there is a job, and the broker was not told
    "worker.claimed",
    "boundary.append.before",  # the job has told its fact, which is not on disk
    "boundary.append.after",  # the fact is on disk, and the job was not told
    "worker.before_settle",
)
"""Where the shop is killed, beside the call of its provider."""
WAREHOUSE_DIES = (
    "boundary.pull.fetched",
    "boundary.pull.received",
    "boundary.pull.confirmed",
    "connector.boundary.confirming.before",  # the receiver has answered, and the zone was not told
    "connector.boundary.confirming.after",
)
"""Where the warehouse is killed, beside the call of the receiver."""


def die_in_a_call(pipeline: Pipeline, site: Site, path: str) -> None:
    """Kill a site while somebody else works on its request."""

    def kill(call: Call) -> None:
        if call.path.startswith(path):
            pipeline.services.before = lambda _call: None
            site.kill()

    pipeline.services.before = kill
    pipeline.order(2)
    if not site.is_running:
        site.start()
    site.wait_for_death(path)


def die_at(pipeline: Pipeline, site: Site, point: str) -> None:
    """Let a site run until it comes to a failpoint."""
    pipeline.order(2)
    site.start(f"{point}=kill")
    site.wait_for_death(point)


def survive_kills(pipeline: Pipeline) -> None:
    """Kill a process at every arrow, and look at what the receiver knows in the end."""
    die_in_a_call(pipeline, pipeline.shop, "/rates")
    pipeline.warehouse.start()
    for point in SHOP_DIES:
        die_at(pipeline, pipeline.shop, point)
    pipeline.shop.start()
    pipeline.until_told()
    die_in_a_call(pipeline, pipeline.warehouse, "/hook")
    for point in WAREHOUSE_DIES:
        die_at(pipeline, pipeline.warehouse, point)
    pipeline.warehouse.start()
    pipeline.until_told()
    pipeline.check()


@pytest.mark.timeout(300)
def test_kills_at_every_arrow(behind_rabbitmq: Pipeline) -> None:
    """Whichever process dies, wherever that is: every order has one effect, in one trace."""
    survive_kills(behind_rabbitmq)


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("_time", range(3))
def test_kills_at_every_arrow_again(pipeline: Pipeline, _time: int) -> None:
    """The same behind both brokers, and several times."""
    survive_kills(pipeline)
