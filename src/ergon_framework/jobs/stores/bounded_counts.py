"""Counts of jobs by queue and state that end at a bound, as the stores in SQL make them.

Indexes order the jobs that are due, run or have ended by their queues, so that those of one queue
are counted by themselves. Jobs that wait for their time, a limit key or other steps stand in no
order of queues: a sample of each kind is read and told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ergon_framework.core.claim import NO_LIMITS, QueueLimits
from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.documents import queue_of
from ergon_framework.jobs.stores.unreadable import UNREADABLE
from ergon_framework.ports.jobstore import Queue, StatusCounts

MOST_PRIORITIES = 100
"""Priorities of a queue, from the highest on, among which its oldest due job is looked for."""
RETRYING = "retrying"
"""The kind of a sample of jobs that are tried again; they wait, and are among the others, too."""
TOLD_APART = (
    JobStatus.COMPLETED.value,
    JobStatus.FAILED.value,
    JobStatus.CANCELLED.value,
    UNREADABLE,
    JobStatus.ACTIVE.value,
)
"""The states whose jobs are counted by themselves, in the order of the statements' columns."""
_PENDING, _RETRYING = JobStatus.PENDING.value, JobStatus.RETRYING.value


@dataclass(slots=True)
class _Tally:
    """What was counted in one queue, or in all."""

    counts: dict[str, int] = field(default_factory=dict)
    waiting: int = 0
    retrying: int = 0
    more: set[str] = field(default_factory=set)
    oldest: float | None = None

    def add(self, numbers: Mapping[str, int], most: int) -> None:
        """Jobs of states, of which one more than ``most`` was looked for."""
        for status, number in numbers.items():
            if number:
                self.counts[status] = min(number, most)
            if number > most:
                self.more.add(status)

    def older(self, run_at: float | None, now: float) -> None:
        if run_at is not None and run_at <= now:
            self.oldest = run_at if self.oldest is None else min(run_at, self.oldest)

    def by_status(self) -> dict[str, int]:
        pending = max(0, self.waiting - self.retrying)
        found = {_PENDING: pending, _RETRYING: self.retrying} | self.counts
        return {status: number for status, number in found.items() if number}

    def inexact(self) -> tuple[str, ...]:
        return tuple(sorted(self.more))


class BoundedCounts:
    """Gathers what statements have counted, each up to one job above a bound."""

    def __init__(self, names: Iterable[str], *, most: int, sample: int, now: float) -> None:
        self._queues = {name: _Tally() for name in names}
        self._most = most
        self._sample = sample
        self._now = now
        self._samples: dict[Any, int] = {}

    def add_apart(self, rows: Iterable[Sequence[Any]]) -> None:
        """Rows of a queue and the numbers of ``TOLD_APART``."""
        for name, *numbers in rows:
            self._queues[name].add(dict(zip(TOLD_APART, numbers, strict=True)), self._most)

    def add_due(self, rows: Iterable[tuple[str, int, float | None]]) -> None:
        """Rows of a queue, how many of its jobs of one executor are due, and the oldest."""
        for name, number, run_at in rows:
            tally = self._queues[name]
            tally.waiting += min(number, self._most)
            if number > self._most:
                tally.more.add(_PENDING)
            tally.older(run_at, self._now)

    def add_samples(self, rows: Iterable[tuple[Any, Any, int, float | None]]) -> None:
        """Rows of a kind of waiting, any queue, how many of a sample it has, and the oldest.

        Without a queue, a row has those of several that are not looked at.
        """
        for kind, name, number, run_at in rows:
            self._samples[kind] = self._samples.get(kind, 0) + number
            tally = self._queues.get(name)
            if tally is None:
                continue
            if kind == RETRYING:
                tally.retrying += number
            else:
                tally.waiting += number
                tally.older(run_at, self._now)

    def queues(self, settings: Mapping[str, QueueLimits]) -> list[Queue]:
        """The queues in the order of their names as they were given."""
        cut = {kind for kind, number in self._samples.items() if number > self._sample}
        more = {_PENDING} if cut else set[str]()
        if RETRYING in cut:
            more.add(_RETRYING)
        found = []
        for name, tally in self._queues.items():
            tally.more |= more
            limits = settings.get(name, NO_LIMITS)
            queue = queue_of(name, limits, tally.by_status(), tally.oldest, tally.inexact())
            found.append(queue)
        return found


def status_counts(
    apart: Mapping[str, int],
    waiting: Iterable[int],
    retrying: int,
    *,
    most: int,
    cut: Iterable[str],
) -> StatusCounts:
    """The jobs of a whole store by status, each kind counted up to one above ``most``.

    ``cut``: states of which not all jobs were looked at, for some other reason.
    """
    tally = _Tally(more=set(cut))
    tally.add(apart, most)
    for number in waiting:
        tally.waiting += min(number, most)
        if number > most:
            tally.more.add(_PENDING)
    tally.retrying = min(retrying, most)
    if retrying > most:
        tally.more |= {_PENDING, _RETRYING}
    return StatusCounts(counts=tally.by_status(), more=tally.inexact())


def next_names(names: Iterable[str], *, prefix: str, after: str, limit: int) -> list[str]:
    """The first of these names behind a name, of those that begin so."""
    found = sorted({each for each in names if each > after and each.startswith(prefix)})
    return list(islice(found, limit))


def first_name(prefix: str, after: str) -> tuple[str, bool]:
    """Where names begin that are behind a name and have a prefix; whether that one is left out."""
    return (after, True) if after >= prefix else (prefix, False)
