"""How long an ended job is kept: by its own time, by its queue, and by how it ended.

Whoever ends a job asks here: a worker or a client when it settles, and a store that ends a job by
itself. What is answered then stands in the row of the job, so that no later setting changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ergon_framework.core.job import JobStatus

DAY = 86_400.0
# Asked for with each settlement: Python 3.11 looks a member of an enum up in ten times the time.
_COMPLETED, _FAILED, _CANCELLED = JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED


class KeptFor(NamedTuple):
    """Seconds that a job is kept, by how it ended."""

    completed: float = DAY
    failed: float = 30 * DAY
    cancelled: float = DAY


@dataclass(frozen=True, slots=True)
class JobRetention:
    """The times of all jobs, and those of queues that have their own."""

    usual: KeptFor = field(default_factory=KeptFor)
    queues: Mapping[str, KeptFor] = field(default_factory=dict)

    def keep(self, queue: str, status: JobStatus, own: float | None = None) -> float | None:
        """Seconds that a job of this queue is kept when it has ended so; None: it has not ended.

        ``own`` is what the job asks for itself, which holds for one that completed.
        """
        if status is _COMPLETED:
            return self.queues.get(queue, self.usual).completed if own is None else own
        if status is _FAILED:
            return self.queues.get(queue, self.usual).failed
        if status is _CANCELLED:
            return self.queues.get(queue, self.usual).cancelled
        return None


STANDARD = JobRetention()
"""The retention of a store without settings of its own."""
