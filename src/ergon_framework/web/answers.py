"""Answers in JSON; errors have one shape, whoever refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import JSONResponse, Response

NO_STORE = {"Cache-Control": "no-store"}
RETRY_AFTER = 5
"""Seconds after which asking again is worth it when a store does not answer."""


def answer(body: Any) -> Response:
    """What was asked for."""
    return Response(msgspec.json.encode(body), 200, NO_STORE, "application/json")


def refusal(
    status: int,
    code: str,
    message: str,
    details: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Why a request was not answered."""
    body = {"code": code, "message": message, "details": dict(details or {})}
    return JSONResponse(body, status, {**NO_STORE, **(headers or {})})


def unavailable(code: str, message: str, details: Mapping[str, Any] | None = None) -> JSONResponse:
    """Something does not answer now, and may later."""
    remedy = {"remedy": f"ask again in {RETRY_AFTER} seconds"}
    headers = {"Retry-After": str(RETRY_AFTER)}
    return refusal(503, code, message, {**remedy, **(details or {})}, headers)
