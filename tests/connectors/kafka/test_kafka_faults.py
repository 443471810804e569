"""Kafka consumers that are killed, cut off and rebalanced: nothing is lost or settled twice."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.connector.kafka import KafkaConnector
from ergon_framework.errors import ChannelLostError, ConnectorError
from tests import fork_server
from tests.connectors.kafka.kafka_topic import connect, ids, numbered, put, read, send, take
from tests.connectors.test_jsonl_forking import ended, in_a_child
from tests.servers.kafka import FAST, KafkaCluster, KafkaLink
from tests.waiting import until

pytestmark = pytest.mark.slow
CHILD = Path(__file__).with_name("kafka_consumer.py")


def finish(
    kafka: KafkaCluster, topic: str, count: int, group: str = "", **options: Any
) -> Counter[str]:
    """What a member that comes later still gets, until nothing is left."""
    came: Counter[str] = Counter()
    with connect(kafka, topic, group=group, **options) as connector:

        def is_done() -> bool:
            for delivery in connector.fetch_transactions(50):
                came[delivery.transaction_id] += 1
                connector.ack(delivery)
            return connector.get_transactions_count() == 0

        until(is_done, f"the rest of {count}")
    return came


def test_what_a_killed_consumer_had_in_hand_comes_again(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    """Every transaction is worked to an end, whichever process did it."""
    topic, diary, count = kafka.new_topic(3), tmp_path / "diary", 200
    diary.touch()
    put(kafka, topic, numbered(count))
    url = f"kafka://{kafka.server}/{topic}"
    words = [sys.executable, str(CHILD), url, str(diary), json.dumps(dict(FAST))]
    with fork_server.start(words) as child:
        until(lambda: diary.read_text().count("ended") >= 40, "some of the work")
        child.kill()
    ended = {line.split()[1] for line in diary.read_text().splitlines() if line[:5] == "ended"}
    assert 40 <= len(ended) < count
    came = finish(kafka, topic, count, "ergon")
    assert ended | set(came) == set(ids(numbered(count)))
    assert set(came.values()) == {1}
    began = set(diary.read_text().split()) - {"began", "ended"}
    assert began - ended <= set(came), "what was in hand did not come again"


def test_a_short_cut_is_not_noticed_by_what_is_in_hand(
    kafka: KafkaCluster, kafka_link: KafkaLink
) -> None:
    """The client connects again, the session lives, and the settlement counts."""
    topic, client = kafka.new_topic(), {"session.timeout.ms": 4000}
    with connect(kafka_link, topic, client=client) as connector:
        put(kafka, topic, numbered(3))
        first, second = take(connector, 2)
        connector.ack(first)
        kafka_link.cut()
        assert not connector.health()
        kafka_link.heal()
        until(connector.health, "the connection")
        connector.ack(second)
        assert ids(take(connector, 1)) == ["t2"]
        until(lambda: connector.get_transactions_count() == 0, "the commit")
    assert connector.late_settlements == 0
    assert set(finish(kafka, topic, 3, client=client)) == {"t2"}


def test_a_cut_longer_than_the_session_loses_the_channel(
    kafka: KafkaCluster, kafka_link: KafkaLink
) -> None:
    """Another member gets what was in hand; the late settlement is refused and counted."""
    topic = kafka.new_topic()
    with connect(kafka_link, topic) as cut_off:
        put(kafka, topic, numbered(2))
        held = take(cut_off, 2)
        kafka_link.cut()
        with connect(kafka, topic) as other:
            again = take(other, 2)
            assert ids(again) == ids(held)
            kafka_link.heal()

            def is_told() -> bool:
                cut_off.fetch_transactions(1)
                return not cut_off.partitions

            until(is_told, "the group to tell that the partition is another's")
            for verb in (cut_off.ack, cut_off.release):
                with pytest.raises(ChannelLostError, match="revoked before offset"):
                    verb(held[0])
            with pytest.raises(ChannelLostError):
                cut_off.nack(held[1], ValueError("late"))
            assert cut_off.late_settlements == 3
            for delivery in again:
                other.ack(delivery)
            until(lambda: other.get_transactions_count() == 0, "the commit")
    assert read(kafka, f"{topic}.dlq") == []


def test_a_broker_that_is_away_at_the_start_is_waited_for(
    kafka: KafkaCluster, kafka_link: KafkaLink
) -> None:
    """Health says so meanwhile, a dispatch is refused in time, and a stop ends the wait."""
    topic = kafka.new_topic()
    with connect(kafka, topic) as sender:
        sender.dispatch_transactions(numbered(1))
    kafka_link.cut()
    with connect(kafka_link, topic, send_timeout=0.5) as connector, ThreadPoolExecutor() as pool:
        stopped = pool.submit(connector.fetch_transactions, 1)
        assert not connector.health()
        with pytest.raises(ConnectorError, match="not all messages were delivered"):
            connector.dispatch_transactions(numbered(1, "never"))
        assert not stopped.done()
        connector.stop_waiting()
        assert stopped.result(10) == []
        waiting = pool.submit(connector.fetch_transactions, 1)
        kafka_link.heal()
        assert ids(waiting.result(60)) == ["t0"]
        until(connector.health, "health")


def test_closing_is_bounded_while_the_brokers_are_away(
    kafka: KafkaCluster, kafka_link: KafkaLink
) -> None:
    """What was settled and could not be committed comes again."""
    topic = kafka.new_topic()
    connector = connect(kafka_link, topic, commit_interval=60.0)
    put(kafka, topic, numbered(2))
    first, second = take(connector, 2)
    connector.ack(first)
    kafka_link.cut()
    connector.ack(second)
    connector.close()
    with pytest.raises(ConnectorError, match="is closed"):
        connector.fetch_transactions(1)
    assert set(finish(kafka, topic, 2)) >= {"t1"}


THROWN_OUT = re.compile("the group went on without|offsets were not committed")


def test_a_member_that_joins_gets_partitions_and_nothing_twice(
    kafka: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The rebalance waits for what is in hand, so no message has two members.

    On a machine that stands still for longer than the session timeout the group throws a member
    out, and says so: then all is done again.
    """
    handled = handled_while_another_joins(kafka)
    for _ in range(4):
        if not THROWN_OUT.search(caplog.text):
            break
        caplog.clear()
        handled = handled_while_another_joins(kafka)
    assert set(handled.values()) == {1}


def handled_while_another_joins(kafka: KafkaCluster) -> Counter[str]:
    """How often each message was handled, until two members have two partitions each."""
    topic = kafka.new_topic(4)
    handled: Counter[str] = Counter()
    by: Counter[KafkaConnector] = Counter()
    lock, stop, sent = threading.Lock(), threading.Event(), 0

    def work(connector: KafkaConnector) -> None:
        while not stop.is_set():
            for delivery in connector.fetch_transactions(3, wait=0.05):
                stop.wait(0.01)
                connector.ack(delivery)
                with lock:
                    handled[delivery.transaction_id] += 1
                    by[connector] += 1

    with ExitStack() as stack:
        first = stack.enter_context(connect(kafka, topic, partition_key="transaction_id"))
        second = stack.enter_context(connect(kafka, topic))
        pool = stack.enter_context(ThreadPoolExecutor())
        stack.callback(stop.set)

        def more() -> None:
            nonlocal sent
            first.dispatch_transactions(numbered(40, f"batch{sent}-"))
            sent += 40

        more()
        working = [pool.submit(work, first)]
        until(lambda: by[first] > 20, "the first member to work")
        working.append(pool.submit(work, second))
        while by[second] < 40 or len(first.partitions) != 2 or len(second.partitions) != 2:
            more()
            stop.wait(0.2)
        until(lambda: len(handled) == sent, "the rest")
        stop.set()
        for each in working:
            each.result(30)
    return handled


def joined(
    kafka: KafkaCluster, stack: ExitStack, pool: ThreadPoolExecutor
) -> tuple[KafkaConnector, KafkaConnector, list[Any]]:
    """A member with forty messages in hand, and one that has joined the group beside it.

    librdkafka's cluster refuses a member that asks for its part later than the leader has given the
    parts out. Such a member joins once more, and the first one, which is waiting, is thrown out
    for being late: that group is of no use here, and another one is made.
    """
    for _ in range(6):
        own = stack.enter_context(ExitStack())
        topic = kafka.new_topic(4)
        first = own.enter_context(connect(kafka, topic, partition_key="transaction_id"))
        second = own.enter_context(connect(kafka, topic))
        put(kafka, topic, numbered(40))
        held = take(first, 40)
        asked = pool.submit(second.fetch_transactions, 1)
        if not wait([asked], timeout=3).not_done:
            assert asked.result() == []  # it knows that it has no part, for now
            return first, second, held
        for each in held:
            with suppress(ChannelLostError):
                first.ack(each)
        second.stop_waiting()
        own.close()
    pytest.fail("the cluster refused every second member")


def test_a_rebalance_waits_for_what_is_in_hand(kafka: KafkaCluster) -> None:
    """The new owner gets nothing before it is settled, and then nothing of it."""
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor())
        first, second, held = joined(kafka, stack, pool)
        waiting = pool.submit(take, second, 1)
        stack.callback(second.stop_waiting)
        for _ in range(25):  # long enough for a group that is given partitions at once
            threading.Event().wait(0.1)
            assert not waiting.done()
        for delivery in held:
            first.ack(delivery)
        until(lambda: len(first.partitions) == 2, "the revoke")
        put(kafka, first.topic, numbered(40, "later"))
        (came,) = waiting.result(60)
        assert came.transaction_id.startswith("later")
        assert first.late_settlements == 0


def test_a_handler_longer_than_the_rebalance_waits_loses_its_delivery(kafka: KafkaCluster) -> None:
    """The wait is bounded: then the new owner has the message, and the late outcome is refused."""
    topic = kafka.new_topic(4)
    options: dict[str, Any] = {"revoke_wait": 0.3, "partition_key": "transaction_id"}
    with connect(kafka, topic, **options) as slow, connect(kafka, topic) as other:
        put(kafka, topic, numbered(40))
        held = take(slow, 40)
        again = ids(take(other, 1))
        until(lambda: len(other.partitions) == 2, "the rebalance")
        refused = []
        for delivery in held:
            try:
                slow.ack(delivery)
            except ChannelLostError:
                refused.append(delivery.transaction_id)
        assert set(again) < set(refused)
        assert len(refused) == slow.late_settlements
        again += ids(take(other, len(refused) - 1))
        assert sorted(again) == sorted(refused)


def test_a_handler_may_run_longer_than_the_group_waits_for_a_poll(kafka: KafkaCluster) -> None:
    """The member polls in the background with its partitions paused, and keeps them."""
    topic = kafka.new_topic()
    client = {"max.poll.interval.ms": 2000}
    with connect(kafka, topic, max_in_flight=1, revoke_wait=0.1, client=client) as connector:
        put(kafka, topic, numbered(2))
        (first,) = take(connector, 1)
        threading.Event().wait(4)
        connector.ack(first)
        assert ids(take(connector, 1)) == ["t1"]
        assert connector.late_settlements == 0


def test_with_asyncio_a_cut_is_waited_out_as_well(
    kafka: KafkaCluster, kafka_link: KafkaLink
) -> None:
    """The event loop goes on while the brokers are away."""
    topic = kafka.new_topic()

    async def scenario() -> list[str]:
        connector = connect(kafka_link, topic)
        kafka_link.cut()
        fetching = asyncio.ensure_future(connector.fetch_transactions_async(1))
        await asyncio.sleep(0)
        assert not await connector.health_async()
        kafka_link.heal()
        await connector.dispatch_transactions_async(numbered(1))
        came: list[Any] = list(await fetching)
        while not came:
            came = await connector.fetch_transactions_async(1)
        for delivery in came:
            await connector.ack_async(delivery)
        await connector.aclose()
        return ids(came)

    assert asyncio.run(scenario()) == ["t0"]


def test_a_forked_child_has_clients_of_its_own(kafka: KafkaCluster) -> None:
    """It can settle nothing of its parent's, sends and leaves without waiting for their threads."""
    topic = kafka.new_topic()
    with connect(kafka, topic) as connector:
        connector.dispatch_transactions(numbered(1))
        (order,) = take(connector, 1)

        def misuse_and_use() -> None:
            signal.alarm(60)  # a child that hangs must not keep the test waiting
            with pytest.raises(ChannelLostError):
                connector.ack(order)
            connector.dispatch_transactions(numbered(1, "child"))
            connector.close()

        assert ended(in_a_child(misuse_and_use)) == 0
        connector.ack(order)
        assert ids(take(connector, 1)) == ["child0"]


@pytest.mark.usefixtures("kafka")  # where there is none, this is skipped as well
def test_a_cluster_that_ends_for_good() -> None:
    """Consumers wait without an error, refuse what is late, and close in time."""
    with closing(KafkaCluster()) as cluster:
        topic = cluster.new_topic()
        connector = connect(cluster, topic, send_timeout=0.5)
        send(cluster, topic, b"1")
        (held,) = take(connector, 1)
        cluster.close()
        until(lambda: not connector.partitions, "the end of the session")
        with pytest.raises(ChannelLostError):
            connector.ack(held)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(connector.fetch_transactions, 1)
            with pytest.raises(ConnectorError, match="not all messages were delivered"):
                connector.dispatch_transactions(numbered(1))
            assert not connector.health()
            assert not waiting.done()
            connector.stop_waiting()
            assert waiting.result(10) == []
        connector.close()
