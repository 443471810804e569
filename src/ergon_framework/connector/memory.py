"""A queue in memory that behaves like a broker: for tests, examples and pipelines in one process.

What is put in is copied, and what is delivered is a copy again: neither the caller's later changes
nor a handler's can reach what waits, so a redelivery starts from what was dispatched. Nothing
survives the process.
"""

from __future__ import annotations

import copy
import heapq
import logging
import threading
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, ClassVar, TypeVar, cast

from ergon_framework.connector.broker.options import COUNT, Bound, takes_options
from ergon_framework.errors import (
    ConfigurationError,
    ConnectorError,
    EnvelopeError,
    PayloadError,
    describe,
)
from ergon_framework.ports.transaction import Transaction

_Method = TypeVar("_Method", bound=Callable[..., Any])
_T = TypeVar("_T", bound=Transaction)
_Entry = tuple[int, Transaction]  # its place in the queue, and the copy that stays here
_set = object.__setattr__
logger = logging.getLogger("ergon.connector")

MAX_DEAD = 10_000
"""Dead letters that are kept by default: a list that is never cleared must not fill the memory."""


class MemoryConnectorError(ConnectorError):
    """The connector refuses what it was asked to do."""

    code = "memory_connector"


class QueueFullError(MemoryConnectorError):
    """The connector holds as many transactions as it may; nothing of the batch was taken."""

    code = "queue_full"


class _Delivery(Transaction):
    """A delivered copy that knows where it came from and how it was settled."""

    __slots__ = ("entry", "owner", "verb")

    entry: _Entry
    owner: MemoryConnector
    verb: str | None


class _WhenSettling:
    """A method that exists only on a settling connector, because engines find methods by name."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __get__(self, connector: MemoryConnector | None, owner: type) -> Any:
        if connector is None:
            return self._method
        if not connector.settling:
            raise AttributeError(f"{self._method.__name__}: this connector does not settle")
        return self._method.__get__(connector, owner)


def _when_settling(method: _Method) -> _Method:
    return cast(_Method, _WhenSettling(method))


class MemoryConnector:
    """Transactions in memory, for threads and asyncio alike.

    A delivered transaction is in flight until it is settled. Settle the very object that was
    delivered: the same id may wait twice. Settling it again in the same way does nothing; settling
    it in another way is refused. With ``settling=False`` a delivery removes the transaction, and
    ``ack``, ``nack`` and ``release``, and ``release_after``, do not exist.

    ``name`` becomes the source of transactions that have none. ``capacity`` bounds what waits and
    what is in flight together. ``dead`` holds what was nacked, with the reason: the
    last ``max_dead`` of them. ``dead_dropped`` counts the older ones that had to go.
    """

    volatile: ClassVar[bool] = True
    """What waits here ends with the process, so a call that is to empty it parks nothing."""

    @takes_options(capacity=COUNT, max_dead=Bound(0))
    def __init__(
        self,
        transactions: Iterable[Transaction] = (),
        *,
        name: str | None = None,
        capacity: int | None = None,
        settling: bool = True,
        max_dead: int | None = MAX_DEAD,
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.max_dead = max_dead
        self.dead_dropped = 0
        self.settling = settling
        self.dead: list[tuple[Transaction, str]] = []
        self._waiting: list[_Entry] = []  # a heap, so that what is released gets its place back
        self._parked: list[tuple[float, _Entry]] = []  # a heap by the instant they are due again
        self._in_flight: dict[int, Transaction] = {}
        self._places = 0
        self._closed = False
        self._lock = threading.RLock()  # copying may run user code, which may call us
        self.dispatch_transactions(transactions)

    def fetch_transactions(self, batch_size: int, **_extra: Any) -> list[Transaction]:
        """Up to ``batch_size`` transactions, oldest first. Further settings mean nothing here."""
        if batch_size < 1:
            raise ConfigurationError(f"batch_size must be at least 1, not {batch_size!r}")
        with self._lock:
            self._refuse_when_closed()
            self._bring_back()
            count = min(batch_size, len(self._waiting))
            entries = [heapq.heappop(self._waiting) for _ in range(count)]
            try:
                batch: list[Transaction] = [self._deliver(entry) for entry in entries]
            except BaseException:
                # All of them, also those that were copied: a batch is delivered whole or not at
                # all.
                for entry in entries:
                    heapq.heappush(self._waiting, entry)
                raise
            if self.settling:
                # After all copies were made: a payload that cannot be copied leaves the queue as it
                # was.
                self._in_flight.update(entries)
            return batch

    def dispatch_transactions(self, transactions: Iterable[Transaction], **_extra: Any) -> None:
        """Put all transactions at the end of the queue, or none of them."""
        # Before the lock is taken: copying runs code of the user's, and may take long.
        copies = [_copied(transaction, Transaction, self.name) for transaction in transactions]
        with self._lock:
            self._refuse_when_closed()
            # What is in flight counts: it may come back.
            held = self.get_transactions_count() + len(self._in_flight)
            if self.capacity is not None and held + len(copies) > self.capacity:
                raise QueueFullError(
                    f"{self._title()} holds {held} of at most {self.capacity} transactions and "
                    f"cannot take {len(copies)} more",
                    remedy="consume some first, dispatch fewer at once, or raise capacity",
                )
            for transaction in copies:
                heapq.heappush(self._waiting, (self._places, transaction))
                self._places += 1

    @_when_settling
    def ack(self, transaction: Transaction) -> None:
        """The transaction succeeded: forget it."""
        with self._lock:
            self._settle(transaction, "ack")

    @_when_settling
    def nack(self, transaction: Transaction, exc: Exception) -> None:
        """The transaction failed for good: move it to ``dead``, with the text of ``exc``."""
        with self._lock:
            entry = self._settle(transaction, "nack")
            if entry is not None:
                self.dead.append((entry[1], describe(exc)))
                self._bound_the_dead()

    @_when_settling
    def release(self, transaction: Transaction) -> None:
        """The transaction was not finished: put it back at its place in the queue."""
        with self._lock:
            entry = self._settle(transaction, "release")
            if entry is not None:
                heapq.heappush(self._waiting, entry)

    @_when_settling
    def release_after(self, transaction: Transaction, seconds: float) -> None:
        """A gate is closed: put the transaction back at its place, due in so many seconds."""
        with self._lock:
            entry = self._settle(transaction, "release_after")
            if entry is not None:
                heapq.heappush(self._parked, (_now() + seconds, entry))

    def get_transactions_count(self) -> int:
        """How many wait, parked ones included; what is in flight does not count."""
        return len(self._waiting) + len(self._parked)

    @property
    def due_at(self) -> float | None:
        """When the first parked one is due again, by the clock of the call that parked it."""
        with self._lock:
            return self._parked[0][0] if self._parked else None

    def fetch_transaction_by_id(self, transaction_id: str) -> Transaction | None:
        """A copy of the oldest one with this id, waiting, in flight or dead. It claims nothing."""
        with self._lock:
            parked = (entry for _, entry in self._parked)
            held = sorted([*self._waiting, *parked, *self._in_flight.items()], key=itemgetter(0))
            known = [transaction for _, transaction in held]
            known += [transaction for transaction, _ in self.dead]
            for transaction in known:
                if transaction.transaction_id == transaction_id:
                    return _copied(transaction, Transaction)
        return None

    def health(self) -> bool:
        """Whether it can be used."""
        return not self._closed

    def close(self) -> None:
        """Refuse everything from now on. Closing twice is fine."""
        self._closed = True

    async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> list[Transaction]:
        """The async version of :meth:`fetch_transactions`; it never waits."""
        return self.fetch_transactions(batch_size, **extra)

    async def dispatch_transactions_async(
        self, transactions: Iterable[Transaction], **extra: Any
    ) -> None:
        """The async version of :meth:`dispatch_transactions`."""
        self.dispatch_transactions(transactions, **extra)

    @_when_settling
    async def ack_async(self, transaction: Transaction) -> None:
        """The async version of :meth:`ack`."""
        self.ack(transaction)

    @_when_settling
    async def nack_async(self, transaction: Transaction, exc: Exception) -> None:
        """The async version of :meth:`nack`."""
        self.nack(transaction, exc)

    @_when_settling
    async def release_async(self, transaction: Transaction) -> None:
        """The async version of :meth:`release`."""
        self.release(transaction)

    @_when_settling
    async def release_after_async(self, transaction: Transaction, seconds: float) -> None:
        """The async version of :meth:`release_after`."""
        self.release_after(transaction, seconds)

    async def get_transactions_count_async(self) -> int:
        """The async version of :meth:`get_transactions_count`."""
        return self.get_transactions_count()

    async def fetch_transaction_by_id_async(self, transaction_id: str) -> Transaction | None:
        """The async version of :meth:`fetch_transaction_by_id`."""
        return self.fetch_transaction_by_id(transaction_id)

    async def aclose(self) -> None:
        """The async version of :meth:`close`."""
        self.close()

    def _bound_the_dead(self) -> None:
        """Drop the oldest dead letters beyond the bound; the first time it is logged."""
        surplus = 0 if self.max_dead is None else len(self.dead) - self.max_dead
        if surplus <= 0:
            return
        del self.dead[:surplus]
        if not self.dead_dropped:
            logger.warning(
                "%s keeps its last %d dead letters and drops older ones; clear dead, or set "
                "max_dead",
                self._title(),
                self.max_dead,
            )
        self.dead_dropped += surplus

    def _bring_back(self) -> None:
        """Make parked transactions wait again that are due."""
        now = _now() if self._parked else 0.0
        while self._parked and self._parked[0][0] <= now:
            heapq.heappush(self._waiting, heapq.heappop(self._parked)[1])

    def _deliver(self, entry: _Entry) -> _Delivery:
        delivery = _copied(entry[1], _Delivery)
        _set(delivery, "entry", entry)
        _set(delivery, "owner", self)
        _set(delivery, "verb", None)
        return delivery

    def _settle(self, transaction: Transaction, verb: str) -> _Entry | None:
        """The entry to settle, or None when it was already settled with this verb."""
        self._refuse_when_closed()
        if not isinstance(transaction, _Delivery) or transaction.owner is not self:
            raise MemoryConnectorError(
                f"cannot {verb} {transaction!r}: {self._title()} did not deliver this object",
                remedy="settle the very object that fetch_transactions returned, not a copy",
            )
        if transaction.verb is None:
            _set(transaction, "verb", verb)
            # By its place in the queue, which is unique; the same id may be in flight twice.
            del self._in_flight[transaction.entry[0]]
            return transaction.entry
        if transaction.verb != verb:
            raise MemoryConnectorError(
                f"cannot {verb} {transaction!r}: it was settled with {transaction.verb} before",
                remedy="settle each delivery once",
            )
        return None

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise MemoryConnectorError(
                f"{self._title()} is closed", remedy="make a new one; close it after the last use"
            )

    def _title(self) -> str:
        return f"memory connector {self.name!r}" if self.name else "the memory connector"


def _copied(transaction: Transaction, kind: type[_T], source: str | None = None) -> _T:
    if not isinstance(transaction, Transaction):
        raise EnvelopeError(
            f"dispatch_transactions takes Transactions, not {type(transaction).__name__}",
            remedy="wrap the payload: Transaction(transaction_id=..., payload=...)",
        )
    try:
        payload, metadata = copy.deepcopy((transaction.payload, dict(transaction.metadata)))
    except Exception as error:
        raise PayloadError(
            f"transaction {transaction.transaction_id!r} cannot be copied: {describe(error)}",
            remedy="a payload holds data: no locks, sockets, clients or generators",
            details={"transaction_id": transaction.transaction_id},
        ) from error
    return kind(
        transaction.transaction_id,
        payload,
        metadata,
        correlation_id=transaction.correlation_id,
        trace_id=transaction.trace_id,
        created_at=transaction.created_at,
        source=source if transaction.source is None else transaction.source,
        parent_id=transaction.parent_id,
    )


def _now() -> float:
    """The time by the clock of this thread or event loop."""
    # Here, because a script that only declares its consumers is to start without asyncio.
    from ergon_framework.engine.clocks import current_clock

    return current_clock().now()
