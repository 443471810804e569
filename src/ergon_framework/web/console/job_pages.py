"""The list of jobs, and the page of one job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import ValidationError
from starlette.datastructures import QueryParams as Given

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.editing import became_of, origin_of
from ergon_framework.jobs.views import last_entry_with
from ergon_framework.web.backends import JobBackend
from ergon_framework.web.console.formatting import error_family
from ergon_framework.web.console.overview import JobsLook
from ergon_framework.web.console.timeline import timeline_of
from ergon_framework.web.job_routes import (
    JobsParams,
    Place,
    jobs_page,
    search_for,
    shown_job,
    why_of,
    workers_of,
)
from ergon_framework.web.responses import InvalidParameterError, cursor_place

SHOWN = 50
"""How many jobs a page has."""
MOST_SHOWN = 100
"""How many jobs a page may have; a longer one would take long to load. JSON and CSV have up to a
thousand.
"""
COLUMNS = (
    "id",
    "status",
    "handler",
    "queue",
    "executor",
    "attempts",
    "max_attempts",
    "priority",
    "last_error.code",
    "last_error.message",
    "created_at",
    "run_at",
    "finished_at",
    "worker",
    "correlation_id",
    "tags",
)
_REPEATED = ("status", "tag", "metadata")
_OURS = frozenset({"format", "payloads", "did"})


def params_of(given: Given, limit: int) -> JobsParams:
    """The filter of a form. A field that was left empty is ignored."""
    found: dict[str, Any] = {"limit": limit}
    for name in given:
        values = [value for value in given.getlist(name) if value]
        if not values or name in _OURS:
            continue
        if name in _REPEATED:
            found[name] = values
        elif len(values) > 1:
            raise InvalidParameterError(name, "given more than once", "give it once")
        else:
            found[name] = values[0]
    try:
        return JobsParams.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        known = ", ".join(sorted(JobsParams.model_fields))
        field = str(first["loc"][0]) if first["loc"] else "query"
        problem = "there is no such parameter"
        if first["type"] != "extra_forbidden":
            problem = str(first["msg"]).lower()
        # Not the value, which may be what somebody searched for.
        remedy = f"leave it out; known are {known}"
        raise InvalidParameterError(field, problem, remedy) from None


def list_document(source: JobBackend, asked: JobsParams) -> dict[str, Any]:
    """One page of jobs, and the filter."""
    below = None if asked.cursor is None else cursor_place(asked.cursor, Place)
    search = search_for(asked, below)
    wanted = asked.model_dump(
        mode="json", exclude={"cursor", "limit", "payloads"}, exclude_defaults=True
    )
    return {**jobs_page(source, search, asked.limit, is_whole=False), "filter": wanted}


def job_document(source: JobBackend, job_id: str, *, is_whole: bool) -> dict[str, Any]:
    """Everything about a job. Its arguments and result are included only if they are wanted."""
    with source.opened() as client:
        job = client.find(job_id)
        view = shown_job(client, job, is_whole=True, workers=workers_of(client, [job]))
        sentences = why_of(source, client, job)
        now = client.store.now()
    content = {name: view.pop(name, None) for name in ("args", "kwargs", "result")}
    trouble = last_entry_with(job, "traceback")
    return {
        **view,
        **(content if is_whole else {}),
        "hidden_bytes": 0 if is_whole else len(job.args) + len(job.kwargs) + len(job.result or b""),
        "sentences": sentences,
        "traceback": None if trouble is None else _traceback(trouble),
        "timeline": timeline_of(view, now),
        "edited_from": origin_of(job),
        "became": became_of(job),
    }


def edit_document(source: JobBackend, job_id: str, *, is_whole: bool) -> dict[str, Any]:
    """What a person needs to see of a job before sending it back with other arguments."""
    with source.opened() as client:
        view = client.show(job_id)
        job = client.find(job_id)
    names = (
        "id",
        "status",
        "handler",
        "queue",
        "last_error",
        *(("args", "kwargs") if is_whole else ()),
    )
    return {
        **{name: view[name] for name in names},
        "became": became_of(job),
        "hidden_bytes": 0 if is_whole else len(job.args) + len(job.kwargs),
    }


def _traceback(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"attempt": entry.get("attempt"), "text": str(entry["traceback"])}


def readable(value: Any) -> str:
    """Arguments or a result, formatted for people."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


MOST_READ = 20_000
"""How many characters of arguments or a result a page shows; the JSON of the job has all."""


def same_error(look: JobsLook, document: Mapping[str, Any]) -> int:
    """How many of the latest dead-lettered jobs failed with the same error, without this job."""
    failure = document["last_error"]
    if document["status"] != JobStatus.FAILED or failure is None:
        return 0
    wanted = error_family(document["handler"], failure["code"], failure["message"])
    found = [
        error_family(each["handler"], failure["code"], failure["message"])
        for each in look.seen.dead
        for failure in [each["last_error"] or {"code": "", "message": ""}]
    ]
    return max(0, found.count(wanted) - 1)


def kind_of(source: JobBackend, wanted: str) -> str | None:
    """The kind of page that an id has; None if nothing has this id."""
    if "\0" in wanted:
        return None
    with source.opened() as client:
        if client.store.find(wanted) is not None:
            return "jobs"
        flows = getattr(client.store, "flows", None)
        return "flows" if flows is not None and flows.find(wanted) is not None else None
