"""Deadlines of attempts, and the calls that were given up on because they did not end in time."""

from __future__ import annotations

import math
from collections.abc import Callable

from ergon_framework.core.transaction_lifecycle import TimeoutScope, deadline, first_to_expire
from ergon_framework.engine.instrumentation import Instrumentation
from ergon_framework.engine.plan import EnginePlan
from ergon_framework.engine.run import EngineWorker, InProgress, LifecycleRun

NEVER = math.inf
MIN_ABANDONED_LIMIT = 4
"""Hung attempts that a call tolerates at any concurrency: with one worker, a single one must not
stop the call.
"""


class AttemptDeadlines:
    """The deadlines of all attempts, and the number of abandoned calls that have not returned.

    The supervisor calls it with the engine's lock held; workers call ``arm`` without the lock.
    """

    def __init__(
        self,
        plan: EnginePlan,
        workers: list[EngineWorker],
        now: Callable[[], float],
        instrumentation: Instrumentation,
    ) -> None:
        self.plan = plan
        self.rule = plan.lifecycle
        self.lifecycle_timeout = plan.lifecycle.timeout
        self.workers = workers  # the call's own list
        self.now = now
        self.instrumentation = instrumentation
        self.next_check = NEVER  # when the nearest deadline passes
        self.abandoned = 0  # calls given up on that have not come back
        self.abandoned_ever = 0
        self.is_gated = False  # so many were given up on that fewer workers may go on

    # -- deadlines ---------------------------------------------------------------------------

    def arm(self, attempt: InProgress, run: LifecycleRun, timeout: float | None) -> bool:
        """Set the deadline of an attempt. False if the lifecycle's deadline has passed already."""
        # On the happy path the run is its own attempt, and its instant has just been read: that
        # saves a call of the clock.
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
        attempt.deadline_at = lifecycle_at if attempt.scope is TimeoutScope.LIFECYCLE else step_at
        return attempt.deadline_at is None or now < attempt.deadline_at

    def overdue(self, now: float) -> list[tuple[EngineWorker, InProgress]]:
        """Attempts whose deadline has passed; also finds out when to look next.

        A worker publishes its attempt and then compares with ``next_check``, without the lock. So
        that is reset before the scan: either the scan sees the attempt or the worker sees NEVER.
        """
        self.next_check = NEVER
        due: list[tuple[EngineWorker, InProgress]] = []
        nearest = NEVER
        for worker in self.workers:
            attempt = worker.attempt
            if attempt is None or attempt.deadline_at is None or not attempt.ticket:
                continue
            if attempt.deadline_at <= now:
                due.append((worker, attempt))
            else:
                nearest = min(nearest, attempt.deadline_at)
        # A worker may have set an earlier one during the scan.
        self.next_check = min(self.next_check, nearest)
        return due

    def claim_overdue(self, attempt: InProgress, now: float) -> bool:
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

    # -- abandoned calls ---------------------------------------------------------------------

    def allowed(self) -> int:
        """How many workers may drive lifecycles, given how many calls have not returned."""
        limit = self.plan.loop.concurrency
        if self.plan.bounds.hold_abandoned:
            return max(0, limit - self.abandoned)
        cap = self.plan.bounds.max_abandoned or max(limit, MIN_ABANDONED_LIMIT)
        return 0 if self.abandoned >= cap else limit

    def give_up_on(self, attempt: InProgress) -> None:
        """The supervisor claimed this attempt: the call is abandoned, and counted as such."""
        if isinstance(attempt, LifecycleRun):
            attempt.lost_in = attempt.phase
        for call in () if attempt.run is None else attempt.run.inner:
            call.request_stop()  # a thread cannot be stopped, but what it is calling can:
            call.request_stop()  # at once, since nobody waits for it any more
        self.abandoned += 1
        self.abandoned_ever += 1
        was_gated, self.is_gated = self.is_gated, self.allowed() < self.plan.loop.concurrency
        self.instrumentation.abandoned(attempt, self.abandoned)
        if self.is_gated and not was_gated and self.allowed() == 0:
            self.instrumentation.stalled(self.abandoned)

    def came_back(self, attempt: InProgress) -> None:
        """An abandoned call returned; its result is dropped."""
        self.abandoned -= 1
        self.is_gated = self.allowed() < self.plan.loop.concurrency
        self.instrumentation.came_back(attempt)
