"""The workers of the thread driver: pull a transaction, drive its lifecycle, plan when idle."""

from __future__ import annotations

from types import CoroutineType
from typing import Any

from ergon_framework.core.lifecycle import (
    BEGAN,
    RETURNED,
    STOPPED,
    SUCCEEDED,
    WOKE,
    Call,
    End,
    Event,
    Expired,
    Scope,
    Sleep,
    Verb,
    deadline,
)
from ergon_framework.core.loop import Finish
from ergon_framework.engine.classify import never_awaited, not_told
from ergon_framework.engine.crew import Job
from ergon_framework.engine.decisions import (
    arguments,
    decide,
    set_current,
    tell_began,
    told,
    verb_for,
)
from ergon_framework.engine.flight import NEVER
from ergon_framework.engine.plan import ON_SUCCESS, StepPlan
from ergon_framework.engine.run import BACKOFF, Doing, Run, Settling, Worker
from ergon_framework.engine.thread_source import ThreadSource
from ergon_framework.ports.context import Attempt
from ergon_framework.ports.transaction import Transaction


class ThreadWorkers(ThreadSource):
    """The half of the thread driver that runs in worker threads."""

    def _start(self, worker: Worker, job: Job | None) -> None:
        name = f"ergon-{self.plan.task}-{len(self.workers)}"
        self.clock.spawn(name, lambda: self._body(worker, job))

    # -- a worker ----------------------------------------------------------------------------

    def _body(self, worker: Worker, job: Job | None) -> None:
        outbreak: BaseException | None = None
        try:
            self.is_rousing = False
            if job is None or job(worker):
                self._work(worker)
        except BaseException as error:
            outbreak = error
        self._left(worker, outbreak)

    def _work(self, worker: Worker) -> None:
        ready = self.ready
        while True:
            if self.stops and self.grace_at == NEVER:
                # Whoever asked could not have the lock, and its messenger may be late.
                with self.lock:
                    self.hear_stop()
            if (self.is_gated or not ready) and not self._idle(worker):
                return
            # First, for what is taken has to begin at once: nobody may overtake it.
            if (self.is_continuous or len(ready) > 1) and not self.is_rousing:
                self._rouse()
            try:
                transaction = ready.popleft()
            except IndexError:  # another worker was faster
                continue
            if not self._live(worker, transaction):
                return

    def _idle(self, worker: Worker) -> bool:
        """Nothing can be begun now: do what the loop plans. False when nothing is left to do."""
        worker.attempt = None
        while True:
            with self.lock:
                action = self._plan()
                while action is None:
                    if self.ready and self.may_start():
                        self._hand_over()
                        return True
                    self._rest()
                    action = self._plan()
                if isinstance(action, Finish):
                    return False
            try:
                if not self._fetch(worker, action.at_most):
                    return False
            except BaseException:
                self.loop.fetching = False  # or the loop would wait for it
                raise

    def _rest(self) -> None:
        self.idle += 1
        try:
            self.work.wait(None if self.ready else self.resume_at)
        finally:
            self._rested()

    # -- one lifecycle -----------------------------------------------------------------------

    def _live(self, worker: Worker, transaction: Transaction) -> bool:
        """Drive one transaction to its end. False when the supervisor took the run away from us.

        As long as every hook returns, the machine has nothing to decide: this is its happy path,
        written out. The first other event enters it.
        """
        if not self.is_plain:
            return self._live_watched(worker, transaction)
        run = self._begin(worker, transaction)
        step = self.on_process
        current: tuple[Any, ...] = (self.call, run, step.phase, 0, run.ticket)
        event = self._call(worker, run, step, run, current, transaction)
        if event is RETURNED:
            run.step = ON_SUCCESS
            step = self.on_success
            if step.hook is not None:
                run.deadline_at = None  # process's own must not be held against this step
                run.ticket.append(None)
                current = (self.call, run, step.phase, 0, run.ticket)
                event = self._call(worker, run, step, run, current, transaction, run.result)
            if event is RETURNED:
                run.end = SUCCEEDED
                if self.is_quiet:
                    return self._account_for(worker, run, SUCCEEDED)
                return self._finish(worker, run, SUCCEEDED)
        return event is not None and self._drive(worker, run, event)

    def _live_watched(self, worker: Worker, transaction: Transaction) -> bool:
        """The same with an object per attempt, which a sink hangs its notes on."""
        run = self._begin(worker, transaction)
        tell_began(self, run)
        if not self.plan.compiled:
            return self._drive(worker, run, BEGAN)
        event = self._attempt(worker, run, self.on_process)
        if event is RETURNED:
            run.step, run.step_began_at = ON_SUCCESS, run.seen_at
            event = self._attempt(worker, run, self.on_success)
            if event is RETURNED:
                run.end = SUCCEEDED
                return self._finish(worker, run, SUCCEEDED)
        return event is not None and self._drive(worker, run, event)

    def _drive(self, worker: Worker, run: Run, event: Event) -> bool:
        """Do what the machine says until the end; starts at any event."""
        next_event: Event | None = event
        while next_event is not None:
            action = decide(self, run, next_event)
            if isinstance(action, Call):
                next_event = self._attempt(worker, run, self.steps[action.step])
            elif isinstance(action, Sleep):
                next_event = self._sleep(worker, run, action.seconds)
            else:
                return self._finish(worker, run, action)
        return False

    def _attempt(self, worker: Worker, run: Run, step: StepPlan) -> Event | None:
        """One call of a hook, off the happy path."""
        if step.hook is None:
            return RETURNED
        attempt = Attempt(self.call, run, step.phase, run.attempt)
        given = arguments(run, step.step)
        return self._call(worker, run, step, attempt, attempt, *given)

    def _call(
        self, worker: Worker, run: Run, step: StepPlan, doing: Doing, current: Any, *given: Any
    ) -> Event | None:
        """Call a hook. None when the supervisor took the run away meanwhile."""
        if self.is_timed and not self.arm(doing, run, step.timeout):
            return Expired(doing.scope) if self._owns(doing) else None
        worker.attempt = doing
        if doing.deadline_at is not None and doing.deadline_at < self.next_check:
            self._watch_for(doing.deadline_at)
        if self.is_aborted:
            return STOPPED if doing.claim() else None
        context = self.context.copy()
        if self.sink is not None:
            self.enter(doing, context)
        try:
            context.run(set_current, current)
            result = context.run(step.hook, *given)
        except BaseException as error:
            return self._failed(doing, step.step, error)
        if type(result) is CoroutineType:
            return self._failed(doing, step.step, never_awaited(result, step.phase))
        return self._returned(doing, run, step.step, result)

    def _sleep(self, worker: Worker, run: Run, seconds: float) -> Event | None:
        """Wait before the next attempt; a wait that outlives the grace of a stop ends at once."""
        nap = Attempt(self.call, run, BACKOFF, run.attempt)
        worker.attempt = nap
        wake_at = self.now() + seconds
        lifecycle_at = deadline(self.rule, run)
        until = wake_at if lifecycle_at is None else min(wake_at, lifecycle_at)
        with self.lock:
            while self.now() < until <= self.grace_at and not self.is_aborted:
                self.naps.wait(until)
        if not nap.claim():
            return None
        if self.is_aborted or until > self.grace_at:
            return STOPPED
        return WOKE if until == wake_at and until != lifecycle_at else Expired(Scope.LIFECYCLE)

    def _finish(self, worker: Worker, run: Run, end: End) -> bool:
        verb = None if self.settlement is None else verb_for(self, end)
        if verb is not None and not self._settle(worker, run, verb):
            return False
        return self._close(worker, run)

    def _settle(self, worker: Worker, run: Run, verb: Verb) -> bool:
        """Tell the source. False when it did not answer in time and another worker went on."""
        settlement = self.settlement
        if settlement is None:
            return True
        attempt: Settling | None = self._settling(run, verb, settlement.timeout)
        while attempt is not None:
            self._publish(worker, attempt)
            if self._is_over(run):
                return False
            problem: BaseException | None = None
            context = self.context.copy()
            self.enter(attempt, context)
            try:
                answer = context.run(settlement.verbs[verb], *told(run, verb))
                problem = not_told(answer, verb.value)
            except BaseException as error:
                problem = error
            if not self._owns(attempt):
                return False
            nap = self._settled(worker, attempt, problem)
            problem = None  # its traceback holds on to this frame
            if nap is None:
                return True
            if not self._wait_to_settle(nap):
                return False
            attempt = self._next_settling(nap, settlement.timeout)
        return True

    def _wait_to_settle(self, nap: Settling) -> bool:
        """Wait before the source is told again. False when the supervisor took the run away."""
        with self.lock:
            while self._waits_to_settle(nap):
                self.naps.wait(nap.wake_at)
        return nap.claim()
