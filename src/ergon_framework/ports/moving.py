"""What a store must offer so that all it holds can be copied into another one, of any kind.

A store is laid out as copies of a few kinds, each in one order that every store keeps. Whoever
moves a store reads the copies of both sides along that order, loads what is missing or differs,
discards what is no longer there, and compares both sides once more at the end. The store that is
read is only looked at, and the one that is written has no other users meanwhile.

Five methods, which a store has beside those of its other ports:

- ``dump`` reads a page of one kind, after a place. Pages are bounded by ``limit`` and by
  :data:`PAGE_BYTES`, whatever there is; an empty page is the end.
- ``load`` puts copies of one kind in, in order and in one commit. The same copies again change
  nothing: a move that was cut off begins anew and meets what it has done.
- ``discard`` takes copies out that are no longer on the other side, in one commit.
- ``mark`` and ``set_mark`` keep a word about the move in the store that is written.

Copies carry instants as they are: a lease that ran out on the way is rescued in the new store.
What is the same in every store is done once: ``jobs/stores/moving.py``, ``boundary/logs/moving.py``
and, for stores on tables, ``boundary/logs/tables/moving.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from ergon_framework.errors import StoreError
from ergon_framework.ports.copies import Copy

PAGE_BYTES = 4 << 20
"""About how many bytes of payloads a page has at most; one copy is always given, however large."""

C = TypeVar("C", bound=Copy)


class Mark(msgspec.Struct, frozen=True):
    """What a move leaves in the store that it writes."""

    source: str
    """What the other store is known by."""
    sums: dict[str, tuple[int, str]] | None = None
    """When it was done: for each kind how many there were, and the digest over them."""


@runtime_checkable
class Archive(Protocol):
    """A store that can be copied."""

    def dump(self, kind: type[C], after: Any, limit: int) -> list[C]:
        """The copies of a kind after a place (None: from the beginning), in order."""

    def load(self, copies: Sequence[Copy]) -> None:
        """Put copies of one kind in, in order and in one commit."""

    def discard(self, copies: Sequence[Copy]) -> None:
        """Take copies of one kind out, in one commit; those that are not there are fine.

        Never asked for what may not leave.
        """

    def mark(self) -> bytes | None:
        """What was written down about a move into this store."""

    def set_mark(self, mark: bytes | None) -> None:
        """Write something down about a move into this store, or forget it."""


def is_half_moved(store: object) -> bool:
    """Whether a move into a store has begun and not ended."""
    found = store.mark() if isinstance(store, Archive) else None
    return found is not None and msgspec.json.decode(found, type=Mark).sums is None


def refuse_half_moved(store: object) -> None:
    """Work with no store that a move has not filled yet: what is missing would be done twice."""
    if is_half_moved(store):
        raise StoreError(
            "a move into this store has not ended",
            remedy="run the same `ergon move` again: it goes on where it was cut off",
        )
