"""An honest connector, and connectors that fetch, keep or dispatch wrongly in one way each."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from typing import Any

from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import PayloadError
from ergon_framework.ports.transaction import Transaction, new_id

Entry = tuple[int, Any]


class Honest:
    """A small, correct connector whose methods the bugs below replace one at a time."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.waiting: list[Entry] = []
        self.flying: dict[int, tuple[Transaction, Entry]] = {}
        self.settled: dict[int, tuple[Transaction, str]] = {}
        self.dead: list[tuple[Transaction, str]] = []
        self.parked: list[tuple[float, Entry]] = []
        self.places = 0
        self.closed = False

    def encode(self, transaction: Transaction) -> Any:
        try:
            return json.dumps(transaction.to_dict())
        except TypeError as error:
            raise PayloadError(f"transaction {transaction.transaction_id}: {error}") from error

    def decode(self, stored: Any) -> Any:
        return Transaction.from_dict(json.loads(stored))

    def pick(self, count: int) -> list[Entry]:
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def deliver(self, entry: Entry) -> Any:
        transaction = self.decode(entry[1])
        self.flying[id(transaction)] = (transaction, entry)
        return transaction

    def fetch_transactions(self, batch_size: int) -> Any:
        if batch_size < 1:
            raise ValueError("batch_size must be at least 1")
        if self.closed:
            raise RuntimeError("closed")
        with self.lock:
            self.bring_back()
            return [self.deliver(entry) for entry in self.pick(batch_size)]

    def bring_back(self) -> None:
        now = SYSTEM_CLOCK.now()
        for due, entry in [each for each in self.parked if each[0] <= now]:
            self.parked.remove((due, entry))
            self.put_back(entry)

    def add(self, stored: Any) -> None:
        self.waiting.append((self.places, stored))
        self.places += 1

    def dispatch_transactions(self, transactions: Iterable[Transaction]) -> None:
        encoded = [self.encode(transaction) for transaction in transactions]
        with self.lock:
            for stored in encoded:
                self.add(stored)

    def settle(self, transaction: Transaction, verb: str) -> Entry | None:
        if id(transaction) in self.flying:
            self.settled[id(transaction)] = (transaction, verb)
            return self.flying.pop(id(transaction))[1]
        if self.settled.get(id(transaction), (None, ""))[1] != verb:
            raise LookupError("not delivered, or settled otherwise")
        return None

    def ack(self, transaction: Transaction) -> None:
        with self.lock:
            self.settle(transaction, "ack")

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        with self.lock:
            if self.settle(transaction, "nack") is not None:
                self.dead.append((transaction, str(exc)))

    def release(self, transaction: Transaction) -> None:
        with self.lock:
            entry = self.settle(transaction, "release")
            if entry is not None:
                self.put_back(entry)

    def release_after(self, transaction: Transaction, seconds: float) -> None:
        with self.lock:
            entry = self.settle(transaction, "release_after")
            if entry is not None:
                self.park(entry, seconds)

    def park(self, entry: Entry, seconds: float) -> None:
        self.parked.append((SYSTEM_CLOCK.now() + seconds, entry))

    def put_back(self, entry: Entry) -> None:
        self.waiting = sorted([*self.waiting, entry])

    def get_transactions_count(self) -> int:
        return len(self.waiting)

    def fetch_transaction_by_id(self, transaction_id: str) -> Any:
        found = (self.decode(stored) for _, stored in self.waiting)
        return next((each for each in found if each.transaction_id == transaction_id), None)

    def health(self) -> bool:
        return not self.closed

    def close(self) -> None:
        self.closed = True


class OverDelivers(Honest):
    """Treats batch_size as a hint."""

    def pick(self, count: int) -> list[Entry]:
        return super().pick(count + 1)


class LastInFirstOut(Honest):
    """Pops from the wrong end."""

    def pick(self, count: int) -> list[Entry]:
        return [self.waiting.pop() for _ in range(min(count, len(self.waiting)))]


class LosesTheRest(Honest):
    """Reads ahead and forgets what did not fit."""

    def pick(self, count: int) -> list[Entry]:
        return super().pick(count * 2)[:count]


class DeliversTwice(Honest):
    """Does not hide what is in flight."""

    def pick(self, count: int) -> list[Entry]:
        return self.waiting[:count]

    def settle(self, transaction: Transaction, verb: str) -> Entry | None:
        entry = super().settle(transaction, verb)
        if entry in self.waiting:
            self.waiting.remove(entry)
        return entry


class NeverRunsDry(Honest):
    """Starts over when it reaches the end."""

    def pick(self, count: int) -> list[Entry]:
        taken = self.waiting[:count]
        self.waiting = self.waiting[count:] + taken
        return taken


class DropsRepeatedIds(Honest):
    """Deduplicates by id for ever."""

    def add(self, stored: Any) -> None:
        known = {self.decode(each).transaction_id for _, each in self.waiting}
        if self.decode(stored).transaction_id not in known:
            super().add(stored)


class RawDicts(Honest):
    """Hands out what the wire gave it."""

    def decode(self, stored: Any) -> Any:
        return json.loads(stored)


class EmptyIds(Honest):
    """Fills a missing id with nothing."""

    def decode(self, stored: Any) -> Any:
        transaction = super().decode(stored)
        object.__setattr__(transaction, "transaction_id", "")
        return transaction


class OneInsteadOfMany(Honest):
    """Returns the transactions keyed by id."""

    def fetch_transactions(self, batch_size: int) -> Any:
        return {each.transaction_id: each for each in super().fetch_transactions(batch_size)}


class ReusesItsList(Honest):
    """Fills one list again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.batch: list[Any] = []

    def fetch_transactions(self, batch_size: int) -> Any:
        self.batch[:] = super().fetch_transactions(batch_size)
        return self.batch


class BlocksOnEmpty(Honest):
    """Waits for work inside the fetch."""

    woken = threading.Event()

    def fetch_transactions(self, batch_size: int) -> Any:
        if not self.waiting:
            self.woken.wait()
        return super().fetch_transactions(batch_size)


class IsACoroutine(Honest):
    """Has one word too many."""

    async def fetch_transactions(self, batch_size: int) -> Any:
        return super().fetch_transactions(batch_size)


class ChokesOnSettings(Honest):
    """Takes the batch before it looks at its settings."""

    def fetch_transactions(self, batch_size: int, **extra: Any) -> Any:
        batch = super().fetch_transactions(batch_size)
        if extra:
            raise ValueError(f"unknown setting {min(extra)}")
        return batch


class OneThreadOnly(Honest):
    """Remembers the first thread that fetched and refuses all others."""

    owner: threading.Thread | None = None

    def fetch_transactions(self, batch_size: int) -> Any:
        self.owner = self.owner or threading.current_thread()
        if self.owner is not threading.current_thread():
            raise RuntimeError("used from another thread")
        return super().fetch_transactions(batch_size)


class AnyBatchSize(Honest):
    """Gives an empty batch for a size that makes no sense."""

    def fetch_transactions(self, batch_size: int) -> Any:
        return super().fetch_transactions(batch_size) if batch_size > 0 else []


class Forgetful(Honest):
    """Leaves a field of the envelope behind; the subclasses say which."""

    field = ""

    def encode(self, transaction: Transaction) -> Any:
        shape = json.loads(super().encode(transaction))
        shape.pop(self.field, None)
        return json.dumps(shape)


class DropsMetadata(Forgetful):
    field = "metadata"


class DropsCorrelation(Forgetful):
    field = "correlation_id"


class DropsTrace(Forgetful):
    field = "trace_id"


class DropsSource(Forgetful):
    field = "source"


class DropsParent(Forgetful):
    field = "parent_id"


class StampsItsOwnTime(Forgetful):
    field = "created_at"


class SplitsOnLineSeparators(Honest):
    """Keeps its store as text and reads it with splitlines."""

    def encode(self, transaction: Transaction) -> Any:
        super().encode(transaction)
        return json.dumps(transaction.to_dict(), ensure_ascii=False)

    def decode(self, stored: Any) -> Any:
        return super().decode("".join(stored.splitlines()))


class NumbersAreFloats(Honest):
    """Parses every number as a float."""

    def decode(self, stored: Any) -> Any:
        return Transaction.from_dict(json.loads(stored, parse_int=float))


class EmptyMeansMissing(Honest):
    """Confuses an empty payload with none."""

    def encode(self, transaction: Transaction) -> Any:
        shape = json.loads(super().encode(transaction))
        shape["payload"] = shape["payload"] or None
        return json.dumps(shape)


class ShortTexts(Honest):
    """Cuts what is too long for its column."""

    def decode(self, stored: Any) -> Any:
        shape = json.loads(stored)
        shape["transaction_id"] = shape["transaction_id"][:64]
        return Transaction.from_dict(shape)


class Mutable(Transaction):
    """A transaction somebody made writable."""

    __slots__ = ("__dict__",)
    __setattr__ = object.__setattr__  # type: ignore[assignment]


class DeliversMutable(Honest):
    """Uses a writable class of its own."""

    def decode(self, stored: Any) -> Any:
        return Mutable.from_dict(json.loads(stored))


class SharesPayloads(Honest):
    """Keeps the caller's objects."""

    def encode(self, transaction: Transaction) -> Any:
        super().encode(transaction)
        return transaction

    def decode(self, stored: Any) -> Any:
        return Transaction.from_dict(json.loads(json.dumps(stored.to_dict())))


class RedeliversTheSameObject(Honest):
    """Puts back the object the handler worked on."""

    def release(self, transaction: Transaction) -> None:
        entry = self.settle(transaction, "release")
        if entry is not None:
            self.put_back((entry[0], json.dumps(transaction.to_dict())))


class PartialDispatch(Honest):
    """Encodes and stores one after the other."""

    def dispatch_transactions(self, transactions: Iterable[Transaction]) -> None:
        for transaction in transactions:
            super().dispatch_transactions([transaction])


class WritesSomething(Honest):
    """Turns what it cannot serialise into text."""

    def encode(self, transaction: Transaction) -> Any:
        return json.dumps(transaction.to_dict(), default=str)


class SwallowsTheUnserialisable(Honest):
    """Logs and goes on."""

    def dispatch_transactions(self, transactions: Iterable[Transaction]) -> None:
        for transaction in transactions:
            try:
                super().dispatch_transactions([transaction])
            except PayloadError:
                continue


class ComplainsWithoutAName(Honest):
    """Lets the serialiser's own error out."""

    def encode(self, transaction: Transaction) -> Any:
        return json.dumps(transaction.to_dict())


class ClearsOnError(Honest):
    """Throws its buffer away when a dispatch fails."""

    def dispatch_transactions(self, transactions: Iterable[Transaction]) -> None:
        try:
            super().dispatch_transactions(transactions)
        except PayloadError:
            self.waiting.clear()
            raise


class TakesAnything(Honest):
    """Wraps whatever it is given."""

    def encode(self, transaction: Any) -> Any:
        if not isinstance(transaction, Transaction):
            transaction = Transaction(new_id(), transaction)
        return super().encode(transaction)


class NeedsAList(Honest):
    """Walks through its input twice."""

    def dispatch_transactions(self, transactions: Iterable[Transaction]) -> None:
        for transaction in transactions:
            self.encode(transaction)
        super().dispatch_transactions(transactions)


class ChokesOnNothing(Honest):
    """Looks at the first one of an empty batch."""

    def dispatch_transactions(self, transactions: Iterable[Transaction]) -> None:
        batch = list(transactions)
        assert batch[0] is not None
        super().dispatch_transactions(batch)


class Unique(Honest):
    """Honest, and an id stands for one transaction for ever; its bugs follow."""

    def __init__(self) -> None:
        super().__init__()
        self.contents: dict[str, Any] = {}

    def is_known(self, transaction: Transaction) -> bool:
        """Whether it was dispatched before."""
        if transaction.transaction_id not in self.contents:
            return False
        if self.contents[transaction.transaction_id] != transaction.payload:
            raise ValueError(f"{transaction.transaction_id} stands for something else")
        return True

    def dispatch_transactions(self, transactions: Iterable[Transaction]) -> None:
        with self.lock:
            for each, stored in [(each, self.encode(each)) for each in transactions]:
                if not self.is_known(each):
                    self.contents[each.transaction_id] = json.loads(stored)["payload"]
                    self.add(stored)


class ForgetsWhatIsDone(Unique):
    """Knows an id only while it waits."""

    def ack(self, transaction: Transaction) -> None:
        super().ack(transaction)
        self.contents.pop(transaction.transaction_id, None)


class TakesTheFirstOnly(Unique):
    """Takes an id for the same work, whatever it says."""

    def is_known(self, transaction: Transaction) -> bool:
        return transaction.transaction_id in self.contents


class RefusesWithoutAName(Unique):
    """Does not say which of them it was."""

    def is_known(self, transaction: Transaction) -> bool:
        try:
            return super().is_known(transaction)
        except ValueError:
            raise ValueError("something stands for something else") from None
