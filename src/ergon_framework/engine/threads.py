"""The thread driver. The calling thread supervises; long-lived daemonic workers do the rest.

A worker pulls transactions from the shared batch and drives each lifecycle inline. One that finds
nothing asks the loop machine and does what it plans, a fetch included, so that a busy call wakes no
other thread. The supervisor is the watchdog: it sleeps until the nearest deadline, claims the
attempts that are overdue and hires a worker in the place of each that hangs.
"""

from __future__ import annotations

import logging

from ergon_framework.core.loop import StopReason
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.engine.decisions import cut_off
from ergon_framework.engine.flight import NEVER
from ergon_framework.engine.outcome import conclude
from ergon_framework.engine.plan import EnginePlan
from ergon_framework.engine.report import Report
from ergon_framework.engine.run import BACKOFF
from ergon_framework.engine.thread_workers import ThreadWorkers
from ergon_framework.errors import describe
from ergon_framework.ports.clock import Clock
from ergon_framework.ports.notice import Sink

logger = logging.getLogger("ergon.engine")


class ThreadEngine(ThreadWorkers):
    """Drives one call with threads."""

    def __init__(
        self, plan: EnginePlan, *, clock: Clock = SYSTEM_CLOCK, sink: Sink | None = None
    ) -> None:
        super().__init__(plan, clock, sink)

    def run(self) -> Report:
        """Drive the call to its end. Raises what RFC-004 and RFC-005 say a call ends with."""
        self.clock.join_time()
        try:
            self.emit("call.began")
            with self.lock:
                # Ctrl-C may strike anywhere. Whatever it cuts short, the account is made.
                parts = (
                    self.hear_stop,
                    self._supervise,
                    self.gather,
                    self._hand_back,
                    self.account,
                )
                for part in parts:
                    try:
                        part()
                    except BaseException as error:
                        self.interrupt(error)
                self.account()
                report = self.report()  # under the lock: a worker that leaves moves its counts
            return conclude(self, report)
        finally:
            self.clock.leave_time()

    def request_stop(self) -> None:
        """Ask for a graceful stop; a second time, for an immediate one. Safe in a signal handler.

        A handler may interrupt the very thread that holds the lock, so it is never waited for here.
        """
        self.stops += 1
        if self.lock.acquire(blocking=False):
            try:
                self._stop()
            finally:
                self.lock.release()
        else:
            try:
                self.clock.spawn("ergon-stop", self._stop_later)
            except Exception as error:  # the supervisor sees the request when it looks next
                logger.warning("no thread could be started for a stop: %s", describe(error))

    def _stop_later(self) -> None:
        with self.lock:
            self._stop()

    # -- the supervisor ----------------------------------------------------------------------

    def _supervise(self) -> None:
        troubles = 0
        while not self.is_finished:
            try:
                self._look_after(self.now())
                if not self.workers and not self.is_finished:
                    self._hire(None)
                if not self.is_finished:
                    self.watch.wait(self.next_alarm())
                troubles = 0
            except BaseException as error:
                troubles += 1
                self._in_trouble(error, troubles)

    def _look_after(self, now: float) -> None:
        if self.stops and self.grace_at == NEVER:
            self._stop()
        self.wake_source()
        reason = self.must_abort(now)
        if reason is not None:
            self._abort(reason)
            return
        for worker, attempt in self.overdue(now):
            if self.claim_overdue(attempt, now):
                self._replace(worker, attempt)

    def _abort(self, reason: StopReason) -> None:
        """End everything now. Nothing that hangs is waited for."""
        self.begin_abort(reason)
        for worker in list(self.workers):
            attempt = worker.attempt
            if attempt is not None and attempt.claim():
                try:
                    if attempt.phase != BACKOFF:
                        self.give_up_on(worker, attempt)
                    else:
                        self.dismiss(worker)
                finally:
                    cut_off(self, attempt)
        self.work.notify_all()
        self.naps.notify_all()
        self.fetched.notify_all()
        # Those that were between two calls see the flag at once and leave.
        patience = self.now() + self.plan.bounds.cancel_grace
        while self.workers and self.now() < patience:
            self.watch.wait(patience)
        self.is_finished = True
