from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest

from ergon_framework.connector.memory import (
    MemoryConnector,
    MemoryConnectorError,
    QueueFullError,
)
from ergon_framework.errors import ConfigurationError, EnvelopeError, PayloadError
from ergon_framework.ports.connector import AsyncSettling, AsyncSource, Settling, Source
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.suites import exercise_connector
from ergon_framework.testing.suites.connector.faults import CHECKS as FAULT_CHECKS


def some(count: int) -> list[Transaction]:
    """So many transactions, t0 and up."""
    return [Transaction(f"t{n}", {"n": n}) for n in range(count)]


def ids(transactions: list[Transaction]) -> list[str]:
    """Their ids, in order."""
    return [each.transaction_id for each in transactions]


@pytest.mark.req("R0-N", "R1-S1", "R1-S2", "R1-S3", "R1-ID2")
@pytest.mark.parametrize("settling", [True, False])
def test_it_passes_the_suite_in_both_colours(settling: bool) -> None:
    """With and without settlement it keeps every promise a connector can make."""
    report = exercise_connector(
        lambda: MemoryConnector(settling=settling), colour="both", order="strict"
    )
    report.raise_for_failures(recommended=True)
    of_faults = {each.name for each in FAULT_CHECKS}  # no fault is given
    assert bool(set(report.skipped) - of_faults) is not settling


def test_it_fits_the_ports() -> None:
    """One object serves threads and asyncio."""
    connector = MemoryConnector()
    for port in (Source, AsyncSource, Settling, AsyncSettling):
        assert isinstance(connector, port)
    assert inspect.iscoroutinefunction(connector.ack_async)


def test_without_settlement_the_verbs_do_not_exist() -> None:
    """Engines look for methods by name, so a connector that does not settle must not have them."""
    connector = MemoryConnector(some(1), settling=False)
    for verb in ("ack", "nack", "release", "ack_async", "nack_async", "release_async"):
        assert not hasattr(connector, verb)
    connector.fetch_transactions(1)
    assert connector.get_transactions_count() == 0


def test_it_starts_with_what_it_is_given() -> None:
    """The constructor takes any iterable of transactions."""
    connector = MemoryConnector(iter(some(3)))
    assert ids(connector.fetch_transactions(2)) == ["t0", "t1"]
    assert connector.get_transactions_count() == 1


def test_its_name_becomes_the_source_of_those_without_one() -> None:
    """A source that is set stays."""
    connector = MemoryConnector([Transaction("a"), Transaction("b", source="till")], name="orders")
    assert [each.source for each in connector.fetch_transactions(2)] == ["orders", "till"]


def test_a_nacked_transaction_is_dead_with_its_reason() -> None:
    """What is dead is the transaction as it was dispatched, not as a handler left it."""
    connector = MemoryConnector(some(1))
    transaction = connector.fetch_transactions(1)[0]
    transaction.payload["n"] = "changed"
    connector.nack(transaction, ValueError("no such customer"))
    ((dead, reason),) = connector.dead
    assert (dead.payload, reason) == ({"n": 0}, "ValueError: no such customer")


@pytest.mark.req("R1-I2")
def test_released_transactions_get_their_places_back() -> None:
    """Whatever the order of release, the order of delivery stays."""
    connector = MemoryConnector(some(5))
    taken = connector.fetch_transactions(4)
    for index in (3, 1, 0):
        connector.release(taken[index])
    assert ids(connector.fetch_transactions(9)) == ["t0", "t1", "t3", "t4"]


def test_a_full_queue_takes_nothing_of_the_batch() -> None:
    """What is in flight counts, so a release always finds its place."""
    connector = MemoryConnector(some(2), capacity=3, name="small")
    taken = connector.fetch_transactions(2)
    with pytest.raises(QueueFullError, match=r"'small' holds 2 of at most 3 .* cannot take 2 more"):
        connector.dispatch_transactions(some(2))
    assert connector.get_transactions_count() == 0
    connector.release(taken[0])
    connector.ack(taken[1])
    connector.dispatch_transactions(some(2))
    assert connector.get_transactions_count() == 3


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_below_one_is_refused(capacity: int) -> None:
    """A queue that can hold nothing is a mistake."""
    with pytest.raises(ConfigurationError, match="capacity must be at least 1"):
        MemoryConnector(capacity=capacity)


@pytest.mark.parametrize("batch_size", [0, -3])
def test_a_batch_size_below_one_is_refused(batch_size: int) -> None:
    """Asking for nothing is a mistake, not an empty queue."""
    with pytest.raises(ConfigurationError, match="batch_size must be at least 1"):
        MemoryConnector().fetch_transactions(batch_size)


def test_settling_a_copy_is_refused() -> None:
    """The same id may be in flight twice, so only the delivered object says which one is meant."""
    connector = MemoryConnector(some(1))
    delivered = connector.fetch_transactions(1)[0]
    copy = Transaction.from_dict(delivered.to_dict())
    assert copy == delivered
    with pytest.raises(MemoryConnectorError, match=r"cannot ack .* did not deliver this object"):
        connector.ack(copy)
    connector.ack(delivered)


def test_settling_what_another_connector_delivered_is_refused() -> None:
    """Connectors do not settle for each other."""
    delivered = MemoryConnector(some(1)).fetch_transactions(1)[0]
    with pytest.raises(MemoryConnectorError, match="did not deliver this object"):
        MemoryConnector().release(delivered)


def test_a_contradicting_settlement_is_refused() -> None:
    """Once acknowledged it can be acknowledged again, but not released."""
    connector = MemoryConnector(some(1))
    delivered = connector.fetch_transactions(1)[0]
    connector.ack(delivered)
    connector.ack(delivered)
    with pytest.raises(MemoryConnectorError, match="settled with ack before"):
        connector.release(delivered)
    assert connector.fetch_transactions(1) == []


def test_a_redelivery_is_a_delivery_of_its_own() -> None:
    """The late release of an earlier delivery does not touch the later one."""
    connector = MemoryConnector(some(1))
    first = connector.fetch_transactions(1)[0]
    connector.release(first)
    second = connector.fetch_transactions(1)[0]
    connector.release(first)
    assert connector.fetch_transactions(1) == []
    connector.ack(second)


@pytest.mark.req("R1-S1")
def test_a_payload_that_cannot_be_copied_is_refused_before_anything_is_taken() -> None:
    """The error names the transaction, and the rest of the batch is not taken either."""
    connector = MemoryConnector()
    with pytest.raises(PayloadError, match="'bad' cannot be copied") as caught:
        connector.dispatch_transactions([Transaction("ok"), Transaction("bad", threading.Lock())])
    assert caught.value.details == {"transaction_id": "bad"}
    assert connector.get_transactions_count() == 0


def test_what_is_no_transaction_is_refused() -> None:
    """A dict is not taken for a transaction."""
    given: Any = [{"transaction_id": "t1"}]
    with pytest.raises(EnvelopeError, match="takes Transactions, not dict"):
        MemoryConnector(given)


class CopiesOnce:
    """A payload whose second copy fails."""

    def __init__(self, copies: int = 0) -> None:
        self.copies = copies

    def __deepcopy__(self, memo: object) -> CopiesOnce:
        if self.copies:
            raise RuntimeError("no more copies")
        return CopiesOnce(self.copies + 1)


def test_a_failing_delivery_loses_nothing() -> None:
    """When one of a batch cannot be delivered, all of the batch still wait."""
    connector = MemoryConnector([Transaction("ok"), Transaction("odd", CopiesOnce())])
    with pytest.raises(PayloadError, match="'odd'"):
        connector.fetch_transactions(2)
    assert connector.get_transactions_count() == 2
    assert ids(connector.fetch_transactions(1)) == ["ok"]


def test_it_finds_by_id_wherever_a_transaction_is() -> None:
    """Waiting, in flight or dead; what was acknowledged is gone."""
    connector = MemoryConnector(some(4))
    in_flight, dead, done = connector.fetch_transactions(3)
    connector.nack(dead, ValueError())
    connector.ack(done)
    found = {name: connector.fetch_transaction_by_id(name) for name in ("t0", "t1", "t2", "t3")}
    assert [name for name, each in found.items() if each is None] == ["t2"]
    assert found["t0"] == in_flight
    assert found["t0"] is not in_flight


def test_a_closed_connector_refuses_everything() -> None:
    """After close nothing looks like an empty queue."""
    connector = MemoryConnector(some(1))
    delivered = connector.fetch_transactions(1)[0]
    assert connector.health()
    asyncio.run(connector.aclose())
    assert not connector.health()
    for call in (
        lambda: connector.fetch_transactions(1),
        lambda: connector.dispatch_transactions([]),
        lambda: connector.ack(delivered),
    ):
        with pytest.raises(MemoryConnectorError, match="is closed"):
            call()


def test_neither_errors_nor_reprs_show_the_payload() -> None:
    """A payload is private."""
    connector = MemoryConnector([Transaction("t1", {"secret": "hunter2"})])
    delivered = connector.fetch_transactions(1)[0]
    connector.ack(delivered)
    with pytest.raises(MemoryConnectorError) as caught:
        connector.release(delivered)
    assert "hunter2" not in f"{caught.value} {delivered!r} {connector!r}"


def test_dead_letters_have_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    """The last ones are kept, the older ones counted, and the first loss is logged."""
    connector = MemoryConnector([Transaction(f"t{n}") for n in range(5)], max_dead=2)
    for transaction in connector.fetch_transactions(5):
        connector.nack(transaction, ValueError("no"))
    assert [each.transaction_id for each, _ in connector.dead] == ["t3", "t4"]
    assert connector.dead_dropped == 3
    assert caplog.text.count("drops older ones") == 1


def test_dead_letters_are_bounded_unless_said_otherwise() -> None:
    """A consumer that fails for days does not fill the memory."""
    assert MemoryConnector().max_dead == 10_000
    assert MemoryConnector(max_dead=None).max_dead is None
    with pytest.raises(ConfigurationError, match="max_dead"):
        MemoryConnector(max_dead=-1)
