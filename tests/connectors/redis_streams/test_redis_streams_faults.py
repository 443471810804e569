"""What becomes of entries when a consumer, a server or a connection dies under real work."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ergon_framework import ConsumerTask, Transaction
from ergon_framework.connector.redis_streams import RedisStreamsConnector
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from tests import fork_server
from tests.boundary.node.cables import Cable
from tests.connectors.redis_streams.programs import consume
from tests.servers.redis import DURABLE, RedisServer
from tests.servers.server import started
from tests.waiting import until

pytestmark = pytest.mark.slow
LOOP = {
    "mode": "continuous",
    "batch": {"size": 50},
    "concurrency": {"value": 4},
    "empty_queue": {"backoff": 0.02, "backoff_cap": 0.1},
}


class Recorder(ConsumerTask):
    """Writes down what it handled; may be held up."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: Counter[str] = Counter()
        self.seconds = 0.0

    def process_transaction(self, transaction: Transaction) -> None:
        self.seen[transaction.transaction_id] += 1
        if self.seconds:
            threading.Event().wait(self.seconds)


@contextmanager
def running(task: ConsumerTask) -> Iterator[None]:
    """Consume in a thread until the end of the block."""
    loop = {**LOOP, "streaming": True}

    def consume_all() -> None:
        task.consume_transactions({"loop": loop})

    thread = SYSTEM_CLOCK.spawn("consume", consume_all)
    try:
        yield
    finally:
        task.request_stop()
        thread.join(60)


def put(url: str, stream: str, count: int) -> set[str]:
    """So many entries, sent through a connector of their own; their ids."""
    ids = [f"t{n}" for n in range(count)]
    with RedisStreamsConnector(url, stream=stream) as target:
        for n in range(0, count, 1000):
            target.dispatch_transactions(
                [Transaction(each, {"n": each}) for each in ids[n : n + 1000]]
            )
    return set(ids)


def pending(server: RedisServer, stream: str) -> int:
    """Entries that are in somebody's hands."""
    with server.connect() as client:
        return int(client.xpending(stream, "ergon")["pending"])


@contextmanager
def child(url: str, diary: Path, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """A consumer in a process of its own."""
    command = [sys.executable, consume.__file__, url, str(diary), str(seconds)]
    process = fork_server.start(command)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def noted(diary: Path, verb: str) -> Counter[str]:
    """What a child wrote down, each id with how often."""
    lines = diary.read_text().splitlines() if diary.exists() else []
    return Counter(each.split()[1] for each in lines if each.startswith(verb))


def test_a_killed_consumer_loses_nothing(redis_url: str, tmp_path: Path) -> None:
    """Another one takes over what it had in hand, and what it had settled does not come again."""
    given = put(redis_url, "orders", 200)
    url = f"{redis_url}?stream=orders&claim_idle=1"
    first, second = tmp_path / "first", tmp_path / "second"
    with child(url, first, 0.02) as process:
        until(lambda: noted(first, "done").total() > 40, "half of the work")
        process.kill()
        process.wait()
    with child(url, second, 0.0):
        until(lambda: noted(first, "done") | noted(second, "done") >= Counter(given), "the rest")
    assert noted(second, "done").total() == len(noted(second, "done"))
    # At most what each worker had done without having settled it.
    assert (noted(first, "done") & noted(second, "done")).total() <= 4


def test_two_consumers_share_the_work(redis_url: str) -> None:
    """Each entry is handled by one of them, once, and both have some of it."""
    given = put(redis_url, "orders", 400)
    with (
        RedisStreamsConnector(redis_url, stream="orders") as one,
        RedisStreamsConnector(redis_url, stream="orders") as other,
    ):
        tasks = [Recorder({"in": one}), Recorder({"in": other})]
        for task in tasks:
            task.seconds = 0.005
        with running(tasks[0]), running(tasks[1]):
            # Copied at once: the tasks count on meanwhile.
            until(lambda: sum(map(Counter, (t.seen for t in tasks)), Counter()) == Counter(given))
        assert all(task.seen for task in tasks)
        assert one.get_transactions_count() == 0


def test_a_long_handler_keeps_its_entry(durable_redis: RedisServer, redis_url: str) -> None:
    """Another consumer that looks all the time does not get what is renewed."""
    put(redis_url, "orders", 3)
    with (
        RedisStreamsConnector(redis_url, stream="orders", claim_idle=0.5) as one,
        RedisStreamsConnector(redis_url, stream="orders", claim_idle=0.5) as other,
    ):
        slow, eager = Recorder({"in": one}), Recorder({"in": other})
        slow.seconds = 2.5
        with running(slow):
            until(lambda: len(slow.seen) == 3, "the beginning")
            with running(eager):
                until(lambda: pending(durable_redis, "orders") == 0, "the end")
        assert eager.seen == Counter()
        assert one.late == 0


def test_a_server_that_is_killed_keeps_the_work(tmp_path: Path) -> None:
    """With appendonly on, the consumer waits for it, goes on, and nothing is lost."""
    with started(lambda: RedisServer(DURABLE)) as server:
        given = put(server.url, "orders", 300)
        with RedisStreamsConnector(server.url, stream="orders", claim_idle=1.0) as source:
            task = Recorder({"in": source})
            task.seconds = 0.01
            with running(task):
                until(lambda: len(task.seen) > 50, "some of the work")
                server.kill()
                until(lambda: not source.health(), "that it is noticed")
                server.start()
                until(lambda: task.seen.keys() == given, "the rest")
                until(lambda: pending(server, "orders") == 0, "every settlement")
        again = sum(task.seen.values()) - len(given)
        assert again <= 60, f"{again} units were handled twice"


def test_a_connection_that_is_cut_again_and_again(redis_server: RedisServer) -> None:
    """Ten cuts under load: all of the work is done, and all of it settled."""
    given = put(redis_server.url, "cut", 500)
    with Cable(redis_server.port) as cable:
        url = f"redis://127.0.0.1:{cable.port}/0"
        with RedisStreamsConnector(url, stream="cut", claim_idle=1.0) as source:
            task = Recorder({"in": source})
            task.seconds = 0.01
            with running(task):
                for n in range(10):
                    until(lambda n=n: len(task.seen) > 30 * n, "some of the work")  # type: ignore[misc]
                    cable.cut()
                    cable.heal()
                until(lambda: task.seen.keys() == given, "the rest")
                until(lambda: pending(redis_server, "cut") == 0, "every settlement")


def test_ten_thousand_messages(redis_server: RedisServer) -> None:
    """Each once, in the order of the stream for one worker, and none left."""
    put(redis_server.url, "many", 10_000)
    with RedisStreamsConnector(redis_server.url, stream="many") as source:
        task = Recorder({"in": source})
        report = task.consume_transactions({"loop": {"batch": {"size": 500}}})
        assert int(report) == 10_000
        assert set(task.seen.values()) == {1}
        assert source.get_transactions_count() == 0
    assert pending(redis_server, "many") == 0


def test_a_server_that_is_away_at_the_start_is_waited_for(redis_server: RedisServer) -> None:
    """The consumer begins when it is there, and a stop before that ends it with nothing."""
    put(redis_server.url, "late", 5)
    with Cable(redis_server.port) as cable:
        cable.cut()
        url = f"redis://127.0.0.1:{cable.port}/0"
        with RedisStreamsConnector(url, stream="late") as source:
            with running(Recorder({"in": source})):
                until(lambda: not source.health(), "an attempt")
            task = Recorder({"in": source})
            with running(task):
                cable.heal()
                until(lambda: len(task.seen) == 5, "the work")
            assert source.health()


def test_a_primary_that_becomes_a_replica_is_waited_for() -> None:
    """It answers that it may only be read: the connection is made anew until it is a primary."""
    with started(lambda: RedisServer(DURABLE)) as server, server.connect() as client:
        given = put(server.url, "orders", 100)
        with RedisStreamsConnector(server.url, stream="orders", claim_idle=1.0) as source:
            task = Recorder({"in": source})
            task.seconds = 0.01
            with running(task):
                until(lambda: len(task.seen) > 10, "some of the work")
                client.replicaof("127.0.0.1", "1")
                until(lambda: not source.health(), "that it is noticed")
                client.replicaof("NO", "ONE")
                until(lambda: task.seen.keys() == given, "the rest")
                until(lambda: pending(server, "orders") == 0, "every settlement")
