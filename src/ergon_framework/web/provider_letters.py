"""Dead letters of provider calls, page by page."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from ergon_framework.app.dead_letters import letter_shape
from ergon_framework.ports import providerlooking
from ergon_framework.ports.providerstore import LetterStatus, StoredLetter
from ergon_framework.web.provider_source import ProviderSource

WAITING = (LetterStatus.PENDING, LetterStatus.PUBLISHED, LetterStatus.REDRIVE)
"""What a listing shows: letters with which something is still to be done."""


class LetterPlace(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Where a page of letters ended."""

    at: Annotated[datetime, msgspec.Meta(tz=True)]
    id: str


def letters_page(
    source: ProviderSource,
    reason: str | None,
    after: LetterPlace | None,
    limit: int,
    *,
    is_whole: bool,
) -> list[tuple[LetterPlace, dict[str, Any]]]:
    """Letters that wait, the newest first, each with its place; only whole ones have payloads."""
    places = _places(source, reason, after, limit)
    if not places:
        return []
    ids = [place.id for place in places]
    found = {each.letter.dead_letter_id: each for each in _letters(source, ids)}
    return [
        (place, letter_shape(found[place.id], shows_payload=is_whole))
        for place in places
        if place.id in found
    ]


def find_letter(source: ProviderSource, letter_id: str, *, is_whole: bool) -> dict[str, Any] | None:
    """One letter, whatever has become of it; None when there is none."""
    found = [] if "\0" in letter_id else _letters(source, [letter_id])  # no database takes that
    return letter_shape(found[0], shows_payload=is_whole) if found else None


def _letters(source: ProviderSource, ids: list[str]) -> list[StoredLetter]:
    return source.opened().letters(ids=ids, limit=len(ids))


def _places(
    source: ProviderSource, reason: str | None, after: LetterPlace | None, limit: int
) -> list[LetterPlace]:
    looking = source.looking
    if looking is None or not source.has_tables() or "\0" in (reason or ""):
        return []
    start = None if after is None else providerlooking.LetterPlace(after.at, after.id)
    return [LetterPlace(*each) for each in looking.letter_places(WAITING, reason, start, limit)]
