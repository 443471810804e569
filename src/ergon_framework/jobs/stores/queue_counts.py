"""Queues and executors as they are listed, put together from what the tables of a store count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.gates import NONE, Settings
from ergon_framework.jobs.stores.unreadable import shown
from ergon_framework.ports.jobstore import Named, Queue


def queue_of(
    name: str,
    settings: Settings,
    counts: dict[str, int] | None = None,
    oldest_due_at: float | None = None,
) -> Queue:
    """A queue as anybody may look at it."""
    return Queue(
        name=name,
        is_paused=settings.is_paused,
        max_active=settings.max_active,
        rate=settings.rate,
        burst=settings.burst,
        counts=counts or {},
        oldest_due_at=oldest_due_at,
    )


def listed(
    counted: Iterable[tuple[Any, ...]],
    retrying: Mapping[str, int],
    settings: Mapping[str, Settings],
    now: float,
) -> list[Queue]:
    """Every queue that was counted or has settings, by name.

    ``counted`` has rows of queue, status, number and oldest due time; the status of those that
    wait is ``waiting``, for the stages do not tell pending jobs from retrying ones.
    """
    counts: dict[str, dict[str, int]] = {}
    oldest: dict[str, float] = {}
    for name, status, number, run_at in counted:
        name = name if isinstance(name, str) else shown(name)  # noqa: PLW2901 - of an odd row
        mine = counts.setdefault(name, {})
        mine[status] = mine.get(status, 0) + number
        if run_at is not None and run_at <= now:
            oldest[name] = min(run_at, oldest.get(name, run_at))
    return [
        queue_of(
            name,
            settings.get(name, NONE),
            _by_status(counts.get(name, {}), retrying.get(name, 0)),
            oldest.get(name),
        )
        for name in sorted({*counts, *settings})
    ]


def named_in(lanes: Iterable[tuple[str, str]], seen: Mapping[str, float]) -> list[Named]:
    """The executors of lanes, by name; ``seen`` says when each was last seen, if ever."""
    queues: dict[str, list[str]] = {}
    for executor, queue in sorted(lanes):
        if executor:
            queues.setdefault(executor, []).append(queue)
    since = seen.get("")
    return [Named(each, tuple(found), seen.get(each, since)) for each, found in queues.items()]


def _by_status(counts: dict[str, int], retrying: int) -> dict[str, int]:
    waiting = counts.pop("waiting", 0)
    found = {JobStatus.PENDING.value: waiting - retrying, JobStatus.RETRYING.value: retrying}
    return {status: number for status, number in (found | counts).items() if number}
