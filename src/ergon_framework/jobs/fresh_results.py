"""Keeps results of steps that this worker has just settled, for the steps that it claims next.

In a chain a worker often claims the next step with the same call that settles the one before. It
need not read from the store what it has just written there. The result of a completed step does not
change while its flow goes on, so the kept copy is as good as the stored one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ergon_framework.core.job import JobStatus
from ergon_framework.ports.jobstore import Settlement

MAX_KEPT = 4 << 20
"""How many bytes are kept; the oldest results are dropped first."""
MAX_RESULT = 64 << 10
"""A result of more bytes is not kept, but read from the store."""
_OVERHEAD = 200
"""About how many bytes an entry takes beside its result."""


class FreshResults:
    """The latest results of steps, as the store has them. One thread adds; any thread may read
    :attr:`known`.
    """

    def __init__(self, most: int = MAX_KEPT) -> None:
        self.known: dict[str, bytes] = {}
        self._most = most
        self._size = 0

    def keep(self, applied: Sequence[Settlement]) -> None:
        """Keep the results of completed steps, but only of settlements that were applied."""
        for each in applied:
            if not each.is_step or each.transition.status is not JobStatus.COMPLETED:
                continue
            result = each.result
            if result is None or len(result) > MAX_RESULT:
                continue
            self._size += len(result) + _OVERHEAD - self._drop(each.id)
            self.known[each.id] = result
        while self._size > self._most:
            self._size -= self._drop(next(iter(self.known)))

    def _drop(self, job_id: str) -> int:
        """Drop a result. Returns how many bytes it took."""
        old = self.known.pop(job_id, None)
        return 0 if old is None else len(old) + _OVERHEAD
