"""Checks the fields of a job filter, and turns it into the search that stores take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import JobError
from ergon_framework.ports.job_fields import (
    FieldCheck,
    choice,
    instant,
    metadata,
    name,
    refusal,
    tags,
    text,
)
from ergon_framework.ports.jobstore import Search


class JobFilter(TypedDict, total=False):
    """A filter of jobs. Every field that is given must match; None is as if it was left out."""

    status: str | Iterable[str] | None
    """One state, or several."""
    queue: str | None
    handler: str | None
    tags: Iterable[str] | None
    """The jobs have all of these tags."""
    metadata: Mapping[str, str] | None
    """The metadata of the jobs have all of these values."""
    error: str | None
    """The code of the last error, such as ``TimeoutError``, or its kind, such as ``timeout``."""
    since: float | datetime | str | None
    """Only jobs that were created then or later."""
    until: float | datetime | str | None
    """Only jobs that were created before then."""
    ids: Iterable[str] | None


def search_of(search: Search | None, given: Mapping[str, Any]) -> Search:
    """The search that a filter describes, combined with another search if one is given."""
    fields: dict[str, Any] = {}
    for field, value in given.items():
        found = _FIELDS.get(field)
        if found is None:
            known = ", ".join(_FIELDS)
            raise JobError(f"a filter has no word {field!r}", remedy=f"known are {known}")
        if value is not None:
            target, check = found
            fields[target] = check(field, value)
    return msgspec.structs.replace(search or Search(), **fields)


def refuse_empty(given: Mapping[str, Any], found: Search) -> None:
    """Raise JobError for an empty list, before many jobs are changed.

    It would match every job, and a caller that computes a list means no job when it is empty.
    """
    for field in ("ids", "tags", "status", "metadata"):
        if given.get(field) is not None and not getattr(found, _FIELDS[field][0]):
            raise JobError(
                f"{field} is empty, which would match every job",
                remedy="change nothing then; leave it out to mean all of them",
                details={"field": field},
            )


def whole_or_none(limit: Any, field: str = "limit") -> int | None:
    """Check how many jobs are to be changed; None: all that match."""
    if limit is None:
        return None
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise JobError(
            f"{field} is no whole number of jobs",
            remedy="give a number of 0 or more, or leave it out",
            details={"field": field},
        )
    return limit


def _statuses(field: str, value: Any) -> tuple[JobStatus, ...]:
    check = choice(JobStatus)
    values = (value,) if isinstance(value, str) else _listed(field, value)
    return tuple(check(field, each) for each in values)


def _ids(field: str, value: Any) -> tuple[str, ...]:
    check = text()
    values = (value,) if isinstance(value, str) else _listed(field, value)
    return tuple(check(field, str(each)) for each in values)


def _listed(field: str, value: Any) -> tuple[Any, ...]:
    try:
        return tuple(value)
    except TypeError as error:
        wrong = f"must be a list of texts, not {type(value).__name__}"
        raise refusal(field, wrong, "give one text, or several in a list") from error


_FIELDS: dict[str, tuple[str, FieldCheck]] = {
    "status": ("statuses", _statuses),
    "queue": ("queue", name),
    "handler": ("handler", name),
    "tags": ("tags", tags),
    "metadata": ("metadata", metadata),
    "error": ("error", text()),
    "since": ("since", instant),
    "until": ("until", instant),
    "ids": ("ids", _ids),
}
"""For each field of a filter: the field of the search, and which values it takes."""
