"""Taking transactions in and letting them go: what is ready, what waits, what goes back."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.lifecycle import Verb
from ergon_framework.core.loop import StopReason
from ergon_framework.engine.classify import fetch_failure, settlement_failure
from ergon_framework.engine.delivery import Delivery
from ergon_framework.engine.flight import NEVER, Flight
from ergon_framework.engine.plan import Hook
from ergon_framework.engine.run import Doing
from ergon_framework.errors import describe
from ergon_framework.ports.transaction import Transaction

logger = logging.getLogger("ergon.engine")

RELEASES_AT_ONCE = 16
"""The most transactions that are handed back at the same time."""
RELEASE_STEP = 0.05
"""Seconds after which one more is handed back at the same time, as long as some are left."""


class Returning:
    """Transactions on their way back to their source.

    They go one at a time as long as the source is quick, so that it sees them in order; a slow one
    is asked for several at once. Whoever takes one out owns it: the releaser that got an answer, or
    the supervisor that has no more patience and calls it stranded.
    """

    def __init__(self, transactions: Iterable[Transaction]) -> None:
        self._left = deque(transactions)
        self._going: dict[int, Transaction] = {}
        self.releasers = 0

    def __bool__(self) -> bool:
        return bool(self._left or self._going)

    @property
    def needs_releaser(self) -> bool:
        """Whether one more could do something."""
        return bool(self._left) and self.releasers < RELEASES_AT_ONCE

    def begin(self) -> Transaction | None:
        """The next one to release."""
        if not self._left:
            return None
        transaction = self._left.popleft()
        self._going[id(transaction)] = transaction
        return transaction

    def end(self, transaction: Transaction) -> bool:
        """The source answered; False when nobody waits for that any more."""
        return self._going.pop(id(transaction), None) is not None

    def is_waited_for(self, transaction: Transaction) -> bool:
        """Whether it is on its way back, and not called stranded yet."""
        return id(transaction) in self._going

    def give_up(self) -> list[Transaction]:
        """Those without an answer, in their order."""
        rest = [*self._going.values(), *self._left]
        self._going.clear()
        self._left.clear()
        return rest


class Intake(Flight):
    """The side of a call that faces its source."""

    def outstanding(self) -> int:
        """Transactions taken in that have no outcome yet."""
        ended = self.past.ended + sum(worker.ended for worker in self.workers)
        return self.loop.taken - ended - self.unstarted

    def receive(self, delivery: Delivery, attempt: Doing) -> None:
        """A fetch came back, with transactions, with an error, or with some of each."""
        now = self.now()  # before anything is moved: should it raise, ``reading`` still has it all
        failure: Failure | None = None
        count = len(delivery.transactions)
        self._keep(delivery, now)
        self.fetch_error = delivery.error  # one that was followed by a delivery is forgotten
        if delivery.error is not None:
            if delivery.is_defect:
                failure = Failure(Kind.REJECTED, "not_a_transaction", describe(delivery.error))
            else:
                failure = fetch_failure(delivery.error)
            self.loop.fetch_failed(failure, now, self.plan.dice())
            delivery.error = None  # its traceback holds on to whoever has the delivery
        if count > delivery.requested:
            logger.warning(
                "the source of %s delivered %d transactions where %d were asked for",
                self.plan.task,
                count,
                delivery.requested,
            )
        if self.sink is not None:
            self._tell_fetched(delivery, count, attempt, failure, now)

    def _keep(self, delivery: Delivery, now: float) -> None:
        """Move what was delivered to where it belongs. Nothing here calls code of the user's."""
        brought, delivery.transactions = delivery.transactions, []
        self.reading = None
        self.delivered += len(brought)
        if self.is_aborted:  # no hook is called any more
            self.loop.fetching = False
            self.returning.extend(brought)
        elif brought or delivery.error is None:
            accepted = self.loop.delivered(len(brought), now)
            self._take_in_all(brought[:accepted])
            self.returning.extend(brought[accepted:])

    def _tell_fetched(
        self, delivery: Delivery, count: int, attempt: Doing, failure: Failure | None, now: float
    ) -> None:
        self._tell_fetch_ended(attempt, delivery.requested, count, failure)
        resume_at = self.loop.resume_at
        if count == 0 and failure is None and resume_at is not None:
            self.emit("queue.empty", empties=self.loop.empties, delay=resume_at - now)

    def _take_in_all(self, transactions: list[Transaction]) -> None:
        live, behind, make_ready = self.live, self.behind, self.ready.append
        for transaction in transactions:
            key = transaction.transaction_id
            if key in live or key in behind:
                self.take_in(transaction)
            else:  # ids are added only here and in ``pass_on``, under the lock
                live[key] = transaction
                make_ready(transaction)

    def take_in(self, transaction: Transaction) -> None:
        """Let it wait behind the one with the same id.

        A finishing worker pops its id without the lock. So after queueing behind an id we look
        again: if it has gone meanwhile, nobody else would let ours go.
        """
        key = transaction.transaction_id
        self.behind.setdefault(key, deque()).append(transaction)
        self.pass_on(key)

    def pass_on(self, key: str) -> None:
        """Let the next one with this id go, if nobody has it."""
        waiting = self.behind.get(key)
        if key in self.live or not waiting:
            return
        transaction = waiting[0]
        self.live[key] = transaction
        waiting.popleft()
        if not waiting:
            del self.behind[key]
        self.ready.append(transaction)

    def sweep(self) -> None:
        """Move everything that has not begun to ``returning``.

        Workers take from ``ready`` and let ids go without the lock, so each is popped one by one.
        """
        while self.ready:
            try:
                transaction = self.ready.popleft()
            except IndexError:  # a worker was faster
                break
            self.live.pop(transaction.transaction_id, None)
            self.unstarted += 1
            self.returning.append(transaction)
        for key in list(self.behind):
            waiting = self.behind.pop(key)
            self.unstarted += len(waiting)
            self.returning.extend(waiting)

    def take_returning(self) -> Returning:
        """All that is to be handed back, with what a hanging fetch brought and nobody used."""
        for delivery in (self.late, self.reading):  # of a fetch that came back, one that hangs
            if delivery is not None:
                self.return_unused(delivery.drain())
        self.return_unused(self.reader.take_ahead())
        self.late = None
        left: list[Transaction] = []
        while self.returning:  # a worker may append
            left.append(self.returning.popleft())
        return Returning(left)

    def releasing(self) -> Hook | None:
        """How the source takes transactions back, if it does."""
        return None if self.settlement is None else self.settlement.verbs.get(Verb.RELEASE)

    def release_ended(
        self, transaction: Transaction, problem: BaseException | None, attempts: int, since: float
    ) -> None:
        """A transaction was handed back, or could not be."""
        failure = None
        if problem is None:
            self.released += 1
        else:
            failure = settlement_failure(problem)
            self.strand((transaction,))
            self.settle_failed(transaction, Verb.RELEASE, describe(problem))
        self.tell_settled(transaction, Verb.RELEASE, None, attempts, since, failure)

    def return_unused(self, transactions: list[Transaction]) -> None:
        """What a fetch brought and nobody took in goes back."""
        self.delivered += len(transactions)
        self.returning.extend(transactions)

    # -- the account -------------------------------------------------------------------------

    def account(self) -> None:
        """The end of a call: all that was delivered has an outcome, is released or is stranded.

        What is left is a defect of ours. It is named as stranded and told, and fails nobody.
        """
        if self.is_accounted:
            return
        self.sweep()  # a worker may have put one back that it could not begin
        self.strand(self.take_returning().give_up())
        lost = [self.live.pop(key) for key in list(self.live)]
        self.stranded.extend(transaction.transaction_id for transaction in lost)
        total = self.tally()
        outcomes = total.succeeded + total.failed + total.timed_out + total.parked
        missing = self.delivered - outcomes - self.released - len(self.stranded)
        self.is_accounted = True
        for transaction in lost:
            self.emit("transaction.stranded", transaction_id=transaction.transaction_id)
        if lost or missing:
            logger.critical(
                "the account of %s does not balance, which is a defect of the engine: of %d "
                "delivered transactions, %d have an outcome, %d were released and %d are stranded, "
                "%d of which nobody held: %s; please report it",
                self.plan.task,
                self.delivered,
                outcomes,
                self.released,
                len(self.stranded),
                len(lost),
                ", ".join(transaction.transaction_id for transaction in lost[:20]),
            )

    def close_failed(self, error: BaseException) -> None:
        """A generator of the source raised when it was told that its rest is not wanted."""
        logger.error("the generator that a fetch of %s answered with could not be closed: %s",
                     self.plan.task, describe(error))  # fmt: skip

    def fetch_hangs(self, attempt: Doing) -> None:
        """The supervisor gave up on a fetch: a failed attempt, and no second call beside it."""
        self.stuck = attempt
        self.fetch_timed_out(attempt)

    def fetch_timed_out(self, attempt: Doing) -> None:
        """An attempt to fetch ran out of its time, be it in a call or behind one that hangs."""
        failure = Failure(Kind.TIMEOUT, "fetch_timeout", "the fetch ran out of time")
        self.fetch_error = None
        requested = self.plan.loop.size if self.reading is None else self.reading.requested
        self._tell_fetch_ended(attempt, requested, 0, failure)
        self.loop.fetch_failed(failure, self.now(), self.plan.dice())

    def _tell_fetch_ended(
        self, attempt: Doing, requested: int, delivered: int, failure: Failure | None
    ) -> None:
        """Once per attempt: one that was given up has been told, whatever it brings later."""
        if self.sink is None or attempt is self.told_fetch:
            return
        self.told_fetch = attempt
        self.emit(
            "fetch.ended",
            attempt=attempt,
            requested=requested,
            delivered=delivered,
            failure=failure,
            began_at=attempt.began_at,
        )

    # -- stopping ----------------------------------------------------------------------------

    def begin_stop(self, reason: StopReason) -> None:
        """Take in nothing more; let what runs finish within the grace."""
        self.loop.stop(reason)
        self.stop_reading()
        if self.plan.loop.returns:
            self.sweep()
        if self.grace_at == NEVER:
            self.grace_at = self.instant() + self.plan.bounds.stop_grace
            self.emit("stop.asked", grace=self.plan.bounds.stop_grace)

    def stop_reading(self) -> None:
        """A producer's input stays in the hands of who gave it, from here on."""
        if self.plan.stop_reading is not None:
            self.plan.stop_reading()

    def wake_source(self) -> None:
        """Once a stop has begun: a fetch that waits for work need not wait any longer."""
        if self.plan.wake is None or self.is_source_woken or self.grace_at == NEVER:
            return
        self.is_source_woken = True
        try:
            self.plan.wake()
        except Exception:
            logger.exception("the connector of %s could not be woken", self.plan.task)

    def interrupt(self, error: BaseException) -> None:
        """Ctrl-C, SystemExit or a defect of ours: stop, and raise it at the end.

        A second Ctrl-C does not wait for the grace; hooks that exit alike exit together.
        """
        if self.outbreak is None:
            self.outbreak = error
        elif isinstance(error, KeyboardInterrupt) and error is not self.outbreak:
            self.stops += 2
        self.loop.stop(StopReason.INTERRUPTED)

    def must_abort(self, now: float) -> StopReason | None:
        """Why everything must end now, if it must."""
        if now >= self.deadline_at:
            return StopReason.TIMEOUT
        if now >= self.grace_at or self.stops > 1:
            return self.loop.reason or StopReason.STOPPED
        return None

    def must_decide(self) -> bool:
        """Whether a stop or a deadline waits for the supervisor: nothing may begin before."""
        if self.is_aborted or self.is_finished:
            return False
        if self.stops and (self.stops > 1 or self.grace_at == NEVER):
            return True
        return self.now() >= min(self.deadline_at, self.grace_at)

    def begin_abort(self, reason: StopReason) -> None:
        """From here on no hook is called any more."""
        self.is_aborted = True
        self.loop.reason = reason
        self.stop_reading()
        self.sweep()
