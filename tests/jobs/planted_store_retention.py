"""Job stores that tell or delete wrongly what may go, in one way each."""

from __future__ import annotations

from collections.abc import Sequence

from ergon_framework.core.retention import STANDARD, JobRetention
from ergon_framework.jobs.stores.memory.flows import MemoryFlows
from ergon_framework.ports.flow import Flow
from ergon_framework.ports.jobstore import Job, PruneResult, Search
from tests.jobs.planted_stores import Honest, change


class KeepsTheExpiredAsItPleases(Honest):
    """Has no ear for settings."""

    retention = property(lambda _self: STANDARD, lambda _self, _retention: None)


class KeepsAllQueuesAlike(Honest):
    """Hears what holds for all queues alone."""

    @property
    def retention(self) -> JobRetention:
        return self.table.retention

    @retention.setter
    def retention(self, retention: JobRetention) -> None:
        self.table.retention = JobRetention(retention.usual)


class RipeBeforeItsTime(Honest):
    """Tells of every job that has a time, whether it has come or not."""

    def prunable(self, limit: int) -> list[Job]:
        return [job for job in self.search(Search()) if job.purge_at is not None][:limit]


class RipeTakesAllOfThem(Honest):
    """Heeds no limit."""

    def prunable(self, limit: int) -> list[Job]:
        return super().prunable(10**9)


class RipeTakesThemOut(Honest):
    """Takes jobs out when they are read: a process that dies then has lost them."""

    def prunable(self, limit: int) -> list[Job]:
        found = super().prunable(limit)
        self.purge(found)
        return found


class RipeHidesTheDead(Honest):
    """Forgets that dead letters are archived, too."""

    def prunable(self, limit: int) -> list[Job]:
        return [job for job in super().prunable(limit) if job.last_error is None]


class RipeWithoutResults(Honest):
    """Tells of a job without what it returned."""

    def prunable(self, limit: int) -> list[Job]:
        return [change(job, result=None) for job in super().prunable(limit)]


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
        def prunable(self, limit: int) -> list[Flow]:
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
            with self._step() as table:
                if flow.id in table.flow_book.flows:
                    table.purge_flow(flow.id, limit)
            return False


class KeepsOf(Honest):
    """Leaves some fields of what a job was when it is erased."""

    left: tuple[str, ...] = ()

    def erase(self, jobs: Sequence[Job]) -> int:
        with self.step() as table:
            was = {job.key: table.records[job.key] for job in jobs}
            kept = {
                key: {name: getattr(record.new, name) for name in self.left}
                for key, record in was.items()
            }
        number = super().erase(jobs)
        for key, record in was.items():
            record.new = change(record.new, **kept[key])
        return number


class KeepsArguments(KeepsOf):
    """Forgets to erase named arguments."""

    left = ("kwargs",)


class KeepsKeys(KeepsOf):
    """Forgets that a key may name somebody."""

    left = ("unique_key",)


class KeepsTags(KeepsOf):
    """Leaves jobs to be found by the tags of their subject."""

    left = ("tags",)


class KeepsLineage(KeepsOf):
    """Leaves what a trace carried along."""

    left = ("trace_context",)


class KeepsMessages(Honest):
    """Leaves what handlers said in the history."""

    def erase(self, jobs: Sequence[Job]) -> int:
        number = super().erase(jobs)
        with self.step() as table:
            for job in jobs:
                table.records[job.key].history.extendleft(reversed(job.history))
        return number


class KeepsResults(Honest):
    """Leaves what a job returned."""

    def erase(self, jobs: Sequence[Job]) -> int:
        number = super().erase(jobs)
        with self.step() as table:
            for job in jobs:
                table.records[job.key].result = job.result
        return number


class ErasesWhatRuns(Honest):
    """Erases by id, whether the job is needed still or not."""

    def erase(self, jobs: Sequence[Job]) -> int:
        with self.step() as table:
            for job in jobs:
                table.records[job.key].erase(self.now())
        return len(jobs)
