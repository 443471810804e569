"""The relay: from the store to the queue, at least once, and never in the way of itself."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.rfc3339 import parse_rfc3339
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import DeadLetter, LetterStatus, RecordBatch
from ergon_framework.providers.delivery.dead_letters import (
    RELAY_LEASE,
    DeadLetterRelay,
    RelayCounts,
    RelayThread,
)
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.storage.failpoints import armed
from ergon_framework.testing import VirtualClock

pytestmark = pytest.mark.req("PEF:A-19", "PROVIDERS:celery")

LETTER = DeadLetter(
    dead_letter_id="d-0",
    tenant_id="t",
    campaign_id=None,
    task_name="known",
    provider_name="p",
    capability="c",
    operation="o",
    idempotency_key="k",
    correlation_id="cid",
    reason_code="timeout",
    error_type="ProviderTimeoutError",
    error_message="no answer",
    attempts=3,
    occurred_at=1_700_000_000.25,
    retryable=True,
    payload={"q": 1},
)


class FakeCounter:
    """A queue in a list, which can be told to fail."""

    def __init__(self) -> None:
        self.published: list[dict[str, Any]] = []
        self.sent: list[DeadLetter] = []
        self.openings = 0
        self.fails_after: int | None = None
        self.heard: queue.Queue[str] = queue.Queue()

    @contextmanager
    def open(self) -> Iterator[FakeCounter]:
        self.openings += 1
        yield self

    def publish(self, message: dict[str, Any]) -> None:
        if self.fails_after is not None and len(self.published) >= self.fails_after:
            raise ConnectionError("the broker is away")
        self.published.append(message)
        self.heard.put(message["dead_letter_id"])

    def knows(self, letter: DeadLetter) -> bool:
        return letter.task_name in {"known", "refused"}

    def send(self, letter: DeadLetter) -> None:
        if letter.task_name == "refused":
            raise TypeError("run() got an unexpected keyword argument")
        self.sent.append(letter)


@pytest.fixture
def counter() -> FakeCounter:
    """A queue."""
    return FakeCounter()


@pytest.fixture
def store() -> MemoryProviderStore:
    """A store with three letters."""
    made = MemoryProviderStore()
    letters = [replace(LETTER, dead_letter_id=f"d-{n}", occurred_at=1.7e9 + n) for n in range(3)]
    made.record(RecordBatch([], letters))
    return made


def status(store: MemoryProviderStore, letter_id: str) -> LetterStatus:
    """Where a letter stands."""
    (found,) = store.letters(ids=[letter_id])
    return found.status


def ids(counter: FakeCounter) -> list[str]:
    """What was published."""
    return [each["dead_letter_id"] for each in counter.published]


@pytest.mark.req("PEF:D-1", "PEF:D-2")
def test_letters_are_published_oldest_first(
    store: MemoryProviderStore, counter: FakeCounter
) -> None:
    """Once; then the store knows, and the queue is not even opened."""
    relay = DeadLetterRelay(store, counter.open)
    assert relay.pump() == RelayCounts(published=3)
    assert ids(counter) == ["d-0", "d-1", "d-2"]
    assert not relay.pump()
    assert counter.openings == 1
    message = counter.published[0]
    assert parse_rfc3339(message["occurred_at"]) == 1.7e9
    assert message["occurred_at"].endswith("Z")
    assert (message["attempts"], message["schema_version"], message["redrive_count"]) == (3, 1, 0)
    assert "payload" not in message


def test_what_the_queue_did_not_take_waits(
    store: MemoryProviderStore, counter: FakeCounter
) -> None:
    """The one that failed and those behind it; nothing is published out of turn."""
    counter.fails_after = 1
    relay = DeadLetterRelay(store, counter.open)
    with pytest.raises(ConnectionError):
        relay.pump()
    counter.fails_after = None
    assert relay.drain() == RelayCounts(published=2)
    assert ids(counter) == ["d-0", "d-1", "d-2"]


def test_a_relay_that_dies_before_it_tells_the_store_publishes_again(
    store: MemoryProviderStore, counter: FakeCounter
) -> None:
    """Under the same id, by which consumers know it."""
    relay = DeadLetterRelay(store, counter.open)
    with armed("providers.publish.after=error"), pytest.raises(OSError, match=r"publish\.after"):
        relay.pump()
    with armed("providers.publish.before=error"), pytest.raises(OSError, match=r"publish\.before"):
        relay.pump()
    relay.pump()
    assert ids(counter) == ["d-0", "d-0", "d-1", "d-2"]


def test_two_relays_on_one_store_lose_nothing(
    store: MemoryProviderStore, counter: FakeCounter
) -> None:
    """What one has moved, the other leaves alone."""
    one, two = (
        DeadLetterRelay(store, counter.open, batch=2),
        DeadLetterRelay(store, counter.open, batch=2),
    )
    while one.pump() or two.pump():
        pass
    assert sorted(set(ids(counter))) == ["d-0", "d-1", "d-2"]
    assert {status(store, f"d-{n}") for n in range(3)} == {LetterStatus.PUBLISHED}


def test_a_call_is_sent_again_and_counted_once(
    store: MemoryProviderStore, counter: FakeCounter
) -> None:
    """Published letters are only sent; one that nobody has heard of is published as well."""
    relay = DeadLetterRelay(store, counter.open)
    store.move_letter("d-0", LetterStatus.REDRIVE, when=[LetterStatus.PENDING])
    relay.drain()
    store.move_letter("d-1", LetterStatus.REDRIVE, when=[LetterStatus.PUBLISHED])
    with armed("providers.redrive.before=error"), pytest.raises(OSError, match=r"redrive\.before"):
        relay.pump()
    with armed("providers.redrive.after=error"), pytest.raises(OSError, match=r"redrive\.after"):
        relay.pump()
    relay.drain()
    assert [each.dead_letter_id for each in counter.sent] == ["d-0", "d-1", "d-1"]
    assert sorted(ids(counter)) == ["d-0", "d-1", "d-2"]
    assert status(store, "d-1") is LetterStatus.REDRIVEN


def test_letters_of_other_tasks_and_without_payload_are_not_in_the_way(
    counter: FakeCounter,
) -> None:
    """One waits for a relay that knows its task, the others are given back to the operator."""
    store = MemoryProviderStore()
    odd = [
        replace(LETTER, dead_letter_id="foreign", task_name="unknown", occurred_at=1.0),
        replace(LETTER, dead_letter_id="secret", has_secrets=True, occurred_at=2.0),
        replace(LETTER, dead_letter_id="large", payload=None, occurred_at=3.0),
        LETTER,
    ]
    store.record(RecordBatch([], odd))
    relay = DeadLetterRelay(store, counter.open)
    relay.drain()
    for each in odd:
        store.move_letter(each.dead_letter_id, LetterStatus.REDRIVE, when=[LetterStatus.PUBLISHED])
    relay.drain()
    assert [each.dead_letter_id for each in counter.sent] == ["d-0"]
    assert status(store, "foreign") is LetterStatus.REDRIVE
    assert status(store, "secret") is status(store, "large") is LetterStatus.PUBLISHED


def test_many_letters_of_other_tasks_do_not_starve_the_rest(counter: FakeCounter) -> None:
    """A batch may be full of what this relay cannot send."""
    store = MemoryProviderStore()
    foreign = [
        replace(LETTER, dead_letter_id=f"f-{n}", task_name="unknown", occurred_at=float(n))
        for n in range(5)
    ]
    store.record(RecordBatch([], [*foreign, LETTER]))
    for each in (*foreign, LETTER):
        store.move_letter(each.dead_letter_id, LetterStatus.REDRIVE, when=[LetterStatus.PENDING])
    DeadLetterRelay(store, counter.open, batch=2).drain()
    assert [each.dead_letter_id for each in counter.sent] == ["d-0"]


def test_a_letter_that_the_queue_refuses_is_not_in_the_way(counter: FakeCounter) -> None:
    """Those behind it are carried, however many there are; then the refusal is told."""
    store = MemoryProviderStore()
    refused = [
        replace(LETTER, dead_letter_id=f"r-{n}", task_name="refused", occurred_at=float(n))
        for n in range(5)
    ]
    good = [replace(LETTER, dead_letter_id=f"g-{n}", occurred_at=10.0 + n) for n in range(5)]
    store.record(RecordBatch([], [*refused, *good]))
    for each in (*refused, *good):
        store.move_letter(each.dead_letter_id, LetterStatus.REDRIVE, when=[LetterStatus.PENDING])
    relay = DeadLetterRelay(store, counter.open, batch=2)
    with pytest.raises(TypeError, match="unexpected"):
        relay.pump()
    with pytest.raises(TypeError, match="unexpected"):
        relay.drain()
    assert [each.dead_letter_id for each in counter.sent] == [f"g-{n}" for n in range(5)]
    assert status(store, "r-0") is LetterStatus.REDRIVE


def test_two_relays_send_a_call_once(store: MemoryProviderStore, counter: FakeCounter) -> None:
    """One looks while the other is about to send; after a while it would take over."""
    store.move_letter("d-0", LetterStatus.REDRIVE, when=[LetterStatus.PENDING])

    @contextmanager
    def beside() -> Iterator[FakeCounter]:
        DeadLetterRelay(store, counter.open).pump()
        yield counter

    DeadLetterRelay(store, beside).pump()
    assert [each.dead_letter_id for each in counter.sent] == ["d-0"]
    assert status(store, "d-0") is LetterStatus.REDRIVEN


# -- the thread -----------------------------------------------------------------------------------


def test_the_thread_carries_and_ends(store: MemoryProviderStore, counter: FakeCounter) -> None:
    """What comes later is carried when it is woken; a last look is had when it ends."""
    thread = RelayThread(lambda: [DeadLetterRelay(store, counter.open)], idle=3600.0)
    thread.start()
    assert [counter.heard.get(timeout=30) for _ in range(3)] == ["d-0", "d-1", "d-2"]
    store.record(RecordBatch([], [replace(LETTER, dead_letter_id="later")]))
    thread.wake()
    assert counter.heard.get(timeout=30) == "later"
    store.record(RecordBatch([], [replace(LETTER, dead_letter_id="last")]))
    thread.stop(30)
    assert counter.heard.get(timeout=30) == "last"


def test_after_failures_it_waits_longer_and_longer(
    store: MemoryProviderStore, counter: FakeCounter, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever fails, the thread goes on; a look that works begins anew."""
    counter.fails_after = 0
    thread = RelayThread(lambda: [DeadLetterRelay(store, counter.open)], idle=2.0, dice=lambda: 0.5)
    assert [thread.poll() for _ in range(4)] == [1.0, 2.0, 4.0, 8.0]
    assert "relay.failed" in caplog.text
    counter.fails_after = None
    assert [thread.poll(), thread.poll()] == [0.0, 2.0]


def test_a_store_that_cannot_be_opened_does_not_end_the_thread() -> None:
    """The provider may not be buildable yet: it is tried again."""

    def nothing() -> list[DeadLetterRelay]:
        raise StoreUnavailableError("not yet")

    assert RelayThread(nothing, dice=lambda: 0.5).poll() == 1.0


def test_one_relay_that_fails_does_not_stop_the_others(
    store: MemoryProviderStore, counter: FakeCounter
) -> None:
    """Another store, another queue: only the wait before the next look is common to them."""
    away = MemoryProviderStore()
    away.close()
    relays = [DeadLetterRelay(away, counter.open), DeadLetterRelay(store, counter.open)]
    assert RelayThread(lambda: relays, dice=lambda: 0.5).poll() == 1.0
    assert ids(counter) == ["d-0", "d-1", "d-2"]


# -- one publisher at a time ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_relays_that_look_at_once_publish_a_letter_once(kind: str, tmp_path: Path) -> None:
    """Each prefork child has a relay: while one publishes, the others leave the letters to it."""
    url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path}/work.db"
    store = open_store(url, clock=lambda: 1.7e9)
    store.record(RecordBatch([], [replace(LETTER, dead_letter_id=f"d-{n}") for n in range(3)]))
    others = [DeadLetterRelay(store, FakeCounter().open) for _ in range(3)]
    seen: list[RelayCounts] = []

    class Busy(FakeCounter):
        def publish(self, message: dict[str, Any]) -> None:
            seen.extend(relay.pump() for relay in others)
            super().publish(message)

    counter = Busy()
    assert DeadLetterRelay(store, counter.open).pump() == RelayCounts(published=3)
    assert ids(counter) == ["d-0", "d-1", "d-2"]
    assert not any(seen)


def test_a_relay_that_died_is_followed_by_another(counter: FakeCounter) -> None:
    """When its lease is over; nobody waits for more than that."""
    now = [1.7e9]
    store = MemoryProviderStore(lambda: now[0])
    store.record(RecordBatch([], [LETTER]))

    class Dying(FakeCounter):
        def publish(self, message: dict[str, Any]) -> None:
            raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        armed("providers.relay.release=error"),  # as if it had not come to that
    ):
        DeadLetterRelay(store, Dying().open).pump()
    assert not DeadLetterRelay(store, counter.open).pump()
    now[0] += RELAY_LEASE + 1.0
    assert DeadLetterRelay(store, counter.open).pump() == RelayCounts(published=1)


def test_a_relay_that_was_stopped_for_long_publishes_no_more(counter: FakeCounter) -> None:
    """Its lease was over and another one took the rest: it looks before each letter."""
    now = [1.7e9]
    store = MemoryProviderStore(lambda: now[0])
    store.record(RecordBatch([], [replace(LETTER, dead_letter_id=f"d-{n}") for n in range(3)]))
    other = DeadLetterRelay(store, counter.open, ticks=lambda: now[0])

    class Stopped(FakeCounter):
        def publish(self, message: dict[str, Any]) -> None:
            super().publish(message)
            now[0] += RELAY_LEASE + 1.0
            other.pump()

    slow = Stopped()
    DeadLetterRelay(store, slow.open, ticks=lambda: now[0]).pump()
    assert ids(slow) == ["d-0"]
    assert ids(counter) == ["d-0", "d-1", "d-2"]  # the one in flight, at least once


def test_a_long_batch_keeps_its_lease(counter: FakeCounter) -> None:
    """It is renewed in time: nobody else gets in between."""
    now = [1.7e9]
    store = MemoryProviderStore(lambda: now[0])
    store.record(RecordBatch([], [replace(LETTER, dead_letter_id=f"d-{n}") for n in range(5)]))
    other = DeadLetterRelay(store, counter.open, ticks=lambda: now[0])

    class Slow(FakeCounter):
        def publish(self, message: dict[str, Any]) -> None:
            now[0] += RELAY_LEASE * 0.6
            assert not other.pump()
            super().publish(message)

    slow = Slow()
    assert DeadLetterRelay(store, slow.open, ticks=lambda: now[0]).pump() == RelayCounts(
        published=5
    )


def test_draining_waits_for_the_relay_that_is_at_work(clock: VirtualClock) -> None:
    """Until its lease is over at the latest: then what it left behind is carried."""
    store = MemoryProviderStore(clock.now)
    store.record(RecordBatch([], [replace(LETTER, occurred_at=0.0)]))
    relay = DeadLetterRelay(store, FakeCounter().open, ticks=clock.now)
    with (
        armed("providers.relay.release=error,providers.publish.before=error"),
        pytest.raises(OSError, match=r"publish\.before"),
    ):
        relay.pump()
    counter = FakeCounter()
    assert DeadLetterRelay(store, counter.open, ticks=clock.now).drain() == RelayCounts(published=1)
