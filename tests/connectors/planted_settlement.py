"""Connectors that settle, close or wait wrongly in one way each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterable
from typing import Any

from ergon_framework.ports.transaction import Transaction, new_id
from tests.connectors.planted_delivery import Entry, Honest


class LosesOnRelease(Honest):
    """Takes release for ack."""

    def put_back(self, entry: Entry) -> None:
        pass


class RedeliversAfterAck(Honest):
    """Takes ack for release."""

    def ack(self, transaction: Transaction) -> None:
        entry = self.settle(transaction, "ack")
        if entry is not None and entry[0] < self.places:
            self.put_back((self.places, entry[1]))


class NackForgets(Honest):
    """Drops what failed, without a word."""

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        self.ack(transaction)


class NackRequeues(Honest):
    """Sends what failed for good round again."""

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        self.dead.append((transaction, str(exc)))
        self.release(transaction)


class NewIdOnRedelivery(Honest):
    """Treats a redelivery as new work."""

    def put_back(self, entry: Entry) -> None:
        shape = json.loads(entry[1]) | {"transaction_id": new_id()}
        super().put_back((entry[0], json.dumps(shape)))


class ReleasesEverything(Honest):
    """Rolls the whole session back."""

    def put_back(self, entry: Entry) -> None:
        for _, other in self.flying.values():
            super().put_back(other)
        super().put_back(entry)


class ReleasesOnce(Honest):
    """Gives up on what was released before."""

    released: set[int]

    def put_back(self, entry: Entry) -> None:
        self.released = getattr(self, "released", set())
        if entry[0] not in self.released:
            super().put_back(entry)
        self.released.add(entry[0])


class ReleasesToTheEnd(Honest):
    """Puts back at the end of the queue."""

    def put_back(self, entry: Entry) -> None:
        self.waiting.append(entry)


class ReleasesTwice(Honest):
    """Puts back again when told again."""

    def release(self, transaction: Transaction) -> None:
        entry = self.settle(transaction, "release")
        self.put_back(entry or (self.places, self.encode(transaction)))


class ParksForNothing(Honest):
    """Takes release_after for release."""

    def park(self, entry: Entry, seconds: float) -> None:
        self.put_back(entry)


class ParksForEver(Honest):
    """Never looks at what is parked."""

    def bring_back(self) -> None:
        pass


class ParksACopy(Honest):
    """Parks it, and puts it back as well when its time has come."""

    def park(self, entry: Entry, seconds: float) -> None:
        super().park(entry, seconds)
        super().park((self.places, entry[1]), seconds)


class ParksOnce(Honest):
    """Thinks that a gate is open after the first wait."""

    def park(self, entry: Entry, seconds: float) -> None:
        is_again = entry[0] in getattr(self, "known", set())
        self.known = {*getattr(self, "known", set()), entry[0]}
        super().park(entry, 0.0 if is_again else seconds)


class ReleasesTheParked(Honest):
    """Knows that it was settled, but not how."""

    def settle(self, transaction: Transaction, verb: str) -> Entry | None:
        before = self.settled.get(id(transaction), (None, ""))[1]
        if (before, verb) == ("release_after", "release"):
            return self.parked.pop()[1]
        return super().settle(transaction, verb)


class ComplainsAboutTheSecondAck(Honest):
    """Knows a delivery only until it is settled."""

    def settle(self, transaction: Transaction, verb: str) -> Entry | None:
        return self.flying.pop(id(transaction))[1]


class ReleaseAfterAck(Honest):
    """Believes the last word, not the first."""

    def release(self, transaction: Transaction) -> None:
        if id(transaction) in self.settled:
            self.put_back((0, self.encode(transaction)))
        else:
            super().release(transaction)


class AcksTheUnknown(Honest):
    """Says yes to everything."""

    def settle(self, transaction: Transaction, verb: str) -> Entry | None:
        try:
            return super().settle(transaction, verb)
        except LookupError:
            return None


class SettlesById(Honest):
    """Knows deliveries by the transaction's id alone."""

    def settle(self, transaction: Transaction, verb: str) -> Entry | None:
        found = None
        for key, (flying, entry) in list(self.flying.items()):
            if flying.transaction_id == transaction.transaction_id:
                del self.flying[key]
                found = entry
        return found


class RacesOnRelease(Honest):
    """Reads, lets another thread do the same, then writes: one of the two is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.meeting = threading.Barrier(2)

    def release(self, transaction: Transaction) -> None:
        entry = self.settle(transaction, "release")
        before = list(self.waiting)
        if self.places == 12:  # the one check that settles from many threads puts in so many
            with contextlib.suppress(threading.BrokenBarrierError):
                self.meeting.wait(5)
        if entry is not None:
            self.waiting = sorted([*before, entry])


class CountsEverything(Honest):
    """Counts what was ever put in."""

    def get_transactions_count(self) -> int:
        return self.places


class LookingTakes(Honest):
    """Finds by id and keeps it."""

    def fetch_transaction_by_id(self, transaction_id: str) -> Any:
        found = super().fetch_transaction_by_id(transaction_id)
        if found is not None:
            self.waiting.pop()
        return found


class FindsAnything(Honest):
    """Takes the first one when there is no other."""

    def fetch_transaction_by_id(self, transaction_id: str) -> Any:
        return super().fetch_transaction_by_id(transaction_id) or self.decode(self.waiting[0][1])


class AlwaysIll(Honest):
    """Says what it would say without a connection."""

    def health(self) -> bool:
        return False


class AlwaysWell(Honest):
    """Never looks at its connection."""

    def health(self) -> bool:
        return True


class ClosesOnce(Honest):
    """Closes what is closed."""

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("already closed")
        self.closed = True


class EmptyWhenClosed(Honest):
    """Looks like an empty queue when it is closed."""

    def fetch_transactions(self, batch_size: int) -> Any:
        return [] if self.closed else super().fetch_transactions(batch_size)


class HonestAsync:
    """The asyncio twin of the honest connector, as far as the bugs below need it."""

    def __init__(self) -> None:
        self.inner = Honest()

    async def fetch_transactions_async(self, batch_size: int) -> Any:
        return self.inner.fetch_transactions(batch_size)

    async def dispatch_transactions_async(self, transactions: Iterable[Transaction]) -> None:
        self.inner.dispatch_transactions(transactions)


class WrongColour(HonestAsync):
    """Forgot a word."""

    def fetch_transactions_async(self, batch_size: int) -> Any:
        return self.inner.fetch_transactions(batch_size)


class LosesOnCancel(HonestAsync):
    """Takes, then waits, then hands over."""

    async def fetch_transactions_async(self, batch_size: int) -> Any:
        batch = self.inner.fetch_transactions(batch_size)
        await asyncio.sleep(0)
        return batch


class BlocksTheLoop(HonestAsync):
    """Waits for work without letting the loop go on."""

    woken = threading.Event()

    async def fetch_transactions_async(self, batch_size: int) -> Any:
        self.woken.wait()
        return await super().fetch_transactions_async(batch_size)
