"""Plain connectors: a locked deque, in every form in which a port may be honoured."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ergon_framework.ports.transaction import Transaction

Take = Callable[["Plain", int], Iterable[Transaction] | None]


class Plain:
    """The deque; what is delivered and put back is the very object that was put in."""

    take: Take

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: deque[Transaction] = deque()
        self.flying: dict[int, Transaction] = {}
        self.dead: list[tuple[Transaction, Exception]] = []

    def put(self, transactions: Iterable[Transaction]) -> None:
        with self.lock:
            self.waiting.extend(transactions)

    def pick(self) -> Transaction:
        transaction = self.waiting.popleft()
        self.flying[id(transaction)] = transaction
        return transaction

    def land(self, transaction: Transaction) -> bool:
        return self.flying.pop(id(transaction), None) is not None


def as_a_list(plain: Plain, batch_size: int) -> list[Transaction]:
    """A list, empty when there is nothing."""
    with plain.lock:
        return [plain.pick() for _ in range(min(batch_size, len(plain.waiting)))]


def or_none(plain: Plain, batch_size: int) -> list[Transaction] | None:
    """A list, or None when there is nothing."""
    return as_a_list(plain, batch_size) or None


def lazily(plain: Plain, batch_size: int) -> Iterator[Transaction]:
    """A generator that takes when it is asked to."""
    for _ in range(batch_size):
        with plain.lock:
            if not plain.waiting:
                return
            transaction = plain.pick()
        yield transaction


class Fetches(Plain):
    def fetch_transactions(self, batch_size: int, **extra: Any) -> Iterable[Transaction] | None:
        return type(self).take(self, batch_size)


class Dispatches(Plain):
    def dispatch_transactions(self, transactions: Iterable[Transaction], **extra: Any) -> None:
        self.put(transactions)


class Settles(Plain):
    def ack(self, transaction: Transaction) -> None:
        with self.lock:
            self.land(transaction)

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        with self.lock:
            if self.land(transaction):
                self.dead.append((transaction, exc))

    def release(self, transaction: Transaction) -> None:
        with self.lock:
            if self.land(transaction):
                self.waiting.append(transaction)


class FetchesAsync(Plain):
    async def fetch_transactions_async(
        self, batch_size: int, **extra: Any
    ) -> Iterable[Transaction] | None:
        return type(self).take(self, batch_size)


class DispatchesAsync(Plain):
    async def dispatch_transactions_async(
        self, transactions: Iterable[Transaction], **extra: Any
    ) -> None:
        self.put(transactions)


class SettlesAsync(Plain):
    async def ack_async(self, transaction: Transaction) -> None:
        Settles.ack(self, transaction)  # type: ignore[arg-type]

    async def nack_async(self, transaction: Transaction, exc: Exception) -> None:
        Settles.nack(self, transaction, exc)  # type: ignore[arg-type]

    async def release_async(self, transaction: Transaction) -> None:
        Settles.release(self, transaction)  # type: ignore[arg-type]


PARTS: dict[str, dict[str, type[Plain]]] = {
    "sync": {"fetch": Fetches, "dispatch": Dispatches, "settle": Settles},
    "async": {"fetch": FetchesAsync, "dispatch": DispatchesAsync, "settle": SettlesAsync},
}


def plain(colour: str, take: Take, *offers: str) -> type[Plain]:
    """A class with these offers beside its fetch, in one colour or in both."""
    colours = PARTS if colour == "both" else (colour,)
    parts = [PARTS[each][offer] for each in colours for offer in ("fetch", *offers)]
    return type("Queue", tuple(parts), {"take": staticmethod(take)})
