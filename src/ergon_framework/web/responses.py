"""JSON responses: the one form of errors, with a status for each kind, and pagination."""

from __future__ import annotations

import base64
import binascii
import logging
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from ergon_framework.errors import (
    BoundaryError,
    BoundaryNotFoundError,
    DuplicateJobError,
    ErgonError,
    JobError,
    JobNotFoundError,
    JobStateError,
    StoreBrokenError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnsafeError,
)
from ergon_framework.providers.schemas import ProviderHealthError
from ergon_framework.web.audit import AuditError

logger = logging.getLogger("ergon.web")


NO_STORE = {"Cache-Control": "no-store"}
RETRY_AFTER = 5
"""Seconds after which a caller may ask again when a store does not answer."""


def json_response(body: Any) -> Response:
    """The response with what was asked for."""
    return Response(msgspec.json.encode(body), 200, NO_STORE, "application/json")


def error_response(
    status: int,
    code: str,
    message: str,
    details: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """The response that says why a request was refused or failed."""
    body = {"code": code, "message": message, "details": dict(details or {})}
    return JSONResponse(body, status, {**NO_STORE, **(headers or {})})


def unavailable(code: str, message: str, details: Mapping[str, Any] | None = None) -> JSONResponse:
    """The response for something that does not answer now and may answer later."""
    remedy = {"remedy": f"ask again in {RETRY_AFTER} seconds"}
    headers = {"Retry-After": str(RETRY_AFTER)}
    return error_response(503, code, message, {**remedy, **(details or {})}, headers)


Problem = ProviderHealthError
"""The form of errors as OpenAPI publishes it."""

CURSOR_REMEDY = "send the next_cursor of the page before, with the same filters"
_PROBLEMS = {"missing": "missing", "extra_forbidden": "there is no such parameter"}


class ResourceNotFoundError(ErgonError, LookupError):
    """What was asked for does not exist."""

    code = "not_found"


class NotAllowedError(ErgonError):
    """The caller may not do that."""

    code = "not_permitted"


class InvalidParameterError(ErgonError, ValueError):
    """A parameter has a wrong value."""

    code = "invalid_request"

    def __init__(self, field: str, problem: str, remedy: str, *, where: str = "query") -> None:
        errors = [{"field": f"{where}.{field}", "message": problem}]
        message = f"{where}.{field}: {problem}"
        super().__init__(message, remedy=remedy, details={"errors": errors})
        self._said = (field, problem, remedy)

    def within(self, where: str) -> InvalidParameterError:
        """The same of a field that did not stand in the query."""
        return InvalidParameterError(*self._said, where=where)


WRONG_TABLES = (
    "its tables are not those of this version, or some are gone: the log of the server says which;"
    " ergon db upgrade brings older ones up to date"
)
"""The remedy where asking again does not help."""
_REFUSALS = {
    StoreReadOnlyError.code: "the log of the server says which right it lacks, or where the store"
    " was moved to",
    StoreFullError.code: "make room on its disk; the log of the server names the store",
    StoreBrokenError.code: "the log of the server says what broke",
    StoreUnsafeError.code: "the log of the server says whose files these are",
}
"""The remedies where a store answers and does not do what was asked."""


def refusal_of(code: str) -> tuple[str, str]:
    """The code and remedy of a backend that failed; nothing where asking again may help."""
    if code == StoreSchemaError.code:
        return "does not answer", WRONG_TABLES
    return ("refuses that", _REFUSALS[code]) if code in _REFUSALS else ("does not answer", "")


class BackendUnavailableError(ErgonError):
    """A store or a node does not answer."""

    code = "store_unavailable"

    def __init__(self, part: str, title: str, code: str) -> None:
        problem, remedy = refusal_of(code)
        super().__init__(f"{title} {problem}", remedy=remedy, details={"part": part})
        self.code = code


class UnreadableAnswerError(BackendUnavailableError):
    """A store answers, but the row or the payload of the wanted job cannot be read."""

    def __init__(self, part: str, code: str) -> None:
        remedy = "list such jobs with ergon jobs unreadable; the log of the server says why"
        ErgonError.__init__(self, "this job cannot be read", remedy=remedy, details={"part": part})
        self.code = code


class LateAnswerError(BackendUnavailableError):
    """The content of a page was not ready in time. Which backend was slow is unknown."""

    def __init__(self, seconds: float) -> None:
        ErgonError.__init__(self, f"no answer within {seconds:g} s")
        self.code = "timeout"


class UnknownOutcomeError(BackendUnavailableError):
    """The action may have been done all the same: a caller that asks again may do it twice."""

    def __init__(self, title: str = "what was asked", what: str = "what was to be changed") -> None:
        ErgonError.__init__(
            self,
            f"{title} did not answer, and may do it all the same",
            remedy=f"look at {what}, or into the audit log, before you ask again",
        )
        self.code = "outcome_unknown"


class NodeAwayError(BackendUnavailableError):
    """The node of a zone is not running, and nobody else may change the zone."""

    def __init__(self, part: str, zone: str) -> None:
        serve = f"ergon boundary serve --zone {shlex.quote(zone)}"
        remedy = f"start it, such as with ergon run --all or {serve}"
        message = f"the node of the zone {zone!r} is not up: nothing was changed"
        ErgonError.__init__(self, message, remedy=remedy, details={"part": part})
        self.code = "unavailable"


class UncallableNodeError(BackendUnavailableError):
    """The settings of this server do not let it call the node of a zone."""

    def __init__(self, part: str, zone: str, code: str) -> None:
        remedy = "the log of the server says why; correct its settings, and start it again"
        message = f"this server cannot call the node of the zone {zone!r}: nothing was changed"
        ErgonError.__init__(self, message, remedy=remedy, details={"part": part})
        self.code = code


class StateConflictError(ErgonError):
    """What was asked for exists, but its state does not allow the action."""

    code = "wrong_state"


class MovedAwayError(StateConflictError):
    """What a zone held was moved to another store, so nobody can change it here any more."""

    code = "moved"

    def __init__(self, part: str, zone: str) -> None:
        remedy = "the log of the server says where to; change it there"
        message = f"what the zone {zone!r} held was moved to another store: nothing was changed"
        super().__init__(message, remedy=remedy, details={"part": part})


def _described(text: str) -> dict[str, Any]:
    return {"model": Problem, "description": text}


NO_TOKEN: dict[int | str, dict[str, Any]] = {401: _described("The token is missing or wrong.")}
REFUSALS: dict[int | str, dict[str, Any]] = {
    403: _described("The caller may not ask."),
    422: _described("A parameter is wrong."),
    503: {
        **_described("What was asked does not answer, or is not answered in time."),
        "headers": {
            "Retry-After": {
                "description": "Seconds after which asking again is worth it.",
                "schema": {"type": "integer"},
            }
        },
    },
}
MISSING: dict[int | str, dict[str, Any]] = {404: _described("There is no such thing.")}
CHANGES: dict[int | str, dict[str, Any]] = {
    409: _described("The state of what is to be changed, or another job, does not allow it."),
    413: _described("The body is too large."),
}


def add_error_handlers(app: FastAPI) -> None:
    """Make an application answer failures in this form."""
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _wrong_input)
    app.add_exception_handler(ErgonError, _known_error)
    app.add_exception_handler(Exception, failed)


async def _known_error(_request: Request, error: Any) -> Response:
    return answer_of(error)


_STORE = re.compile(r" --store (?:'[^']*'(?:\"'\"'[^']*')*|[\w@%+=:,./-]+)")


def _without_store(document: dict[str, Any]) -> dict[str, Any]:
    """An error whose commands do not name the store, because its URL contains a host or a file."""
    remedy = document["details"].get("remedy")
    if isinstance(remedy, str):
        document["details"] = {**document["details"], "remedy": _STORE.sub("", remedy)}
    return document


def answer_of(error: ErgonError) -> JSONResponse:
    """The response for a failure."""
    document = _without_store(error.to_dict())
    if isinstance(error, BackendUnavailableError):
        return unavailable(**document)
    if isinstance(error, ResourceNotFoundError | JobNotFoundError | BoundaryNotFoundError):
        return error_response(404, **document)
    if isinstance(error, InvalidParameterError):
        return error_response(422, **document)
    if isinstance(error, NotAllowedError):
        return error_response(403, **document)
    if isinstance(error, JobStateError | DuplicateJobError | StateConflictError):
        return error_response(409, **document)
    # The request cannot be fulfilled, for example because of a wrong argument.
    if isinstance(error, JobError):
        return error_response(422, **document)
    if isinstance(error, AuditError):
        return unavailable(**document)
    # The caller gets none of its text, which may name files and hosts.
    logger.error("a request failed: %s", error)
    if isinstance(error, StoreError | BoundaryError):
        return unavailable(error.code, "what was asked does not answer")
    return error_response(500, "internal", "the server failed; its log says how")


async def _refused(_request: Request, error: Any) -> Response:
    """The response for what Starlette refuses: an unknown path, a wrong method, a body that is no
    text.
    """
    status = HTTPStatus(error.status_code)
    # The message that FastAPI gives for bytes that are no text.
    if status == HTTPStatus.BAD_REQUEST:
        fault = InvalidParameterError("json", "cannot be read", "send JSON in UTF-8", where="body")
        return answer_of(fault)
    remedy = {"remedy": "/openapi.json tells what there is"}
    details = remedy if status == HTTPStatus.NOT_FOUND else {}
    code, text = status.name.lower(), str(error.detail).lower()
    return error_response(status, code, text, details, error.headers)


async def _wrong_input(_request: Request, error: Any) -> Response:
    """What is wrong and where, but never the value that was sent."""
    problems = {
        ".".join(map(str, each["loc"])): _PROBLEMS.get(each["type"], each["msg"])
        for each in error.errors()
    }
    message = "; ".join(f"{field}: {problem}" for field, problem in problems.items())
    found = [{"field": field, "message": problem} for field, problem in problems.items()]
    remedy = CURSOR_REMEDY if [*problems] == ["query.cursor"] else "/openapi.json tells what fits"
    return error_response(422, "invalid_request", message, {"errors": found, "remedy": remedy})


async def failed(_request: Request, _error: Exception) -> Response:
    """The response for an error that nobody has foreseen."""
    return error_response(500, "internal", "the server failed; its log says how")


T = TypeVar("T")

MAX_PAGE = 1000
"""How many items one page may have."""
_LISTS = frozenset({"metadata", "status", "tag"})
"""Parameters that may be repeated."""

Limit = Annotated[int, Field(ge=1, le=MAX_PAGE, description="At most so many items.")]
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


class QueryParams(BaseModel):
    """Query parameters. A misspelt one is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def given_once(request: Request) -> None:
    """Refuse a parameter that is given twice, because it is unclear which value was meant."""
    given = Counter(name for name, _ in request.query_params.multi_items())
    for name, count in given.items():
        if count > 1 and name not in _LISTS:
            raise InvalidParameterError(name, "given more than once", "give it once")


class Page(BaseModel, Generic[T]):
    """Some items of a list."""

    items: list[T]
    next_cursor: str | None = Field(description="For the next page; null when this is the last.")


def page(items: list[Any], next_cursor: str | None = None) -> dict[str, Any]:
    """A page of a list as plain values."""
    return {"items": items, "next_cursor": next_cursor}


def cursor_text(place: Any) -> str:
    """A place in a list as opaque text."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def cursor_place(text: str, document: type[T]) -> T:
    """The place that :func:`cursor_text` wrote. Raises ``InvalidParameterError`` for other text."""
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        return msgspec.json.decode(base64.b64decode(padded, b"-_", validate=True), type=document)
    except (UnicodeEncodeError, binascii.Error, msgspec.DecodeError, msgspec.ValidationError):
        problem = "is not the next_cursor of such a list"
        raise InvalidParameterError("cursor", problem, CURSOR_REMEDY) from None
