"""How the thread driver talks to the source: one fetch at a time, and handing back at the end."""

from __future__ import annotations

import threading

from ergon_framework.core.lifecycle import Scope, Verb
from ergon_framework.engine.classify import not_told
from ergon_framework.engine.crew import Crew
from ergon_framework.engine.delivery import Delivery
from ergon_framework.engine.intake import RELEASE_STEP, RELEASES_AT_ONCE, Returning
from ergon_framework.engine.plan import EnginePlan, Hook
from ergon_framework.engine.run import FETCH, Worker
from ergon_framework.ports.clock import Clock, Signal
from ergon_framework.ports.context import Attempt
from ergon_framework.ports.notice import Sink
from ergon_framework.ports.transaction import Transaction


class ThreadSource(Crew):
    """Fetching and handing back with threads, and the signals all threads of a call share."""

    def __init__(self, plan: EnginePlan, clock: Clock, sink: Sink | None) -> None:
        super().__init__(plan, clock.now, sink)
        self.clock = clock
        self.lock: threading.Lock = threading.Lock()
        self.work: Signal = clock.signal(self.lock)
        self.naps: Signal = clock.signal(self.lock)
        self.watch: Signal = clock.signal(self.lock)
        self.fetched: Signal = clock.signal(self.lock)

    def _publish(self, worker: Worker, attempt: Attempt) -> None:
        worker.attempt = attempt
        if attempt.deadline_at is not None and attempt.deadline_at < self.next_check:
            self._watch_for(attempt.deadline_at)

    def _watch_for(self, deadline_at: float) -> None:
        """The supervisor must wake earlier than it intends to."""
        with self.lock:
            self.next_check = min(self.next_check, deadline_at)
            self.watch.notify()

    def _fetch(self, worker: Worker, at_most: int) -> bool:
        if self.stuck is not None:
            return self._fetch_again(at_most)
        attempt = Attempt(self.call, None, FETCH, self.loop.fetch_attempt)
        attempt.began_at = self.now()
        timeout = self.plan.bounds.fetch_timeout
        if timeout is not None:
            attempt.scope, attempt.deadline_at = Scope.STEP, attempt.began_at + timeout
        self._publish(worker, attempt)
        if self.is_aborted:
            attempt.claim()
            return True
        self.emit("fetch.began", attempt=attempt, requested=at_most)
        self.reading = delivery = Delivery(at_most)
        context = self.context.copy()
        self.enter(attempt, context)
        try:
            context.run(self.reader.read, at_most, delivery)
        except BaseException as error:
            delivery.error = error
        if not attempt.claim():
            self._fetched_late(attempt, delivery)
            return False
        worker.attempt = None
        with self.lock:
            self._receive(delivery, attempt)
        return True

    def _fetch_again(self, at_most: int) -> bool:
        """The previous fetch still hangs: wait for that one, since two must not overlap."""
        timeout = self.plan.bounds.fetch_timeout
        with self.lock:
            attempt = self._waiting_attempt(at_most)
            until = self.now() + (timeout or 0.0)
            while self.late is None and not self.is_aborted and self.now() < until:
                self.fetched.wait(until)
            self._take_late(attempt)
        return True

    def _hand_back_later(self) -> None:
        self._hand_back()

    def _hand_back(self) -> None:
        """Return what was not begun, without waiting for a source that hangs."""
        left = self.take_returning()
        try:
            patience = self.now() + self.plan.bounds.release_grace
            release = self.releasing()
            if release is not None:
                self._release_all(left, release, patience)
            if self.reader.is_open:
                self._close_reader(patience)
        except BaseException as error:  # Ctrl-C, or no thread: what is left is still named
            self.interrupt(error)
        finally:
            self.strand(left.give_up())

    def _release_all(self, left: Returning, release: Hook, patience: float) -> None:
        while left and self.now() < patience:
            if left.needs_releaser:
                self._add_releaser(left, release)
            step = self.now() + RELEASE_STEP
            until = min(step, patience) if left.needs_releaser else patience
            while left and self.now() < until:
                self.watch.wait(until)

    def _add_releaser(self, left: Returning, release: Hook) -> None:
        try:
            self.clock.spawn("ergon-release", lambda: self._release(left, release))
        except Exception:
            if not left.releasers:
                raise
            left.releasers = RELEASES_AT_ONCE  # no thread can be started: those there must do
        left.releasers += 1

    def _release(self, left: Returning, release: Hook) -> None:
        while True:
            with self.lock:
                transaction = left.begin()
            if transaction is None:
                return
            if not self._release_one(left, release, transaction):
                return  # the supervisor lost patience and called it stranded
            with self.lock:
                self.watch.notify()

    def _release_one(self, left: Returning, release: Hook, transaction: Transaction) -> bool:
        """Hand one back, several times if need be. False when nobody waits for it any more."""
        number, since, channel = 0, self.instant(), self.channel_losses
        while True:
            problem: BaseException | None = None
            try:
                answer = self.context.copy().run(release, transaction)
                problem = not_told(answer, Verb.RELEASE.value)
            except BaseException as error:
                problem = error
            with self.lock:
                again_at = None
                if problem is not None and left.is_waited_for(transaction):
                    again_at = self._release_again(transaction, number, since, channel, problem)
                if again_at is None:
                    is_ours = left.end(transaction)
                    if is_ours:
                        self.release_ended(transaction, problem, number + 1, since)
                    problem = None  # its traceback holds on to this frame
                    return is_ours
                while self.now() < again_at and left.is_waited_for(transaction):
                    self.naps.wait(again_at)
                if not left.is_waited_for(transaction):
                    return False
                number += 1

    def _close_reader(self, patience: float) -> None:
        under_way = [True]

        def close() -> None:
            try:
                self.context.copy().run(self.reader.close)
            except BaseException as error:
                self.close_failed(error)
            with self.lock:
                under_way.clear()
                self.watch.notify()

        self.clock.spawn("ergon-close", close)
        while under_way and self.now() < patience:
            self.watch.wait(patience)
