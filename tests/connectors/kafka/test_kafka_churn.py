"""Members that come and go all the time: the group rebalances, and nothing is settled twice."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from ergon_framework.engine.clocks import SYSTEM_CLOCK
from tests.connectors.kafka.kafka_topic import connect, ids, numbered
from tests.servers.kafka import KafkaCluster
from tests.waiting import until

COUNT = 1500


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_settled_twice(kafka: KafkaCluster, seed: int) -> None:
    """One member stays, two leave and join again every few seconds."""
    topic = kafka.new_topic(4)
    with connect(kafka, topic, partition_key="transaction_id") as sender:
        sender.dispatch_transactions(numbered(COUNT))
    settled: Counter[str] = Counter()
    lock, stop = threading.Lock(), threading.Event()

    def live(seconds: float) -> None:
        end = SYSTEM_CLOCK.now() + seconds
        with connect(kafka, topic, wait=0.05) as member:
            while SYSTEM_CLOCK.now() < end and not stop.is_set():
                for delivery in member.fetch_transactions(3):
                    stop.wait(0.005)
                    member.ack(delivery)
                    with lock:
                        settled[delivery.transaction_id] += 1

    def come_and_go(lifetime: Callable[[], float]) -> None:
        while not stop.is_set():
            live(lifetime())

    chance = random.Random(seed)  # noqa: S311 - for a test
    with ThreadPoolExecutor() as pool:
        lives = [pool.submit(come_and_go, lambda: 1000.0)]
        lives += [pool.submit(come_and_go, lambda: chance.uniform(0.5, 3.0)) for _ in range(2)]
        try:
            until(lambda: len(settled) == COUNT, "all of them", seconds=180)
            stop.wait(3)  # long enough for what was not committed to come again
        finally:
            stop.set()
        for each in lives:
            each.result(60)
    assert settled == Counter(ids(numbered(COUNT)))
