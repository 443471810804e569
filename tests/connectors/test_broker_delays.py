"""Deliveries that wait in a process until they are due."""

from __future__ import annotations

from ergon_framework.connector.broker.delays import DelayedDeliveries


class Opaque:
    """Two of these cannot be compared."""


def test_the_earliest_goes_first_whatever_it_is() -> None:
    """Of two that are due at one instant the one that came first; deliveries are not compared."""
    late, first, second = Opaque(), Opaque(), Opaque()
    delayed: DelayedDeliveries[Opaque] = DelayedDeliveries()
    delayed.add(late, 9.0)
    delayed.add(first, 5.0)
    delayed.add(second, 5.0)
    assert list(delayed.take_due(5.0)) == [first, second]
    assert len(delayed) == 1


def test_a_fetch_waits_no_longer_than_until_the_first_is_due() -> None:
    """And no longer than it meant to, where nothing is due by then."""
    delayed: DelayedDeliveries[str] = DelayedDeliveries()
    assert delayed.next_due(7.0) == 7.0
    delayed.add("a", 5.0)
    assert delayed.next_due(7.0) == 5.0
    assert delayed.next_due(3.0) == 3.0
    assert list(delayed.take_due(4.9)) == []
