"""The worker's one link to its store: a thread that settles, claims, renews and maintains.

Everything that gathers while one exchange with the store is under way goes into the next, so the
busier the worker, the larger its batches. A store that goes away is asked again and again, with
growing waits; what is to be settled is kept meanwhile, and nothing is claimed.

A claim is asked for only when it may bring something: after a notification, when a due time has
come, when the last claim was full, and now and then in case something changed without notice.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.job import Released
from ergon_framework.core.retry import Backoff
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ErgonError, StoreBrokenError, StoreError
from ergon_framework.jobs.claims import Claim, decode_claims
from ergon_framework.jobs.flow_notices import flow_notices
from ergon_framework.jobs.flow_results import MAX_ARGUMENTS, ReadResults, hand_over
from ergon_framework.jobs.fresh_results import FreshResults
from ergon_framework.jobs.leases import ClaimLeases
from ergon_framework.jobs.maintenance import Maintenance
from ergon_framework.jobs.payload_codec import names_object
from ergon_framework.jobs.payload_codec_store import codec_of, results_reader
from ergon_framework.jobs.payload_threads import PayloadThreads
from ergon_framework.jobs.rescue import is_stall
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.ports.dice import roll
from ergon_framework.ports.jobstore import (
    ClaimedJob,
    ClaimResult,
    JobStore,
    Settlement,
    Topic,
)
from ergon_framework.storage.failpoints import declare, failpoint

MakeRequest: TypeAlias = Callable[[Mapping[str, int], bool], ClaimRequest]
"""Makes the request of a claim from the free slots by executor, and from whether the claim is
thorough: then it also looks for jobs that no worker can run, and for what is left to be done.
"""


class SlotCounter:
    """Counts free slots by executor, and remembers which executors had slots left at their last
    claim.

    The caller holds a lock. A count below zero is a debt: a slot was taken back while the claim
    that used it was under way. Later offers pay the debt before anything is claimed for them.
    """

    def __init__(self) -> None:
        self._free: dict[str, int] = {}
        self._dry: set[str] = set()

    @property
    def is_dry(self) -> bool:
        """Whether some executor's last claim left slots free."""
        return bool(self._dry)

    def offer(self, executor: str, change: int) -> int:
        """Add slots, or take back as many of them as are free. Returns the change that was made."""
        had = self._free.get(executor, 0)
        # Taking back alone never goes below zero. Only a claim that was under way can, and it
        # leaves a debt.
        has = max(min(had, 0), had + change)
        self._free[executor] = has
        return has - had

    def may_find_work(self, executor: str) -> bool:
        """Whether a new slot may find work: the last claim for this executor was full."""
        return executor not in self._dry

    def free(self) -> dict[str, int]:
        """The executors with free slots, and how many each has."""
        return {name: count for name, count in self._free.items() if count > 0}

    def take(self, asked: Mapping[str, int], taken: Mapping[str, int]) -> bool:
        """Subtract the slots that a claim used. Returns whether an executor got all that it asked
        for.
        """
        for name, count in taken.items():
            self._free[name] = self._free.get(name, 0) - count
        filled = {name for name, count in asked.items() if taken.get(name, 0) >= count}
        # An executor whose claim left slots free does not ask again only because of a new slot:
        # there was nothing more to claim.
        self._dry |= asked.keys()
        self._dry -= filled
        return bool(filled)


def by_executor(request: ClaimRequest, jobs: Sequence[ClaimedJob]) -> Counter[str]:
    """How many of the jobs each executor runs."""
    return Counter([executor_of(request, job) for job in jobs])


def executor_of(request: ClaimRequest, job: ClaimedJob) -> str:
    """The executor that runs a job, also a job that was claimed from the lane of its handler."""
    named = job.executor.partition("#")[0]
    return named or request.routes.get(job.queue, request.default)


logger = logging.getLogger("ergon.jobs")

PROGRESS_INTERVAL = 1.0
"""The least number of seconds between two heartbeats that are sent because jobs have reported
progress.
"""
OUTAGE_BACKOFF = Backoff(base=0.1, factor=2.0, cap=5.0, low=0.8, high=1.2)
SHUTDOWN_RETRY_INTERVAL = 0.2
"""Seconds between two calls of a store that is away, while the worker waits to stop."""
MAX_CANCEL_WAIT = 60.0
"""Seconds after which the thread that waits for cancellations checks whether it is still needed."""
CANCEL_PAUSE = 0.1
"""Seconds for which it then pauses."""
MAX_LOGGED_IDS = 20
"""How many jobs one log line names."""
MAX_LOGGED_REASONS = 8
"""How many reasons of one outage are logged."""

declare("worker.claimed", "worker.before_settle")


class StoreThread:
    """Talks to the store in a thread of its own, for the worker's loop.

    ``_lock`` guards what both threads use: settlements that wait, free slots, and whether the
    thread sleeps. No call of the store is made while it is held, so the loop never waits for a
    store. The plain flags (``_may_find_work``, ``_ends``, ``_may_claim``) are each set by
    assignment and read once per round. A change that comes too late is seen by the next round,
    and whoever sets a flag wakes the thread.
    """

    def __init__(
        self,
        store: JobStore,
        settings: JobsSettings,
        make_request: MakeRequest,
        deliver: Callable[[list[Claim]], None],
        settled: Callable[[Sequence[Settlement]], None],
        report: Callable[[str, dict[str, Any]], None],
        *,
        now: Callable[[], float] = SYSTEM_CLOCK.now,
    ) -> None:
        self.store = store
        self.maintenance: Maintenance | None = None
        self.leases = ClaimLeases(store, settings.claimed_for, report)
        self.offset = 0.0  # the store's clock minus this machine's
        self.counters = {"late": 0, "refused": 0, "outages": 0}
        self.probes = 0
        self.is_left = False  # something due could not be claimed
        # when the next job may become due, by this machine's clock
        self.due_at: float | None = None
        self._settings = settings
        self._codec = codec_of(store, settings)
        self._payloads = PayloadThreads()
        self._fresh = FreshResults()
        self._make_request = make_request
        self._deliver = deliver
        self._settled = settled
        self._report = report
        self._lock = threading.Lock()
        self._rests = threading.Condition(self._lock)  # no exchange is under way
        self._settlements: list[Settlement] = []
        self._slots = SlotCounter()
        self._is_probing = False
        self._is_asleep = False
        self._is_busy = False
        self._may_claim = True
        self._ends = False
        self._gives_up = False
        self._may_find_work = True  # something may be claimable
        self._has_new_progress = False  # a job has reported progress …
        self._progress_at = 0.0  # … which is written at this instant at the earliest
        self._has_cancel_request = False  # a job that runs somewhere is to be cancelled
        self._next_at: float | None = None  # … or will be at this instant, by this machine's clock
        self._thorough_at = 0.0  # when a claim has to be thorough again, however busy the worker is
        self.handler_lanes: tuple[str, ...] = ()
        """The lanes of handlers that had due jobs when they were last read."""
        self._maintenance_at: float | None = None
        self._failures = 0
        self._began = self._away_since = 0.0  # the turn, and the outage
        self._reasons: set[str] = set()  # reasons that were logged in this outage
        self._now = now
        self._subscription = store.subscribe(Topic.WORK)
        self._cancels = store.subscribe(Topic.CANCEL)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    # ---- from the worker's loop ----

    def start(self) -> None:
        """Start the thread. The store is called once in the caller's thread, so that an error is
        raised there.
        """
        # Deadlines are given in the store's time and kept in this machine's. Through this offset,
        # machines whose clocks differ agree on leases.
        self.offset = self.store.now() - self._now()
        self._thread = SYSTEM_CLOCK.spawn("ergon-jobs-store", self._serve)
        SYSTEM_CLOCK.spawn("ergon-cancels", self._wait_for_cancellations)

    def offer(self, executor: str, slots: int) -> int:
        """Add free slots of an executor, or take some back. Returns the change that was made."""
        with self._lock:
            made = self._slots.offer(executor, slots)
            if made > 0 and self._slots.may_find_work(executor):
                self._may_find_work = True
            wakes = made > 0 and self._may_find_work and self._is_asleep
        if wakes:
            self._subscription.wake()
        return made

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Queue settlements; they are written with the next exchange."""
        with self._lock:
            self._settlements += settlements
            wakes, self._is_asleep = self._is_asleep, False
        if wakes:
            self._subscription.wake()

    def tell_progress(self) -> None:
        """Report the progress of jobs to the store soon, with a heartbeat. Called by the worker's
        loop.
        """
        if not self._has_new_progress:
            self._has_new_progress = True
            self._subscription.wake()

    def probe(self) -> None:
        """Ask the store whether anything due is left.

        When the answer is there, ``probes`` has grown by one and ``is_left`` has the answer.
        """
        self._is_probing = self._may_find_work = True
        self._subscription.wake()

    def stop_claiming(self, seconds: float) -> bool:
        """Claim no more, and wait so long for a claim under way. Returns whether none
        is under way.
        """
        with self._rests:
            self._may_claim = False
            # ``_may_claim`` is read under this lock when a claim begins, so no claim can begin
            # after this has returned True.
            until = self._now() + seconds
            is_at_rest = self._rests.wait_for(lambda: not self._is_busy, seconds)
        return is_at_rest and self._payloads.wait(max(0.0, until - self._now()))

    def end(self, *, with_maintenance: bool) -> None:
        """End the thread once everything is settled; :meth:`join` waits for that.

        Without ``with_maintenance``, a maintenance task that is under way is cut short.
        """
        self._may_claim = False
        self._ends = True
        if not with_maintenance:
            self._stop_maintenance()
        self._subscription.wake()

    def join(self, seconds: float) -> None:
        """Wait so long for the thread to end. Then give up settlements that the store has not
        taken.
        """
        if self._thread is not None:
            self._thread.join(seconds)
            self._gives_up = True
            self._over.set()
            self._stop_maintenance()
            self._subscription.wake()
            # A thread inside a call of the store cannot be ended. It is a daemon, and is left
            # behind after a second.
            self._thread.join(1.0)
            self._log_unsettled()
        self._cancels.close()
        # A thread that hangs in the store may still wait on the subscription. Closing that would
        # raise an error in it.
        if self._thread is None or not self._thread.is_alive():
            self._subscription.close()

    def _log_unsettled(self) -> None:
        ids = [*self.leases.claims]
        if ids:
            text = "the store did not take how %d job(s) ended, which will be rescued: %s"
            logger.error(text, len(ids), _listed(ids))

    @property
    def is_dry(self) -> bool:
        """Whether the last claim left slots free."""
        return self._slots.is_dry

    @property
    def is_settled(self) -> bool:
        """Whether no job is held, and no settlement waits to be written."""
        is_under_way = self.maintenance is not None and self.maintenance.is_under_way
        is_written = not self._settlements and not self._is_busy
        return is_written and not is_under_way and not self.leases.claims

    # ---- the thread ----

    def _serve(self) -> None:
        while not self._gives_up and self.run_once():
            self._sleep()

    def _wait_for_cancellations(self) -> None:
        """Wait for notifications of cancellations, in a thread of its own.

        It reads nothing before a notification comes, because each read costs a call. A notification
        before the first claim, or for another worker's job, costs one read, too.
        """
        while not self._gives_up:
            if self._cancels.wait(MAX_CANCEL_WAIT):
                self._has_cancel_request = True
                self._subscription.wake()
            else:
                # The subscription was closed with the store, so nothing more will come.
                self._over.wait(CANCEL_PAUSE)

    def run_once(self) -> bool:
        """Do one round: settle and claim, renew leases, maintain. Returns whether another round
        follows.

        An error of the store is an outage: settlements that were not written are kept for the next
        round. Only a store that is broken for good ends the thread.
        """
        try:
            was_asked = self._do_due()
            # A worker that stops may have had nothing to ask, and that proves no recovery.
            if self._failures and was_asked:
                self._recovered()
        except StoreBrokenError:
            logger.critical("the store takes no more writes; the worker stops", exc_info=True)
            self._report("store.broken", {})
            return False
        except Exception as error:
            self._outage(error)
        return not self._ends or bool(self._settlements)

    def _do_due(self) -> bool:
        """Do one exchange if there is a reason, then what else is due. Returns whether the store
        was called.
        """
        self._check_clock()
        began = self._began = self._now()
        self._check_outage()
        with self._lock:
            # Decided and marked as busy under one hold of the lock: ``stop_claiming`` must not miss
            # a claim that was decided on and is not under way yet.
            settlements, self._settlements = self._settlements, []
            request = self._due_request()
            self._is_busy = True
        is_delivered = False
        is_asked = bool(settlements) or request is not None
        try:
            if is_asked:
                is_delivered = self._exchange(settlements, request)
        finally:
            with self._rests:
                # Settlements that were not written go back to the front, because outcomes reach the
                # store in order.
                self._settlements[:0] = settlements
                self._is_busy = False
                self._rests.notify_all()
        self._check_for_stall(began)
        next_at = min(self.leases.next_at, self._maintenance_at or 0.0)
        if is_delivered and not self._has_cancel_request and self._now() < next_at:
            return True  # Let the loop run the claimed jobs at once: nothing else is due yet.
        if self._has_cancel_request:
            # Before the read: what comes meanwhile leads to another read.
            self._has_cancel_request = False
            self.leases.look_for_cancels()
        self.leases.renew_due(self._now())
        self._check_for_stall(began)
        if self._has_new_progress and self._now() >= self._progress_at:
            self._has_new_progress = False
            self._progress_at = self._now() + PROGRESS_INTERVAL
            if self.maintenance is not None:
                self.maintenance.tell_record()
        if self.maintenance is not None and not self._ends:
            self._maintenance_at = self.maintenance.run(self._now())
            # The end of the worker may have cut the tasks short.
            is_asked = is_asked or not self._ends
        return is_asked

    def _stop_maintenance(self) -> None:
        if self.maintenance is not None:
            self.maintenance.stop()

    def _check_clock(self) -> None:
        """Notice that the store's clock was set: leases then look expired, or endless."""
        offset = self.store.now() - self._now()
        if abs(offset - self.offset) > self._settings.claimed_for / 3:
            logger.warning("the store's clock jumped by %.1f s", offset - self.offset)
            self._may_find_work = True
            self.leases.renew_soon()
            if self.maintenance is not None:
                self.maintenance.after_clock_jump()
        self.offset = offset

    def _check_outage(self) -> None:
        """Put off rescues after an outage in which other workers could not renew their leases
        either.

        A short outage ends no lease, and then a rescue need not wait. Half the length of a stall
        already counts as long, because other workers may notice the store's return a little later.
        """
        if self.maintenance is None or not self._failures:
            return
        is_long = is_stall(2 * (self._now() - self._away_since), self._settings.claimed_for)
        (self.maintenance.restart_all if is_long else self.maintenance.run_soon)()

    def _check_for_stall(self, since: float) -> None:
        """Put off rescues when a call of the store hung: other workers' calls hung, too, and they
        have to renew first.
        """
        if self.maintenance is not None and is_stall(
            self._now() - since, self._settings.claimed_for
        ):
            self.maintenance.delay_rescue()

    def _due_request(self) -> ClaimRequest | None:
        is_due = self._next_at is not None and self._now() >= self._next_at
        if not self._may_claim or not (self._may_find_work or is_due):
            return None
        slots = self._slots.free()
        if not slots and not self._is_probing:
            return None
        # Also now and then in a worker that is always busy: nothing else tells it of jobs that wait
        # for a handler.
        is_late = self._now() >= self._thorough_at
        is_thorough = self._is_probing or is_due or self._next_at is None or is_late
        return self._make_request(slots, is_thorough)

    def _exchange(self, settlements: list[Settlement], request: ClaimRequest | None) -> bool:
        """Settle and claim in one commit. Returns whether jobs were handed to the loop.

        Settlements that were written are removed from the list.
        """
        # Cleared before the call: a notification that comes while the store works may be of a job
        # that this claim does not see, and must lead to another claim.
        self._may_find_work = self._may_find_work and request is None
        if settlements:
            failpoint("worker.before_settle")
        try:
            applied, claimed = self.store.settle_and_claim(settlements, request)
        except BaseException as error:
            self._may_find_work = True
            if not settlements or not _is_refusal(error):
                raise
            self._settle_apart(settlements)
            return False
        self._apply(settlements, applied)
        settlements.clear()
        return request is not None and self._take(request, claimed)

    def _settle_apart(self, settlements: list[Settlement]) -> None:
        """Settle one by one, so that an outcome that the store refuses does not hold back the
        others.
        """
        while settlements:
            one = settlements[:1]
            try:
                applied, _ = self.store.settle_and_claim(one, None)
            except StoreError as error:
                if not _is_refusal(error):
                    raise
                self._give_up(one[0], error)
            else:
                self._apply(one, applied)
            del settlements[0]

    def _give_up(self, settlement: Settlement, error: StoreError) -> None:
        """Let the lease of a refused outcome expire. A rescue then runs the job again,
        or ends it.
        """
        self.leases.drop([settlement])
        self.counters["refused"] += 1
        text = "job %s: the store refuses its outcome, and the job will be rescued: %s"
        logger.error(text, settlement.id, error)
        self._report("job.refused", {"job_id": settlement.id, "error": str(error)})

    def _apply(self, settlements: Sequence[Settlement], applied: Sequence[bool]) -> None:
        self.leases.drop(settlements)
        if all(applied):
            self._tell_settled(settlements)
            return
        pairs = list(zip(settlements, applied, strict=True))
        self._tell_settled([each for each, was_applied in pairs if was_applied])
        for settlement in (each for each, was_applied in pairs if not was_applied):
            self.counters["late"] += 1
            text = "job %s: a late result was ignored; somebody else has the job, or it is gone"
            logger.warning(text, settlement.id)
            self._report("job.late", {"job_id": settlement.id})

    def _tell_settled(self, settlements: Sequence[Settlement]) -> None:
        self._fresh.keep(settlements)
        self._settled(settlements)
        for name, fields in flow_notices(self.store, settlements):
            self._report(name, fields)

    def _take(self, request: ClaimRequest, claimed: ClaimResult) -> bool:
        now = self._now()
        wait = None if claimed.next_at is None else claimed.next_at - self.store.now()
        # Some commits bring no notification, such as those of other programs, so the store is
        # polled for them.
        soonest = now + self._settings.poll
        self.due_at = None if wait is None else now + max(0.0, wait)
        self._next_at = soonest if self.due_at is None else min(soonest, self.due_at)
        if claimed.expires_at is not None and self.maintenance is not None:
            ends_at = self.maintenance.expires_in(claimed.expires_at - self.store.now())
            self._maintenance_at = min(self._maintenance_at or 0.0, ends_at)
        with self._lock:
            is_filled = self._slots.take(request.slots, by_executor(request, claimed.jobs))
            self._may_find_work = self._may_find_work or is_filled
        if request.wants_more:  # Only a thorough claim reads what the worker cannot take.
            self.is_left = claimed.more
            self._thorough_at = soonest
            self._note_lanes(request, claimed.handler_lanes)
            if self._is_probing:
                self._is_probing = False
                self.probes += 1
        claims = [Claim(job) for job in claimed.jobs]
        if claims:
            self.leases.add(claims, now)
            if self._codec.objects is not None:
                claims = self._begun_fetches(claims)
            decode_claims(claims, self._codec)
            if any(claim.job.uses is not None for claim in claims):
                hand_over(claims, self._results())
            # A worker that dies here has begun no job: the leases expire, and a rescue finds
            # deliveries without an attempt.
            failpoint("worker.claimed")
            if claims:
                self._deliver(claims)
        return bool(claimed.jobs)

    def _begun_fetches(self, claims: list[Claim]) -> list[Claim]:
        """Start fetching payloads that may be in an object store. Returns the other claims."""
        slow: list[Claim] = []
        ready: list[Claim] = []
        for claim in claims:
            is_slow = claim.job.uses is not None or names_object(claim.job.args)
            (slow if is_slow else ready).append(claim)
        if slow:
            self._payloads.submit(lambda: self._fetch(slow))
        return ready

    def _fetch(self, claims: list[Claim]) -> None:
        """Fetch the payloads of claims from the object store, and deliver each claim as soon as it
        is ready.
        """
        for claim in claims:
            # A worker that stops, or has lost the job meanwhile, does not need the arguments any
            # more.
            if not self._may_claim or claim.lost:
                claim.outcome = Released()
            else:
                self._make_ready(claim)
            self._deliver([claim])
            # The cancellation was requested before the loop knew the claim.
            if claim.cancel is not None:
                self.leases.when_cancelled()

    def _make_ready(self, claim: Claim) -> None:
        try:
            decode_claims([claim], self._codec)
            if claim.job.uses is not None:
                hand_over([claim], self._results())
        except Exception:  # The job goes back, and the worker continues.
            logger.exception("job %s: its payload was not read", claim.job.id)
            claim.outcome = Released()

    def _results(self) -> ReadResults | None:
        return results_reader(self.store, MAX_ARGUMENTS, self._fresh.known)

    def _note_lanes(self, request: ClaimRequest, lanes: tuple[str, ...]) -> None:
        """Note in which lanes of handlers jobs wait. Claim again at once if that may
        bring a job.
        """
        if lanes != self.handler_lanes:
            self.handler_lanes = lanes
            self._may_find_work = (
                self._may_find_work or self._make_request({}, False).handlers != request.handlers
            )

    def _sleep(self) -> None:
        now = self._now()
        with self._lock:
            is_free = self._is_probing or bool(self._slots.free())
            is_wanted = self._settlements or (self._may_find_work and self._may_claim and is_free)
            if (is_wanted or self._has_cancel_request) and not self._failures:
                return
            self._is_asleep = True
        until = [self.leases.next_at]
        if self._maintenance_at is not None:
            until.append(self._maintenance_at)
        if self._has_new_progress:
            until.append(self._progress_at)
        if self._next_at is not None and self._may_claim and is_free:
            until.append(self._next_at)
        if self._failures:
            wait = OUTAGE_BACKOFF.delay(self._failures - 1, roll())
            # Other workers rescue nothing for one lease after the store is back. Call it often
            # enough to renew within that time, or this worker's jobs are taken away.
            self._wait_out_outage(now + min(wait, self._settings.claimed_for / 3))
        elif self._subscription.wait(max(0.0, min(until) - now)):
            self._may_find_work = True
        self._is_asleep = False

    # ---- a store that is away ----

    def _wait_out_outage(self, until: float) -> None:
        """Wait out the backoff of an outage. Notifications do not shorten it."""
        while (now := self._now()) < until and not self._gives_up:
            if self._ends:
                until = min(until, now + SHUTDOWN_RETRY_INTERVAL)
            self._subscription.wait(until - now)

    def _outage(self, error: Exception) -> None:
        if self._gives_up:
            return  # The worker has stopped, and may have closed the store during this call.
        if not isinstance(error, ErgonError):
            logger.error("the store raised something unexpected", exc_info=error)
        self._failures += 1
        if self._failures == 1:
            self._away_since = self._began
        self.leases.renew_soon()
        # Makes maintenance due, so that the next round calls the store for certain.
        self._check_outage()
        if self._failures == 1:
            self.counters["outages"] += 1
            self._report("store.lost", {"error": str(error)})
        if str(error) not in self._reasons and len(self._reasons) < MAX_LOGGED_REASONS:
            # The first error is often a symptom ("connection lost") and a later one the cause
            # ("password is wrong"), so each reason is logged once.
            self._reasons.add(str(error))
            logger.error(_OUTAGE[_is_moved(error)], error)

    def _recovered(self) -> None:
        logger.warning("the store answers again, after %d attempts", self._failures)
        self._failures = 0
        self._reasons.clear()
        self._may_find_work = True
        self._report("store.back", {})


_OUTAGE = {
    False: "the store does not answer, and is asked again: %s",
    True: "the store was moved: nothing is claimed or settled there any more: %s",
}


def _is_moved(error: BaseException) -> bool:
    """Whether the store was shut after a move. It may be opened again, so the worker
    keeps asking.
    """
    return isinstance(error, StoreError) and bool(error.details.get("moved_to"))


def _is_refusal(error: BaseException) -> bool:
    """Whether the store answered that it will never take this value, so that a retry is useless."""
    return isinstance(error, StoreError) and bool(error.details.get("is_refused"))


def _listed(ids: Sequence[str]) -> str:
    """The first ids, and how many more there are."""
    more = f" and {len(ids) - MAX_LOGGED_IDS} more" if len(ids) > MAX_LOGGED_IDS else ""
    return ", ".join(ids[:MAX_LOGGED_IDS]) + more
