"""Attempt rows for those cases that do not make calls."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from ergon_framework.ports.providerstore import AttemptRow
from provider_parts.calls import TENANT

TABLE = "provider_execution_metrics"
_numbers = itertools.count(1)


def attempts(count: int, lanes: int, *, span: float = 0.0) -> list[AttemptRow]:
    """Good calls of so many lanes in turn, the last of them now and all within ``span`` seconds."""
    now = time.time()
    return [
        AttemptRow(
            id=f"row-{next(_numbers):032}",
            tenant_id=TENANT,
            task_execution_id=None,
            provider_name=f"provider-{number % lanes:03}",
            capability="send",
            operation="send",
            idempotency_key=f"key-{number:08}",
            correlation_id=f"call-{number:08}",
            attempt_number=1,
            max_attempts=3,
            duration_ms=5 + number * 7919 % 400,
            timeout_budget_ms=60_000,
            outcome="success",
            reason_code=None,
            retryable=False,
            http_status=None,
            created_at=now - span * (count - 1 - number) / count,
        )
        for number in range(count)
    ]


def bare(rows: list[AttemptRow], *, is_text: bool) -> list[tuple[Any, ...]]:
    """The same as a driver takes them: an instant is a text, or a datetime."""

    def at(instant: float) -> Any:
        moment = datetime.fromtimestamp(instant, UTC)
        return moment.isoformat(timespec="microseconds") if is_text else moment

    return [tuple(row._replace(created_at=at(row.created_at))) for row in rows]


def insertion(placeholder: str) -> str:
    """The statement that a driver inserts one with."""
    names = AttemptRow._fields
    placeholders = ", ".join(placeholder for _ in names)
    return f"INSERT INTO {TABLE} ({', '.join(names)}) VALUES ({placeholders})"  # noqa: S608 - our own names


def parts(rows: list[Any], size: int) -> Iterator[list[Any]]:
    """So many at a time."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
