"""Free slots by executor, as the keeper knows them: offered by the pools, used up by claims.

A count may fall below zero for a while: slots can be taken back while a claim for them is under
way. It must not be forgotten then, or the pool would be owed slots that it does not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ergon_framework.ports.jobstore import Ask, Leased


class Slots:
    """The counts, and which executors had slots left at their last claim. Guard it with a lock."""

    def __init__(self) -> None:
        self._free: dict[str, int] = {}
        self._dry: set[str] = set()

    @property
    def is_dry(self) -> bool:
        """Whether some executor's last claim left slots free."""
        return bool(self._dry)

    def offer(self, executor: str, change: int) -> int:
        """Add slots, or take back as many of them as are free; answers the change made."""
        had = self._free.get(executor, 0)
        has = max(min(had, 0), had + change)
        self._free[executor] = has
        return has - had

    def is_news(self, executor: str) -> bool:
        """Whether a slot of this executor may find work: nobody knows that there is none."""
        return executor not in self._dry

    def free(self) -> dict[str, int]:
        """The executors that can take something."""
        return {name: count for name, count in self._free.items() if count > 0}

    def take(self, asked: Mapping[str, int], taken: Mapping[str, int]) -> bool:
        """A claim used some of the slots it asked for; whether any executor got all it wanted."""
        for name, count in taken.items():
            self._free[name] = self._free.get(name, 0) - count
        filled = {name for name, count in asked.items() if taken.get(name, 0) >= count}
        self._dry |= asked.keys()
        self._dry -= filled
        return bool(filled)


def by_executor(ask: Ask, jobs: Sequence[Leased]) -> Counter[str]:
    """How many of the jobs each executor runs."""
    return Counter([executor_of(ask, job) for job in jobs])


def executor_of(ask: Ask, job: Leased) -> str:
    """Which executor runs a job."""
    return job.executor or ask.routes.get(job.queue, ask.default)
