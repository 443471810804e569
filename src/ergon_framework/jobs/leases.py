"""The leases of a worker's claims: renewed while handlers run, charged once, and
noticed when lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ergon_framework.jobs.claims import Claim
from ergon_framework.ports.jobstore import JobStore, Settlement
from ergon_framework.storage.failpoints import declare, failpoint

logger = logging.getLogger("ergon.jobs")

CHARGE_DELAY = 0.05
"""Seconds after which the attempt of a started job is charged, if the job has not ended by then."""

MIN_CHARGE_AGE = CHARGE_DELAY / 2
"""Seconds within which most short jobs end; a younger attempt is not charged by a renewal."""

MAX_PROGRESS = 1_000
"""How many jobs of one worker report progress: the latest claims. A heartbeat must stay small."""

declare("worker.before_renew")


class ClaimLeases:
    """The claims of this worker and their leases. Only the store thread changes them.

    Leases are renewed every third of their length, so that two renewals may fail before one ends.
    The attempt of a job that runs longer than ``CHARGE_DELAY`` is charged with a renewal: if the
    worker dies then, the store knows that an executor had begun. Shorter jobs are charged by their
    outcome, which spares one write for each of them.
    """

    def __init__(
        self, store: JobStore, lease: float, report: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self.when_lost: Callable[[], None] = lambda: None  # some claims are marked as lost
        self.when_cancelled: Callable[[], None] = lambda: None  # … or as to be cancelled
        self.claims: dict[str, Claim] = {}  # by job id
        self._store = store
        self._lease = lease
        self._report = report
        self._renew_at = 0.0
        self._charge_at: float | None = None

    @property
    def next_at(self) -> float:
        """The instant of the next renewal or charge."""
        return self._renew_at if self._charge_at is None else min(self._renew_at, self._charge_at)

    def holds(self, job_id: str, fence: int) -> bool:
        """Whether this worker holds the job by this claim, and not by a later claim."""
        claim = self.claims.get(job_id)
        return claim is not None and claim.job.fence == fence

    def progress(self) -> dict[str, Any]:
        """The latest progress that handlers of running jobs have reported, by job id."""
        found = [(each.job.id, each.progress) for each in [*self.claims.values()]]
        reported = {job_id: progress for job_id, progress in found if progress is not None}
        return dict([*reported.items()][-MAX_PROGRESS:])

    def add(self, claims: Sequence[Claim], now: float) -> None:
        """Hold these claims.

        One of them may be of a job that this worker still runs: another worker rescued the job and
        it came back to its queue before the lease was renewed. Then the earlier claim is lost.
        """
        earlier = [self.claims[each.job.id] for each in claims if each.job.id in self.claims]
        for claim in claims:
            self.claims[claim.job.id] = claim
        self._lose([each for each in earlier if not each.lost])
        # Not set again by each claim: a stream of claims would put off every charge.
        if self._charge_at is None:
            self._charge_at = now + CHARGE_DELAY

    def drop(self, settlements: Iterable[Settlement]) -> None:
        """Forget claims that were settled or lost."""
        claims = self.claims
        for each in settlements:
            claim = claims.get(each.id)
            # The same job may have been claimed again by this worker; the settlement of the earlier
            # claim must not drop the later one.
            if claim is not None and claim.job.fence == each.fence:
                del claims[each.id]

    def renew_soon(self) -> None:
        """Renew as soon as the store answers, because leases may have run for long by now."""
        self._renew_at = 0.0

    def renew_due(self, now: float) -> None:
        """Renew all leases when that is due, or charge attempts that have begun."""
        if now >= self._renew_at:
            self._renew(list(self.claims.values()))
            # Counted from before the call, so that a slow store does not stretch the interval.
            self._renew_at = now + self._lease / 3
            self.look_for_cancels()  # A notification of a cancellation may have been missed.
        elif self._charge_at is not None and now >= self._charge_at:
            self._charge(now)

    def look_for_cancels(self) -> None:
        """Mark the claims that somebody wants cancelled."""
        claims = {
            each.job.id: each
            for each in self.claims.values()
            if not each.lost and each.cancel is None
        }
        if not claims:
            return
        found = self._store.cancel_requests([each.renewal() for each in claims.values()])
        for job_id, request in found.items():
            # Marked in this thread, acted on in the loop: ``when_cancelled`` posts there, as the
            # loop owns the processes.
            claims[job_id].cancel = request
            who = f" by {request.by}" if request.by else ""
            logger.info("job %s: its cancellation was requested%s", job_id, who)
        if found:
            self.when_cancelled()

    def _charge(self, now: float) -> None:
        """Charge attempts that began at least ``MIN_CHARGE_AGE`` ago; younger ones are charged
        later.
        """
        waiting = [each for each in self.claims.values() if not each.is_recorded and not each.lost]
        due = [
            each for each in waiting if each.is_written and each.written_at <= now - MIN_CHARGE_AGE
        ]
        self._charge_at = now + CHARGE_DELAY if len(waiting) > len(due) else None
        self._renew(due)

    def _renew(self, claims: list[Claim]) -> None:
        claims = [claim for claim in claims if not claim.lost]
        if not claims:
            return
        failpoint("worker.before_renew")
        holds = [claim.renewal() for claim in claims]
        kept = self._store.renew(holds, self._lease)
        for claim, hold in zip(claims, holds, strict=True):
            # By what the store was told, not by ``is_written`` as it is now: the loop may have
            # written the request while the store answered, and that attempt is not charged.
            claim.is_recorded = claim.is_recorded or hold.is_charged
        self._lose([claim for claim, is_kept in zip(claims, kept, strict=True) if not is_kept])

    def _lose(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            claim.lost = True
            text = "job %s: its lease was lost; its attempt is ended and will not count"
            logger.warning(text, claim.job.id)
            self._report("lease.lost", {"job_id": claim.job.id})
        if claims:
            self.when_lost()
