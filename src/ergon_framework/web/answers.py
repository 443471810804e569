"""Answers in JSON; errors have one shape, whoever refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

NO_STORE = {"Cache-Control": "no-store"}


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
