"""Taking transactions in and letting them go: what is ready, what waits, what goes back."""

from __future__ import annotations

import logging
from collections import deque

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.loop import StopReason
from ergon_framework.engine.classify import fetch_failure
from ergon_framework.engine.delivery import Delivery
from ergon_framework.engine.flight import NEVER, Flight
from ergon_framework.engine.run import Doing
from ergon_framework.errors import describe
from ergon_framework.ports.transaction import Transaction

logger = logging.getLogger("ergon.engine")


class Intake(Flight):
    """The side of a call that faces its source."""

    def outstanding(self) -> int:
        """Transactions taken in that have no outcome yet."""
        ended = self.past.ended + sum(worker.ended for worker in self.workers)
        return self.loop.taken - ended - self.unstarted

    def receive(self, delivery: Delivery, attempt: Doing) -> None:
        """A fetch came back, with transactions, with an error, or with some of each."""
        now = self.now()
        self.reading = None
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
        """Move everything that has not begun to ``returning``.

        Workers take from ``ready`` and let ids go without the lock, so each is popped one by one.
        """
        unstarted: list[Transaction] = []
        while self.ready:
            try:
                unstarted.append(self.ready.popleft())
            except IndexError:  # a worker was faster
                break
        for waiting in list(self.held.values()):
            unstarted.extend(waiting)
            waiting.clear()
        self.returning.extend(unstarted)
        self.unstarted += len(unstarted)

    def take_returning(self) -> deque[Transaction]:
        """All that is to be handed back, with what a hanging fetch brought and nobody used."""
        left = deque(self.returning)
        self.returning = []
        for delivery in (self.late, self.reading):  # of a fetch that came back, one that hangs
            if delivery is not None:
                left.extend(delivery.drain())
        left.extend(self.reader.take_ahead())
        self.late = None
        return left

    def close_failed(self, error: BaseException) -> None:
        """A generator of the source raised when it was told that its rest is not wanted."""
        logger.error("the generator that a fetch of %s answered with could not be closed: %s",
                     self.plan.task, describe(error))  # fmt: skip

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

    # -- stopping ----------------------------------------------------------------------------

    def begin_stop(self, reason: StopReason) -> None:
        """Take in nothing more; let what runs finish within the grace."""
        self.loop.stop(reason)
        self.stop_reading()
        if self.grace_at == NEVER:
            self.grace_at = self.now() + self.plan.bounds.stop_grace
            self.emit("stop.asked", grace=self.plan.bounds.stop_grace)
        if self.plan.loop.returns:
            self.sweep()

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
