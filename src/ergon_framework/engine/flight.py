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
from collections.abc import Callable, Collection
from typing import Any

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.lifecycle import Scope, Step, deadline, first_to_expire
from ergon_framework.core.loop import Loop, StopReason
from ergon_framework.core.settlement import Verb
from ergon_framework.engine.classify import fetch_failure
from ergon_framework.engine.delivery import Delivery
from ergon_framework.engine.plan import EnginePlan, StepPlan
from ergon_framework.engine.report import Report
from ergon_framework.engine.run import Doing, Run, Tally, Worker
from ergon_framework.errors import describe
from ergon_framework.ports import context as ports
from ergon_framework.ports.notice import Notice
from ergon_framework.ports.sink import Sink
from ergon_framework.ports.transaction import Transaction

logger = logging.getLogger("ergon.engine")

NEVER = math.inf
RELEASE_GRACE = 5.0
"""Seconds for handing transactions back at the end of a call; what takes longer is stranded."""
FETCH, BACKOFF, SETTLE = "fetch", "backoff", "settle"  # phases beside the lifecycle's own


class Flight:
    """The state of one consume or produce call."""

    def __init__(self, plan: EnginePlan, now: Callable[[], float], sink: Sink | None) -> None:
        self.plan = plan
        self.rule = plan.lifecycle
        self.lifecycle_timeout = plan.lifecycle.timeout
        self.settlement = plan.settlement
        self.sink = sink
        self.is_watched = sink is not None or plan.ended is not None
        self.now = now
        self.loop = Loop(plan.loop)
        self.call = ports.Call(plan.role, plan.task, uuid.uuid4().hex, now, plan.settings)
        self.context = contextvars.copy_context()  # copied again for each attempt, never run in
        process = "produce" if plan.role == "producer" else "process"
        hooks, rule = plan.hooks, plan.lifecycle
        self.on_process = StepPlan(Step.PROCESS, hooks.process, process, rule.process.timeout)
        self.on_success = StepPlan(Step.ON_SUCCESS, hooks.success, "success", rule.success.timeout)
        self.on_exception = StepPlan(
            Step.ON_EXCEPTION, hooks.exception, "exception", rule.exception.timeout
        )
        steps = (self.on_process, self.on_success, self.on_exception)
        self.steps = {each.step: each for each in steps}
        timeouts = (plan.bounds.loop_timeout, rule.timeout, *(each.timeout for each in steps))
        self.is_timed = sink is not None or any(timeouts)
        self.is_plain = plan.compiled and sink is None
        self.is_continuous = plan.loop.continuous
        self.is_quiet = plan.settlement is None and not self.is_watched

        self.ready: deque[Transaction] = deque()
        self.held: dict[str, list[Transaction]] = {}  # running ids, each with those behind it
        self.returning: list[Transaction] = []  # to be handed back at the end
        self.unstarted = 0  # taken in, then moved to ``returning`` before they began
        self.released = 0
        self.stranded: list[str] = []
        self.settlement_failures = 0

        self.workers: list[Worker] = []
        self.past = Tally()  # what workers counted that are gone
        self.idle = 0
        self.is_rousing = False
        self.abandoned = 0  # calls given up on that have not come back
        self.abandoned_ever = 0
        self.is_gated = False

        self.began_at = now()
        timeout = plan.bounds.loop_timeout
        self.deadline_at = NEVER if timeout is None else self.began_at + timeout
        self.grace_at = NEVER
        self.next_check = NEVER
        self.resume_at: float | None = None  # when an idle worker should plan again
        self.stops = 0
        self.is_aborted = False
        self.is_finished = False
        self.outbreak: BaseException | None = None  # leaves the call when it ends
        self.fetch_error: BaseException | None = None
        self.stuck: Doing | None = None  # a fetch that was given up on and has not come back
        self.late: Delivery | None = None  # what it brought after all

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

    # -- taking transactions in and letting them go ------------------------------------------

    def outstanding(self) -> int:
        """Transactions taken in that have no outcome yet."""
        ended = self.past.ended + sum(worker.ended for worker in self.workers)
        return self.loop.taken - ended - self.unstarted

    def receive(self, delivery: Delivery, attempt: Doing) -> None:
        """A fetch came back, with transactions, with an error, or with some of each."""
        now = self.now()
        failure: Failure | None = None
        if delivery.transactions or delivery.error is None:
            accepted = self.loop.delivered(len(delivery.transactions), now)
            self._take_in_all(delivery.transactions[:accepted])
            self.returning.extend(delivery.transactions[accepted:])
            if len(delivery.transactions) > delivery.requested:
                logger.warning(
                    "the source of %s delivered %d transactions where %d were asked for",
                    self.plan.task,
                    len(delivery.transactions),
                    delivery.requested,
                )
        if delivery.error is not None:
            self.fetch_error = delivery.error
            if delivery.is_defect:
                failure = Failure(Kind.REJECTED, "not_a_transaction", describe(delivery.error))
            else:
                failure = fetch_failure(delivery.error)
            self.loop.fetch_failed(failure, now, self.plan.dice())
        if self.sink is not None:
            self._tell_fetched(delivery, attempt, failure, now)

    def _tell_fetched(
        self, delivery: Delivery, attempt: Doing, failure: Failure | None, now: float
    ) -> None:
        count = len(delivery.transactions)
        self.emit(
            "fetch.ended",
            attempt=attempt,
            requested=delivery.requested,
            delivered=count,
            failure=failure,
            began_at=attempt.began_at,
        )
        resume_at = self.loop.resume_at
        if count == 0 and failure is None and resume_at is not None:
            self.emit("queue.empty", empties=self.loop.empties, delay=resume_at - now)

    def _take_in_all(self, transactions: list[Transaction]) -> None:
        held, make_ready = self.held, self.ready.append
        for transaction in transactions:
            key = transaction.transaction_id
            if key in held:
                self.take_in(transaction)
            else:  # ids are added only here, under the lock
                held[key] = []
                make_ready(transaction)

    def take_in(self, transaction: Transaction) -> None:
        """Make it ready, or let it wait behind a running one with the same id.

        A finishing worker pops its id without the lock. So after queueing behind an id we look
        again: if it has gone meanwhile, nobody would ever wake ours, and we take it back.
        """
        key = transaction.transaction_id
        while True:
            fresh: list[Transaction] = []
            waiting = self.held.setdefault(key, fresh)
            if waiting is fresh:
                self.ready.append(transaction)
                return
            waiting.append(transaction)
            if self.held.get(key) is waiting or waiting[-1:] != [transaction]:
                return
            waiting.pop()

    def pass_on(self, key: str, waiting: list[Transaction]) -> None:
        """Let those go on that waited for an id."""
        if self.held.get(key) is waiting:
            if waiting:
                self.ready.append(waiting.pop(0))
            else:
                del self.held[key]
        else:
            late, waiting[:] = waiting[:], []
            for transaction in late:
                self.take_in(transaction)

    def sweep(self) -> None:
        """Move everything that has not begun to ``returning``."""
        unstarted = [*self.ready, *(each for waiting in self.held.values() for each in waiting)]
        self.ready.clear()
        for waiting in self.held.values():
            waiting.clear()
        self.returning.extend(unstarted)
        self.unstarted += len(unstarted)

    # -- workers -----------------------------------------------------------------------------

    def allowed(self) -> int:
        """How many workers may drive lifecycles, seen the calls that never came back."""
        limit = self.plan.loop.concurrency
        if self.plan.bounds.hold_abandoned:
            return max(0, limit - self.abandoned)
        cap = self.plan.bounds.max_abandoned or limit
        return 0 if self.abandoned >= cap else limit

    def may_start(self) -> bool:
        """Whether the asking worker, which counts as active, may begin another lifecycle."""
        return not self.is_gated or len(self.workers) - self.idle <= self.allowed()

    def dismiss(self, worker: Worker) -> None:
        """A worker is gone; what it counted stays."""
        if worker in self.workers:
            self.workers.remove(worker)
            self.past.add(worker)

    def give_up_on(self, worker: Worker, attempt: Doing) -> None:
        """The supervisor claimed this attempt: its worker is lost until the call comes back."""
        self.dismiss(worker)
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
        logger.warning(
            "%s of %s came back too late; dropped",
            attempt.phase,
            self.plan.task,
            extra=_ids(attempt),
        )

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

    # -- stopping ----------------------------------------------------------------------------

    def begin_stop(self, reason: StopReason) -> None:
        """Take in nothing more; let what runs finish within the grace."""
        self.loop.stop(reason)
        if self.grace_at == NEVER:
            self.grace_at = self.now() + self.plan.bounds.stop_grace
            self.emit("stop.asked", grace=self.plan.bounds.stop_grace)
        if self.plan.loop.returns:
            self.sweep()

    def interrupt(self, error: BaseException) -> None:
        """Ctrl-C, SystemExit or a defect of ours: stop, and raise it at the end.

        A second interruption does not wait for the grace.
        """
        if self.outbreak is not None and self.outbreak is not error:
            self.stops += 2
        self.outbreak = error
        self.loop.stop(StopReason.INTERRUPTED)

    def must_abort(self, now: float) -> StopReason | None:
        """Why everything must end now, if it must."""
        if now >= self.deadline_at:
            return StopReason.TIMEOUT
        if now >= self.grace_at or self.stops > 1:
            return self.loop.reason or StopReason.STOPPED
        return None

    def begin_abort(self, reason: StopReason) -> None:
        """From here on no hook is called any more."""
        self.is_aborted = True
        self.loop.reason = reason
        self.sweep()

    def fetch_hangs(self, attempt: Doing) -> None:
        """The supervisor gave up on a fetch: a failed attempt, and no second call beside it."""
        self.stuck = attempt
        self.fetch_still_hangs()

    def fetch_still_hangs(self) -> None:
        """Another attempt timed out without a call: the previous one has not come back."""
        failure = Failure(Kind.TIMEOUT, "fetch_timeout", "the fetch ran out of time")
        self.fetch_error = None
        attempt = self.stuck
        if self.sink is not None and attempt is not None:
            self.emit("fetch.ended", attempt=attempt, requested=self.plan.loop.size, delivered=0,
                      failure=failure, began_at=getattr(attempt, "began_at", 0.0))  # fmt: skip
        self.loop.fetch_failed(failure, self.now(), self.plan.dice())

    # -- the end -----------------------------------------------------------------------------

    def settle_failed(self, transaction: Transaction, verb: Verb, error: BaseException) -> None:
        """ack, nack or release did not work: the source will deliver again."""
        self.settlement_failures += 1
        key = transaction.transaction_id
        self.emit("settlement.failed", transaction_id=key, verb=verb.value, error=describe(error))
        logger.error(
            "%s of transaction %s failed: %s",
            verb.value,
            key,
            describe(error),
            extra={"transaction_id": key},
        )

    def strand(self, transactions: Collection[Transaction]) -> None:
        """What could not be handed back is named in the report and in the log."""
        for transaction in transactions:
            self.stranded.append(transaction.transaction_id)
            self.emit("transaction.stranded", transaction_id=transaction.transaction_id)
        if transactions:
            logger.error(
                "%d delivered transactions were neither started nor handed back: %s",
                len(transactions),
                ", ".join(each.transaction_id for each in list(transactions)[:20]),
            )

    def report(self) -> Report:
        """What the call answers."""
        total = Tally()
        total.add(self.past)
        for worker in self.workers:
            total.add(worker)
        return Report(
            succeeded=total.succeeded,
            failed=total.failed,
            timed_out=total.timed_out,
            handler_failures=total.handler_failures,
            aborted=total.aborted,
            released=self.released,
            settlement_failures=self.settlement_failures,
            abandoned=self.abandoned_ever,
            batches=self.loop.batches,
            stranded=(*self.stranded, *self.plan.leftovers()),
            duplicates=tuple(self.plan.duplicates()),
            elapsed=self.now() - self.began_at,
            stop_reason=self.loop.reason or StopReason.STOPPED,
        )


def _ids(attempt: Doing) -> dict[str, str]:
    """The supervisor logs outside of the attempt's context, so the id is added by hand."""
    run = attempt.run
    return {} if run is None else {"transaction_id": run.transaction.transaction_id}
