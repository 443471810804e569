"""Lists that come in pages: how many, from where on, and how the next page is asked for."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from ergon_framework.web.refusals import CURSOR_REMEDY, BadInputError

T = TypeVar("T")

MOST = 1000
"""Items in one page."""
_LISTS = {"status"}
"""Parameters that may be repeated."""

Limit = Annotated[int, Field(ge=1, le=MOST, description="At most so many items.")]
Cursor = Annotated[
    str | None,
    Field(
        pattern="^[A-Za-z0-9_-]{1,512}$",
        description="The `next_cursor` of the page before, with its filters.",
    ),
]
Payloads = Annotated[
    bool,
    Field(description="Also arguments, results and payloads, if the server's settings allow it."),
]


class Asked(BaseModel):
    """Query parameters; one that is misspelt is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def given_once(request: Request) -> None:
    """Refuse a parameter that is given twice: nobody could tell which one was meant."""
    given = Counter(name for name, _ in request.query_params.multi_items())
    for name, count in given.items():
        if count > 1 and name not in _LISTS:
            raise BadInputError(name, "given more than once", "give it once")


class Page(BaseModel, Generic[T]):
    """Some items of a list."""

    items: list[T]
    next_cursor: str | None = Field(description="For the next page; null when this is the last.")


def page(items: list[Any], next_cursor: str | None = None) -> dict[str, Any]:
    """A page as plain values."""
    return {"items": items, "next_cursor": next_cursor}


def cursor_text(place: Any) -> str:
    """A place in a list as text that nobody needs to understand."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def cursor_place(text: str, shape: type[T]) -> T:
    """The place that :func:`cursor_text` wrote down; ``BadInputError`` for anything else."""
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        return msgspec.json.decode(base64.b64decode(padded, b"-_", validate=True), type=shape)
    except (UnicodeEncodeError, binascii.Error, msgspec.DecodeError, msgspec.ValidationError):
        problem = "is not the next_cursor of such a list"
        raise BadInputError("cursor", problem, CURSOR_REMEDY) from None
