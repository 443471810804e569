"""Job stores that tell or delete wrongly what may go, in one way each."""

from __future__ import annotations

from ergon_framework.jobs.stores.memory.flows import MemoryFlows
from ergon_framework.ports.flow import Flow
from ergon_framework.ports.jobstore import Job, PruneResult, Search
from tests.jobs.planted_stores import Honest, change


class RipeBeforeItsTime(Honest):
    """Tells of every job that has a time, whether it has come or not."""

    def ripe(self, limit: int) -> list[Job]:
        return [job for job in self.search(Search()) if job.purge_at is not None][:limit]


class RipeTakesAllOfThem(Honest):
    """Heeds no limit."""

    def ripe(self, limit: int) -> list[Job]:
        return super().ripe(10**9)


class RipeTakesThemOut(Honest):
    """Takes jobs out when they are read: a process that dies then has lost them."""

    def ripe(self, limit: int) -> list[Job]:
        found = super().ripe(limit)
        self.purge(found)
        return found


class RipeHidesTheDead(Honest):
    """Forgets that dead letters are archived, too."""

    def ripe(self, limit: int) -> list[Job]:
        return [job for job in super().ripe(limit) if job.last_error is None]


class RipeWithoutResults(Honest):
    """Tells of a job without what it returned."""

    def ripe(self, limit: int) -> list[Job]:
        return [change(job, result=None) for job in super().ripe(limit)]


class PrunesWhatIsToBeArchived(Honest):
    """Deletes ripe jobs and flows although it was asked not to."""

    def prune(self, limit: int, *, purges: bool = True) -> PruneResult:
        return super().prune(limit)


class WithFlows(Honest):
    """A store with flows of a class."""

    Flows: type[MemoryFlows] = MemoryFlows

    @property
    def flows(self) -> MemoryFlows:
        return self.Flows(self.step, self.now)


class RipeFlowsThatGoOn(WithFlows):
    """Tells of every flow."""

    class Flows(MemoryFlows):
        def ripe(self, limit: int) -> list[Flow]:
            return self.search((), limit)


class DeletesFlowsWhole(WithFlows):
    """Heeds no limit."""

    class Flows(MemoryFlows):
        def delete(self, flow: Flow, limit: int) -> bool:
            return super().delete(flow, 10**9)


class DeletesRetriedFlows(WithFlows):
    """Deletes by id, whatever happened since."""

    class Flows(MemoryFlows):
        def delete(self, flow: Flow, limit: int) -> bool:
            with self._step() as ledger:
                if flow.id in ledger.flow_book.flows:
                    ledger.purge_flow(flow.id, limit)
            return False
