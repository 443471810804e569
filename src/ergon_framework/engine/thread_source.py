"""How the thread driver talks to the source: one fetch at a time, and handing back at the end."""

from __future__ import annotations

import threading
from collections import deque

from ergon_framework.core.lifecycle import Scope
from ergon_framework.core.settlement import Verb
from ergon_framework.engine.crew import Crew
from ergon_framework.engine.delivery import Delivery
from ergon_framework.engine.flight import FETCH, RELEASE_GRACE
from ergon_framework.engine.plan import EnginePlan
from ergon_framework.engine.run import Worker
from ergon_framework.ports.clock import Clock, Signal
from ergon_framework.ports.context import Attempt
from ergon_framework.ports.sink import Sink
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
            return self._fetch_again()
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

    def _fetch_again(self) -> bool:
        """The previous fetch still hangs: wait for that one, since two must not overlap."""
        timeout = self.plan.bounds.fetch_timeout
        with self.lock:
            until = self.now() + (timeout or 0.0)
            while self.late is None and not self.is_aborted and self.now() < until:
                self.fetched.wait(until)
            self._take_late()
        return True

    def _hand_back_later(self) -> None:
        self._hand_back()

    def _hand_back(self) -> None:
        """Return what was not begun, without waiting for a source that hangs."""
        left = self.take_returning()
        try:
            verbs = self.settlement.verbs if self.settlement else {}
            if (left and Verb.RELEASE in verbs) or self.reader.is_open:
                under_way = [True]
                self.clock.spawn("ergon-release", lambda: self._let_go(left, under_way))
                patience = self.now() + RELEASE_GRACE
                while under_way and self.now() < patience:
                    self.watch.wait(patience)
        except BaseException as error:  # Ctrl-C, or no thread: what is left is still named
            self.interrupt(error)
        finally:
            self.strand(left)
            left.clear()

    def _let_go(self, left: deque[Transaction], under_way: list[bool]) -> None:
        self._release(left)
        try:
            self.context.copy().run(self.reader.close)
        except BaseException as error:
            self.close_failed(error)
        with self.lock:
            under_way.clear()
            self.watch.notify()

    def _release(self, left: deque[Transaction]) -> None:
        release = self.settlement.verbs.get(Verb.RELEASE) if self.settlement else None
        while left and release is not None:
            transaction = left[0]
            problem: BaseException | None = None
            try:
                self.context.copy().run(release, transaction)
            except BaseException as error:
                problem = error
            with self.lock:
                if not left:  # the supervisor lost patience and called them stranded
                    return
                left.popleft()
                if problem is None:
                    self.released += 1
                else:
                    self.strand((transaction,))
                    self.settle_failed(transaction, Verb.RELEASE, problem)
