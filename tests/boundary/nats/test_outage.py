"""A server that dies, disappears or hangs: nothing is lost, and nobody has to restart."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator

import pytest

from ergon_framework.boundary.factstore.nats import NatsFactStore
from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.ports.factstore import OUTBOUND, Appended, Corruption
from ergon_framework.storage.nats import NatsTimeouts, StreamMessage
from ergon_framework.testing.suites.factstore.under_test import new
from tests.servers.nats import NatsServer

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:boundary-nats", "SCALE:fleet-outage")]
ZONE = "plant-a"
PLENTY = 1 << 22
TIMEOUT = 60.0


@pytest.fixture
def server(own_nats: NatsServer) -> NatsServer:
    """A server of the test's own, running."""
    own_nats.start()
    return own_nats


@pytest.fixture
def store(server: NatsServer) -> Iterator[NatsFactStore]:
    """A store on it."""
    store = NatsFactStore(server.url(), zone=ZONE)
    yield store
    store.close()


def ids(store: NatsFactStore) -> list[str]:
    """What the log holds."""
    return [each.message_id for each in store.page(OUTBOUND, 0, 9999, PLENTY).facts]


class Producer:
    """Appends one fact after the other, each until it is acknowledged, and never gives up."""

    def __init__(self, store: NatsFactStore, size: int) -> None:
        self.acknowledged: dict[str, int] = {}
        self.failures = 0
        self._store = store
        self._size = size
        self._grown = threading.Condition()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_for(self, count: int) -> None:
        """Until that many more are acknowledged."""
        with self._grown:
            wanted = len(self.acknowledged) + count
            assert self._grown.wait_for(lambda: len(self.acknowledged) >= wanted, TIMEOUT)

    def stop(self) -> None:
        """End it."""
        self._is_over.set()
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            facts = [new(f"id-{number}-{n}") for n in range(self._size)]
            try:
                outcomes = self._store.append(OUTBOUND, facts)
            except StoreError:
                self.failures += 1
                self._is_over.wait(0.05)
                continue
            with self._grown:
                for fact, outcome in zip(facts, outcomes, strict=True):
                    assert isinstance(outcome, Appended)
                    self.acknowledged[fact.message_id] = outcome.offset
                self._grown.notify_all()
            number += 1


@pytest.mark.parametrize("size", [1, 60])
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_server_that_is_restarted(
    server: NatsServer, store: NatsFactStore, how: str, size: int
) -> None:
    """Whenever it ends, what was acknowledged is there, once, and the producer goes on."""
    producer = Producer(store, size)
    for _ in range(4):
        producer.wait_for(3 * size)
        getattr(server, how)()
        server.start()
    producer.wait_for(3 * size)
    producer.stop()
    assert producer.failures
    page = store.page(OUTBOUND, 0, 99_999, PLENTY)
    found = {each.message_id: each.offset for each in page.facts}
    assert len(found) == len(page.facts) == page.head
    assert producer.acknowledged.items() <= found.items()
    assert [each for each in store.verify(OUTBOUND) if isinstance(each, Corruption)] == []


def test_a_server_that_is_away_for_a_while(server: NatsServer, store: NatsFactStore) -> None:
    """Calls fail at once with an error that says what to look at; later the same store works."""
    store.create_consumer("c", OUTBOUND)
    store.append(OUTBOUND, [new("a"), new("b")])
    store.serve("c", 1, PLENTY)
    server.stop()
    for call in (lambda: store.append(OUTBOUND, [new("c")]), store.logs, store.consumers):
        with pytest.raises(StoreUnavailableError) as caught:
            call()
        assert "server runs" in (caught.value.remedy or "")
    server.start()
    assert store.confirm("c", 1) == 1
    assert store.append(OUTBOUND, [new("c")]) == [Appended(3)]
    assert ids(store) == ["a", "b", "c"]


def test_waiting_goes_on_after_an_outage(server: NatsServer, store: NatsFactStore) -> None:
    """Who was waiting for facts of other processes is woken again when the server is back."""
    woken = threading.Event()
    store.subscribe(woken.set)
    server.kill()
    server.start()
    store.logs()  # any call connects again
    other = NatsFactStore(server.url(), zone=ZONE)
    try:
        other.append(OUTBOUND, [new("a")])
        assert woken.wait(TIMEOUT)
    finally:
        other.close()


def test_a_server_that_hangs(server: NatsServer, store: NatsFactStore) -> None:
    """No answer within the patience is an error that says the outcome is unknown; then it is."""
    store.append(OUTBOUND, [new("a")])  # with all the patience there is: a disk may be slow
    client = store.database.stream.client
    client.timeouts = NatsTimeouts(connect=0.5, response=0.5)
    server.freeze()
    with pytest.raises(StoreUnavailableError, match="is not known") as caught:
        store.append(OUTBOUND, [new("b")])
    assert "nothing is stored twice" in (caught.value.remedy or "")
    server.thaw()
    client.timeouts = NatsTimeouts()
    assert isinstance(store.append(OUTBOUND, [new("b")])[0], Appended)
    assert ids(store) == ["a", "b"]


def test_a_batch_that_the_server_stored_in_part(server: NatsServer, store: NatsFactStore) -> None:
    """What a dying server left of a commit is undone before anybody reads it."""
    store.create_consumer("c", OUTBOUND)
    store.append(OUTBOUND, [new("a"), new("b")])
    store.serve("c", 9, PLENTY)
    store.confirm("c", 1)
    stream, subjects = store.database.stream, store.database.subjects
    left = [
        StreamMessage(subjects.entry(OUTBOUND, "plant-b"), b"torn"),
        StreamMessage(subjects.consumer("c"), b'{"torn":1}'),
        StreamMessage(subjects.mark, b"the end"),
    ]
    stream.delete(stream.commit(left, stream.state().last))  # type: ignore[union-attr]
    server.kill()
    server.start()
    assert store.consumer("c").cursor == 1
    assert ids(store) == ["a", "b"]
    assert store.append(OUTBOUND, [new("c")]) == [Appended(3)]


def test_a_server_that_went_back_in_time(server: NatsServer, store: NatsFactStore) -> None:
    """A server that lost what it had acknowledged makes the store begin a new epoch."""
    store.append(OUTBOUND, [new("a")])
    epoch = store.info().epoch
    server.stop()
    earlier = server.folder / "earlier"
    shutil.copytree(server.folder / "js", earlier)
    server.start()
    assert store.append(OUTBOUND, [new("b"), new("c")]) == [Appended(2), Appended(3)]
    assert store.info().epoch == epoch
    server.kill()
    shutil.rmtree(server.folder / "js")
    earlier.rename(server.folder / "js")
    server.start()
    assert store.append(OUTBOUND, [new("d")]) == [Appended(2)]
    assert ids(store) == ["a", "d"]
    assert store.info().epoch != epoch
    assert store.journal()[0][1] == "new_epoch"


def test_retention_after_a_server_went_back_in_time(
    server: NatsServer, store: NatsFactStore
) -> None:
    """Offsets that are given anew lie elsewhere: nothing is dropped by where they lay before."""
    store.create_consumer("c", OUTBOUND)
    store.append(OUTBOUND, [new(f"old-{n}") for n in range(5)])
    server.stop()
    earlier = server.folder / "earlier"
    shutil.copytree(server.folder / "js", earlier)
    server.start()
    for n in range(5):
        store.bind("files", f"key-{n}", bytes(32), 1)
        store.append(OUTBOUND, [new(f"lost-{n}")])
    ids(store)  # so that the store knows where they are
    server.kill()
    shutil.rmtree(server.folder / "js")
    earlier.rename(server.folder / "js")
    server.start()
    for n in range(10):
        store.append(OUTBOUND, [new(f"new-{n}")])
    store.serve("c", 7, PLENTY)
    store.confirm("c", 7)
    assert store.truncate(OUTBOUND, 99) == 7
    assert ids(store) == [f"new-{n}" for n in range(2, 10)]
    assert [each for each in store.verify(OUTBOUND) if isinstance(each, Corruption)] == []
    assert [each.offset for each in store.serve("c", 99, PLENTY).page.facts] == [*range(8, 16)]
    assert store.quarantine() == []
