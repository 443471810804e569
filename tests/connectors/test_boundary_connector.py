"""Facts as transactions: what is delivered, and when a node hears that it is done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ergon_framework.boundary.client.producer import Producer
from ergon_framework.boundary.model import Loss
from ergon_framework.connector.boundary import (
    BoundaryConnector,
    BoundaryConnectorError,
    FactPassedError,
)
from ergon_framework.errors import (
    ConfigurationError,
    ConsumerHeldError,
    NodeUnavailableError,
    TransactionException,
    WiringError,
)
from ergon_framework.ports.transaction import Transaction
from ergon_framework.task.mixins.policies import ConsumerPolicy
from ergon_framework.task.ready import ConsumerTask
from ergon_framework.testing.clock import VirtualClock
from ergon_framework.testing.suites import exercise_connector
from tests.boundary.client.scripted import AsyncOver, MemoryNode, envelope, fact, unavailable
from tests.connectors.test_boundary_connector_machine import ONCE
from tests.connectors.zone_node import (
    OPTIONS,
    cursor,
    dead_letters,
    die,
    fill,
    http_node,
    in_process,
    numbers,
    over_http,
    settled,
    taking_part,
)

pytestmark = pytest.mark.req("ONE:connector-boundary")

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CARRIED = ("correlation_id", "trace_id", "parent_id")
NOT_IN_THE_CONTRACT = (
    "keeps_the_id",  # an id is printable ASCII without blanks
    "keeps_numbers_exactly",  # integers beyond 2**53 are refused, not rounded
)


def _wrapped(payload: Any) -> Any:
    return {"subject": "thing:1", "predicate": "was_told", "object_json": payload}


SHAPE = (_wrapped, lambda payload: payload["object_json"])


@pytest.fixture
def node() -> MemoryNode:
    """A node without a wire, with five facts."""
    made = MemoryNode(VirtualClock())
    made.fill(5)
    return made


@pytest.fixture
def connector(node: MemoryNode) -> Iterator[BoundaryConnector]:
    """A consumer of that node."""
    with BoundaryConnector(node, consumer="c", log="outbound", name="facts", retry=ONCE) as made:
        yield made


def at(node: MemoryNode) -> int:
    """The consumer's cursor."""
    return node.store.consumer("c").cursor


@pytest.mark.parametrize(
    ("make", "colour"),
    [
        (in_process, "async"),
        pytest.param(over_http, "sync", marks=pytest.mark.slow),
        pytest.param(over_http, "async", marks=pytest.mark.slow),
    ],
)
def test_the_suite_is_passed(make: Callable[[], Any], colour: Any) -> None:
    """Everything a connector promises, in process and over HTTP, in strict order."""
    report = exercise_connector(
        make,
        colour=colour,
        dead_letters=lambda each: dead_letters(each.zone),
        order="strict",
        ids="unique",
        carries=CARRIED,
        shape=SHAPE,
        skip=NOT_IN_THE_CONTRACT,
    )
    report.raise_for_failures(recommended=True)


# ---- what is delivered ----


def test_a_fact_is_a_transaction(node: MemoryNode) -> None:
    """Its id is the message's, its payload the fact, its metadata the envelope."""
    told = {
        "message_id": "order:9:paid",
        "from_zone": "plant",
        "to_zone": "office",
        "produced_at_unix_ms": 1_741_248_600_123,
        "correlation_id": "flow-1",
        "causation_id": "order:9:created",
        "labels": {"tenant": "blue", "traceparent": TRACE, "tracestate": "a=b"},
        "object_schema": "order.v1",
    }
    Producer(node).append_fact(told, {"subject": "order:9", "predicate": "paid", "object_json": 7})
    with BoundaryConnector(node, consumer="d", log="outbound", name="facts") as connector:
        came = connector.fetch_transactions(9)[-1]
    assert came.transaction_id == "order:9:paid"
    assert came.payload == {"subject": "order:9", "predicate": "paid", "object_json": 7}
    assert came.metadata == {
        "offset": 6,
        "from_zone": "plant",
        "correlation_id": "flow-1",
        "causation_id": "order:9:created",
        "object_schema": "order.v1",
        "labels": {"tenant": "blue"},
        "traceparent": TRACE,
        "tracestate": "a=b",
    }
    assert (came.correlation_id, came.parent_id) == ("flow-1", "order:9:created")
    assert (came.trace_id, came.source) == (TRACE[3:35], "facts")
    assert round(came.created_at.timestamp() * 1000) == 1_741_248_600_123


# ---- when the node hears of it ----


def test_only_the_longest_prefix_is_confirmed(
    node: MemoryNode, connector: BoundaryConnector
) -> None:
    """Outcomes may come in any order; the cursor never passes a fact that has none."""
    first, second, third, *_ = connector.fetch_transactions(5)
    connector.ack(third)
    connector.ack(second)
    assert at(node) == 0
    connector.ack(first)
    assert at(node) == 3
    assert node.methods.count("ConfirmReceipt") == 1


def test_a_failure_in_the_middle_is_set_aside_in_its_turn(
    node: MemoryNode, connector: BoundaryConnector
) -> None:
    """What lies before it is confirmed first, then it is set aside, and the others pass."""
    first, second, third, *_ = connector.fetch_transactions(3)
    wrapped = TransactionException("ValueError: no", cause=ValueError("no"))
    connector.nack(second, wrapped)
    connector.ack(third)
    assert node.store.quarantine() == []
    connector.ack(first)
    (item,) = node.store.quarantine()
    assert (item.offset, item.reason, item.message) == (2, "handler_failed", "ValueError: no")
    assert at(node) == 3


@pytest.mark.req("ONE:parked")
def test_a_parked_fact_holds_back_what_is_behind_it(node: MemoryNode) -> None:
    """It is not confirmed, nor are those behind it, which are handled all the same."""
    clock = node.clock
    with taking_part(clock), BoundaryConnector(node, consumer="c", log="outbound") as connector:
        first, second = connector.fetch_transactions(2)
        connector.release_after(first, 60.0)
        connector.ack(second)
        for each in connector.fetch_transactions(9):
            connector.ack(each)
        assert connector.fetch_transactions(9) == []
        assert at(node) == 0
        clock.sleep(60.0)
        (again,) = connector.fetch_transactions(9)
        assert again == first
        connector.ack(again)
        assert at(node) == 5


def test_what_lies_behind_the_window_waits(node: MemoryNode) -> None:
    """The window is bounded: a fact that never ends does not let everything in."""
    with BoundaryConnector(node, consumer="c", log="outbound", limit=3) as connector:
        first, *others = connector.fetch_transactions(9)
        assert len(others) == 2
        for each in others:
            connector.ack(each)
        assert connector.fetch_transactions(9) == []
        connector.ack(first)
        assert len(connector.fetch_transactions(9)) == 2


def test_facts_from_quarantine_come_first(node: MemoryNode, connector: BoundaryConnector) -> None:
    """What an operator released is confirmed on its own, and never with something behind it."""
    first, second, third, *_ = connector.fetch_transactions(3)
    connector.nack(first, ValueError("no"))
    node.store.settle(node.store.quarantine()[0].id, "released")
    assert connector.fetch_transactions(9) != []  # the released one, and only that
    connector.ack(second)
    connector.ack(third)
    assert at(node) == 1
    assert [item.state for item in node.store.quarantine(state=None)] == ["released"]


def test_a_page_that_never_came_is_not_confirmed_by_accident(
    node: MemoryNode, connector: BoundaryConnector
) -> None:
    """The node may have served released facts in an answer that was lost: they are asked for."""
    first, second, *_ = connector.fetch_transactions(2)
    connector.nack(first, ValueError("no"))
    node.store.settle(node.store.quarantine()[0].id, "released")
    node.lost["FetchFacts"] = 1
    with pytest.raises(NodeUnavailableError):
        connector.fetch_transactions(2)
    connector.ack(second)
    assert [item.state for item in node.store.quarantine(state=None)] == ["released"]
    (again,) = connector.fetch_transactions(1)
    connector.ack(again)
    assert [item.state for item in node.store.quarantine(state=None)] == ["settled"]
    assert at(node) == 2


def test_losses_are_told_once_and_passed(node: MemoryNode) -> None:
    """Facts that were given up are told to ``on_gap`` before those behind them are delivered."""
    node.store.truncate("outbound", 2, loss_reason="the disk was full")
    node.store.create_consumer("late", "outbound")
    node.store.seek("late", 2, reason="test")
    told: list[Loss] = []
    node.store.create_consumer("c", "outbound")
    with node.store.database.step() as state:
        state.consumer("c").cursor = 0
    with BoundaryConnector(node, consumer="c", on_gap=told.append) as connector:
        came = connector.fetch_transactions(9)
        assert numbers(came) == [3, 4, 5]
        connector.fetch_transactions(9)
    assert [(loss.first_offset, loss.last_offset, loss.reason) for loss in told] == [
        (1, 2, "the disk was full")
    ]
    assert at(node) == 2


# ---- the consumer's name ----


def test_a_name_that_is_held_is_refused(node: MemoryNode, connector: BoundaryConnector) -> None:
    """A second process is told who has the name, at once and without waiting."""
    connector.fetch_transactions(1)
    with BoundaryConnector(node, consumer="c") as other:
        with pytest.raises(ConsumerHeldError, match="'c' is"):
            other.fetch_transactions(1)
        assert not other.health()
    connector.close()
    with BoundaryConnector(node, consumer="c") as other:
        assert numbers(other.fetch_transactions(1)) == [1]


def test_a_lost_name_makes_outcomes_errors(node: MemoryNode, connector: BoundaryConnector) -> None:
    """Whoever has the name now has the outcome; what is fetched later is delivered anew."""
    first, second = connector.fetch_transactions(2)
    with node.store.database.step() as state:
        state.consumer("c").held_until = 0.0
    node.store.serve("c", 1, 1 << 20, holder="other")
    with pytest.raises(ConsumerHeldError):
        connector.ack(first)
    assert at(node) == 0
    node.store.confirm("c", 1, holder="other")
    node.store.release_lease("c", "other")
    assert numbers(connector.fetch_transactions(9)) == [2, 3, 4, 5]
    with pytest.raises(FactPassedError, match="no longer in this process's hands"):
        connector.ack(second)


def test_the_lease_is_renewed_while_facts_are_in_hand(node: MemoryNode) -> None:
    """A task may take longer than the lease: the connector keeps the name meanwhile."""
    clock = node.clock
    with clock, BoundaryConnector(node, consumer="c", log="outbound", lease=30.0) as connector:
        (first, *_) = connector.fetch_transactions(1)
        clock.sleep(200.0)
        assert node.store.consumer("c").is_held(clock.now())
        connector.ack(first)
        assert at(node) == 1


def test_after_a_crash_facts_come_one_at_a_time(node: MemoryNode) -> None:
    """One of them may have been the death of the process; the one that was is set aside."""
    came: list[Transaction] = []
    for earlier in range(3):
        dying = BoundaryConnector(node, consumer="c", log="outbound", max_deliveries=2)
        came = dying.fetch_transactions(5)
        assert len(came) == (5 if earlier == 0 else 1)
        die(dying, node)
    (item,) = node.store.quarantine()
    assert (item.offset, item.reason) == (1, "crash_loop")
    assert numbers(came) == [2]


# ---- a node that is away ----


@pytest.mark.slow
def test_a_node_that_goes_away_and_comes_back() -> None:
    """Outcomes that could not be told are told later: nothing is handled again."""
    with http_node() as node:
        fill(node.zone, 1, 2, 3)
        with BoundaryConnector(node.url, **OPTIONS, retry=ONCE) as connector:
            first, second, third = connector.fetch_transactions(3)
            node.stop()
            for each in (first, second):
                with pytest.raises(NodeUnavailableError):
                    connector.ack(each)
            with pytest.raises(NodeUnavailableError):
                connector.fetch_transactions(1)
            node.start()
            assert connector.fetch_transactions(1) == []
            assert cursor(node.zone) == 2
            connector.ack(third)
            assert cursor(node.zone) == 3


def test_an_outcome_may_be_told_again(node: MemoryNode, connector: BoundaryConnector) -> None:
    """An ack that failed is no contradiction to the next one."""
    (first, *_) = connector.fetch_transactions(1)
    node.faults["ConfirmReceipt"] = [unavailable()]
    with pytest.raises(NodeUnavailableError):
        connector.ack(first)
    connector.ack(first)
    assert at(node) == 1
    with pytest.raises(BoundaryConnectorError, match="settled with ack"):
        connector.release(first)


@pytest.mark.parametrize("is_lost", [True, False], ids=["answer-lost", "node-away"])
def test_an_outcome_that_was_told_meanwhile_may_be_told_again(
    node: MemoryNode, connector: BoundaryConnector, is_lost: bool
) -> None:
    """A later ack, or fetch, finds out that the node has it: the repeated one has not failed."""
    first, second = connector.fetch_transactions(2)
    if is_lost:
        node.lost["ConfirmReceipt"] = 1
    else:
        node.faults["ConfirmReceipt"] = [unavailable()]
    with pytest.raises(NodeUnavailableError):
        connector.ack(first)
    if is_lost:
        came = connector.fetch_transactions(1)
        assert numbers(came) == [3]
    else:
        connector.ack(second)
    connector.ack(first)
    connector.ack(second)
    assert at(node) == 2


def test_a_fact_that_nobody_has_any_more_comes_again(node: MemoryNode) -> None:
    """Who had fetched it was cancelled, say: nobody can settle it, and all behind it would wait."""
    clock = node.clock
    with (
        taking_part(clock),
        BoundaryConnector(node, consumer="c", log="outbound", lease=30.0) as connector,
    ):
        first, second = connector.fetch_transactions(2)
        connector.ack(second)
        del first
        came = connector.fetch_transactions(1)
        assert numbers(came) == [3]  # as if its process had died: not before the lease is over
        clock.sleep(31.0)
        again = connector.fetch_transactions(1)
        assert numbers(again) == [1]
        connector.ack(again[0])
        assert at(node) == 2


# ---- with the engine ----


class Picky(ConsumerTask):
    """Refuses every third, and takes its time with the others."""

    def process_transaction(self, transaction: Transaction) -> None:
        """Fail in the middle."""
        n = transaction.payload["object_json"]["n"]
        if n % 3 == 0:
            raise ValueError(n)
        if n % 4 == 1:
            threading.Event().wait(0.002)


@pytest.mark.slow
def test_eight_workers_with_failures_in_the_middle() -> None:
    """Everything has one outcome: confirmed, or set aside with its reason."""
    with http_node() as node:
        fill(node.zone, *range(1, 61))
        with BoundaryConnector(node.url, **OPTIONS) as connector:
            policy = ConsumerPolicy.model_validate(
                {"loop": {"concurrency": {"value": 8}, "batch": {"size": 8}, "streaming": False}}
            )
            report = Picky(connectors={"facts": connector}).consume_transactions(policy)
        assert (report.succeeded, report.failed, report.settlement_failures) == (40, 20, 0)
        assert cursor(node.zone) == 60
        assert settled(node.zone) == set(range(1, 61))
        aside = [item.offset for item in node.zone.store.quarantine()]
        assert aside == list(range(3, 61, 3))


# ---- mistakes ----


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"node": ""}, "needs a node"),
        ({"node": object()}, "is no node"),
        ({"node": "ftp://x"}, "ftp"),
        ({"consumer": None}, "needs a consumer or a from_zone"),
        ({"consumer": "a\nb"}, "consumer is no name"),
        ({"consumer": None, "from_zone": "a", "log": "outbound"}, "log without a consumer"),
        ({"from_zone": "a\n"}, "from_zone is no zone"),
        ({"to_zone": ""}, "to_zone is empty"),
        ({"lease": 0}, "lease must be above 0, not 0"),
        ({"wait": -1}, "wait must be .* not -1"),
        ({"timeout": "soon"}, "timeout must be a number, not 'soon'"),
        ({"limit": 0}, "limit must be at least 1, not 0"),
        ({"max_deliveries": True}, "max_deliveries must be a whole number, not True"),
        ({"start": "middle"}, "start is 'middle'"),
        ({"cert": "a.pem"}, "belong together"),
    ],
)
def test_bad_options_are_refused_at_once(options: dict[str, Any], told: str) -> None:
    """Before anything is sent, and in words that name the option."""
    with pytest.raises(ConfigurationError, match=told):
        BoundaryConnector(**{"node": "http://127.0.0.1:1", "consumer": "c", **options})


def test_what_was_not_configured_is_refused(node: MemoryNode) -> None:
    """One that only produces cannot consume, and the other way round."""
    producing = BoundaryConnector(node, from_zone="a", to_zone="b")
    with pytest.raises(ConfigurationError, match="has no consumer"):
        producing.fetch_transactions(1)
    consuming = BoundaryConnector(node, consumer="c")
    with pytest.raises(ConfigurationError, match="has no from_zone"):
        consuming.dispatch_transactions([])
    with pytest.raises(ConfigurationError, match="'nap'"):
        consuming.fetch_transactions(1, nap=1)


def test_a_node_of_an_event_loop_is_not_for_threads(node: MemoryNode) -> None:
    """The error says what to do instead; so does the one about an outbox."""
    with pytest.raises(WiringError, match="event loop only"):
        BoundaryConnector(AsyncOver(node), consumer="c").fetch_transactions(1)
    with pytest.raises(ConfigurationError, match="an outbox needs"):
        BoundaryConnector(AsyncOver(node), from_zone="a", outbox="x.db")


def test_an_async_connector_belongs_to_its_loop(node: MemoryNode) -> None:
    """Its lease is kept by a task of that loop."""
    connector = BoundaryConnector(AsyncOver(node), consumer="c", log="outbound")

    async def one() -> list[int]:
        came = await connector.fetch_transactions_async(1)
        for each in came:
            await connector.ack_async(each)
        return numbers(came)

    assert asyncio.run(one()) == [1]
    with pytest.raises(WiringError, match="another event loop"):
        asyncio.run(one())


def test_an_unknown_consumer_is_named() -> None:
    """Without a log to create it on, a consumer that is not there is an error."""
    node = MemoryNode(VirtualClock())
    node.append([(envelope(1), fact(1))])
    with (
        BoundaryConnector(node, consumer="nobody") as connector,
        pytest.raises(LookupError, match="nobody"),
    ):
        connector.fetch_transactions(1)
