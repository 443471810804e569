"""What callers, the API and the store say about the same calls; it must be the same."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ergon_framework.providers import ProviderExecutionResult


@dataclass(frozen=True)
class Told:
    """One call, as its caller knows it."""

    tenant_id: str
    result: ProviderExecutionResult


@dataclass(frozen=True)
class Sum:
    """One line of the table: two parties that must agree."""

    what: str
    one: int
    other: int


def sums(told: Sequence[Told], requests: int, refused: int, file: Path) -> list[Sum]:
    """Compare results with what the API saw, what was counted, and what the tables hold."""
    results = [each.result for each in told]
    called = [each for each in told if each.result.attempts]
    attempts = sum(each.attempts for each in results)
    with closing(sqlite3.connect(file)) as store:
        rows = _number(store, "SELECT count(*) FROM provider_execution_metrics", "attempt_number")
        ended = _number(
            store,
            "SELECT count(*) FROM provider_execution_metrics",
            "attempt_number AND outcome <> 'retry'",
        )
        used = _number(store, "SELECT sum(used_count) FROM provider_quota_states")
    return [
        Sum("calls: made, and refused or ended", len(told), refused + ended),
        Sum("attempts: of results, and requests the API saw", attempts, requests),
        Sum("attempts: of results, and rows in the store", attempts, rows),
        Sum("refused calls: of results, and counted", len(told) - len(called), refused),
        Sum("quota: calls that went out, and units used", len(called), used),
    ]


def problems(found: Sequence[Sum]) -> list[str]:
    """Every line whose two sides differ, in words."""
    return [f"{each.what}: {each.one} and {each.other}" for each in found if each.one != each.other]


def table(found: Sequence[Sum]) -> str:
    """All of them as plain text."""
    width = max(len(each.what) for each in found)
    return "\n".join(f"{each.what:<{width}}  {each.one:>5}  {each.other:>5}" for each in found)


def endings(told: Sequence[Told]) -> str:
    """How the calls of each tenant ended."""
    counts: dict[str, Counter[str]] = {}
    for each in told:
        reason = each.result.reason_code or "success"
        counts.setdefault(each.tenant_id, Counter())[reason] += 1
    return "\n".join(
        f"  {tenant_id}: " + ", ".join(f"{count} {reason}" for reason, count in found.most_common())
        for tenant_id, found in sorted(counts.items())
    )


def _number(store: sqlite3.Connection, select: str, where: str = "1") -> int:
    (found,) = store.execute(f"{select} WHERE {where}").fetchone()
    return int(found or 0)
