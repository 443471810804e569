"""Claims jobs for a connector, renews their leases, and settles them.

A thread renews the leases. It also does what every worker does now and then: it sends a heartbeat,
so that workers do not dead-letter jobs of its executor, reports the progress of jobs, and rescues
jobs that others have lost.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ergon_framework.connector.base import Delivered, DroppedDeliveries
from ergon_framework.connector.jobs.codec import JobsConnectorError, LeaseLostError
from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.executor_protocol import ProgressReport
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import Failed, HeldBack, JobEvent, Released
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ErgonError, StoreError, StoreUnavailableError, describe
from ergon_framework.jobs.claims import Claim, decode_claims, progress_record
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flow_notices import flow_notices
from ergon_framework.jobs.flow_results import MAX_ARGUMENTS, hand_over
from ergon_framework.jobs.leases import MAX_PROGRESS
from ergon_framework.jobs.maintenance import ClockWatch, Maintenance
from ergon_framework.jobs.payload_codec_store import results_reader
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler, notice_fields
from ergon_framework.jobs.store_thread import PROGRESS_INTERVAL
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.jobs.worker import NOTICE_OF, version
from ergon_framework.ports.jobstore import (
    FullJobStore,
    Settlement,
    Subscription,
    Topic,
    WorkerRecord,
)
from ergon_framework.ports.notice import Notice
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.telemetry.notices import NoticeDispatcher, has_listeners

logger = logging.getLogger("ergon.connector")

Report = Callable[[str, dict[str, Any]], None]
MIN_PAUSE = 0.05
SHUTDOWN_GRACE = 5.0
"""Seconds that the thread has to end, and the store to be told of it."""


class HeldClaims:
    """Claims that are renewed until they are let go. Any thread may call."""

    def __init__(
        self,
        store: FullJobStore,
        settings: JobsSettings,
        settler: Settler,
        worker: str,
        serves: tuple[str, str],
        report: Report,
        *,
        now: Callable[[], float] = SYSTEM_CLOCK.now,
    ) -> None:
        self._store = store
        self._now = now
        self._lease = settings.claimed_for
        self._app_version = settings.version
        self._settler = settler
        self._worker = worker
        self._queue, self._executor = serves
        self._report = report
        self._claims: dict[str, Claim] = {}
        self.dropped: DroppedDeliveries[Claim] = DroppedDeliveries()
        self._dropped_until: deque[tuple[float, Claim]] = deque()  # of these, and when they go back
        self._lock = threading.Lock()
        self._maintenance = Maintenance(
            store, settings, settler, self._record, self.holds, report, now=now
        )
        self._started_at = store.now()
        self._clock_watch = ClockWatch(store.now, now, self._lease / 3)
        self._renew_at = now() + self._lease / 3
        self._is_away = False
        self._is_progress_told = False  # somebody has told how far a job is …
        self._progress_at = 0.0  # … which is written then, at the earliest
        self._ending = False
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Run one round in this thread, so that its error is raised here; then start the thread."""
        with self._lock:
            # Also while the first look runs: a second fetch must not look round beside it.
            if self._thread is not None:
                return
            self._thread = threading.Thread(
                target=self._keep, name="ergon-jobs-connector", daemon=True
            )
        try:
            self._maintenance.run(self._now())
        except BaseException:
            self._thread = None  # the next fetch begins anew
            raise
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and tell the store that this worker has left."""
        self._ending = True
        self._woken.set()
        if self._thread is not None and self._thread.ident is not None:
            # Bounded: the thread may be waiting for a store that does not answer.
            self._thread.join(SHUTDOWN_GRACE)
            self._maintenance.leave(SHUTDOWN_GRACE)

    # ---- claims ----

    def add(self, claims: Sequence[Claim]) -> None:
        """Hold these claims.

        A job that is in hand already was rescued by another worker and came back to its queue
        before its lease was renewed. Then the earlier claim is lost.
        """
        with self._lock:
            earlier = [self._claims.get(claim.job.id) for claim in claims]
            # Taken over first: a claim that is told lost must not look held any more.
            self._claims.update((claim.job.id, claim) for claim in claims)
        for claim in earlier:
            if claim is not None and not claim.lost:
                self._lose(claim)

    def let_go(self, claim: Claim) -> None:
        """Stop renewing a claim that is being settled."""
        self.dropped.forget(claim)
        with self._lock:
            # By identity: the job may have been claimed again, and that claim is to be renewed.
            if self._claims.get(claim.job.id) is claim:
                del self._claims[claim.job.id]

    def give_back(self, claims: Sequence[Claim]) -> None:
        """Release claims without a charge. If the store cannot be reached, their leases expire."""
        ours = [claim for claim in claims if self.holds(claim.job.id, claim.job.fence)]
        for claim in ours:
            # Before they are released: a renewal that came later would be answered as a lost lease.
            self.let_go(claim)
        if ours:
            now, settled = self._store.now(), self._settler.settle_claim
            self._store.settle_and_claim(
                [settled(each, Released(), now, None, None) for each in ours], None
            )

    def _take_back(self, now: float) -> None:
        """Release jobs whose transactions were dropped, one lease after that was noticed.

        That is as late as for a process that died, but without a charge, because nobody may have
        started them.
        """
        for claim in self.dropped.take():
            self._dropped_until.append((now + self._lease, claim))
        while self._dropped_until and self._dropped_until[0][0] <= now:
            claim = self._dropped_until.popleft()[1]
            logger.warning(
                "job %s: nobody has its transaction any more; it goes back", claim.job.id
            )
            self.give_back([claim])

    def all(self) -> list[Claim]:
        """Everything that is held."""
        with self._lock:
            return list(self._claims.values())

    def holds(self, job_id: str, fence: int) -> bool:
        """Whether this very claim is held."""
        claim = self._claims.get(job_id)
        return claim is not None and claim.job.fence == fence and not claim.lost

    def tell_progress(self, claim: Claim, report: ProgressReport) -> None:
        """Report the progress of a held job to the store soon, with the heartbeat of
        this worker.
        """
        if not self.holds(claim.job.id, claim.job.fence):
            return  # it was settled, or is somebody else's by now
        claim.progress = progress_record(claim, report, self._store.now())
        if not self._is_progress_told:
            self._is_progress_told = True
            self._woken.set()

    # ---- the thread ----

    def _keep(self) -> None:
        pause = MIN_PAUSE
        while not self._ending:
            self._woken.wait(pause)
            self._woken.clear()
            if not self._ending:
                pause = self.run_once()

    def run_once(self) -> float:
        """One round: give back, renew leases, maintain. Seconds until the next round."""
        try:
            now = self._now()
            self._take_back(now)
            if self._clock_watch.has_jumped():
                self._renew_at = now  # leases look expired, or endless
                self._maintenance.after_clock_jump()
            if now >= self._renew_at:
                self.renew()
                self._renew_at = now + self._lease / 3
            until = min(self._renew_at, self._maintenance.run(now), self._write_progress(now))
        except Exception as error:
            self._outage(error)
            # Soon, but not at once: leases last for a while, and a store that is down is not helped
            # by being asked.
            return min(1.0, self._lease / 10)
        self._is_away = False
        return max(MIN_PAUSE, until - self._now())

    def _write_progress(self, now: float) -> float:
        """Write the heartbeat if a job has reported progress, about once a second. Returns when to
        check again.
        """
        if not self._is_progress_told:
            return math.inf
        if now < self._progress_at:
            return self._progress_at
        self._progress_at = now + PROGRESS_INTERVAL
        self._is_progress_told = False  # before it is written: what is told meanwhile comes next
        try:
            self._maintenance.tell_record()
        except BaseException:
            self._is_progress_told = True
            raise
        return math.inf

    def renew(self) -> None:
        """Renew the leases of claims in hand, and mark those that were lost."""
        claims = [claim for claim in self.all() if not claim.lost]
        if not claims:
            return
        kept = self._store.renew([claim.renewal() for claim in claims], self._lease)
        for claim, is_kept in zip(claims, kept, strict=True):
            if not is_kept and self.holds(claim.job.id, claim.job.fence):  # not settled meanwhile
                self._lose(claim)

    def _lose(self, claim: Claim) -> None:
        claim.lost = True
        logger.warning("job %s: its lease was lost; its outcome will not count", claim.job.id)
        self._report("lease.lost", {"job_id": claim.job.id})

    def _outage(self, error: Exception) -> None:
        if isinstance(error, StoreUnavailableError):
            # Others could not renew either: they come before any rescue.
            self._maintenance.restart_all()
        if self._is_away or self._ending:
            return
        self._is_away = True
        if isinstance(error, ErgonError):
            logger.error("the store does not answer, and is asked again: %s", error)
        else:
            logger.error("the store raised something unexpected", exc_info=error)
        self._report("store.lost", {"error": str(error)})

    def _record(self) -> WorkerRecord:
        claims = self.all()
        reports = [(claim.job.id, claim.progress) for claim in claims if claim.progress is not None]
        return WorkerRecord(
            id=self._worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version(),
            started_at=self._started_at,
            lease=self._lease,
            queues=(self._queue,),
            executors={self._executor: {"in_flight": len(claims), "processes": 1, "pool_size": 1}},
            progress=dict(reports[-MAX_PROGRESS:]),
            app_version=self._app_version,
        )


D = TypeVar("D", bound=Delivered)

declare("connector.jobs.charging.before", "connector.jobs.charging.after")
declare("connector.jobs.settling.before", "connector.jobs.settling.after")


class QueueConsumer:
    """One queue of one store, consumed by one process. Any thread may call it."""

    def __init__(
        self, store: str | FullJobStore, settings: JobsSettings, queue: str, executor: str
    ) -> None:
        self.queue = queue
        self._given = store
        self._settings = settings
        self._executor = executor
        self._worker = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.settler = Settler(settings, self._worker)
        self._codec = settings.codec.compiled()
        self._sink = NoticeDispatcher(None, (), ())
        self._lock = threading.Lock()
        self._client: JobClient | None = None
        self._held: HeldClaims | None = None
        self._subscription: Subscription | None = None
        self._is_closed = False
        self._stop_waiting = threading.Event()

    # ---- opening and closing ----

    def client(self) -> JobClient:
        """A client of the store, opened at its first use."""
        with self._lock:
            if self._is_closed:
                raise JobsConnectorError(
                    "this JobsConnector is closed",
                    remedy="make a new one; close it after the last use",
                )
            if self._client is None:
                store = open_store(self._given) if isinstance(self._given, str) else self._given
                self._client = JobClient(store=store, settings=self._settings)
            return self._client

    def close(self) -> None:
        """Give back what is in hand, and close the connection. Closing twice is fine."""
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
            client, held, subscription = self._client, self._held, self._subscription
        if not is_first or client is None:
            return
        if held is not None:
            held.stop()
            with suppress(StoreError):  # then their leases end
                held.give_back(held.all())
        # After the claims went back: the wake-up ends the fetch that waits for more.
        if subscription is not None:
            subscription.wake()
            subscription.close()
        # A store that was given belongs to its owner.
        if isinstance(self._given, str):
            client.close()

    # ---- claiming ----

    def claim(self, most: int, wait: float, gave_up: threading.Event) -> list[Claim]:
        """Claim up to so many jobs, and hold them; none after ``wait`` seconds without any.

        A caller that gives up sets the event, and then calls :meth:`wake`.
        """
        try:
            return self._claim(most, wait, gave_up)
        finally:
            # Only now: a stop may be asked just before the fetch that the engine has decided on.
            self._stop_waiting.clear()

    def _claim(self, most: int, wait: float, gave_up: threading.Event) -> list[Claim]:
        store, held = self._consuming()
        until = SYSTEM_CLOCK.now() + wait
        subscription = self._subscribed(store) if wait else None
        while True:
            claimed = store.settle_and_claim([], self._ask(most))[1]
            left = until - SYSTEM_CLOCK.now()
            is_over = left <= 0 or gave_up.is_set() or self._stop_waiting.is_set()
            if claimed.jobs or subscription is None or is_over:
                return self._charged(store, held, [Claim(job) for job in claimed.jobs])
            if claimed.next_at is not None:
                # A job that becomes due wakes nobody: without this the fetch would sleep past it.
                left = min(left, max(0.0, claimed.next_at - store.now()))
            subscription.wait(left)
            self.client()  # raises when it was closed meanwhile

    def _charged(self, store: FullJobStore, held: HeldClaims, claims: list[Claim]) -> list[Claim]:
        """Charge the attempts of claims in the store before they are handed out.

        Otherwise a job that kills its process would never use up its attempts. An outcome sets the
        count anew, so a job that is given back keeps its attempts.
        """
        if not claims:
            return []
        for claim in claims:
            claim.is_written = True
        failpoint("connector.jobs.charging.before")
        kept = store.renew([claim.renewal() for claim in claims], self._settings.claimed_for)
        failpoint("connector.jobs.charging.after")
        charged = [claim for claim, is_kept in zip(claims, kept, strict=True) if is_kept]
        # Only those that the store still knows as ours: another worker may have them after a long
        # pause.
        held.add(charged)
        return charged

    def hand_out(self, claims: list[Claim], make: Callable[[Claim], D]) -> list[D]:
        """The deliveries that ``make`` makes of claims.

        A job of which it can make none is dead-lettered. A job whose delivery is dropped without
        being settled goes back to its queue.
        """
        store, held = self._consuming()
        handed: list[D] = []
        decode_claims(claims, self._codec)
        if any(claim.job.uses is not None for claim in claims):
            hand_over(claims, results_reader(store, MAX_ARGUMENTS))
        for claim in claims:
            if claim.outcome is not None:  # what it would be called with cannot be read
                self._settle_unread(claim, claim.outcome)
                continue
            try:
                delivery = make(claim)
            except Exception as error:  # its arguments are nested too deeply, for one
                self._refuse(claim, error)
            else:
                held.dropped.watch(delivery, claim)
                handed.append(delivery)
        return handed

    def _refuse(self, claim: Claim, error: Exception) -> None:
        told = f"its payload cannot be read: {describe(error)}"
        self._settle_unread(claim, Failed(Failure(Kind.REJECTED, "unreadable_payload", told)))

    def _settle_unread(self, claim: Claim, event: JobEvent) -> None:
        text = "results that it uses cannot be read now"
        if isinstance(event, Failed | HeldBack):
            text = event.failure.message
        logger.error("job %s: %s", claim.job.id, text)
        with suppress(StoreError, LeaseLostError):  # then its lease ends, and it comes again
            self.settle(claim, event, 0.0)

    def wake(self) -> None:
        """Wake a fetch that waits for work."""
        if self._subscription is not None:
            self._subscription.wake()

    def stop_waiting(self) -> None:
        """Make the fetch under way, or the next one, stop waiting."""
        self._stop_waiting.set()
        self.wake()

    def _consuming(self) -> tuple[FullJobStore, HeldClaims]:
        store = self.client().store
        with self._lock:
            if self._held is None:
                self._held = HeldClaims(
                    store,
                    self._settings,
                    self.settler,
                    self._worker,
                    (self.queue, self._executor),
                    self._tell,
                )
            held = self._held
        # Outside of the lock: its first look asks the store.
        held.start()
        return store, held

    def _subscribed(self, store: FullJobStore) -> Subscription:
        with self._lock:
            if self._subscription is None:
                self._subscription = store.subscribe(Topic.WORK)
            return self._subscription

    def _ask(self, most: int) -> ClaimRequest:
        ours = frozenset({self._executor})
        return ClaimRequest(
            worker=self._worker,
            lease=self._settings.claimed_for,
            slots={self._executor: most},
            default=self._executor,
            own=ours,
            queues=(self.queue,),
            version=self._settings.version,
            wants_more=False,
        )

    # ---- in hand ----

    def tell_progress(self, claim: Claim, fraction: float | None, message: str) -> None:
        """Report the progress of a held job. Ignored for a job that was settled."""
        _, held = self._consuming()
        held.tell_progress(claim, ProgressReport(claim.job.id, fraction, message))

    # ---- settling ----

    def settle(self, claim: Claim, event: JobEvent, took: float) -> None:
        """Settle a claim. Raises LeaseLostError when another process has the job."""
        store, held = self._consuming()
        # Renewed no longer, whatever comes: should the store be away now, the lease ends by itself.
        held.let_go(claim)
        settlement = self.settler.settle_claim(claim, event, store.now(), took, b"null")
        failpoint("connector.jobs.settling.before")
        (is_applied,), _ = store.settle_and_claim([settlement], None)
        failpoint("connector.jobs.settling.after")
        if not is_applied:
            self._tell("job.late", {"job_id": settlement.id})
            raise LeaseLostError(
                f"job {settlement.id}: its lease was lost, and its outcome is somebody else's",
                remedy="raise lease if something stops the whole process for longer than that",
                details={"job_id": settlement.id},
            )
        self._tell_of(settlement)
        for name, fields in flow_notices(store, [settlement]):
            self._tell(name, fields)

    def _tell_of(self, settlement: Settlement) -> None:
        self._tell(NOTICE_OF[settlement.transition.status], notice_fields(settlement))

    def _tell(self, name: str, fields: dict[str, Any]) -> None:
        """Emit a notice, if anything listens."""
        if has_listeners() and self._client is not None:
            self._sink.emit(Notice(name, self._client.store.now(), fields))
