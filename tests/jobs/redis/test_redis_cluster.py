"""Redis Cluster: all keys of a store are of one slot, and the store goes where the slot is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

from ergon_framework.errors import ConfigurationError, StoreUnavailableError
from ergon_framework.jobs.stores.redis import RedisJobStore
from ergon_framework.ports.jobstore import FullJobStore, Search, Topic
from ergon_framework.testing.suites.jobstore import exercise_job_store
from ergon_framework.testing.suites.jobstore.under_test import ask, new
from tests.jobs.redis.conftest import serving
from tests.servers.redis import DURABLE, RedisServer
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:jobs-redis")]
CLUSTER = (*DURABLE, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
SLOTS = range(16384)
LEFT_OUT = frozenset({"many_rings_are_one"})  # nothing of it is about clusters, and it takes long


def say(client: Any, *words: Any) -> Any:
    """Tell a node of the cluster something."""
    return client.execute_command("CLUSTER", *words)


@pytest.fixture(scope="module")
def node() -> Iterator[RedisServer]:
    """A cluster of one node that has all slots."""
    with serving(*CLUSTER) as server, server.connect() as client:
        say(client, "ADDSLOTS", *SLOTS)
        until(lambda: "cluster_state:ok" in str(say(client, "INFO")), "the cluster")
        yield server


def test_every_check_holds_on_a_cluster(node: RedisServer) -> None:
    """No script touches a key of another slot than those it was given."""
    numbers = itertools.count()
    prefixes: dict[int, tuple[str, Callable[[], float]]] = {}

    def opened(prefix: str, clock: Callable[[], float]) -> RedisJobStore:
        store = RedisJobStore(node.url, clock=clock, prefix=prefix)
        prefixes[id(store)] = (prefix, clock)
        return store

    def reopen(store: FullJobStore) -> RedisJobStore:
        store.close()
        return opened(*prefixes[id(store)])

    report = exercise_job_store(
        lambda clock: opened(f"c{next(numbers)}", clock), reopen=reopen, skip=LEFT_OUT
    )
    report.raise_for_failures(recommended=True)
    with node.connect() as client:
        keys = client.keys("*")
        tags = {key[: key.index("}")] for key in keys}
        assert len(keys) > len(tags) > 200


def test_a_cluster_has_one_database(node: RedisServer) -> None:
    """Another number is refused."""
    with pytest.raises(ConfigurationError, match="no database of that number"):
        RedisJobStore(node.url.removesuffix("0") + "1")


def test_the_store_goes_where_its_slot_is(node: RedisServer) -> None:
    """A node that has other slots sends it on, at the beginning and when the slot has moved."""
    with serving(*CLUSTER) as other, node.connect() as first, other.connect() as second:
        say(first, "MEET", "127.0.0.1", other.port)
        until(lambda: "cluster_state:ok" in str(say(second, "INFO")), "the cluster")
        with closing(RedisJobStore(other.url, prefix="moving")) as store:
            subscription = store.subscribe(Topic.WORK)
            store.add([new("a")])
            assert subscription.wait(50.0)
            slot = say(first, "KEYSLOT", "{moving}:job")
            _move(first, second, slot, other.port)
            store.add([new("b")])
            assert [job.id for job in store.settle_and_claim([], ask(5))[1].jobs] == ["a", "b"]
            assert store.count(Search()) == 2
            assert second.exists("{moving}:job")


def _move(source: Any, target: Any, slot: int, port: int) -> None:
    """Move a slot with its keys, as an operator would."""
    names = {client: say(client, "MYID") for client in (source, target)}
    say(target, "SETSLOT", slot, "IMPORTING", names[source])
    say(source, "SETSLOT", slot, "MIGRATING", names[target])
    for key in say(source, "GETKEYSINSLOT", slot, 100):
        source.execute_command("MIGRATE", "127.0.0.1", port, key, 0, 5000)
    for client in (target, source):
        say(client, "SETSLOT", slot, "NODE", names[target])


def test_a_cluster_that_is_not_complete() -> None:
    """A slot that nobody has is an outage, not a loss."""
    with serving(*CLUSTER) as server:
        assert isinstance(server.connect(), redis.Redis)
        with pytest.raises(StoreUnavailableError, match="cannot be used for now"):
            RedisJobStore(server.url)
