"""Transactions between a fetch and a worker: reading what a source returned, and tracking what is
ready, waits for its id, or goes back.

No transaction that a source delivered is ever dropped.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ergon_framework.engine.classify import is_fatal
from ergon_framework.errors import FetchException
from ergon_framework.ports.transaction import Transaction

logger = logging.getLogger("ergon.engine")


@dataclass(slots=True)
class FetchResult:
    """The outcome of one fetch. ``is_defect``: the source returned something else than
    transactions, so another fetch would not help.
    """

    requested: int
    transactions: list[Transaction] = field(default_factory=list)
    error: BaseException | None = None
    is_defect: bool = False

    def drain(self) -> list[Transaction]:
        """Take the transactions that were read so far. A fetch under way may add more; each is
        taken once.
        """
        count = len(self.transactions)
        taken = self.transactions[:count]
        del self.transactions[:count]
        return taken


class BatchReader:
    """Calls a source and reads what it returns; an iterator only as far as the fetch asked for.

    An iterator is asked for one item more than was wanted. A generator that ends there has also run
    the code after its last ``yield``, a commit for example, before the first of its transactions
    begins. One that goes on keeps its place: the next fetch goes on with it, and nothing that it
    gave is dropped.
    """

    def __init__(self, fetch: Callable[[int], Any]) -> None:
        self._fetch = fetch
        self._rest: Iterator[Any] | AsyncIterator[Any] | None = None
        self._ahead: list[Any] = []  # read to see whether the iterator ends, and not wanted yet
        self._is_warned = False

    def read(self, at_most: int, delivery: FetchResult) -> FetchResult:
        """Up to ``at_most`` transactions: of the answer before, or else of a new one."""
        if isinstance(self._rest, Iterator):
            self._read_on(self._rest, at_most, delivery)
            if delivery.transactions or delivery.error is not None:
                return delivery
        self._begin(self._fetch(at_most), at_most, delivery)
        return delivery

    async def read_async(
        self, at_most: int, delivery: FetchResult, breathe: Callable[[], Awaitable[None]]
    ) -> None:
        """The async version of :meth:`read`: an answer may be awaited, and may be asynchronous.

        ``breathe`` is awaited between the items of an asynchronous one, which need not suspend.
        """
        if self._rest is not None:
            await self._read_on_async(self._rest, at_most, delivery, breathe)
            if delivery.transactions or delivery.error is not None:
                return
        answer = self._fetch(at_most)
        if hasattr(answer, "__await__"):
            answer = await answer
        if hasattr(answer, "__aiter__"):
            await self._read_on_async(aiter(answer), at_most, delivery, breathe)
        else:
            self._begin(answer, at_most, delivery)

    def take_ahead(self) -> list[Transaction]:
        """The item that was read ahead and never used; called at the end of the call."""
        ahead, self._ahead = self._ahead, []
        return [item for item in ahead if isinstance(item, Transaction)]

    @property
    def is_open(self) -> bool:
        """Whether an iterator has not come to its end."""
        return self._rest is not None

    def close(self) -> None:
        """Close a generator whose remaining items are not wanted."""
        rest, self._rest = self._rest, None
        close = getattr(rest, "close", None)
        if close is not None:
            close()

    async def aclose(self) -> None:
        """The async version of :meth:`close`."""
        aclose = getattr(self._rest, "aclose", None)
        if aclose is None:
            self.close()
        else:
            self._rest = None
            await aclose()

    def _begin(self, answer: object, at_most: int, delivery: FetchResult) -> None:
        if _is_no_batch(answer, delivery):
            return
        # What most sources answer with: checked as a whole, it costs no Python code per item.
        # Copied, since the source may keep its list and change it.
        if type(answer) is list and set(map(type, answer)) == {Transaction}:
            delivery.transactions = answer.copy()
        elif isinstance(answer, Iterable):  # what has a size is all there, so it is all taken
            wanted = None if isinstance(answer, Sized) else at_most
            self._read_on(iter(answer), wanted, delivery)

    def _read_on(self, rest: Iterator[Any], wanted: int | None, delivery: FetchResult) -> None:
        self._rest = None  # one that raises, or hangs for ever, is not gone on with
        try:
            for position, item in enumerate(chain(self._taken_ahead(), rest)):
                if position == wanted:
                    self._keep(rest, item)
                    return
                put(item, position, delivery)
        except BaseException as error:  # a generator may raise half-way; what it gave is kept
            _note(error, delivery)

    async def _read_on_async(
        self,
        rest: Any,
        wanted: int,
        delivery: FetchResult,
        breathe: Callable[[], Awaitable[None]],
    ) -> None:
        if not hasattr(rest, "__anext__"):
            self._read_on(rest, wanted, delivery)
            return
        self._rest = None
        position = 0
        for item in self._taken_ahead():
            put(item, position, delivery)
            position += 1
        async for item in rest:  # one by one: what it gave before it raised or hung is kept
            if position == wanted:
                self._keep(rest, item)
                return
            put(item, position, delivery)
            position += 1
            await breathe()

    def _taken_ahead(self) -> list[Any]:
        ahead, self._ahead = self._ahead, []
        return ahead

    def _keep(self, rest: Any, item: object) -> None:
        self._ahead.append(item)
        self._rest = rest
        if not self._is_warned:
            self._is_warned = True
            logger.warning(
                "a fetch answers with an iterator that goes on beyond what was asked for: the "
                "next fetch goes on with it; let it end after batch_size transactions"
            )


def _is_no_batch(answer: object, delivery: FetchResult) -> bool:
    """Whether there is nothing to read: None is empty, anything but an iterable is a defect."""
    if answer is None:
        return True
    if isinstance(answer, Iterable) and not isinstance(answer, str | bytes | dict | Transaction):
        return False
    delivery.error = FetchException(
        f"the connector returned {type(answer).__name__} instead of a list of transactions",
        remedy="return a list of Transaction, or None when there is nothing",
    )
    delivery.is_defect = True
    # A bare transaction has left its source all the same: it is kept, though the answer is a
    # defect.
    if isinstance(answer, Transaction):
        delivery.transactions.append(answer)
    return True


def put(item: object, position: int, delivery: FetchResult) -> None:
    """Keep one item of a batch, or note that it is none.

    Valid transactions are kept even when others in the same answer are not: they may have left the
    source already, and dropping them would lose them.
    """
    if isinstance(item, Transaction):
        delivery.transactions.append(item)
    elif delivery.error is None:
        delivery.error = FetchException(
            f"item {position} of the batch is {type(item).__name__}, not a Transaction",
            remedy="wrap each item: Transaction(transaction_id=..., payload=item)",
        )
        delivery.is_defect = True


def _note(error: BaseException, delivery: FetchResult) -> None:
    # The first error says what went wrong. Only one that ends the process goes before it.
    if delivery.error is None or is_fatal(error):
        delivery.error, delivery.is_defect = error, False


MAX_RELEASES = 16
"""The most transactions that are handed back at the same time."""
RELEASE_INTERVAL = 0.05
"""Seconds after which one more is handed back at the same time, as long as some are left."""


class ReleaseQueue:
    """Transactions on their way back to their source.

    They are released one at a time as long as the source is fast, so that it sees them in order;
    with a slow source several are released at once. A transaction belongs to the side that takes it
    out of the queue: the releaser that got an answer, or the supervisor, which reports it as
    stranded when the grace is over.
    """

    def __init__(self, transactions: Iterable[Transaction]) -> None:
        self._left = deque(transactions)
        self._going: dict[int, Transaction] = {}
        self.releasers = 0

    def __bool__(self) -> bool:
        return bool(self._left or self._going)

    @property
    def needs_releaser(self) -> bool:
        """Whether one more releaser would have something to do."""
        return bool(self._left) and self.releasers < MAX_RELEASES

    def begin(self) -> Transaction | None:
        """The next one to release."""
        if not self._left:
            return None
        transaction = self._left.popleft()
        # By identity: two deliveries may have the same id.
        self._going[id(transaction)] = transaction
        return transaction

    def end(self, transaction: Transaction) -> bool:
        """The source answered; False when the call no longer waits for that."""
        return self._going.pop(id(transaction), None) is not None

    def is_waited_for(self, transaction: Transaction) -> bool:
        """Whether the transaction is being released, and not reported as stranded yet."""
        return id(transaction) in self._going

    def give_up(self) -> list[Transaction]:
        """The transactions whose release was not answered, in their order."""
        rest = [*self._going.values(), *self._left]
        self._going.clear()
        self._left.clear()
        return rest


class Intake:
    """Where each delivered transaction is, from its fetch until it has an outcome or goes back.

    Called with the engine's lock held, or from its event loop. Workers take from ``ready`` and pop
    from ``live`` without the lock; the methods say what they do about that.
    """

    def __init__(self, reader: BatchReader) -> None:
        self.reader = reader
        self.reading: FetchResult | None = None  # what the fetch under way has brought so far
        self.late: FetchResult | None = None  # what a fetch that was given up on brought after all
        self.ready: deque[Transaction] = deque()
        # The registry of transactions that were taken in and have no outcome yet, ready or running.
        # The thread that pops a transaction accounts for it, by an outcome or in ``returning``;
        # popping is atomic.
        self.live: dict[str, Transaction] = {}
        self.behind: dict[str, deque[Transaction]] = {}  # those that wait for an id in ``live``
        self.returning: deque[Transaction] = deque()  # to be handed back at the end
        self.delivered = 0  # all that a fetch ever brought
        self.unstarted = 0  # taken in, then moved to ``returning`` before they began

    def take_in_all(self, transactions: list[Transaction]) -> None:
        """Make transactions ready. One whose id is in use waits behind the other one."""
        live, behind, make_ready = self.live, self.behind, self.ready.append
        for transaction in transactions:
            key = transaction.transaction_id
            if key in live or key in behind:
                self.take_in(transaction)
            else:  # ids are added only here and in ``pass_on``, under the lock
                live[key] = transaction
                make_ready(transaction)

    def take_in(self, transaction: Transaction) -> None:
        """Queue a transaction behind the one with the same id.

        A finishing worker pops its id without the lock. So this checks again after queueing: if the
        id was popped in between, no other thread would start this transaction.
        """
        key = transaction.transaction_id
        self.behind.setdefault(key, deque()).append(transaction)
        self.pass_on(key)

    def pass_on(self, key: str) -> None:
        """Make the next transaction with this id ready, unless one is running."""
        waiting = self.behind.get(key)
        if key in self.live or not waiting:
            return
        transaction = waiting[0]
        self.live[key] = transaction
        waiting.popleft()
        if not waiting:
            del self.behind[key]
        self.ready.append(transaction)

    def sweep(self) -> None:
        """Move everything that has not begun to ``returning``.

        Workers take from ``ready`` and let ids go without the lock, so each is popped one by one.
        """
        while self.ready:
            try:
                transaction = self.ready.popleft()
            except IndexError:  # a worker was faster
                break
            self.live.pop(transaction.transaction_id, None)
            self.unstarted += 1
            self.returning.append(transaction)
        for key in list(self.behind):
            waiting = self.behind.pop(key)
            self.unstarted += len(waiting)
            self.returning.extend(waiting)

    def take_returning(self) -> ReleaseQueue:
        """Everything to hand back, including the delivery of a fetch that hung."""
        for delivery in (self.late, self.reading):  # of a fetch that came back, one that hangs
            if delivery is not None:
                self.return_unused(delivery.drain())
        self.return_unused(self.reader.take_ahead())
        self.late = None
        left: list[Transaction] = []
        while self.returning:  # a worker may append
            left.append(self.returning.popleft())
        return ReleaseQueue(left)

    def return_unused(self, transactions: list[Transaction]) -> None:
        """Hand back what a fetch brought and the loop did not take in."""
        self.delivered += len(transactions)
        self.returning.extend(transactions)
