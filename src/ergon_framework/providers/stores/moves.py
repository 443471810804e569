"""Whether the tables of provider calls may be worked with, as far as moves are concerned."""

from __future__ import annotations

from ergon_framework.errors import StoreSchemaError
from ergon_framework.ports.moving import read_mark

MARKS = "ergon_provider_moves"
"""The table in which a move leaves word; it is there once something was moved."""
FIND_MARK = f"SELECT mark FROM {MARKS}"  # noqa: S608 - our own name


def refuse_unsettled_tables(found: bytes | None, name: str) -> None:
    """Refuse tables that a move has not filled yet, or whose rows went elsewhere.

    A call that is recorded there would be missing where it is looked for; a quota would be spent
    twice.
    """
    mark = read_mark(found)
    if mark.is_half:
        raise StoreSchemaError(
            f"a move of provider calls into {name} has not ended",
            remedy="run the same `ergon move` again: it goes on where it was cut off",
        )
    if mark.moved_to:
        raise StoreSchemaError(
            f"the provider calls of {name} were moved to {mark.moved_to}",
            remedy="work with that one; `ergon move FROM TO --reopen` lets this one be used again",
            details={"moved_to": mark.moved_to},
        )
