"""Rescue: the jobs of a worker that died are run again, and those of a worker that lives are not.

The promise. A worker claims a job under a lease, and renews the lease every third of its length. If
the worker dies, is killed, is cut off or hangs, nobody renews it. Once the lease has expired, any
other worker with the same store rescues the job: the store shows it (``expired_leases``), the core
decides what becomes of it (``LeaseExpired``: due again at once; dead-lettered when its attempts or
deliveries are spent; cancelled when that was requested while it ran), and the settlement is applied
only if the job still has the same fence and its lease still is expired (``if_expired``). So two
workers that rescue at once settle the job once, and a holder that renewed in the meantime keeps it.
A rescued job is claimed with a higher fence: what the first holder still reports is late, changes
nothing, and is counted.

When a rescue waits. An expired lease proves that its holder did not renew, not that it is dead. So
nothing is rescued

* for a whole lease after the store was away for long, or its clock jumped: nobody could renew, or
  all leases look expired (``after_outage``);
* for half a lease after the store took so long to answer that a holder in good health may have come
  too late with its renewal (``is_stall``, ``after_stall``);
* for half a lease of what a worker finds expired when it first looks, unless its holder has left or
  died on this machine: the clock may have been set forward before this worker started, and a holder
  that lives has to renew first (``_may_live``);
* of this worker's own claims: it is about to renew them.

A clock of the store that was set back makes leases of the dead last for as long; they are cut to
what their holders could have claimed (``shorten``) before each look.

How soon. A worker looks every fifth of its lease, and first when it starts, for at most
``RESCUE_BATCH`` jobs in one commit; when that many were found, it looks again at once. A job of a
dead worker therefore runs again after its lease and a fifth, unless one of the waits above applies.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ergon_framework.core.job import InvalidTransition, JobStatus, LeaseExpired
from ergon_framework.jobs.flow_notices import flow_notices
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler, notice_fields
from ergon_framework.ports.jobstore import FullJobStore, Job, Settlement, WorkerRecord
from ergon_framework.storage.failpoints import declare, failpoint

logger = logging.getLogger("ergon.jobs")

RESCUE_BATCH = 100
"""Jobs that are rescued in one commit."""
MAX_LEASE = 3600.0
"""Seconds for which a worker may claim whose heartbeat does not say for how long it does."""

declare("worker.before_rescue")


def is_stall(seconds: float, lease: float) -> bool:
    """Whether an answer took so long that a holder that renews in time may have come too late."""
    return seconds > lease / 3


class Rescue:
    """Rescues jobs whose leases have expired. Used only by the thread that talks to the store."""

    def __init__(
        self,
        store: FullJobStore,
        settings: JobsSettings,
        settler: Settler,
        holds: Callable[[str, int], bool],
        report: Callable[[str, dict[str, Any]], None],
        now: Callable[[], float],
    ) -> None:
        """``holds`` says whether a job, by id and fence, is claimed by this very worker."""
        self.leases: Mapping[str, float] = {}
        """How long each worker claims for, by its latest heartbeat."""
        self.holders: Mapping[str, WorkerRecord] = {}
        """The latest record of each worker."""
        self.count = 0
        """Jobs rescued so far."""
        self._has_looked = False
        self._store = store
        self._settings = settings
        self._settler = settler
        self._holds = holds
        self._report = report
        self._now = now

    def after_outage(self) -> float:
        """When to rescue next after an outage: live workers get one lease to renew."""
        return self._now() + self._settings.lease

    def after_stall(self) -> float:
        """When to rescue next after a stall: live workers renew every third of a lease."""
        return self._now() + self._settings.lease / 2

    def run(self) -> float:
        """Rescue expired jobs. Returns the seconds until the next search."""
        asked_at = self._now()
        # Before the search: a lease that a clock set back has stretched is not among the expired
        # ones until it is cut.
        self._cut_overlong_leases()
        jobs = self._store.expired_leases(RESCUE_BATCH)
        # The list is as old as the answer was slow: a holder may have renewed since it was made.
        if is_stall(self._now() - asked_at, self._settings.claimed_for):
            # They may belong to workers that waited as this one did.
            return self._settings.lease / 2
        is_first, self._has_looked = not self._has_looked, True
        known = [job for job in jobs if not (is_first and self._may_live(job.worker))]
        self._settle(self._decide(known))
        if len(known) < len(jobs):
            return self._settings.claimed_for / 2
        return 0.0 if len(jobs) == RESCUE_BATCH else self._settings.claimed_for / 5

    def _may_live(self, worker: str | None) -> bool:
        """Whether the holder of a lease may be alive, as far as this machine can tell.

        A live worker has written a record of itself. A worker that left, or has not written for
        long, has none.
        """
        record = self.holders.get(worker or "")
        if record is None:
            return False
        # Whether a process is alive can only be asked on its own machine.
        if record.host != socket.gethostname():
            return True
        try:
            os.kill(record.pid, 0)
        except ProcessLookupError:
            return False
        except (OSError, OverflowError):  # The process belongs to another user, so it exists.
            return True
        return True

    def _decide(self, jobs: list[Job]) -> list[Settlement]:
        now = self._store.now()
        settlements = []
        for job in jobs:
            # By fence, too: an earlier claim of ours that another worker rescued is not ours any
            # more.
            if self._holds(job.id, job.fence):
                continue  # It is ours, and will be renewed.
            with suppress(InvalidTransition):  # Somebody has settled it already.
                settlements.append(
                    self._settler.settle_stored(job, LeaseExpired(), now, if_expired=True)
                )
        return settlements

    def _settle(self, settlements: list[Settlement]) -> None:
        if not settlements:
            return
        failpoint("worker.before_rescue")
        applied, _ = self._store.settle_and_claim(settlements, None)
        for settlement, was_applied in zip(settlements, applied, strict=True):
            if was_applied:
                self.count += 1
                logger.warning("job %s was rescued: its lease had expired", settlement.id)
                self._report("job.rescued", {"job_id": settlement.id})
                if settlement.transition.status is JobStatus.FAILED:
                    self._report("job.dead_lettered", notice_fields(settlement))
                elif settlement.transition.status is JobStatus.CANCELLED:
                    self._report("job.cancelled", notice_fields(settlement))
        ended = [each for each, is_applied in zip(settlements, applied, strict=True) if is_applied]
        for name, fields in flow_notices(self._store, ended):
            self._report(name, fields)

    def _cut_overlong_leases(self) -> None:
        """Cut leases that last longer than any worker could have claimed for."""
        number = self._store.shorten(self.leases, max(MAX_LEASE, *self.leases.values(), 0.0))
        if number:
            text = "the store's clock was set back: %d lease(s) that lasted too long were cut"
            logger.warning(text, number)
