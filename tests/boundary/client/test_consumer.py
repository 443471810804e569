from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from msgspec import structs

from ergon_framework.boundary.client.consume_effects import ConsumeReport
from ergon_framework.boundary.client.consumer import Consumer
from ergon_framework.boundary.model import Delivery, Loss
from ergon_framework.engine.clocks import AsyncSignal
from ergon_framework.errors import (
    BoundaryError,
    BoundaryNotFoundError,
    ConfigurationError,
    ConsumerHeldError,
    NodeUnavailableError,
    NonRetryableException,
    NotPermittedError,
    WiringError,
)
from ergon_framework.testing.clock import VirtualClock
from tests.boundary.client.scripted import (
    Colour,
    HungTransport,
    MemoryNode,
    consume,
    envelope,
    fact,
    unavailable,
)

BOTH = pytest.mark.parametrize("colour", ["threads", "tasks"])
WHERE = {"bucket": "b", "key": "k"}


class Handler:
    """Notes what it was given; fails, sleeps or acts where a test says so."""

    def __init__(self, node: MemoryNode) -> None:
        self.node = node
        self.seen: list[int] = []
        self.cursors: list[int] = []
        self.fails: dict[int, list[BaseException]] = {}
        self.naps: dict[int, float] = {}

    def __call__(self, delivery: Delivery) -> None:
        self.seen.append(delivery.offset)
        self.cursors.append(self.node.store.consumer("c").cursor)
        if delivery.offset in self.naps:
            self.node.clock.sleep(self.naps[delivery.offset])
        if self.fails.get(delivery.offset):
            raise self.fails[delivery.offset].pop(0)


def node_with(count: int) -> tuple[MemoryNode, Handler]:
    """A node with facts and a consumer, and a handler."""
    node = MemoryNode(VirtualClock())
    node.fill(count)
    node.store.create_consumer("c", "outbound")
    return node, Handler(node)


def read_all(colour: Colour, node: MemoryNode, handler: Any, **options: Any) -> ConsumeReport:
    """Run until the log is read."""
    report: ConsumeReport = consume(
        colour, node, lambda c: c.run(handler, until_empty=True), **options
    )
    return report


def confirms(node: MemoryNode) -> list[int]:
    """Every offset that was confirmed, in order."""
    bodies = [body for _, method, body in node.calls if method.endswith("ConfirmReceipt")]
    return [json.loads(body)["offset"] for body in bodies]


def in_fork(work: Callable[[], bool]) -> bool:
    """Whether it came out true in a forked child."""
    pid = os.fork()
    if pid == 0:
        is_true = False
        with suppress(BaseException):
            is_true = work()
        os._exit(0 if is_true else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def nap_of(
    colour: Colour, node: MemoryNode, seconds: float, then: Callable[[], None] = lambda: None
) -> Any:
    """What a slow handler does, in virtual time."""
    if colour == "threads":
        node.clock.sleep(seconds)
        return then()

    async def nap() -> None:
        await AsyncSignal().wait(node.clock.now() + seconds)
        then()

    return nap()


@BOTH
@pytest.mark.req("C2", "C3", "BOUNDARY:consumer")
def test_pages_in_order(colour: Colour) -> None:
    """Facts are handled in order, page by page, and each page is confirmed when all is handled."""
    node, handler = node_with(5)
    report = read_all(colour, node, handler, limit=2)
    assert handler.seen == [1, 2, 3, 4, 5]
    assert handler.cursors == [0, 0, 2, 2, 4]
    assert confirms(node) == [2, 4, 5]
    assert report == ConsumeReport(handled=5, cursor=5)
    assert node.store.consumer("c").holder is None


@BOTH
@pytest.mark.req("C1", "BOUNDARY:consumer")
def test_consumer_is_created(colour: Colour) -> None:
    """A consumer that is not there is created on the log that was named, and keeps its cursor."""
    node = MemoryNode(VirtualClock())
    node.fill(2)
    handler = Handler(node)
    read_all(colour, node, handler, to_zone="b")
    assert handler.seen == [1, 2]
    node.append([(envelope(3), fact(3))])
    read_all(colour, node, handler)
    assert handler.seen == [1, 2, 3]
    with pytest.raises(BoundaryNotFoundError):
        consume(colour, MemoryNode(VirtualClock()), lambda c: c.fetch(), log=None)


@BOTH
@pytest.mark.req("C2", "C3")
def test_by_hand(colour: Colour) -> None:
    """The same page comes back until it is confirmed; the cursor moves, and back only by a seek."""
    node, _ = node_with(3)
    first = consume(colour, node, lambda c: c.fetch(2))
    second = consume(colour, node, lambda c: c.fetch(2))
    assert [each.offset for each in first.facts] == [1, 2]
    assert first.facts == second.facts
    assert node.count("ReleaseLease") == 2
    assert consume(colour, node, lambda c: c.confirm(2)) == 2
    assert consume(colour, node, lambda c: c.confirm(1)) == 2
    consume(colour, node, lambda c: c.seek(0, "again"))
    assert node.store.consumer("c").cursor == 0


@BOTH
@pytest.mark.req("C4")
@pytest.mark.parametrize("bad", [1, 2, 3, 4])
def test_good_prefix(colour: Colour, bad: int) -> None:
    """When an item fails, everything before it is confirmed and nothing at or above it."""
    node, handler = node_with(4)
    handler.fails[bad] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        read_all(colour, node, handler)
    assert handler.seen == list(range(1, bad + 1))
    assert node.store.consumer("c").cursor == bad - 1
    assert node.store.consumer("c").holder is None


@BOTH
@pytest.mark.req("C4", "C10")
def test_item_is_tried_again_in_place(colour: Colour) -> None:
    """A failed item is tried again after growing waits, with its prefix confirmed meanwhile."""
    node, handler = node_with(3)
    handler.fails[2] = [ValueError("1"), ValueError("2")]
    report = read_all(colour, node, handler)
    assert handler.seen == [1, 2, 2, 2, 3]
    assert handler.cursors == [0, 0, 1, 1, 1]
    assert node.clock.now() == pytest.approx(0.5 + 1.0)
    assert report.handled == 3
    assert node.count("FetchFacts") == 2


@BOTH
@pytest.mark.req("C10", "BOUNDARY:consumer")
def test_poison_goes_to_quarantine(colour: Colour) -> None:
    """After so many attempts a fact is set aside with the reason, and the cursor moves on."""
    node, handler = node_with(4)
    handler.fails[2] = [ValueError("bad batch")] * 9
    report = read_all(colour, node, handler, max_attempts=3)
    assert handler.seen == [1, 2, 2, 2, 3, 4]
    assert (report.handled, report.quarantined, report.cursor) == (3, 1, 4)
    [item] = node.store.quarantine("c")
    assert (item.offset, item.reason, item.attempts) == (2, "handler_failed", 3)
    assert item.message == "ValueError: bad batch"


@BOTH
@pytest.mark.req("C10")
def test_refusal_is_not_tried_again(colour: Colour) -> None:
    """A handler that says that no attempt can help is believed."""
    node, handler = node_with(2)
    handler.fails[1] = [NonRetryableException("no such order")]
    read_all(colour, node, handler)
    assert handler.seen == [1, 2]
    assert node.store.quarantine("c")[0].attempts == 1


@BOTH
@pytest.mark.req("C10")
def test_lost_answer_of_a_quarantine(colour: Colour) -> None:
    """A fact that was set aside without our hearing of it is not an error at the next attempt."""
    node, handler = node_with(3)
    handler.fails[1] = [NonRetryableException("no")]
    node.lost["QuarantineFact"] = 1
    report = read_all(colour, node, handler)
    assert handler.seen == [1, 2, 3]
    assert report.quarantined == 1
    assert len(node.store.quarantine("c")) == 1


@BOTH
@pytest.mark.req("C10")
def test_released_facts_come_first(colour: Colour) -> None:
    """What an operator released is delivered before the rest, and settled one by one."""
    node, handler = node_with(4)
    handler.fails = {n: [NonRetryableException("no")] for n in (1, 2, 3)}
    read_all(colour, node, handler)
    assert handler.seen == [1, 2, 3, 4]
    for item in node.store.quarantine("c"):
        node.store.settle(item.id, "released")
    node.append([(envelope(5), fact(5))])
    handler.seen.clear()
    handler.fails = {2: [NonRetryableException("still no")]}
    handler.naps = {1: 100.0}  # long enough for the lease to be renewed
    read_all(colour, node, handler)
    assert handler.seen == [1, 2, 3, 5]
    states = {item.offset: item.state for item in node.store.quarantine("c", state=None)}
    assert states == {1: "settled", 2: "quarantined", 3: "settled"}
    assert node.store.consumer("c").cursor == 5


@BOTH
@pytest.mark.req("C10")
def test_unconfirmed_page_is_handled_one_by_one(colour: Colour) -> None:
    """Who finds a page that somebody died on confirms after each item."""
    node, handler = node_with(3)
    node.store.serve("c", 10, 1 << 20, holder="dead", lease=1.0)
    node.clock.advance(2.0)
    read_all(colour, node, handler)
    assert handler.cursors == [0, 1, 2]


@BOTH
@pytest.mark.req("C10")
def test_crash_loop(colour: Colour) -> None:
    """A fact on which every holder died is set aside before it kills another one."""
    node, handler = node_with(3)
    for n in range(5):
        node.store.serve("c", 10, 1 << 20, holder=f"dead-{n}", lease=1.0)
        node.clock.advance(2.0)
    read_all(colour, node, handler, max_attempts=5)
    assert handler.seen == [2, 3]
    [item] = node.store.quarantine("c")
    assert (item.offset, item.reason, item.attempts) == (1, "crash_loop", 5)


class Ending(BaseException):
    """What no handler of exceptions stops."""


@BOTH
@pytest.mark.req("C10")
@pytest.mark.parametrize("ending", [SystemExit, Ending])
def test_a_handler_that_ends_its_process_is_counted(
    colour: Colour, ending: type[BaseException]
) -> None:
    """Its fact is given out max_attempts times and then set aside; the next process need not wait
    for a lease, and the facts behind it are not held against anybody.
    """
    node, handler = node_with(3)
    handler.fails[2] = [ending() for _ in range(9)]
    for _ in range(3):
        with pytest.raises(ending):
            read_all(colour, node, handler, max_attempts=3)
        assert node.store.consumer("c").cursor == 1
        node.clock.advance(0.002)
    report = read_all(colour, node, handler, max_attempts=3)
    assert handler.seen == [1, 2, 2, 2, 3]
    assert (report.quarantined, report.cursor) == (1, 3)
    [item] = node.store.quarantine("c")
    assert (item.offset, item.reason, item.attempts) == (2, "crash_loop", 3)


@BOTH
@pytest.mark.req("C10")
def test_an_interrupted_handler_is_not_counted(colour: Colour) -> None:
    """An operator's Ctrl-C says nothing about the fact in hand, however often it comes."""
    node, handler = node_with(2)
    handler.fails[2] = [KeyboardInterrupt() for _ in range(5)]
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            read_all(colour, node, handler, max_attempts=2)
        assert node.store.consumer("c").deliveries == 0
    report = read_all(colour, node, handler, max_attempts=2)
    assert (report.handled, report.quarantined) == (1, 0)


@BOTH
@pytest.mark.req("C10")
def test_lost_pages_are_no_crashes(colour: Colour) -> None:
    """Pages that were served but never arrived here are not held against the fact."""
    node, handler = node_with(2)
    node.lost["FetchFacts"] = 3
    report = read_all(colour, node, handler, max_attempts=2)
    assert handler.seen == [1, 2]
    assert report.quarantined == 0


@BOTH
def test_gaps_are_told(colour: Colour) -> None:
    """Facts that were given up are told to the consumer before it goes on behind them."""
    node, handler = node_with(4)
    node.store.truncate("outbound", 2, loss_reason="retention")
    told: list[Any] = []

    def on_gap(loss: Loss) -> None:
        told.append((loss.first_offset, loss.last_offset, loss.reason, list(handler.seen)))

    report = read_all(colour, node, handler, on_gap=on_gap)
    assert told == [(1, 2, "retention", [])]
    assert handler.seen == [3, 4]
    assert report.lost == 2
    assert report.cursor == 4


def test_gaps_are_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    """Without a function of one's own a loss is a warning, even when nothing else is left."""
    node, handler = node_with(2)
    node.store.truncate("outbound", 2, loss_reason="retention")
    report = read_all("threads", node, handler)
    assert "facts 1 to 2 were given up" in caplog.text
    assert (handler.seen, report.cursor) == ([], 2)


# ---- the lease ----


@BOTH
@pytest.mark.req("C11", "BOUNDARY:consumer")
def test_two_processes_on_one_name(colour: Colour) -> None:
    """Whoever comes second is told that the name is held, and handles nothing."""
    node, handler = node_with(2)
    node.store.serve("c", 10, 1 << 20, holder="somebody", lease=30.0)
    with pytest.raises(ConsumerHeldError):
        read_all(colour, node, handler)
    assert handler.seen == []
    assert node.count("FetchFacts") == 1


@BOTH
@pytest.mark.req("C11")
def test_lease_is_kept_in_a_long_handler(colour: Colour) -> None:
    """The lease is renewed while a handler works, and that confirms nothing."""
    node, _ = node_with(2)
    holders: list[str | None] = []

    def slow(delivery: Delivery) -> Any:
        def look() -> None:
            info = node.store.consumer("c")
            holders.append(info.holder if info.held_until > node.clock.now() else None)
            assert info.cursor < delivery.offset

        return nap_of(colour, node, 100.0, look)

    read_all(colour, node, slow, holder="me", lease=30.0)
    assert len(set(holders)) == 1
    assert str(holders[0]).startswith("me:")
    assert 0 in confirms(node)


@BOTH
@pytest.mark.req("C11")
def test_lost_lease_stops_at_once(colour: Colour) -> None:
    """When another has taken over, the handler's item is not confirmed, nor anything after it."""
    node, handler = node_with(3)

    def robbed(delivery: Delivery) -> None:
        handler(delivery)
        if delivery.offset == 2:
            node.store.seek("c", 0, reason="an operator freed the name")
            node.store.serve("c", 10, 1 << 20, holder="other", lease=1000.0)

    with pytest.raises(ConsumerHeldError):
        read_all(colour, node, robbed)
    assert handler.seen == [1, 2, 3]
    assert node.store.consumer("c").cursor == 0
    assert node.store.consumer("c").holder == "other"
    assert node.methods[-1] == "ConfirmReceipt"  # which was refused; not even a release follows


@BOTH
@pytest.mark.req("C11", "BOUNDARY:consumer")
def test_a_seek_in_the_middle_of_a_page(colour: Colour) -> None:
    """An operator who sets the cursor of a consumer at work does not end it: it goes on there."""
    node, handler = node_with(3)

    def sought(delivery: Delivery) -> None:
        if handler.seen == [1]:
            node.store.seek("c", 0, reason="an operator wants them again")
        handler(delivery)

    report = read_all(colour, node, sought)
    assert handler.seen == [1, 2, 3, 1, 2, 3]
    assert (report.cursor, node.store.consumer("c").holder) == (3, None)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.req("C11", "BOUNDARY:consumer")
def test_a_forked_child_does_not_hold_the_name() -> None:
    """Neither a run that a handler forked goes on in the child, nor has it its parent's lease."""
    node, _ = node_with(3)
    consumer = Consumer(node, "c")
    own = consumer.fetch().facts and consumer.holder

    def in_child() -> bool:
        refused = 0
        for act in (lambda: consumer.confirm(1), consumer.fetch):
            try:
                act()
            except ConsumerHeldError:
                refused += 1
        consumer.close()
        return refused == 2 and node.store.consumer("c").holder == own != consumer.holder

    assert in_fork(in_child)

    pid = -1

    def fork(delivery: Delivery) -> None:
        nonlocal pid
        if delivery.offset == 1:
            pid = os.fork()

    try:
        consumer.run(fork, until_empty=True)
    except ConsumerHeldError:
        os._exit(0 if pid == 0 else 1)
    finally:
        if pid == 0:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert node.store.consumer("c").cursor == 3


@BOTH
@pytest.mark.req("C11")
def test_keeper_notices_the_loss(colour: Colour) -> None:
    """A loss that was noticed during a handler ends the run before the next item."""
    node, handler = node_with(3)

    def robbed(delivery: Delivery) -> Any:
        handler(delivery)
        node.store.seek("c", 0, reason="an operator freed the name")
        node.store.serve("c", 10, 1 << 20, holder="other", lease=1000.0)
        return nap_of(colour, node, 60.0)

    with pytest.raises(ConsumerHeldError):
        read_all(colour, node, robbed)
    assert handler.seen == [1]
    assert set(confirms(node)) == {0}


@BOTH
@pytest.mark.req("C11")
def test_lease_that_may_have_ended(colour: Colour) -> None:
    """When no renewal got through for a whole lease, the name is made sure of before the next."""
    node, handler = node_with(2)
    node.faults["ConfirmReceipt"] = [unavailable() for _ in range(3)]

    def slow(delivery: Delivery) -> Any:
        handler(delivery)
        if delivery.offset == 1:
            return nap_of(colour, node, 35.0)
        assert node.calls[-1][1].endswith("ConfirmReceipt")
        assert node.store.consumer("c").held_until > node.clock.now()
        return None

    report = read_all(colour, node, slow, lease=30.0)
    assert handler.seen == [1, 2]
    assert confirms(node)[:4] == [0, 0, 0, 0]
    assert report.cursor == 2


# ---- outages and stopping ----


@BOTH
@pytest.mark.req("C3")
def test_outage_is_waited_out(colour: Colour) -> None:
    """A run survives a node that is away for a while, and confirms when it is back."""
    node, handler = node_with(2)
    node.faults["FetchFacts"] = [unavailable() for _ in range(20)]
    node.faults["ConfirmReceipt"] = [unavailable() for _ in range(3)]

    def last(delivery: Delivery) -> None:
        handler(delivery)
        if delivery.offset == 2:
            stop.set()

    stop = threading.Event()
    report = consume(colour, node, lambda c: c.run(last, stop=stop))
    assert handler.seen == [1, 2]
    assert report.handled == 2


@BOTH
def test_outage_ends_a_run_until_empty(colour: Colour) -> None:
    """A run that shall end when the log is read gives up on a node that is away."""
    node, handler = node_with(2)
    node.faults["FetchFacts"] = [unavailable() for _ in range(20)]
    with pytest.raises(NodeUnavailableError):
        read_all(colour, node, handler)
    assert node.times[:4] == [0.0, 0.0, 0.1, 0.3]


@BOTH
def test_refused_call_ends_a_run(colour: Colour) -> None:
    """A consumer that may not read is told so; it does not try for ever."""
    node, handler = node_with(2)
    node.faults["FetchFacts"] = [NotPermittedError("no")]
    with pytest.raises(NotPermittedError):
        consume(colour, node, lambda c: c.run(handler))


@BOTH
@pytest.mark.req("C3")
def test_graceful_stop(colour: Colour) -> None:
    """A stop finishes the item at hand, confirms it, and lets go of the name."""
    node, handler = node_with(5)
    stop = threading.Event()

    def stopping(delivery: Delivery) -> None:
        handler(delivery)
        if delivery.offset == 3:
            stop.set()

    report = consume(colour, node, lambda c: c.run(stopping, stop=stop))
    assert handler.seen == [1, 2, 3]
    assert report.cursor == node.store.consumer("c").cursor == 3
    assert node.store.consumer("c").holder is None
    assert node.methods[-2:] == ["ConfirmReceipt", "ReleaseLease"]


@BOTH
def test_stop_between_attempts(colour: Colour) -> None:
    """A stop while an item waits for its next attempt leaves it to the next run."""
    node, handler = node_with(2)
    handler.fails[2] = [ValueError()] * 9
    stop = threading.Event()

    def failing(delivery: Delivery) -> None:
        if delivery.offset == 2:
            stop.set()
        handler(delivery)

    report = consume(colour, node, lambda c: c.run(failing, stop=stop))
    assert (report.handled, report.cursor) == (1, 1)
    assert node.store.quarantine("c") == []


@BOTH
def test_stop_during_an_outage(colour: Colour) -> None:
    """A stop while the node is away ends the run without an error; nothing was confirmed."""
    node, handler = node_with(2)
    stop = threading.Event()

    def cut(delivery: Delivery) -> None:
        handler(delivery)
        if delivery.offset == 2:
            node.faults["ConfirmReceipt"] = [unavailable() for _ in range(99)]
            stop.set()

    report = consume(colour, node, lambda c: c.run(cut, stop=stop))
    assert report.handled == 2
    assert node.store.consumer("c").cursor == 0


@BOTH
def test_stop_by_method(colour: Colour) -> None:
    """stop() ends a run from inside its handler, and a stop before a run ends that one."""
    node, handler = node_with(3)

    def act(consumer: Any) -> Any:
        def once(delivery: Delivery) -> None:
            handler(delivery)
            consumer.stop()

        return consumer.run(once)

    report = consume(colour, node, act)
    assert (report.handled, handler.seen) == (1, [1])


@BOTH
def test_idle_run_asks_with_pauses(colour: Colour) -> None:
    """An empty log is looked at about once in the wait, also at a node that does not wait."""
    node, handler = node_with(0)
    empty = b'{"facts":[],"head_offset":0,"through_offset":0,"cursor":0}'
    stop = threading.Event()

    def last(_: bytes) -> bytes:
        stop.set()
        return empty

    node.steps = [empty, empty, empty, last]
    consume(colour, node, lambda c: c.run(handler, stop=stop, wait=2.0))
    asked = [at for at, method, _ in node.calls if method.endswith("FetchFacts")]
    assert asked == [0.0, 2.0, 4.0, 6.0]


# ---- mistakes ----


async def a_coroutine(delivery: Delivery) -> None:
    """Never runs in a consumer for threads."""


def a_generator(delivery: Delivery) -> Any:
    """Never runs, because nobody asks it for anything."""
    yield delivery


async def an_asynchronous_generator(delivery: Delivery) -> Any:
    """The same."""
    yield delivery


@pytest.mark.parametrize(
    ("colour", "handler"),
    [
        ("threads", a_coroutine),
        ("threads", a_generator),
        ("threads", an_asynchronous_generator),
        ("tasks", a_generator),
        ("tasks", an_asynchronous_generator),
    ],
)
@pytest.mark.req("BOUNDARY:consumer", "BOUNDARY:badinput")
def test_a_handler_that_does_not_run_handles_nothing(colour: Colour, handler: Any) -> None:
    """What it returns is work that nobody does: the run ends, and no fact is confirmed or set
    aside.
    """
    node, _ = node_with(2)
    with pytest.raises(WiringError, match=handler.__name__.replace("_", " ")) as caught:
        read_all(colour, node, handler)
    assert caught.value.remedy
    assert (node.store.consumer("c").cursor, node.store.quarantine("c")) == (0, [])


@BOTH
@pytest.mark.req("BOUNDARY:consumer")
def test_each_attempt_gets_the_fact_as_it_came(colour: Colour) -> None:
    """A handler that changed its input before it failed is given the content anew."""
    node = MemoryNode(VirtualClock())
    labelled = structs.replace(envelope(1), labels={"line": "3"})
    node.append([(labelled, structs.replace(fact(1), object_json={"amount": 40}))])
    node.store.create_consumer("c", "outbound")
    seen: list[tuple[dict[str, int], dict[str, str] | None]] = []

    def spoil(delivery: Delivery) -> None:
        seen.append((dict(delivery.fact.object_json), dict(delivery.envelope.labels or {})))
        delivery.fact.object_json.clear()
        assert delivery.envelope.labels is not None
        delivery.envelope.labels.clear()
        if len(seen) < 3:
            raise RuntimeError("not yet")

    assert read_all(colour, node, spoil).handled == 1
    assert seen == [({"amount": 40}, {"line": "3"})] * 3


@pytest.mark.parametrize(
    "options", [{"lease": 0}, {"limit": 0}, {"max_attempts": 0}, {"start": "x"}]
)
def test_wrong_options(options: dict[str, Any]) -> None:
    """Numbers that make no sense are refused when the consumer is made."""
    with pytest.raises(ConfigurationError):
        Consumer("http://127.0.0.1:1", "c", **options)


@BOTH
def test_page_that_makes_no_sense(colour: Colour) -> None:
    """An answer that is no page is an error, and nothing is handled or confirmed."""
    node, handler = node_with(1)
    node.steps = [b'{"facts":7}']
    with pytest.raises(BoundaryError, match="no Batch"):
        read_all(colour, node, handler)
    assert confirms(node) == []


@BOTH
@pytest.mark.parametrize(
    ("act", "seconds"),
    [
        (lambda c: c.fetch(wait=5.0), 7.0 + 2.0),  # and 2 to let go of the name in the end
        (lambda c: c.confirm(1), 2.0),
        (
            lambda c: c.get_object(
                {"bucket": "b", "key": "k", "digest": "sha256:" + 64 * "0", "size": 1}
            ),
            2.0,
        ),
    ],
    ids=["fetch", "confirm", "get_object"],
)
def test_the_timeout_bounds_a_whole_call(colour: Colour, act: Any, seconds: float) -> None:
    """A node that hangs costs the timeout once, beyond what a fetch was told to wait."""
    transport = HungTransport(2.0 if seconds == 2.0 else 7.0)
    with pytest.raises(NodeUnavailableError):
        consume(colour, transport, act, timeout=2.0)
    assert transport.clock.now() == pytest.approx(seconds)
