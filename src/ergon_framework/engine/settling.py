"""What connectors share: deliveries that are settled once, and asyncio twins that use threads."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Generic, TypeVar

from ergon_framework.engine.own_threads import OwnThreads
from ergon_framework.errors import ConnectorError
from ergon_framework.ports.transaction import Transaction

_set = object.__setattr__
_turn = threading.Lock()  # for the moment in which a delivery gets its verb


class Delivered(Transaction):
    """A delivered transaction that knows who delivered it and how it was settled."""

    __slots__ = ("owner", "verb")

    owner: object
    verb: str | None

    def belongs_to(self, owner: object, **about: Any) -> None:
        """Note whose delivery it is, and what else the owner wants to know of it later."""
        for name, value in {"owner": owner, "verb": None, **about}.items():
            _set(self, name, value)


_D = TypeVar("_D", bound=Delivered)
_W = TypeVar("_W")


@contextmanager
def settling(
    kind: type[_D], transaction: Transaction, owner: object, verb: str, error: type[ConnectorError]
) -> Iterator[_D | None]:
    """What is to be settled, or None when it was settled in this way before.

    The same verb again is harmless, another one is refused; what raises inside may be tried again.
    """
    if not isinstance(transaction, kind) or transaction.owner is not owner:
        raise error(
            f"cannot {verb} {transaction!r}: this connector did not deliver this object",
            remedy="settle the very object that fetch_transactions returned, not a copy",
        )
    with _turn:
        before = transaction.verb
        if before is None:
            _set(transaction, "verb", verb)
    if before not in (None, verb):
        raise error(
            f"cannot {verb} {transaction!r}: it was settled with {before} before",
            remedy="settle each delivery once",
        )
    try:
        yield transaction if before is None else None
    except BaseException:
        if before is None:
            _set(transaction, "verb", None)
        raise


class Forsaken(Generic[_W]):
    """Finds deliveries that were not settled and that nobody has any more.

    Whoever fetched them was cancelled, or has ended without handing them back. Nobody can settle
    them now, so they are their connector's again. Any thread may call.
    """

    def __init__(self) -> None:
        self._watched: dict[int, weakref.ref[Delivered]] = {}
        self._found: deque[_W] = deque()

    def watch(self, delivery: Delivered, what: _W) -> None:
        """From now on; ``what`` stands for what was delivered, and is watched in one delivery."""
        key = id(what)

        def gone(_reference: object) -> None:
            # This runs wherever the interpreter frees the delivery: nothing here may wait.
            self._watched.pop(key, None)
            self._found.append(what)

        self._watched[key] = weakref.ref(delivery, gone)

    def forget(self, what: _W) -> None:
        """It was settled."""
        self._watched.pop(id(what), None)

    def take(self) -> list[_W]:
        """Those found since the last time."""
        return [self._found.popleft() for _ in range(len(self._found))]


class ThreadedTwins:
    """The asyncio twins of a connector whose methods block: threads do what they do."""

    async def dispatch_transactions_async(
        self, transactions: Iterable[Transaction], **extra: Any
    ) -> None:
        """The asyncio twin of ``dispatch_transactions``."""
        await self._in_thread("dispatch_transactions", list(transactions), **extra)

    async def ack_async(self, transaction: Transaction) -> None:
        """The asyncio twin of ``ack``."""
        await self._in_thread("ack", transaction)

    async def nack_async(self, transaction: Transaction, exc: Exception) -> None:
        """The asyncio twin of ``nack``."""
        await self._in_thread("nack", transaction, exc)

    async def release_async(self, transaction: Transaction) -> None:
        """The asyncio twin of ``release``."""
        await self._in_thread("release", transaction)

    async def get_transactions_count_async(self) -> int:
        """The asyncio twin of ``get_transactions_count``."""
        count: int = await self._in_thread("get_transactions_count")
        return count

    async def fetch_transaction_by_id_async(self, transaction_id: str) -> Transaction | None:
        """The asyncio twin of ``fetch_transaction_by_id``."""
        found: Transaction | None = await self._in_thread("fetch_transaction_by_id", transaction_id)
        return found

    async def aclose(self) -> None:
        """The asyncio twin of ``close``."""
        await self._in_thread("close")

    async def _in_thread(self, method: str, *given: Any, **extra: Any) -> Any:
        return await self._threads.run(getattr(self, method), *given, **extra)

    @cached_property
    def _threads(self) -> OwnThreads:
        return OwnThreads()
