"""One call in flight: everything the two drivers share. Nothing here waits.

Rules for editors: the thread driver calls these methods while holding its lock, the asyncio driver
from its event loop; the few that run without the lock say so, and why that is safe.

Every attempt carries a ticket, and whoever claims it owns what happens next: the worker whose call
came back, or the supervisor that gave up on it. That is the whole of the locking around user code.
"""

from __future__ import annotations

import contextvars
import logging
import math
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Any, cast

from ergon_framework.core.failure import Failure
from ergon_framework.core.lifecycle import Scope, Verb, deadline, first_to_expire
from ergon_framework.core.loop import Loop, StopReason
from ergon_framework.engine.delivery import Delivery, Reader
from ergon_framework.engine.plan import EnginePlan
from ergon_framework.engine.report import Report
from ergon_framework.engine.run import FETCH, Doing, ProduceRun, Run, Tally, Worker
from ergon_framework.ports import context as ports
from ergon_framework.ports.notice import LifecycleSink, Notice, Sink
from ergon_framework.ports.transaction import Transaction

logger = logging.getLogger("ergon.engine")

NEVER = math.inf
FEWEST_ABANDONED = 4
"""Hung calls a call tolerates whatever its concurrency: one must not stop a single worker."""


class Flight:
    """The state of one consume or produce call."""

    is_source_woken = False
    reading: Delivery | None = None  # what the fetch under way has brought so far

    def __init__(self, plan: EnginePlan, now: Callable[[], float], sink: Sink | None) -> None:
        self.plan = plan
        self.now = now
        self.sink = sink
        self.loop = Loop(plan.loop)
        self.call = ports.Call(plan.role, plan.task, uuid.uuid4().hex, now, plan.settings)
        self.context = contextvars.copy_context()  # copied again for each attempt, never run in
        self._read_plan()
        self._open_registry()
        self._open_crew()
        self._open_fetching()
        self._set_bounds()

    def _read_plan(self) -> None:
        """What the hot path asks of the plan, looked up once."""
        plan, story = self.plan, cast(object, self.sink)
        self.rule = plan.lifecycle
        self.lifecycle_timeout = plan.lifecycle.timeout
        self.settlement = plan.settlement
        self.make_run = ProduceRun if plan.role == "producer" else Run
        self.on_process, self.on_success, self.on_exception = steps = plan.steps()
        self.steps = {each.step: each for each in steps}
        self.story = story if isinstance(story, LifecycleSink) else None
        self.is_watched = self.sink is not None or plan.ended is not None
        self.is_timed = self.sink is not None or plan.has_timeout()
        self.is_plain = plan.compiled and self.sink is None and not plan.has_budget()
        self.is_continuous = plan.loop.continuous
        self.is_quiet = plan.settlement is None and not self.is_watched

    def _open_registry(self) -> None:
        """Where each delivered transaction is, and what became of those that are not here."""
        self.ready: deque[Transaction] = deque()
        # The registry: what was taken in and has no outcome yet, ready or running. Whoever pops a
        # transaction accounts for it, by an outcome or in ``returning``; popping is atomic.
        self.live: dict[str, Transaction] = {}
        self.behind: dict[str, deque[Transaction]] = {}  # those that wait for an id in ``live``
        self.returning: deque[Transaction] = deque()  # to be handed back at the end
        self.delivered = 0  # all that a fetch ever brought
        self.unstarted = 0  # taken in, then moved to ``returning`` before they began
        self.is_accounted = False
        self.released = 0
        self.stranded: list[str] = []
        self.settlement_failures = 0
        self.channel_losses = 0  # how often the source said that its channel is gone

    def _open_crew(self) -> None:
        """The workers, and the calls that they were lost in."""
        self.workers: list[Worker] = []
        self.past = Tally()  # what workers counted that are gone
        self.idle = 0
        self.is_rousing = False
        self.hire_again_at: float | None = None  # no worker could be started before
        self.abandoned = 0  # calls given up on that have not come back
        self.abandoned_ever = 0
        self.is_gated = False

    def _open_fetching(self) -> None:
        """The one fetch under way, and one that was given up on."""
        self.reader = Reader(self.plan.fetch)
        self.fetch_error: BaseException | None = None
        self.stuck: Doing | None = None  # a fetch that was given up on and has not come back
        self.told_fetch: Doing | None = None  # the fetch that was told last to have ended
        self.late: Delivery | None = None  # what it brought after all

    def _set_bounds(self) -> None:
        """When the supervisor has to act, and whether the call is ending."""
        self.began_at = self.now()
        timeout = self.plan.bounds.loop_timeout
        self.has_deadline = timeout is not None
        self.deadline_at = NEVER if timeout is None else self.began_at + timeout
        self.grace_at = NEVER
        self.next_check = NEVER
        self.resume_at: float | None = None  # when an idle worker should plan again
        self.stops = 0
        self.is_aborted = False
        self.is_finished = False
        self.outbreak: BaseException | None = None  # leaves the call when it ends

    # -- notices -----------------------------------------------------------------------------

    def emit(self, name: str, **fields: Any) -> None:
        """Tell the sink, if there is one. What it raises never reaches the work."""
        if self.sink is None:
            return
        fields.setdefault("call", self.call)
        try:
            self.sink.emit(Notice(name, self.now(), fields))
        except Exception:
            logger.exception("a listener failed on %s", name)

    def enter(self, attempt: Doing, context: contextvars.Context) -> None:
        """Let the sink make its span current for the attempt."""
        if self.sink is None or isinstance(attempt, Run):
            return
        try:
            self.sink.enter(attempt, context)
        except Exception:
            logger.exception("a listener failed to enter %s", attempt.phase)

    def instant(self) -> float:
        """The clock, for what has to be done even when the clock cannot be read."""
        try:
            return self.now()
        except Exception:
            logger.exception("the clock of %s could not be read", self.plan.task)
            return self.began_at

    # -- workers -----------------------------------------------------------------------------

    def allowed(self) -> int:
        """How many workers may drive lifecycles, seen the calls that never came back."""
        limit = self.plan.loop.concurrency
        if self.plan.bounds.hold_abandoned:
            return max(0, limit - self.abandoned)
        cap = self.plan.bounds.max_abandoned or max(limit, FEWEST_ABANDONED)
        return 0 if self.abandoned >= cap else limit

    def may_start(self) -> bool:
        """Whether the asking worker, which counts as active, may begin another lifecycle."""
        return not self.is_gated or len(self.workers) - self.idle <= self.allowed()

    def dismiss(self, worker: Worker) -> None:
        """A worker is gone; what it counted stays."""
        worker.run = None
        if worker in self.workers:
            self.workers.remove(worker)
            self.past.add(worker)

    def give_up_on(self, worker: Worker, attempt: Doing) -> None:
        """The supervisor claimed this attempt: its worker is lost until the call comes back."""
        self.dismiss(worker)
        if isinstance(attempt, Run):
            attempt.lost_in = attempt.phase
        for call in () if attempt.run is None else attempt.run.inner:
            call.request_stop()  # a thread cannot be stopped, but what it is calling can:
            call.request_stop()  # at once, since nobody waits for it any more
        self.abandoned += 1
        self.abandoned_ever += 1
        was_gated, self.is_gated = self.is_gated, self.allowed() < self.plan.loop.concurrency
        self.emit("attempt.abandoned", attempt=attempt, abandoned=self.abandoned)
        logger.warning(
            "gave up on %s of %s: the call did not end in time (%d such calls now)",
            attempt.phase,
            self.plan.task,
            self.abandoned,
            extra=_ids(attempt),
        )
        if self.is_gated and not was_gated and self.allowed() == 0:
            self.emit("workers.stalled", abandoned=self.abandoned)
            logger.error(
                "%s is stalled: %d calls never came back, so no new work starts; see "
                "concurrency.max_abandoned",
                self.plan.task,
                self.abandoned,
            )

    def came_back(self, attempt: Doing) -> None:
        """An abandoned call returned; its result is dropped."""
        self.abandoned -= 1
        self.is_gated = self.allowed() < self.plan.loop.concurrency
        self.emit("attempt.late", attempt=attempt)
        phase = (isinstance(attempt, Run) and attempt.lost_in) or attempt.phase
        fate = "" if phase == FETCH else "; its result is dropped"
        told = (phase, self.plan.task, fate)
        logger.warning("%s of %s came back too late%s", *told, extra=_ids(attempt))

    # -- deadlines ---------------------------------------------------------------------------

    def arm(self, attempt: Doing, run: Run, timeout: float | None) -> bool:
        """Give the attempt its deadline. False when the lifecycle's time is over already."""
        if attempt is run:
            now = run.seen_at
            if self.lifecycle_timeout is None:
                run.deadline_at = None if timeout is None else now + timeout
                return True
        else:
            now = attempt.began_at = self.now()
            if timeout is None and self.lifecycle_timeout is None:
                return True  # a fresh attempt has no deadline
        step_at = None if timeout is None else now + timeout
        lifecycle_at = deadline(self.rule, run)
        attempt.scope = first_to_expire(step_at, lifecycle_at)
        attempt.deadline_at = lifecycle_at if attempt.scope is Scope.LIFECYCLE else step_at
        return attempt.deadline_at is None or now < attempt.deadline_at

    def overdue(self, now: float) -> list[tuple[Worker, Doing]]:
        """Attempts whose deadline has passed; also finds out when to look next.

        A worker publishes its attempt and then compares with ``next_check``, without the lock. So
        that is reset before the scan: either the scan sees the attempt or the worker sees NEVER.
        """
        self.next_check = NEVER
        due: list[tuple[Worker, Doing]] = []
        nearest = NEVER
        for worker in self.workers:
            attempt = worker.attempt
            if attempt is None or attempt.deadline_at is None or not attempt.ticket:
                continue
            if attempt.deadline_at <= now:
                due.append((worker, attempt))
            else:
                nearest = min(nearest, attempt.deadline_at)
        self.next_check = min(self.next_check, nearest)
        return due

    def claim_overdue(self, attempt: Doing, now: float) -> bool:
        """Take an overdue attempt from its worker.

        A run that is its own attempt may have gone on to its next step since the scan; then its
        ticket is put back. A worker that misses it meanwhile looks again under the lock.
        """
        if not attempt.claim():
            return False
        if attempt.deadline_at is not None and attempt.deadline_at <= now:
            return True
        attempt.ticket.append(None)
        return False

    def next_alarm(self) -> float | None:
        """When the supervisor must look again by itself."""
        alarm = min(self.next_check, self.deadline_at, self.grace_at)
        return None if alarm == NEVER else alarm

    # -- the end -----------------------------------------------------------------------------

    def settle_failed(self, transaction: Transaction, verb: Verb, error: str) -> None:
        """ack, nack or release did not work: the source will deliver again."""
        self.settlement_failures += 1
        key = transaction.transaction_id
        self.emit("settlement.failed", transaction_id=key, verb=verb.value, error=error)
        logger.error(
            "%s of transaction %s failed: %s",
            verb.value,
            key,
            error,
            extra={"transaction_id": key},
        )

    def tell_settled(
        self,
        transaction: Transaction,
        verb: Verb,
        run: Run | None,
        attempts: int,
        since: float,
        failure: Failure | None,
    ) -> None:
        """A settlement is over, well or not; for those who listen."""
        if self.sink is not None:
            self.emit(
                "settlement.ended",
                run=run,
                transaction_id=transaction.transaction_id,
                verb=verb.value,
                attempts=attempts,
                began_at=since,
                failure=failure,
            )

    def tell_settle_retry(
        self, transaction: Transaction, verb: Verb, failure: Failure, delay: float
    ) -> None:
        """A settlement failed for a passing reason, and is tried again."""
        key = transaction.transaction_id
        logger.warning(
            "%s of transaction %s failed and is tried again in %.1f s: %s",
            verb.value,
            key,
            delay,
            failure.message,
            extra={"transaction_id": key},
        )

    def strand(self, transactions: Collection[Transaction]) -> None:
        """What could not be handed back is named in the report and in the log."""
        self.stranded.extend(transaction.transaction_id for transaction in transactions)
        for transaction in transactions:
            self.emit("transaction.stranded", transaction_id=transaction.transaction_id)
        if transactions and self.plan.role == "producer":
            logger.warning(
                "%s leaves %d of its input without an outcome: %s",
                self.plan.task,
                len(transactions),
                _named(transactions),
            )
        elif transactions:
            logger.error(
                "%d delivered transactions got no outcome and could not be handed back: %s",
                len(transactions),
                _named(transactions),
            )

    def tally(self) -> Tally:
        """What has been counted so far, by all workers."""
        total = Tally()
        total.add(self.past)
        for worker in self.workers:
            total.add(worker)
        return total

    def report(self) -> Report:
        """What the call answers."""
        total = self.tally()
        return Report(
            succeeded=total.succeeded,
            failed=total.failed,
            timed_out=total.timed_out,
            handler_failures=total.handler_failures,
            aborted=total.aborted,
            parked=total.parked,
            released=self.released,
            settlement_failures=self.settlement_failures,
            abandoned=self.abandoned_ever,
            batches=self.loop.batches,
            stranded=(*self.stranded, *self.plan.leftovers()),
            duplicates=tuple(self.plan.duplicates()),
            elapsed=self.instant() - self.began_at,
            stop_reason=self.loop.reason or StopReason.STOPPED,
        )


def _named(transactions: Iterable[Transaction]) -> str:
    return ", ".join(each.transaction_id for each in islice(transactions, 20))


def _ids(attempt: Doing) -> dict[str, str]:
    """The supervisor logs outside of the attempt's context, so the id is added by hand."""
    run = attempt.run
    return {} if run is None else {"transaction_id": run.transaction.transaction_id}
