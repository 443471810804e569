"""The jobs in a connector's hands, and the thread that keeps them its own.

The thread renews leases, and does what any worker does now and then: it tells that it lives, so
that workers leave the jobs of its executor alone, and takes over what others have lost.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ergon_framework.connector.base import Forsaken
from ergon_framework.core.job import Released
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ErgonError, StoreUnavailableError
from ergon_framework.jobs.claims import Claim, Judgement
from ergon_framework.jobs.maintenance import WorkerChores
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.worker import version
from ergon_framework.ports.jobstore import FullJobStore, WorkerRecord

logger = logging.getLogger(__name__)

Report = Callable[[str, dict[str, Any]], None]
SHORTEST_NAP = 0.05
LEAVING = 5.0
"""Seconds that the thread has to end, and the store to be told of it."""


class Holding:
    """Claims that are renewed until they are let go. Any thread may call."""

    def __init__(
        self,
        store: FullJobStore,
        settings: JobsSettings,
        judgement: Judgement,
        worker: str,
        serves: tuple[str, str],
        report: Report,
    ) -> None:
        self._store = store
        self._lease = settings.claimed_for
        self._judgement = judgement
        self._worker = worker
        self._queue, self._executor = serves
        self._report = report
        self._claims: dict[str, Claim] = {}
        self.forsaken: Forsaken[Claim] = Forsaken()
        self._fallen: deque[tuple[float, Claim]] = deque()  # of these, and when they go back
        self._lock = threading.Lock()
        self._chores = WorkerChores(store, settings, judgement, self._record, self.holds, report)
        self._started_at = store.now()
        self._renew_at = SYSTEM_CLOCK.now() + self._lease / 3
        self._is_away = False
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look round once, in this thread, so that its error comes here; then go on beside it."""
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(
                target=self._keep, name="ergon-jobs-connector", daemon=True
            )
        try:
            self._chores.run(SYSTEM_CLOCK.now())
        except BaseException:
            self._thread = None  # the next fetch begins anew
            raise
        self._thread.start()

    def stop(self) -> None:
        """Let go of the thread, and tell that nobody is here any more."""
        self._ending.set()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(LEAVING)
            self._chores.leave(LEAVING)

    # ---- claims ----

    def add(self, claims: Sequence[Claim]) -> None:
        """These are ours now.

        A job that is in hand already was taken away by somebody and came back to the queue before
        its lease was renewed: then the earlier claim is lost.
        """
        with self._lock:
            earlier = [self._claims.get(claim.job.id) for claim in claims]
            self._claims.update((claim.job.id, claim) for claim in claims)
        for claim in earlier:
            if claim is not None and not claim.lost:
                self._lose(claim)

    def let_go(self, claim: Claim) -> None:
        """Renew it no longer: it is being settled."""
        self.forsaken.forget(claim)
        with self._lock:
            if self._claims.get(claim.job.id) is claim:
                del self._claims[claim.job.id]

    def give_back(self, claims: Sequence[Claim]) -> None:
        """They go back without a charge; should the store not be told, their leases end."""
        ours = [claim for claim in claims if self.holds(claim.job.id, claim.job.fence)]
        for claim in ours:
            self.let_go(claim)
        if ours:
            now, settled = self._store.now(), self._judgement.settled
            self._store.exchange(
                [settled(each, Released(), now, None, None) for each in ours], None
            )

    def _take_back(self, now: float) -> None:
        """Jobs whose transaction nobody has any more go back when a lease is over.

        As those of a process that died do, but without a charge: nobody may have begun with them.
        """
        for claim in self.forsaken.take():
            self._fallen.append((now + self._lease, claim))
        while self._fallen and self._fallen[0][0] <= now:
            claim = self._fallen.popleft()[1]
            logger.warning(
                "job %s: nobody has its transaction any more; it goes back", claim.job.id
            )
            self.give_back([claim])

    def all(self) -> list[Claim]:
        """What is in hand."""
        with self._lock:
            return list(self._claims.values())

    def holds(self, job_id: str, fence: int) -> bool:
        """Whether this very claim is ours."""
        claim = self._claims.get(job_id)
        return claim is not None and claim.job.fence == fence and not claim.lost

    # ---- the thread ----

    def _keep(self) -> None:
        pause = SHORTEST_NAP
        while not self._ending.wait(pause):
            try:
                now = SYSTEM_CLOCK.now()
                self._take_back(now)
                if now >= self._renew_at:
                    self.renew()
                    self._renew_at = now + self._lease / 3
                until = min(self._renew_at, self._chores.run(now))
                pause = max(SHORTEST_NAP, until - SYSTEM_CLOCK.now())
                self._is_away = False
            except Exception as error:
                pause = min(1.0, self._lease / 10)
                self._outage(error)

    def renew(self) -> None:
        """Prolong what is in hand, and note what is somebody else's by now."""
        claims = [claim for claim in self.all() if not claim.lost]
        if not claims:
            return
        kept = self._store.renew([claim.hold() for claim in claims], self._lease)
        for claim, is_kept in zip(claims, kept, strict=True):
            if not is_kept and self.holds(claim.job.id, claim.job.fence):  # not settled meanwhile
                self._lose(claim)

    def _lose(self, claim: Claim) -> None:
        claim.lost = True
        logger.warning("job %s: its lease was lost; its outcome will not count", claim.job.id)
        self._report("lease.lost", {"job_id": claim.job.id})

    def _outage(self, error: Exception) -> None:
        if isinstance(error, StoreUnavailableError):
            self._chores.bounce()  # others could not renew either: they come before any rescue
        if self._is_away or self._ending.is_set():
            return
        self._is_away = True
        if isinstance(error, ErgonError):
            logger.error("the store does not answer, and is asked again: %s", error)
        else:
            logger.error("the store raised something unexpected", exc_info=error)
        self._report("store.lost", {"error": str(error)})

    def _record(self) -> WorkerRecord:
        in_hand = len(self._claims)
        return WorkerRecord(
            id=self._worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version(),
            started_at=self._started_at,
            lease=self._lease,
            queues=(self._queue,),
            executors={self._executor: {"in_flight": in_hand, "processes": 1, "pool_size": 1}},
        )
