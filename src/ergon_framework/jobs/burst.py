"""When a worker that should only clear what is due may leave.

Nothing due is left, nothing is in its hands, and no job is held by a worker that may be dead: each
lease of another worker was seen to be renewed, has come to its end, or was taken while we looked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import ErgonError, StoreError
from ergon_framework.jobs.keeper import Keeper
from ergon_framework.jobs.missing import Store
from ergon_framework.jobs.pool import Pool
from ergon_framework.ports.jobstore import Search

HOPELESS_STARTS = 4
"""Failed starts in a row after which a burst no longer waits for an executor."""
LOOK_AGAIN = 0.2
LINGER = 1.0
"""Seconds that a burst waits for a job that is not due yet."""
ONLY_HELD = 10.0
"""Seconds after which a burst leaves when nothing but short holds comes of its jobs."""


class Burst:
    """Watches one worker; asked after every turn of its loop."""

    def __init__(
        self,
        keeper: Keeper,
        pools: Mapping[str, Pool],
        store: Store,
        queues: tuple[str, ...] | None,
        settled: Callable[[], tuple[int, int]],
    ) -> None:
        """``settled``: how many jobs were held for no longer than a burst waits, and all others."""
        self._settled = settled
        self._others = -1  # what was settled otherwise …
        self._since = 0.0  # … and no more of it since then
        self._held = 0  # how many were held until then
        self.error: ErgonError | None = None
        self._keeper = keeper
        self._pools = pools
        self._store = store
        self._queues = queues
        self._probes: int | None = None  # how many there were when we asked for one
        self._look_at = 0.0
        self._leases: dict[str, float] = {}
        self._is_nothing_held = False

    def is_over(self, now: float) -> bool:
        """Whether the worker may leave; ``error`` says so when it leaves work behind."""
        if self._is_only_held(now) and self._is_idle():
            return True
        was_asked = self._probes is not None
        if was_asked and (self._keeper.probes == self._probes or now < self._look_at):
            return False  # the keeper is busy with our question, for as long as the store takes
        if not self._is_idle():
            self._probes = None
            self._is_nothing_held = False
            return False
        if self._probes is None:
            self._probes = self._keeper.probes
            self._keeper.probe()
            return False
        self._look_at = now + LOOK_AGAIN
        self._probes = None  # what is decided now rests on a fresh look
        was_nothing_held, self._is_nothing_held = self._is_nothing_held, False
        if self._keeper.is_left:
            return self._is_hopeless()
        due_at = self._keeper.due_at
        if due_at is not None and due_at <= now + LINGER:
            return False  # as good as due: a short backoff must not decide what is left behind
        if was_nothing_held:
            return True
        if not self._is_held_elsewhere():
            # What was held when we asked for work may have been rescued since: ask once more.
            self._is_nothing_held = True
            self._look_at = now
        return False

    def _is_only_held(self, now: float) -> bool:
        """Whether jobs are held again and again, for so short that they are due at once."""
        held, others = self._settled()
        if others != self._others or held == self._held:
            self._others, self._since, self._held = others, now, held
        return now - self._since >= ONLY_HELD

    def _is_idle(self) -> bool:
        keeper = self._keeper
        in_hand = any(pool.in_hand for pool in self._pools.values())
        return not in_hand and keeper.is_settled

    def _is_hopeless(self) -> bool:
        """Whether what is left is for executors that do not start: all others have free slots."""
        down = {
            name: pool
            for name, pool in self._pools.items()
            if pool.gate.failures >= HOPELESS_STARTS and not pool.is_up
        }
        others = [pool for name, pool in self._pools.items() if name not in down]
        if not down or not all(pool.is_free for pool in others):
            return False
        name, pool = next(iter(down.items()))
        self.error = ErgonError(
            f"jobs are left, but executor {name!r} does not start: {pool.gate.reason}",
            remedy="run its command by hand; the jobs wait and lost no attempt",
        )
        return True

    def _is_held_elsewhere(self) -> bool:
        search = Search(statuses=(JobStatus.ACTIVE,))
        try:
            leases = {
                job.id: job.lease_expires_at or 0.0
                for job in self._store.search(search)
                if self._queues is None or job.queue in self._queues
            }
        except StoreError:  # it is away: the keeper waits for it, and so do we
            return True
        before, self._leases = (
            self._leases,
            {name: self._leases.get(name, at) for name, at in leases.items()},
        )
        return any(before.get(name, at) == at for name, at in leases.items())
