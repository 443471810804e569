"""A source whose deliveries have leases: the loop of its fetch, what is in hand, and its end.

A lease belongs to no connection. So what was fetched on one that broke can be settled on the next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Generic, TypeVar, cast

from ergon_framework.connector.base import (
    check_batch_size,
    forget_settlement,
    is_first_settlement,
)
from ergon_framework.connector.broker.connection import BrokerConnection
from ergon_framework.connector.broker.in_flight import InFlight
from ergon_framework.connector.broker.leases import (
    HeldLeases,
    Lease,
    LeasedDelivery,
    LeaseSettlement,
)
from ergon_framework.connector.broker.wakeup import Wakeup
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ConnectorError, ErgonError, StoreUnavailableError
from ergon_framework.ports.transaction import Transaction

S = TypeVar("S")
T = TypeVar("T")
Take = Callable[[S, int, float], "list[Transaction] | None"]
"""Takes at most so many messages from a session, and may wait until an instant. None: try again."""


class SourceSettlement:
    """A delivery that is being settled. Written out, as every message comes through here."""

    __slots__ = ("_delivery", "_held")

    def __init__(self, delivery: LeasedDelivery, held: LeaseSettlement | None) -> None:
        self._delivery = delivery
        self._held = held

    def __enter__(self) -> Lease | None:
        return None if self._held is None else self._held.__enter__()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._held is None:
            return
        self._held.__exit__(kind, *error)
        if kind is not None:
            forget_settlement(self._delivery)


class LeasedSource(Generic[S]):
    """What connectors with leases share, each for itself. ``S`` is a session with the system.

    ``connect`` makes a session and ``end`` ends it. ``renew`` and ``give_back`` are those of
    :class:`HeldLeases`. ``error`` is the class of errors of the connector, whose class is
    ``owner``.
    """

    def __init__(
        self,
        title: str,
        owner: type,
        error: type[ConnectorError],
        *,
        connect: Callable[[], S],
        end: Callable[[S], object],
        lease: float,
        renew: Callable[[Sequence[Lease]], Collection[Lease]],
        give_back: Callable[[Lease], None],
        bounds: tuple[int, int],
    ) -> None:
        self._owner = owner
        self._error = error
        self._give_back = give_back
        self.is_closed = False
        self.wakeup = Wakeup()
        self.connection: BrokerConnection[S] = BrokerConnection(title, connect, end, self.wakeup)
        self._in_flight = InFlight(self.wakeup, *bounds)
        self.leases = HeldLeases(
            title,
            lease,
            renew=renew,
            give_back=give_back,
            forget=lambda each: self._in_flight.remove(each.size),
        )

    @property
    def is_healthy(self) -> bool:
        """Whether it can be used: it is not closed, and its system answered the last call."""
        return not self.is_closed and self.connection.state.is_healthy

    def fetch(self, batch_size: int, wait: float, take: Take[S]) -> list[Transaction]:
        """The messages that ``take`` brings, with new sessions as connections break, until there
        are some.
        """
        check_batch_size(batch_size)
        self.wakeup.begin()
        until = SYSTEM_CLOCK.now() + wait
        while True:
            self.refuse_closed()
            session = self.connection.wait()
            room = self._in_flight.wait_for_room(batch_size)
            if session is None or not room:  # a stop was asked for
                return []
            try:
                found = take(session, room, until)
            except StoreUnavailableError as error:
                self.refuse_closed()  # then it is no outage that somebody has to hear of
                self.connection.lost(session, error)
                continue
            if found is not None:
                return found

    def hold(self, delivery: LeasedDelivery) -> None:
        """Hold a delivery that is handed out: it counts as in flight, and its lease is renewed."""
        self._in_flight.add(delivery.lease.size)
        self.leases.hold(delivery)

    def settling(self, owner: object, transaction: Transaction, verb: str) -> SourceSettlement:
        """A context in which to settle a lease, or None when it was already settled
        with this verb.
        """
        is_first = is_first_settlement(LeasedDelivery, transaction, owner, verb, self._error)
        delivery = cast(LeasedDelivery, transaction)
        try:
            self.refuse_closed()
            held = self.leases.settling(delivery, verb) if is_first else None
        except BaseException:
            if is_first:
                forget_settlement(delivery)
            raise
        return SourceSettlement(delivery, held)

    def with_session(self, work: Callable[[S], T]) -> T:
        """Call a function with the session. Without a connection this is an error at once."""
        session = self.connection.get()
        try:
            return work(session)
        except StoreUnavailableError as error:
            # A system that undid one statement, because of a lock say, is no system that is away.
            if not error.details.get("is_undone"):
                self.connection.lost(session, error)
            raise

    def refuse_closed(self) -> None:
        """Raise an error if it was closed."""
        if self.is_closed:
            raise self._error(
                f"this {self._owner.__name__} is closed",
                remedy="make a new one; close it after the last use",
            )

    def close(self, stop: Callable[[], None]) -> None:
        """End the waits with ``stop``, give back what is in hand, and close. Closing
        twice is fine.
        """
        if self.is_closed:
            return
        self.is_closed = True
        stop()
        for lease in self.leases.close():
            if not self.connection.state.is_healthy:
                break  # then their leases end by themselves
            with suppress(ErgonError):
                self._give_back(lease)
        self.connection.close()
