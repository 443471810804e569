"""Results of steps that a worker has settled a moment ago, for the steps that it claims next.

In a chain a worker often claims the next step with the same call that settles the one before. It
need not read from the store what it has just written there. A result that a step has completed with
never changes while its flow goes on, so what is kept is as good as what would be read.
"""

from __future__ import annotations

from collections.abc import Sequence

from ergon_framework.core.job import JobStatus
from ergon_framework.ports.jobstore import Settlement

MAX_KEPT = 4 << 20
"""Bytes that are kept, at most: the oldest results go first."""
MAX_RESULT = 64 << 10
"""A larger result is read from the store."""
_OVERHEAD = 200
"""Bytes that an entry takes beside its result, about."""


class FreshResults:
    """What the last steps have returned, as the store has it.

    One thread keeps results, and any may look at :attr:`known`.
    """

    def __init__(self, most: int = MAX_KEPT) -> None:
        self.known: dict[str, bytes] = {}
        self._most = most
        self._size = 0

    def keep(self, applied: Sequence[Settlement]) -> None:
        """Keep the results of steps that have completed; only of settlements that were applied."""
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
        """Keep a result no longer; how many bytes it took."""
        old = self.known.pop(job_id, None)
        return 0 if old is None else len(old) + _OVERHEAD
