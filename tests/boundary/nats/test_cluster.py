"""Three servers that keep one stream: any of them may die, and none may answer out of date."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ergon_framework.boundary.factstore.nats import NatsFactStore
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.factstore import OUTBOUND, Appended, Corruption, FactStore
from ergon_framework.storage.nats import NatsReply
from ergon_framework.testing.suites.factstore import exercise_fact_store
from ergon_framework.testing.suites.factstore.under_test import new
from tests.boundary.nats.test_outage import Producer
from tests.servers.nats_cluster import NatsCluster

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:boundary-nats", "SCALE:fleet-outage")]
PLENTY = 1 << 22


def test_a_server_of_three_dies(nats_cluster: NatsCluster) -> None:
    """The one that leads dies while facts come in: all that was acknowledged is there, once."""
    store = NatsFactStore(nats_cluster.url(), zone="plant-a")
    assert "most of 3 servers" in store.acknowledgement
    producer = Producer(store, 3)
    producer.wait_for(9)
    leader = nats_cluster.leader_of(store.database.stream.name)
    leader.kill()
    producer.wait_for(30)
    leader.start()
    producer.wait_for(9)
    producer.stop()
    page = store.page(OUTBOUND, 0, 99_999, PLENTY)
    found = {each.message_id: each.offset for each in page.facts}
    assert len(found) == len(page.facts) == page.head
    assert producer.acknowledged.items() <= found.items()
    assert [each for each in store.verify(OUTBOUND) if isinstance(each, Corruption)] == []
    store.close()


@pytest.mark.campaign
def test_three_servers_keep_the_promises_of_one(nats_cluster: NatsCluster) -> None:
    """Some checks of each kind of the suite, where other servers answer than those that write."""
    places: dict[int, tuple[str, Callable[[], float]]] = {}
    numbers = iter(range(99))

    def opened(url: str, clock: Callable[[], float]) -> NatsFactStore:
        store = NatsFactStore(url, zone="plant-a", clock=clock)
        places[id(store)] = url, clock
        return store

    def make(clock: Callable[[], float]) -> NatsFactStore:
        return opened(nats_cluster.url(f"s{next(numbers)}"), clock)

    def reopen(store: FactStore) -> NatsFactStore:
        store.close()
        return opened(*places[id(store)])

    checks = {
        "facts_survive",
        "ledger_survives",
        "quarantine_survives",
        "objects_survive",
        "woken_sees_the_facts",
        "everything_can_be_copied_in",
        "a_moved_store_goes_on_alike",
    }
    report = exercise_fact_store(make, reopen=reopen, only=checks)
    assert len(report.results) == len(checks)


def test_an_answer_that_lags_behind_is_not_taken(
    nats_cluster: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has not heard the last commits yet is asked again, or the leader is."""
    store = NatsFactStore(nats_cluster.url(), zone="plant-a")
    store.create_consumer("c", OUTBOUND)
    store.append(OUTBOUND, [new("a"), new("b")])
    ask, late = store.database.stream.client.request_many, 0

    def lagging(subject: str, data: bytes) -> list[NatsReply]:
        nonlocal late
        replies = ask(subject, data)
        if late:
            late -= 1
            replies = [replies[0], replies[-1]] if len(replies) > 2 else replies
            end = {**replies[-1].headers, "Nats-UpTo-Sequence": "1", "Nats-Num-Pending": "0"}
            replies[-1] = NatsReply(end, b"")
        return replies

    monkeypatch.setattr(store.database.stream.client, "request_many", lagging)
    late = 5
    assert store.consumer("c").cursor == 0
    late = 1
    assert [each.offset for each in store.page(OUTBOUND, 0, 9, PLENTY).facts] == [1, 2]
    late = 10_000
    with pytest.raises(StoreUnavailableError, match="lags behind"):
        store.links()
    late = 0
    assert store.append(OUTBOUND, [new("c")]) == [Appended(3)]
    store.close()
