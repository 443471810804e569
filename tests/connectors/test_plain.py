from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.suites import exercise_connector
from tests.connectors.plain import Plain, Take, as_a_list, lazily, or_none, plain

# A deque of the very objects that were put in cannot do better, and no port asks it to.
BEYOND_A_DEQUE = {
    "batch_size_below_one_is_refused",
    "dispatch_takes_a_snapshot",
    "redelivery_is_pristine",
    "refuses_what_is_no_transaction",
    "settling_the_unknown_is_refused",
}


@pytest.mark.req("R0-N", "R1-S1")
@pytest.mark.parametrize("colour", ["sync", "async", "both"])
@pytest.mark.parametrize("take", [as_a_list, or_none, lazily])
@pytest.mark.parametrize("offers", [(), ("settle",)], ids=["fetches", "settles"])
@pytest.mark.parametrize("is_seeded", [False, True], ids=["dispatched", "seeded"])
def test_a_plain_queue_passes(
    colour: Any, take: Take, offers: tuple[str, ...], is_seeded: bool
) -> None:
    """A connector that keeps to the ports is accepted; what it could do better is only named."""
    if is_seeded:
        report = exercise_connector(plain(colour, take, *offers), colour=colour, seed=Plain.put)
    else:
        report = exercise_connector(plain(colour, take, "dispatch", *offers), colour=colour)
    assert set(report.failed) <= BEYOND_A_DEQUE
    skipped = {"dispatch_accepts_any_iterable": is_seeded, "ack_forgets": not offers}
    assert all((name in report.skipped) is expected for name, expected in skipped.items())


class KeepsIdsOnly(plain("sync", as_a_list, "dispatch", "settle")):  # type: ignore[misc]
    """Has an attribute ``dead`` of its own kind."""

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        super().nack(transaction, exc)
        self.dead = [transaction.transaction_id]


def test_dead_letters_of_another_kind_are_asked_for() -> None:
    """The suite says how to show it what was set aside."""
    report = exercise_connector(KeepsIdsOnly, raises=False)
    reasons = {each.name: each.reason for each in report.failures()}
    assert "give exercise_connector a dead_letters" in reasons["nack_keeps_the_reason"]


def test_a_batch_is_read_where_it_was_fetched() -> None:
    """A generator that is bound to the thread of its fetch is read by that thread."""

    def bound(queue: Plain, batch_size: int) -> Iterator[Transaction]:
        owner = threading.current_thread()

        def items() -> Iterator[Transaction]:
            assert threading.current_thread() is owner
            yield from lazily(queue, batch_size)

        return items()

    exercise_connector(plain("sync", bound, "dispatch"))


class ShowsLate(plain("sync", as_a_list, "dispatch", "settle")):  # type: ignore[misc]
    """A broker that shows a message to its consumers some fetches after it has stored it."""

    def __init__(self) -> None:
        super().__init__()
        self.fetches = 0

    def dispatch_transactions(self, transactions: Iterable[Transaction], **extra: Any) -> None:
        super().dispatch_transactions(transactions, **extra)
        self.fetches = 0

    def fetch_transactions(self, batch_size: int, **extra: Any) -> Any:
        self.fetches += 1
        return super().fetch_transactions(batch_size, **extra) if self.fetches > 5 else []


def test_what_is_known_to_wait_may_show_late() -> None:
    """A check that needs so many transactions asks again for a while."""
    report = exercise_connector(ShowsLate, raises=False)
    assert [one for one in report.failures() if "were waiting, but" in one.reason] == []
