"""Deliveries with leases, which are renewed while they are in hand.

A thread renews all leases every third of their length, so that a handler may run longer than a
lease. A lease that could not be renewed in time is lost: the system may have delivered the message
to another consumer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from ergon_framework.connector.base import Delivered, DroppedDeliveries, inherited
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ConnectorError, ErgonError, describe

logger = logging.getLogger("ergon.connector")

RENEWALS_PER_LEASE = 3
_SOONEST = 0.05  # seconds between two rounds
_SHUTDOWN = 5.0  # seconds for the thread to end


class DeliveryExpiredError(ConnectorError):
    """The lease of the delivery has ended: the message is, or will be, delivered again."""

    code = "delivery_expired"


def expired(delivery: Delivered, verb: str) -> DeliveryExpiredError:
    """The error for an outcome that came too late."""
    return DeliveryExpiredError(
        f"cannot {verb} {delivery!r}: its lease has ended, so it is delivered again",
        remedy="see why it was not renewed: the process was stopped, or the connection was gone for"
        " longer than the lease",
    )


class Lease:
    """The lease of one delivery at its system."""

    __slots__ = ("holder", "is_lost", "is_unsure", "place", "size", "until")

    def __init__(self, place: Any, size: int, until: float) -> None:
        self.place = place
        """What identifies it at its system: a row, or the subject of its acknowledgement."""
        self.size = size
        """Bytes of its message."""
        self.until = until
        """When the lease ends, by this machine's clock."""
        self.holder: object = None
        """Who holds it: a forked child has another holder than its parent."""
        self.is_lost = False
        self.is_unsure = False
        """Whether a settlement may have been received although it was not answered."""


class LeasedDelivery(Delivered):
    """A delivered transaction with its lease."""

    __slots__ = ("lease",)

    lease: Lease


class LeaseSettlement:
    """A lease that is being settled. Written out, as every message comes through here."""

    __slots__ = ("_held", "_lease")

    def __init__(self, held: HeldLeases, lease: Lease) -> None:
        self._held = held
        self._lease = lease

    def __enter__(self) -> Lease:
        return self._lease

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is None or issubclass(kind, DeliveryExpiredError):
            self._held.let_go(self._lease)
        else:
            self._held.take_back(self._lease)


class HeldLeases:
    """The leases in hand, and the thread that renews them. Any thread may call.

    ``renew`` renews those it is given and returns those that its system does not know as ours any
    more. ``give_back`` lets others have what was delivered and dropped by everybody. ``forget`` is
    told of every lease that is not held any more.
    """

    def __init__(
        self,
        name: str,
        seconds: float,
        *,
        renew: Callable[[Sequence[Lease]], Collection[Lease]],
        give_back: Callable[[Lease], None],
        forget: Callable[[Lease], None],
    ) -> None:
        self.seconds = seconds
        self._name = name
        self._renew = renew
        self._give_back = give_back
        self._forget = forget
        self._is_failing = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the leases in a forked child, because they are the parent's."""
        self._lock = threading.Lock()
        self._holder = object()  # this process, among those that have inherited the connector
        self._held: set[Lease] = set()
        self._dropped: DroppedDeliveries[Lease] = DroppedDeliveries()
        self._woken = threading.Event()
        self._is_ending = False
        self._thread: threading.Thread | None = None

    def hold(self, delivery: LeasedDelivery) -> None:
        """Renew the lease of a delivery until it is let go."""
        delivery.lease.holder = self._holder
        with self._lock:
            self._held.add(delivery.lease)
            if self._thread is None and not self._is_ending:
                self._thread = SYSTEM_CLOCK.spawn("ergon-leases", self._serve)
        self._dropped.watch(delivery, delivery.lease)

    def settling(self, delivery: LeasedDelivery, verb: str) -> LeaseSettlement:
        """Settle a delivery inside. It is renewed no longer, unless what is inside raises.

        A renewal beside the settlement would find the lease gone, and take it for lost.
        """
        lease = delivery.lease
        if lease.holder is not self._holder:
            raise inherited(delivery, verb)
        self._refuse_expired(delivery, verb)
        with self._lock:
            self._held.discard(lease)
        return LeaseSettlement(self, lease)

    def take_back(self, lease: Lease) -> None:
        """Renew a lease again that could not be settled."""
        with self._lock:
            self._held.add(lease)

    def let_go(self, lease: Lease) -> None:
        """Stop renewing a lease that is settled or lost."""
        self._dropped.forget(lease)
        with self._lock:
            self._held.discard(lease)
        self._forget(lease)

    def _refuse_expired(self, delivery: LeasedDelivery, verb: str) -> None:
        """Raise an error if the lease has ended, because another consumer may have the message."""
        lease = delivery.lease
        if lease.is_lost or SYSTEM_CLOCK.now() >= lease.until:
            self.let_go(lease)
            raise expired(delivery, verb)

    def all(self) -> list[Lease]:
        """Everything that is held."""
        with self._lock:
            return list(self._held)

    def close(self) -> list[Lease]:
        """End the thread. Returns the leases that were still held."""
        with self._lock:
            self._is_ending = True
            thread, self._thread = self._thread, None
            left, self._held = list(self._held), set()
        self._woken.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_SHUTDOWN)
        return left

    def _serve(self) -> None:
        pause = self.seconds / RENEWALS_PER_LEASE
        while not self._is_ending:
            self._woken.wait(max(pause, _SOONEST))
            if not self._is_ending:
                pause = self._round()

    def _round(self) -> float:
        """Renew what is in hand; seconds until the next round."""
        began = SYSTEM_CLOCK.now()
        try:
            self._give_back_dropped()
            held = [lease for lease in self.all() if not lease.is_lost]
            lost = set(self._renew(held)) if held else set()
        except Exception as error:
            self._failed(error)
            return min(1.0, self.seconds / 10)
        self._is_failing = False
        for lease in held:
            if lease in lost:
                self._lose(lease)
            else:
                lease.until = max(lease.until, began + self.seconds)
        return self.seconds / RENEWALS_PER_LEASE

    def _give_back_dropped(self) -> None:
        """Give back dropped deliveries. Where that fails, the lease ends."""
        for lease in self._dropped.take():
            self.let_go(lease)
            with suppress(ErgonError):
                self._give_back(lease)

    def _failed(self, error: Exception) -> None:
        if not self._is_failing:
            logger.warning(
                "%s: deliveries are not renewed for now: %s", self._name, describe(error)
            )
        self._is_failing = True
        now = SYSTEM_CLOCK.now()
        for lease in self.all():
            if not lease.is_lost and now >= lease.until:
                self._lose(lease)

    def _lose(self, lease: Lease) -> None:
        with self._lock:
            if lease not in self._held:
                return  # it was settled meanwhile
        lease.is_lost = True
        logger.warning(
            "%s: a delivery was not renewed in time; its outcome will not count", self._name
        )
