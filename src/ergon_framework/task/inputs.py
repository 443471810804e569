"""What a producer is given: an iterable of anything, read as transactions, each id once."""

from __future__ import annotations

import hashlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Iterable,
    Iterator,
    Sequence,
)
from typing import Any

from ergon_framework.errors import EnvelopeError, WiringError
from ergon_framework.ports.context import current_attempt
from ergon_framework.ports.transaction import FIELDS, Transaction
from ergon_framework.telemetry import inject, outgoing_metadata

MAX_PLAIN_IDS = 10_000
"""Ids that are kept in a plain set, which is several times as fast."""
_SIZE = 12


class SeenIds:
    """Which ids a producer has already taken: a set that only grows, about 16 bytes per id.

    A set of strings costs a hundred bytes per id, and a producer of ten million would grow by a
    gigabyte. So only the first few are kept as they are; after that each id is a digest, packed
    with others that begin alike. At 96 bits, two of ten million ids are alike with odds of one in
    10**15.
    """

    def __init__(self, few: int = MAX_PLAIN_IDS) -> None:
        self._room = few
        self._first: set[str] = set()
        self._packs: dict[int, bytearray] = {}

    @property
    def packed_bytes(self) -> int:
        """How much the digests of ids take; ids that are kept as they are do not count."""
        return sum(len(pack) for pack in self._packs.values())

    def add(self, key: str) -> bool:
        """Remember an id; False when it was there already."""
        first = self._first
        if self._room:
            if key in first:
                return False
            first.add(key)
            self._room -= 1
            return True
        if first:
            for each in first:
                self._pack(each)
            first.clear()
        return self._pack(key)

    def _pack(self, key: str) -> bool:
        # surrogatepass: any text may be an id, and one with half a surrogate pair must not stop the
        # producer.
        digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_SIZE).digest()
        # 14 bits choose one of 16,384 packs: of ten million ids some 600 share one, 7 KB that
        # find() scans.
        number = digest[0] << 6 | digest[1] >> 2
        pack = self._packs.get(number)
        if pack is None:
            self._packs[number] = bytearray(digest)
            return True
        if holds_digest(pack, digest):
            return False
        pack += digest
        return True


def holds_digest(pack: bytearray, digest: bytes) -> bool:
    """Whether a digest is in a pack, at a place where one begins."""
    at = pack.find(digest)
    while at >= 0:
        if at % _SIZE == 0:
            return True
        at = pack.find(digest, at + 1)  # the end of one and the beginning of the next: no match
    return False


class Input:
    """Reads the user's iterable lazily; later duplicates of an id are skipped and remembered."""

    def __init__(self, given: object) -> None:
        _check(given)
        self._sequence = given if isinstance(given, Sequence) else None
        self._position = 0
        self._seen = SeenIds()
        self._iterator: Iterator[Any] | None = iter(given) if isinstance(given, Iterable) else None
        self._async = aiter(given) if isinstance(given, AsyncIterable) else None
        self._parent = current_attempt()
        self._carrier = outgoing_metadata()
        # As in most calls: then transactions pass as they are, without a look at each.
        self._is_bare = self._parent is None and not self._carrier
        self._is_over = False
        self.duplicates: list[str] = []

    def stop_reading(self) -> None:
        """The call ends: take nothing more than the one item that is being waited for."""
        self._is_over = True

    def fetch(self, at_most: int) -> Any:
        """The next transactions, each id once; fewer than asked for only at an end."""
        if self._async is not None:
            return self._fetch_async(self._async, at_most)
        if self._sequence is not None:
            return list(self._fetch(at_most))  # it cannot raise half-way
        return self._fetch(at_most)

    def _fetch(self, at_most: int) -> Iterator[Any]:
        if self._iterator is None:
            return
        while at_most > 0 and not self._is_over:
            try:
                item = next(self._iterator)
            except StopIteration:
                return
            if self._is_new(item):
                at_most -= 1
                yield item if self._is_bare else self._prepare(item)

    async def _fetch_async(
        self, iterator: AsyncIterator[Any], at_most: int
    ) -> AsyncGenerator[Any, None]:
        while at_most > 0 and not self._is_over:
            try:
                item = await anext(iterator)
            except StopAsyncIteration:
                return
            if self._is_new(item):
                at_most -= 1
                yield self._prepare(item)

    def leftovers(self) -> tuple[str, ...]:
        """Ids of a list's items that were never asked for; none for a generator."""
        if self._sequence is None:
            return ()
        rest = self._sequence[self._position :]
        return tuple(item.transaction_id for item in rest if isinstance(item, Transaction))

    def _is_new(self, item: object) -> bool:
        self._position += 1
        if not isinstance(item, Transaction):
            return True  # refused further on, with its position
        if self._seen.add(item.transaction_id):
            return True
        self.duplicates.append(item.transaction_id)
        return False

    def _prepare(self, item: Any) -> Any:
        """Add lineage and trace context to an outgoing transaction."""
        if not isinstance(item, Transaction):
            return item
        parent = self._parent.transaction if self._parent is not None else None
        if parent is not None and parent.transaction_id != item.transaction_id:
            item = _child_of(parent, item)
        return inject(item, self._carrier) if self._carrier else item


def _child_of(parent: Transaction, item: Transaction) -> Transaction:
    if item.parent_id is not None and item.correlation_id is not None:
        return item
    values = {name: getattr(item, name) for name in FIELDS}
    values["parent_id"] = item.parent_id or parent.transaction_id
    values["correlation_id"] = item.correlation_id or parent.correlation_id or parent.transaction_id
    return Transaction(**values)


def _check(given: object) -> None:
    """Refuse what cannot be input, before anything starts."""
    if isinstance(given, str | bytes | dict | Transaction) or not isinstance(
        given, Iterable | AsyncIterable
    ):
        raise WiringError(
            f"transactions must be an iterable of Transaction, not {type(given).__name__}",
            remedy="pass a list or a generator: produce_transactions([transaction], policy)",
        )
    # A generator cannot be looked through before: its items are refused when they come.
    if isinstance(given, Sequence):
        for position, item in enumerate(given):
            if not isinstance(item, Transaction):
                raise EnvelopeError(
                    f"item {position} of transactions is {type(item).__name__}, not a Transaction",
                    remedy="wrap it: Transaction(transaction_id=..., payload=item)",
                )
