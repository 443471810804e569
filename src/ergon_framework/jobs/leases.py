"""The claims a worker holds, and keeping them: leases are renewed, attempts charged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ergon_framework.jobs.claims import Claim
from ergon_framework.ports.jobstore import JobStore, Settlement
from ergon_framework.storage.failpoints import declare, failpoint

logger = logging.getLogger(__name__)

CHARGE_AFTER = 0.05
"""Seconds after which a started job's attempt is charged, if it has not ended by then."""

MOMENT = CHARGE_AFTER / 2
"""Seconds within which most short jobs end: those are not charged before."""

declare("worker.before_renew")


class Leases:
    """Everything this worker holds. Only the keeper's thread changes it."""

    def __init__(
        self, store: JobStore, lease: float, report: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self.when_lost: Callable[[], None] = lambda: None  # some claims are marked as lost
        self.claims: dict[str, Claim] = {}  # by job id
        self._store = store
        self._lease = lease
        self._report = report
        self._renew_at = 0.0
        self._charge_at: float | None = None

    @property
    def next_at(self) -> float:
        """When there is something to do."""
        return self._renew_at if self._charge_at is None else min(self._renew_at, self._charge_at)

    def holds(self, job_id: str, fence: int) -> bool:
        """Whether this very claim is ours."""
        claim = self.claims.get(job_id)
        return claim is not None and claim.job.fence == fence

    def add(self, claims: Sequence[Claim], now: float) -> None:
        """These were claimed.

        One of them may be a job that we work on: somebody took it away and gave it back to the
        queue before we renewed its lease. Then the earlier claim is lost like any other.
        """
        earlier = [self.claims[each.job.id] for each in claims if each.job.id in self.claims]
        for claim in claims:
            self.claims[claim.job.id] = claim
        self._lose([each for each in earlier if not each.lost])
        if self._charge_at is None:  # claims that go on and on put nobody's charge off
            self._charge_at = now + CHARGE_AFTER

    def drop(self, settlements: Iterable[Settlement]) -> None:
        """Forget claims that were settled, or turned out to be lost."""
        claims = self.claims
        for each in settlements:
            claim = claims.get(each.id)
            if claim is not None and claim.job.fence == each.fence:
                del claims[each.id]

    def hurry(self) -> None:
        """Something may have cost us time: renew as soon as the store answers."""
        self._renew_at = 0.0

    def renew_due(self, now: float) -> None:
        """Renew everything when its time has come, or charge what has just been started."""
        if now >= self._renew_at:
            self._renew(list(self.claims.values()))
            self._renew_at = now + self._lease / 3
        elif self._charge_at is not None and now >= self._charge_at:
            self._charge(now)

    def _charge(self, now: float) -> None:
        """Charge what was started a moment ago or before; the rest has its turn as soon."""
        waiting = [each for each in self.claims.values() if not each.is_recorded and not each.lost]
        due = [each for each in waiting if each.is_written and each.written_at <= now - MOMENT]
        self._charge_at = now + CHARGE_AFTER if len(waiting) > len(due) else None
        self._renew(due)

    def _renew(self, claims: list[Claim]) -> None:
        claims = [claim for claim in claims if not claim.lost]
        if not claims:
            return
        failpoint("worker.before_renew")
        holds = [claim.hold() for claim in claims]
        kept = self._store.renew(holds, self._lease)
        for claim, hold in zip(claims, holds, strict=True):
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
