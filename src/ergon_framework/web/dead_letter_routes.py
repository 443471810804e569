"""``/api/v1/dead-letters``: dead-lettered jobs and provider calls, the newest first."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from heapq import merge
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from ergon_framework.app.dead_letters import letter_document
from ergon_framework.core.job import JobStatus
from ergon_framework.ports import providerstore
from ergon_framework.ports.jobstore import Search
from ergon_framework.ports.providerstore import LetterStatus, StoredLetter
from ergon_framework.web.addresses import named
from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.backends import ProviderBackend
from ergon_framework.web.job_routes import JobParams, Place, found_jobs, shown_job
from ergon_framework.web.middleware import caller_of
from ergon_framework.web.responses import (
    MISSING,
    Cursor,
    Limit,
    Page,
    Payloads,
    QueryParams,
    ResourceNotFoundError,
    cursor_place,
    cursor_text,
    json_response,
    page,
)
from ergon_framework.web.schemas import DeadLetterItem

WAITING = (LetterStatus.PENDING, LetterStatus.PUBLISHED, LetterStatus.REDRIVE)
"""The states in which something is still to be done with a dead letter; a listing shows
only these.
"""


class LetterCursor(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The place at which a page of dead letters ended."""

    at: Annotated[datetime, msgspec.Meta(tz=True)]
    id: str


def letters_page(
    source: ProviderBackend,
    reason: str | None,
    after: LetterCursor | None,
    limit: int,
    *,
    is_whole: bool,
) -> list[tuple[LetterCursor, dict[str, Any]]]:
    """One page of waiting letters, the newest first, each with its place. Only whole letters have
    payloads.
    """
    places = _places(source, reason, after, limit)
    if not places:
        return []
    ids = [place.id for place in places]
    found = {each.letter.dead_letter_id: each for each in _letters(source, ids)}
    return [
        (place, letter_document(found[place.id], shows_payload=is_whole))
        for place in places
        if place.id in found
    ]


def find_letter(
    source: ProviderBackend, letter_id: str, *, is_whole: bool
) -> dict[str, Any] | None:
    """One letter in any state. None when there is none."""
    # No database takes such an id.
    found = [] if "\0" in letter_id else _letters(source, [letter_id])
    return letter_document(found[0], shows_payload=is_whole) if found else None


def _letters(source: ProviderBackend, ids: list[str]) -> list[StoredLetter]:
    return source.opened().letters(ids=ids, limit=len(ids))


def _places(
    source: ProviderBackend, reason: str | None, after: LetterCursor | None, limit: int
) -> list[LetterCursor]:
    looking = source.looking
    if looking is None or not source.has_tables() or "\0" in (reason or ""):
        return []
    start = None if after is None else providerstore.LetterPosition(after.at, after.id)
    return [LetterCursor(*each) for each in looking.letter_places(WAITING, reason, start, limit)]


Kind = Literal["job", "provider"]


class LettersParams(QueryParams):
    """A filter of dead letters."""

    kind: Kind | None = Field(None, description="Only jobs, or only provider calls.")
    reason: str | None = Field(None, description="Only those that failed with this code.")
    limit: Limit = 100
    cursor: Cursor = None
    payloads: Payloads = False


class _Place(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The places at which a page ended in each of the two lists."""

    job: Place | None = None
    call: LetterCursor | None = None


class _Found(msgspec.Struct):
    """One item, when it was made, and its place in its list."""

    at: str
    view: dict[str, Any]
    place: Any


def dead_letter_routes(pool: BackendPool) -> APIRouter:
    """The routes about dead letters."""
    router = APIRouter(prefix="/api/v1/dead-letters", tags=["dead letters"])

    @router.get("", summary="What was given up", response_model=Page[DeadLetterItem])
    async def list_dead(request: Request, asked: Annotated[LettersParams, Query()]) -> Response:
        """One page of the jobs and provider calls that match."""
        if pool.shows_payloads and asked.payloads:
            await pool.note_look(caller_of(request.scope), detail="payloads of dead letters")
        place = _Place() if asked.cursor is None else cursor_place(asked.cursor, _Place)
        jobs, calls = await _jobs(pool, asked, place), await _calls(pool, asked, place)
        both = merge(jobs, calls, key=lambda each: each.at, reverse=True)
        shown = list(islice(both, asked.limit))
        # A list of which nothing was shown keeps its place from the cursor: it goes on there.
        for each in shown:
            setattr(place, "job" if each.view["kind"] == "job" else "call", each.place)
        is_more = len(jobs) + len(calls) > len(shown)
        items = [each.view for each in shown]
        return json_response(page(items, cursor_text(place) if is_more else None))

    @router.get(
        "/{letter_id:path}",
        summary="One job or provider call that was given up",
        response_model=DeadLetterItem,
        responses=MISSING,
    )
    async def show_dead(
        request: Request, letter_id: str, asked: Annotated[JobParams, Query()]
    ) -> Response:
        """Everything about one dead letter."""
        letter_id = named(letter_id, asked.id)
        is_whole = pool.shows_payloads and asked.payloads
        found = await _call(pool, letter_id, is_whole) or await _job(pool, letter_id, is_whole)
        if found is None:
            raise ResourceNotFoundError(
                "there is no such dead letter",
                remedy="/api/v1/dead-letters lists those that there are",
            )
        if is_whole:
            is_job = found["kind"] == "job"
            detail = "" if is_job else f"the payload of the provider call {letter_id!r}"
            await pool.note_look(caller_of(request.scope), letter_id if is_job else "", detail)
        return json_response(found)

    return router


async def _jobs(pool: BackendPool, asked: LettersParams, place: _Place) -> list[_Found]:
    source = pool.backends.jobs
    if source is None or asked.kind == "provider":
        return []
    search = Search(statuses=(JobStatus.FAILED,), code=asked.reason, below=place.job)
    is_whole = pool.shows_payloads and asked.payloads

    def look() -> list[_Found]:
        with source.opened() as client:
            return [
                _Found(view["created_at"], {"kind": "job", **view}, job.key)
                for job in found_jobs(client, search, asked.limit + 1)
                for view in [shown_job(client, job, is_whole=is_whole)]
            ]

    return await pool.call("jobs", look)


async def _calls(pool: BackendPool, asked: LettersParams, place: _Place) -> list[_Found]:
    """The letters of all stores together. A place in their common order is a place in
    each of them.
    """
    if asked.kind == "job":
        return []
    is_whole = pool.shows_payloads and asked.payloads

    def look(source: ProviderBackend) -> list[_Found]:
        found = letters_page(source, asked.reason, place.call, asked.limit + 1, is_whole=is_whole)
        return [_Found(view["occurred_at"], view, where) for where, view in found]

    stores = pool.backends.providers.items()
    # Each store returns a whole page, because the newest letters of all may be in one of them.
    pages = [await pool.call(part, partial(look, source)) for part, source in stores]
    return list(merge(*pages, key=lambda each: (each.place.at, each.place.id), reverse=True))


async def _job(pool: BackendPool, job_id: str, is_whole: bool) -> dict[str, Any] | None:
    source = pool.backends.jobs
    if source is None:
        return None

    def look() -> dict[str, Any] | None:
        with source.opened() as client:
            found = client.store.find(job_id)
            if found is None or found.status is not JobStatus.FAILED:
                return None
            return {"kind": "job", **shown_job(client, found, is_whole=is_whole)}

    return await pool.call("jobs", look)


async def _call(pool: BackendPool, letter_id: str, is_whole: bool) -> dict[str, Any] | None:
    for part, source in pool.backends.providers.items():
        look = partial(find_letter, source, letter_id, is_whole=is_whole)
        found = await pool.call(part, look)
        if found is not None:
            return found
    return None
