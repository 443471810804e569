"""What the tests of stores are made of: a clock that is set by cursor, and rows to write."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ergon_framework.ports.providerstore import AttemptRow, DeadLetter, LaneKey

T = TypeVar("T")

START = 1_800_000_000.0
"""A full hour, so that windows and minutes begin with it."""
LANE = LaneKey("tenant", "rank", "snapshot")
_numbers = itertools.count(1)


class HandClock:
    """Stands still until it is moved."""

    def __init__(self, at: float = START) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def attempt(key: LaneKey = LANE, **fields: Any) -> AttemptRow:
    """One attempt that succeeded just now, unless told otherwise."""
    number = next(_numbers)
    given = {
        "id": f"row-{number:030d}",
        "task_execution_id": None,
        "operation": "fetch",
        "idempotency_key": None,
        "correlation_id": f"call-{number}",
        "attempt_number": 1,
        "max_attempts": 3,
        "duration_ms": 20,
        "timeout_budget_ms": 1000,
        "outcome": "success",
        "reason_code": None,
        "retryable": False,
        "http_status": None,
        "created_at": START,
        **fields,
    }
    return AttemptRow(**key._asdict(), **given)


def letter(number: int, **fields: Any) -> DeadLetter:
    """One call that was given up."""
    given = {
        "campaign_id": None,
        "task_name": "rank.snapshot",
        "operation": "fetch",
        "idempotency_key": "key",
        "correlation_id": "call",
        "reason_code": "timeout",
        "error_type": "ReadTimeout",
        "error_message": "no answer",
        "attempts": 3,
        "occurred_at": START + number,
        "payload": {"keyword": "tea"},
        **fields,
    }
    return DeadLetter(f"letter-{number}", **LANE._asdict(), **given)


def race(count: int, act: Callable[[int], T]) -> list[T]:
    """Let so many threads do something at the same time; what they were answered."""
    barrier = threading.Barrier(count)

    def one(number: int) -> T:
        barrier.wait()
        return act(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))


def waiting_for_rows(url: str) -> str:
    """The URL with a longer lock timeout: on a busy machine a row may be held for a second."""
    return f"{url}&options=-c%20lock_timeout%3D40s" if url.startswith("postgresql") else url
