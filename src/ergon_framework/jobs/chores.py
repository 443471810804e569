"""What a worker does now and then: rescue, fire schedules, sweep, and tell that it lives."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from ergon_framework.core.job import LeaseExpired, Refused
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import StoreError
from ergon_framework.jobs.claims import Judgement
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.ports.jobstore import JobDesk, JobStore, WorkerRecord
from ergon_framework.storage.failpoints import declare, failpoint

logger = logging.getLogger(__name__)

RESCUE_AT_ONCE = 100
SWEEP_AT_ONCE = 500
SWEEP_EVERY = 30.0
MAINTAIN_EVERY = 1.0

declare("worker.before_rescue")


class Store(JobStore, JobDesk, Protocol):
    """A store that serves workers and operators."""


class Fires(Protocol):
    """Cron, seen from here."""

    def sync(self) -> object:
        """Bring the stored schedules in line with the settings."""

    def fire_due(self) -> float | None:
        """Fire what is due; answers the next instant by the store's clock."""


class WorkerChores:
    """Runs in the keeper's thread; every chore has a due time of its own."""

    def __init__(
        self,
        store: Store,
        settings: JobsSettings,
        judgement: Judgement,
        record: Callable[[], WorkerRecord],
        holds: Callable[[str, int], bool],
        report: Callable[[str, dict[str, Any]], None],
        schedules: Fires | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._judgement = judgement
        self._record = record
        self._holds = holds
        self._report = report
        self._schedules = schedules
        self._now = SYSTEM_CLOCK.now
        self.rescued = 0
        self.known: frozenset[str] = frozenset()  # executors of other workers
        self._is_synced = False
        self._due: dict[Callable[[], float], float] = {}
        self.bounce()
        self._due[self._rescue] = 0.0

    def bounce(self) -> None:
        """Everything is due but a rescue: whoever lives has a lease's time to renew it."""
        now = self._now()
        self._due |= {
            self._tell: 0.0,
            self._rescue: now + self._settings.lease,
            self._sweep: 0.0,
            self._maintain: now + MAINTAIN_EVERY,
        }
        if self._schedules is not None:
            self._due[self._fire] = 0.0
            self._is_synced = False

    def run(self, now: float) -> float:
        """Do what is due; answers when to come again."""
        for chore, at in tuple(self._due.items()):
            if now >= at:
                self._due[chore] = now + self._done(chore)
        return min(self._due.values())

    def _done(self, chore: Callable[[], float]) -> float:
        try:
            return chore()
        except StoreError:  # the store is away: that concerns everybody
            raise
        except Exception:
            logger.exception("a chore failed, and is left for a while: %s", chore.__name__)
            return SWEEP_EVERY

    def leave(self) -> None:
        """Tell that this worker is gone."""
        with suppress(Exception):  # the record dies by itself when it is not renewed
            self._store.tell(_gone(self._record()))

    def _tell(self) -> float:
        self._store.tell(self._record())
        names: set[str] = set()
        lately = self._store.now() - 3 * self._settings.lease
        for other in self._store.workers():
            if other.seen_at >= lately:
                names.update(other.executors)
        self.known = frozenset(names)
        return self._settings.lease / 3

    def _rescue(self) -> float:
        jobs = self._store.overdue(RESCUE_AT_ONCE)
        now = self._store.now()
        settlements = []
        for job in jobs:
            if self._holds(job.id, job.fence):
                continue  # ours: it will be renewed
            with suppress(Refused):  # somebody has moved it already
                settlements.append(
                    self._judgement.decided(job, LeaseExpired(), now, if_expired=True)
                )
        if settlements:
            failpoint("worker.before_rescue")
            applied, _ = self._store.exchange(settlements, None)
            for settlement, was_applied in zip(settlements, applied, strict=True):
                if was_applied:
                    self.rescued += 1
                    logger.warning("job %s was rescued: its lease had expired", settlement.id)
                    self._report("job.rescued", {"job_id": settlement.id})
        return 0.0 if len(jobs) == RESCUE_AT_ONCE else self._settings.lease / 5

    def _sweep(self) -> float:
        swept = self._store.sweep(SWEEP_AT_ONCE)
        if swept.outdated:
            self._report("job.expired", {"count": swept.outdated})
        return 0.1 if swept.more else SWEEP_EVERY

    def _maintain(self) -> float:
        maintain = getattr(self._store, "maintain", None)
        if maintain is not None:
            maintain()
        return MAINTAIN_EVERY

    def _fire(self) -> float:
        if self._schedules is None:
            return SWEEP_EVERY
        if not self._is_synced:
            self._schedules.sync()
            self._is_synced = True
        at = self._schedules.fire_due()
        wait = SWEEP_EVERY if at is None else at - self._store.now()
        return min(max(wait, 0.01), SWEEP_EVERY)


def _gone(record: WorkerRecord) -> WorkerRecord:
    return WorkerRecord(
        id=record.id,
        host=record.host,
        pid=record.pid,
        version=record.version,
        started_at=record.started_at,
        state="gone",
    )
