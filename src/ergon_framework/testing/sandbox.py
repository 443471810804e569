"""A whole program in memory and in virtual time: what the pytest fixture ``ergon`` gives.

::

    def test_a_thumbnail_is_tried_again_for_an_hour(ergon):
        ergon.use(app)
        job = shrink.enqueue("a.png")
        ergon.advance(3600)
        assert job.status() == "completed"

Inside a sandbox every job store that is opened by a URL is one in memory, which follows the
sandbox's clock; clients with the same URL share it. Jobs run in the test's own thread, without
processes. Engines, provider calls and asyncio code follow the same clock.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Protocol, Self, TypeVar

import msgspec

from ergon_framework.app.inline_worker import MAX_JOBS, HasJobs, InlineWorker, inline_worker
from ergon_framework.errors import WiringError
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.worker import WorkerReport
from ergon_framework.storage.substitutes import substituted
from ergon_framework.testing.clock import VirtualClock


class Sandboxed(HasJobs, Protocol):
    """An App."""

    def close(self) -> None:
        """Let go of the store; the next use opens it again."""


A = TypeVar("A", bound=Sandboxed)


class Sandbox:
    """Keeps jobs in memory and time virtual while it is entered."""

    def __init__(self, clock: VirtualClock | None = None) -> None:
        """``clock``: one that is entered already; without it the sandbox has its own, from 0 on."""
        self._given_clock = clock
        self.clock = clock or VirtualClock()
        self._stack = ExitStack()
        self._stores: dict[str, KeptJobStore] = {}
        self._apps: list[Sandboxed] = []
        self._workers: list[InlineWorker] = []

    def use(self, app: A) -> A:
        """Put an App into the sandbox: its jobs are in memory, and :meth:`drain` runs them."""
        if not any(each is app for each in self._apps):
            app.close()  # what it has opened outside stays outside
            self._stack.callback(app.close)
            self._apps.append(app)
        return app

    def drain(self, *, max_jobs: int = MAX_JOBS, raises: bool = False) -> WorkerReport:
        """Run the jobs of all Apps until none is due now; see :meth:`InlineWorker.drain`."""
        if not self._apps:
            raise WiringError(
                "there is no App in this sandbox", remedy="call ergon.use(app) in the test"
            )
        total = WorkerReport(stop_reason="drained")
        while True:  # the jobs of one App may enqueue jobs of another
            told = [each.drain(max_jobs=max_jobs, raises=raises) for each in self._all()]
            for each in told:
                total = _sum(total, each)
            if not any(_settled(each) for each in told):
                return total

    def advance(
        self, seconds: float, *, max_jobs: int = MAX_JOBS, raises: bool = False
    ) -> WorkerReport:
        """Let time pass, and run every job and schedule at the instant at which it is due."""
        until = self.clock.now() + seconds
        total = self.drain(max_jobs=max_jobs, raises=raises)
        while (at := self._next_at()) is not None and at <= until:
            self.clock.advance(at - self.clock.now())
            total = _sum(total, self.drain(max_jobs=max_jobs, raises=raises))
        self.clock.advance(max(0.0, until - self.clock.now()))
        return _sum(total, self.drain(max_jobs=max_jobs, raises=raises))

    # ---- inside ----

    def _all(self) -> list[InlineWorker]:
        # Not before the first drain: a test may declare handlers and schedules of its own.
        for app in self._apps[len(self._workers) :]:
            self._workers.append(self._stack.enter_context(inline_worker(app)))
        return self._workers

    def _next_at(self) -> float | None:
        """When something is due. What is due already and was left waits for something else."""
        now = self.clock.now()
        times = [each.next_at for each in self._all()]
        return min((at for at in times if at is not None and at > now), default=None)

    def _store(self, kind: str, url: str) -> KeptJobStore | None:
        if kind != "jobs":
            return None
        return self._stores.setdefault(url, KeptJobStore(self.clock.now))

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._given_clock is None:
                stack.enter_context(self.clock)
            stack.enter_context(substituted(self._store))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        self._apps.clear()
        self._workers.clear()


class KeptJobStore(MemoryJobStore):
    """A store in memory that outlives the clients that close it."""

    def close(self) -> None:
        """Keep everything: the next client of this URL finds it."""


def _settled(report: WorkerReport) -> int:
    return report.completed + report.retried + report.failed + report.held


def _sum(one: WorkerReport, other: WorkerReport) -> WorkerReport:
    names = ("completed", "retried", "failed", "held")
    return msgspec.structs.replace(
        one, **{name: getattr(one, name) + getattr(other, name) for name in names}
    )
