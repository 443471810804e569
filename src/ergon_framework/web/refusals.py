"""How failures become answers: the one shape, with a status for each kind of failure."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from ergon_framework.errors import (
    BoundaryError,
    BoundaryNotFoundError,
    ErgonError,
    JobNotFoundError,
    StoreError,
)
from ergon_framework.providers.schemas import ProviderHealthError
from ergon_framework.web.answers import refusal, unavailable

logger = logging.getLogger("ergon.web")

Problem = ProviderHealthError
"""The shape as OpenAPI publishes it."""

CURSOR_REMEDY = "send the next_cursor of the page before, with the same filters"
_PROBLEMS = {"missing": "missing", "extra_forbidden": "there is no such parameter"}


class NotHereError(ErgonError, LookupError):
    """What was asked for is not there."""

    code = "not_found"


class BadInputError(ErgonError, ValueError):
    """A parameter cannot be understood."""

    code = "invalid_request"

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        errors = [{"field": f"query.{field}", "message": problem}]
        told = f"query.{field}: {problem}"
        super().__init__(told, remedy=remedy, details={"errors": errors})


class PartAwayError(ErgonError):
    """A store or a node does not answer."""

    code = "store_unavailable"

    def __init__(self, part: str, told: str, code: str) -> None:
        super().__init__(f"{told} does not answer", details={"part": part})
        self.code = code


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


def add_refusals(app: FastAPI) -> None:
    """Let an application answer failures in our shape."""
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _wrong_input)
    app.add_exception_handler(ErgonError, _told)
    app.add_exception_handler(Exception, _failed)


async def _told(_request: Request, error: Any) -> Response:
    shape = error.to_dict()
    if isinstance(error, PartAwayError):
        return unavailable(**shape)
    if isinstance(error, NotHereError | JobNotFoundError | BoundaryNotFoundError):
        return refusal(404, **shape)
    if isinstance(error, BadInputError):
        return refusal(422, **shape)
    logger.error("a request failed: %s", error)
    if isinstance(error, StoreError | BoundaryError):
        return unavailable(error.code, "what was asked does not answer")
    return refusal(500, "internal", "the server failed; its log says how")


async def _refused(_request: Request, error: Any) -> Response:
    """Also for paths that are not there."""
    status = HTTPStatus(error.status_code)
    remedy = {"remedy": "/openapi.json tells what there is"}
    details = remedy if status == HTTPStatus.NOT_FOUND else {}
    code, text = status.name.lower(), str(error.detail).lower()
    return refusal(status, code, text, details, error.headers)


async def _wrong_input(_request: Request, error: Any) -> Response:
    """What is wrong and where; never what was sent."""
    problems = {
        ".".join(map(str, each["loc"])): _PROBLEMS.get(each["type"], each["msg"])
        for each in error.errors()
    }
    message = "; ".join(f"{field}: {problem}" for field, problem in problems.items())
    found = [{"field": field, "message": problem} for field, problem in problems.items()]
    remedy = CURSOR_REMEDY if [*problems] == ["query.cursor"] else "/openapi.json tells what fits"
    return refusal(422, "invalid_request", message, {"errors": found, "remedy": remedy})


async def _failed(_request: Request, _error: Exception) -> Response:
    return refusal(500, "internal", "the server failed; its log says how")
