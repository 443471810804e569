"""What a store must offer so that all it holds can be copied into another one, of any kind.

A store is laid out as copies of a few kinds, each in one order that every store keeps. Whoever
moves a store reads the copies of both sides along that order, loads what is missing or differs,
discards what is no longer there, and compares both sides once more at the end. The store that is
read is only looked at, and the one that is written has no other users meanwhile.

Five methods, which the ``records`` of a store have, or the store beside those of its other ports:

- ``dump`` reads a page of one kind, after a place. Pages are bounded by ``limit`` and by
  :data:`PAGE_BYTES`, whatever there is; an empty page is the end.
- ``load`` puts copies of one kind in, in order and in one commit. The same copies again change
  nothing: a move that was cut off begins anew and meets what it has done.
- ``discard`` takes copies out that are no longer on the other side, in one commit.
- ``mark`` and ``set_mark`` keep a word about the move in the store that is written, and one in the
  store that was read when it is shut afterwards.

A store that others reach has a sixth, ``bar`` (:class:`Barred`), and one whose name may be written
in many ways, or be given to another one, a seventh, ``birth`` (:class:`Born`).

Copies carry instants as they are: a lease that ran out on the way is rescued in the new store.
What is the same in every store is done once: ``jobs/stores/records.py``,
``boundary/factstore/archive.py`` and, for stores on tables, ``boundary/factstore/sql/archive.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from ergon_framework.errors import StoreError, StoreReadOnlyError
from ergon_framework.ports.copies import Copy

PAGE_BYTES = 4 << 20
"""About how many bytes of payloads a page has at most; one copy is always given, however large."""

FILE_OF_RECORDS = "records "
"""How the source of a mark begins that an import left; the digest of the file's lines follows."""

C = TypeVar("C", bound=Copy)


class Mark(msgspec.Struct, frozen=True):
    """What a move leaves in the store that it writes, and in the one that it shuts."""

    source: str = ""
    """What the other store is known by, of which this one is a copy; empty when it is none."""
    sums: dict[str, tuple[int, str]] | None = None
    """When it was done: for each kind how many there were, and the digest over them."""
    moved_to: str = ""
    """Where everything went since; empty while this store is the one to work with."""
    birth: str = ""
    """The birth of the other store; empty where it did not tell."""

    @property
    def is_half(self) -> bool:
        """Whether a move into the store has begun and not ended."""
        return bool(self.source) and self.sums is None

    @property
    def is_import(self) -> bool:
        """Whether what fills the store comes out of a file."""
        return self.source.startswith(FILE_OF_RECORDS)

    @property
    def unended(self) -> str:
        """What has not ended, when something has not."""
        return "an import" if self.is_import else "a move"

    @property
    def again(self) -> str:
        """What ends it."""
        return f"run the same `ergon {'import' if self.is_import else 'move'}` again"


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


@runtime_checkable
class Barred(Protocol):
    """A store that can refuse whoever has it open already, in any process."""

    def bar(self, place: str | None) -> None:
        """Refuse changes from now on, naming where everything went; None: let them in again.

        ``StoreReadOnlyError`` is raised where something would be added, claimed, settled or
        appended. Reading goes on, and marks can be set. The same again changes nothing.
        """


@runtime_checkable
class MarksTogether(Protocol):
    """Provider calls, beside which a database may have jobs."""

    def set_marks(self, marks: Sequence[bytes]) -> None:
        """Write down the marks of provider calls and of the jobs there, in one commit."""


@runtime_checkable
class Born(Protocol):
    """A store that is told from one of the same name that is put in its place."""

    def birth(self) -> str:
        """What this very store has since it was made, however it is reached; empty if unknown.

        It is not copied by a move, and outlives all that the store holds.
        """


def records_of(store: object) -> object:
    """The part of a store that is copied: its ``records``, or the store itself."""
    return getattr(store, "records", store)


_decode = msgspec.json.Decoder(Mark).decode
encode_mark = msgspec.json.Encoder().encode


def mark_of(store: object) -> Mark:
    """What was written down in a store; nothing for one that is neither copy nor shut."""
    records = records_of(store)
    return read_mark(records.mark() if isinstance(records, Archive) else None)


def birth_of(store: object) -> str:
    """By what a store is told from any other; empty where it does not tell."""
    records = records_of(store)
    return records.birth() if isinstance(records, Born) else ""


def read_mark(found: bytes | None) -> Mark:
    """What bytes of a mark say."""
    return Mark() if found is None else _decode(found)


def is_half_moved(store: object) -> bool:
    """Whether a move into a store has begun and not ended."""
    return mark_of(store).is_half


def refuse_unsettled(mark: Mark) -> None:
    """Work with no store that a move has not filled yet, or whose things went elsewhere.

    In both, what is done would be missing where it is looked for, or be done twice.
    """
    if mark.is_half:
        raise half_moved(mark)
    if mark.moved_to:
        raise moved_away("this store", mark.moved_to)


def half_moved(mark: Mark) -> StoreError:
    """The error of a store that a move or an import has not filled yet."""
    return StoreError(
        f"{mark.unended} into this store has not ended",
        remedy=f"{mark.again}: it goes on where it was cut off",
    )


def moved_away(name: str, place: str) -> StoreReadOnlyError:
    """The error of a store that was shut when all it held had been moved."""
    return StoreReadOnlyError(
        f"what {name} held was moved to {place}",
        remedy="work with that one; `ergon move FROM TO --reopen` lets this one be used again",
        details={"moved_to": place},
    )
