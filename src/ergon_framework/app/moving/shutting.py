"""Shutting the store that was moved, so that nobody goes on working there, and the way back."""

from __future__ import annotations

from msgspec.structs import replace

from ergon_framework.app.moving.spelling import is_same
from ergon_framework.errors import StoreError
from ergon_framework.ports.moving import Archive, Barred, encode_mark, mark_of


def shut(store: Archive, place: str) -> None:
    """Refuse whoever works with a store, and say where everything is now.

    First those that have it open, then those that will open it: the mark is also what makes the
    former look, where a store remembers what it read.
    """
    if isinstance(store, Barred):
        store.bar(place)
    store.set_mark(encode_mark(replace(mark_of(store), moved_to=place)))


def reopen(store: Archive) -> bool:
    """Let a store be worked with again; whether it was shut."""
    mark = mark_of(store)
    if isinstance(store, Barred):
        store.bar(None)
    left = replace(mark, moved_to="")
    store.set_mark(encode_mark(left) if left.source else None)
    return bool(mark.moved_to)


def refuse_elsewhere(store: Archive, name: str, place: str) -> None:
    """What was moved to one place is not said to be at another."""
    found = mark_of(store).moved_to
    if found and not is_same(found, place):
        raise StoreError(
            f"what {name} held was moved to {found}, not to {place}",
            remedy=f"name {found} as TO; with --reopen {name} can be used again",
        )
