"""The deliveries of one consumer: which entries are in hand, and when others come back.

A thread renews the entries in hand, also for asyncio, so that a handler may run as long as it likes
and no other consumer claims its entry meanwhile. It ends when nothing is in hand.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ergon_framework.connector.base import Delivered, DroppedDeliveries
from ergon_framework.connector.broker.in_flight import InFlight
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import SYSTEM_CLOCK, current_clock
from ergon_framework.errors import ConnectorError, describe

RENEWALS = 3
"""How often a delivery is renewed in the time after which another consumer could claim it."""
logger = logging.getLogger("ergon.connector")


@dataclass(slots=True, eq=False, weakref_slot=True)
class HeldEntry:
    """An entry in hand."""

    entry: bytes
    size: int
    is_lost: bool = False
    """Whether another consumer has claimed it, or the server does not know it any more."""


class Deliveries:
    """The entries that one consumer has in hand. Any thread may call it."""

    def __init__(
        self,
        in_flight: InFlight,
        renew: Callable[[list[bytes]], Iterable[bytes]],
        give_back: Callable[[bytes, float], object],
        claim_idle: float,
    ) -> None:
        self._in_flight = in_flight
        self._renew = renew
        self._give_back = give_back
        self._claim_idle = claim_idle
        self._dropped: DroppedDeliveries[HeldEntry] = DroppedDeliveries()
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget all entries, also in a forked child, because the parent has them."""
        self._lock = threading.Lock()
        self._held: dict[bytes, HeldEntry] = {}
        self._parked: list[tuple[float, bytes]] = []  # kept by us until the server can wait alone
        self._returning: list[tuple[float, bytes]] = []  # when to look whether they are still there
        self._handed_back: deque[bytes] = deque()
        self._renewing: threading.Thread | None = None
        self._closing = threading.Event()

    def __contains__(self, entry: bytes) -> bool:
        return entry in self._held

    def take(self, delivery: Delivered, held: HeldEntry) -> None:
        """Add a delivered entry."""
        with self._lock:
            self._held[held.entry] = held
            if self._renewing is None and not self._closing.is_set():
                self._renewing = SYSTEM_CLOCK.spawn("ergon-redis-streams", self._keep_renewing)
        self._in_flight.add(held.size)
        self._dropped.watch(delivery, held)

    def let_go(self, held: HeldEntry) -> None:
        """Remove an entry that is settled or lost."""
        self._dropped.forget(held)
        with self._lock:
            if self._held.pop(held.entry, None) is None:
                return
        self._in_flight.remove(held.size)

    def hand_back(self, held: HeldEntry) -> None:
        """Mark an entry whose delivery was dropped; the next fetch gives it back."""
        self.let_go(held)
        self._handed_back.append(held.entry)

    def take_handed_back(self) -> list[bytes]:
        """Entries to be given back now."""
        return [self._handed_back.popleft() for _ in range(len(self._handed_back))]

    def park(self, entry: bytes, seconds: float) -> None:
        """Keep an entry from all consumers until it is due."""
        with self._lock:
            heapq.heappush(self._parked, (current_clock().now() + seconds, entry))

    def come_back(self, entry: bytes, seconds: float) -> None:
        """Note that an entry can be claimed in so many seconds, by this consumer or any other."""
        with self._lock:
            heapq.heappush(self._returning, (current_clock().now() + seconds, entry))

    def due(self, count: int) -> list[bytes]:
        """Entries that were given back and can be claimed now, in the order of the stream."""
        if not self._returning:
            return []
        now = current_clock().now()
        with self._lock:
            due = []
            while self._returning and self._returning[0][0] <= now:
                due.append(heapq.heappop(self._returning)[1])
            due.sort(key=place_of)
            for entry in due[count:]:
                heapq.heappush(self._returning, (now, entry))
        return due[:count]

    def next_due(self) -> float | None:
        """When the next entry can be claimed."""
        with self._lock:
            return self._returning[0][0] if self._returning else None

    def kept(self) -> tuple[list[bytes], list[bytes]]:
        """The entries that are kept from other consumers: those in hand, and parked ones.

        One that is being parked by another thread counts as parked.
        """
        with self._lock:
            parked = dict.fromkeys(entry for _, entry in self._parked)
            return [entry for entry in self._held if entry not in parked], [*parked]

    def close(self) -> None:
        """Stop renewing."""
        self._closing.set()

    # ---- renewals -------------------------------------------------------------------------------

    def _keep_renewing(self) -> None:
        while not self._closing.wait(self._claim_idle / RENEWALS):
            try:
                self._renew_once()
            except ConnectorError as error:
                # The server may be back before anybody has claimed something.
                logger.info("deliveries could not be renewed: %s", describe(error))
            except Exception:
                logger.exception("deliveries could not be renewed")
            with self._lock:
                if not self._held and not self._parked:
                    self._renewing = None
                    return

    def _renew_once(self) -> None:
        # Nobody can settle these any more. They come back by themselves, as from a dead consumer.
        for held in self._dropped.take():
            self.let_go(held)
        self._let_parked_go()
        entries = [*itertools.chain(*self.kept())]
        gone = set(self._renew(entries)) if entries else set()
        with self._lock:
            lost = [held for entry, held in self._held.items() if entry in gone]
            self._parked = [each for each in self._parked if each[1] not in gone]
            heapq.heapify(self._parked)
        for held in lost:
            held.is_lost = True
            self.let_go(held)

    def _let_parked_go(self) -> None:
        """Give back parked entries whose remaining wait the server can count."""
        now = current_clock().now()
        with self._lock:
            soon = [each for each in self._parked if each[0] - now <= self._claim_idle]
        for each in soon:
            self._give_back(each[1], each[0] - now)
            with self._lock:
                self._parked.remove(each)
                heapq.heapify(self._parked)


def place_of(entry: bytes) -> tuple[int, int]:
    """The position of an entry in its stream, for sorting."""
    time, _, number = entry.partition(b"-")
    return int(time), int(number or 0)
