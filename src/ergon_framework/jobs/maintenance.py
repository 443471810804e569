"""The periodic tasks of a worker: heartbeat, rescue, cron, retention, and restoring lost settings.

They run in the store thread. Each has a due time of its own, and none may outlast a lease: work
that takes long, such as writing thousands of limits, is done in slices.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ergon_framework.core.retry import Backoff
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import (
    ErgonError,
    StoreBrokenError,
    StoreError,
    StoreReadOnlyError,
    StoreSchemaError,
)
from ergon_framework.jobs.missing_executors import MissingExecutors
from ergon_framework.jobs.missing_versions import MissingVersions
from ergon_framework.jobs.rescue import Rescue, is_stall
from ergon_framework.jobs.scheduler import MAX_SLICE, CronJobs, Slice, SlicedScheduler
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.totals import delete_ended, ended_record, gone_record
from ergon_framework.ports.jobstore import FullJobStore, WorkerRecord
from ergon_framework.storage.deadlines import CALL_BUDGET
from ergon_framework.storage.urls import option_for

if TYPE_CHECKING:
    from ergon_framework.jobs.archiver import ArchiveThread  # few workers have one
    from ergon_framework.jobs.object_sweep import SweepThread  # the same


class LimitRestore:
    """Writes the queue limits of the settings again, slice by slice, after the store
    has lost them.
    """

    def __init__(self, limits: Callable[[], Iterable[str]], new_slice: Callable[[], Slice]) -> None:
        """``limits`` is a lazy iterator: taking a name from it writes that limit if it
        is missing.
        """
        self.is_under_way = False  # The next turn continues with it.
        self.lost: list[str] = []
        """Names of the limits that had to be written."""
        self._limits = limits
        self._new_slice = new_slice
        self._left: Iterator[str] | None = None

    def begin(self) -> None:
        """Start over, because the store may also have lost what was written a moment ago."""
        self.is_under_way, self._left = True, None

    def turn(self) -> bool:
        """Write limits for one slice of time. Returns whether that was the last slice."""
        # Both are set again below unless an error comes: after one, the next turn compares anew,
        # and a worker that wants to leave does not wait for it.
        left, self._left = self._left, None
        self.is_under_way = False
        left = iter(self._limits()) if left is None else left
        piece = self._new_slice()
        while piece():
            name = next(left, None)
            if name is None:
                return True
            self.lost.append(name)
        self._left, self.is_under_way = left, True
        return False

    def end(self) -> list[str]:
        """The names of all limits that were lost; each is returned once."""
        lost, self.lost = self.lost, []
        return lost


logger = logging.getLogger("ergon.jobs")

PRUNE_BATCH = 500
"""How many jobs one commit deletes."""
SCHEDULE_INTERVAL = 5.0
"""Seconds between two reads of the schedules, which clients may have changed."""
PRUNE_INTERVAL = 30.0
"""Seconds between two searches for jobs whose retention is over."""
EXPIRE_INTERVAL = 1.0
"""The least number of seconds between two searches for jobs that expire."""
PRUNE_DELAY_AFTER_JUMP = 3600.0
"""Seconds for which no job is deleted after the store's clock was set."""
MAX_UNREADABLE = 1000
"""How many unreadable rows are read and reported."""
MAINTAIN_INTERVAL = 1.0
"""Seconds between two calls of a store's own maintenance."""
FAILED_TASK_BACKOFF = Backoff(base=0.5, factor=2.0)
"""Seconds to wait before a task runs again that failed while the store took other writes."""
_STORE_WIDE_ERRORS = (StoreBrokenError, StoreReadOnlyError, StoreSchemaError)
"""Errors that concern every write, whichever task met them first."""


class ClockWatch:
    """Notices when the store's clock was set: by comparing it with one that nobody sets."""

    def __init__(
        self, store_now: Callable[[], float], now: Callable[[], float], tolerance: float
    ) -> None:
        self._store_now = store_now
        self._now = now
        self._tolerance = tolerance
        self.offset = store_now() - now()

    def has_jumped(self) -> bool:
        """Whether the clock was set, by more than the tolerance, since the last call."""
        before, self.offset = self.offset, self._store_now() - self._now()
        if abs(self.offset - before) <= self._tolerance:
            return False
        logger.warning("the store's clock jumped by %.1f s", self.offset - before)
        return True


class Maintenance:
    """The periodic tasks of a worker. They run in the store thread; each has a due time
    of its own.
    """

    def __init__(
        self,
        store: FullJobStore,
        settings: JobsSettings,
        settler: Settler,
        record: Callable[[], WorkerRecord],
        holds: Callable[[str, int], bool],
        report: Callable[[str, dict[str, Any]], None],
        schedules: CronJobs | None = None,
        prepare: Callable[[], Iterable[str]] | None = None,
        *,
        now: Callable[[], float] = SYSTEM_CLOCK.now,
        max_slice: float = MAX_SLICE,
        archive: ArchiveThread | None = None,
        sweep: SweepThread | None = None,
        serves: Callable[[str, Iterable[str]], bool] = lambda _lane, _queues: False,
    ) -> None:
        """``prepare`` writes the limits of queues that the store has lost, and names each then.

        ``serves`` tells whether this worker has the handler that a lane's jobs wait for.
        """
        self._archive = archive
        self._is_archiver = False  # as of the last heartbeat
        self._sweep = sweep
        self._is_sweeper = False  # the same
        self._store = store
        self._settings = settings
        self._record = record
        self._report = report
        self._aside: Collection[Any] = ()  # keys of unreadable rows that were reported
        self._has_twin = False  # another worker has the same name, and that was reported
        self._has_heartbeat = False  # the store has had this worker's record
        self._was_away = False  # the store, since the last heartbeat
        self._latest = -math.inf  # the latest start of any worker that this one has seen
        self._seen_at: float | None = None  # the last heartbeat of any worker but the one just told
        self._was_set = False  # the store's clock was set, and waits were not corrected since
        self._pruned_at = -math.inf  # or later than now, while nothing may be deleted
        self._now = now
        # Renewals run in the same thread: several slices must fit between two of them.
        self._slice_seconds = min(max_slice, settings.claimed_for / 10)
        self._scheduler: SlicedScheduler | None = None
        if schedules is not None:
            self._scheduler = SlicedScheduler(
                schedules, now, settings.claimed_for, self._report_lost, max_slice=max_slice
            )
        self._limit_restore = LimitRestore(prepare or tuple, self._new_slice)
        self.rescue = Rescue(store, settings, settler, holds, report, self._now)
        self.missing = MissingExecutors(store, settings, settler, self._now, report, serves)
        self._missing_versions = MissingVersions(store, self._now, report)
        self._is_stopped = False
        # Run in this order: the heartbeat finds out whether the store was emptied and then makes
        # the restore due, and the restore makes the schedules due.
        self._due: dict[Callable[[], float], float] = {
            self._heartbeat: 0.0,
            self._restore: math.inf,
        }
        self._failures: dict[Callable[[], float], int] = {}
        self.restart_all()
        # The first rescue of a worker that has just started is not put off: it finds the jobs of
        # the worker that it replaces. ``Rescue._may_live`` protects live workers.
        self._due[self._rescue] = 0.0

    def restart_all(self) -> None:
        """Make every task due at once, except rescue, because live workers first need time to renew
        their leases.
        """
        self.run_soon()
        self._due[self._rescue] = self.rescue.after_outage()

    def after_clock_jump(self) -> None:
        """Restart all tasks, and delete nothing for a while. By a clock that was set forward by
        mistake, everything that is kept looks old.
        """
        self._was_set = True
        self.restart_all()
        self._pruned_at = self._due[self._prune] = self._now() + PRUNE_DELAY_AFTER_JUMP

    def run_soon(self) -> None:
        """Make every task due at once, but leave the time of the next rescue as it is."""
        self._was_away = True
        self._due |= {
            self._heartbeat: 0.0,
            self._prune: 0.0,
            self.missing.look: 0.0,
            self._missing_versions.look: 0.0,
            self._shorten_waits: 0.0,
            self._maintain: self._now() + MAINTAIN_INTERVAL,
        }
        if self._scheduler is not None:
            self._due[self._fire] = 0.0

    def expires_in(self, wait: float) -> float:
        """Note that a job expires in so many seconds. Returns the instant at which it will be
        ended.

        A step that waits for a signal is never claimed, so no claim would find out in time.
        """
        at = max(self._now() + wait, self._pruned_at + EXPIRE_INTERVAL)
        self._due[self._prune] = min(self._due[self._prune], at)
        return self._due[self._prune]

    def delay_rescue(self) -> None:
        """Put off the next rescue: the store hung, and other workers could not renew either.

        A live worker renews every third of a lease, so half a lease is enough.
        """
        self._due[self._rescue] = self.rescue.after_stall()

    def stop(self) -> None:
        """Start no more tasks, and cut the running one short. May be called from any thread."""
        self._is_stopped = True
        if self._archive is not None:
            self._archive.stop()
        if self._sweep is not None:
            self._sweep.stop()
        if self._scheduler is not None:
            self._scheduler.stop()

    @property
    def is_under_way(self) -> bool:
        """Whether a task has slices left for the next turns."""
        is_written = self._scheduler is None or not self._scheduler.is_under_way
        return self._limit_restore.is_under_way or not is_written

    def run(self, now: float) -> float:
        """Run the tasks that are due. Returns the instant at which the next one is due."""
        # A copy, as a heartbeat that finds the store emptied makes other tasks due.
        for task in tuple(self._due):
            if self._is_stopped:
                break
            self._check_for_stall(now)
            if now >= self._due[task]:
                self._due[task] = self._done(task, now)
        self._check_for_stall(now)
        return min(self._due.values())

    def _check_for_stall(self, since: float) -> None:
        if is_stall(self._now() - since, self._settings.claimed_for):
            self.delay_rescue()

    def _done(self, task: Callable[[], float], now: float) -> float:
        """Run one task; the instant at which it is due again."""
        try:
            wait = task()
        except StoreError as error:
            if not self._is_its_own(task, error):
                raise  # The store cannot be reached: an outage, which the caller handles.
            failure: Exception = error
        except Exception as error:
            failure = error
        else:
            self._failures.pop(task, None)
            return now + wait
        if self._is_stopped:  # it is not retried, and the store may have been closed under it
            return now
        failures = self._failures[task] = self._failures.get(task, 0) + 1
        # One line is enough for it; a defect has a traceback.
        is_expected = isinstance(failure, ErgonError)
        text = "a chore failed, and is tried again: %s: %s"
        name = task.__name__.strip("_")
        logger.error(text, name, failure, exc_info=None if is_expected else failure)
        # Counted from the failure, not from the start: a task that fails by taking long must leave
        # time for the others, and a rescue waits after every stall.
        longest = max(PRUNE_INTERVAL, self._settings.lease)
        return self._now() + min(longest, FAILED_TASK_BACKOFF.delay(failures - 1))

    def _is_its_own(self, failed: Callable[[], float], error: StoreError) -> bool:
        """Whether only this task fails, while the store takes other writes.

        If a prune that fails every time counted as an outage, it would put off every rescue for
        ever. A heartbeat or a rescue that fails does count: then live workers may be unable to
        renew as well. For any other task, a heartbeat is tried to find out.
        """
        if isinstance(error, _STORE_WIDE_ERRORS) or failed in {self._heartbeat, self._rescue}:
            return False
        try:
            self._heartbeat()
        except Exception:  # Whatever the reason, the store takes no writes now.
            return False
        return True

    def leave(self, seconds: float) -> None:
        """Tell the store that this worker has left; give up after so many seconds."""
        with suppress(Exception):  # The record expires when it is not renewed.
            CALL_BUDGET.run_within(seconds, self._write_last_totals)

    def _write_last_totals(self) -> None:
        """Leave the totals behind for a later scrape, because a burst may end before the first
        scrape.

        The totals are written before the worker's record is removed; in between, both records have
        the same numbers of the same worker.
        """
        mine = self._record()
        if mine.totals:
            self._store.heartbeat(ended_record(mine))
        self._store.heartbeat(gone_record(mine))
        delete_ended(self._store, self._store.now())

    def _heartbeat(self) -> float:
        mine, found = self._record(), self._store.workers()
        self._seen_at = max((each.seen_at for each in found), default=None)
        self._latest = max(self._latest, *(each.started_at for each in (mine, *found)))
        if self._has_heartbeat:
            stored = next((each for each in found if each.id == mine.id), None)
            self._check_own_record(mine, stored)
        if self._was_away:
            self._check_schedules(mine, found)
        # Written after the comparison with what the store had: our own record would hide that it
        # was lost.
        self._store.heartbeat(mine)
        self._has_heartbeat, self._was_away = True, False
        self.rescue.leases = {each.id: each.lease for each in (*found, mine) if each.lease}
        self.rescue.holders = {each.id: each for each in found}
        # Three leases without a heartbeat: less would declare the executors of a busy worker
        # missing.
        lately = self._store.now() - 3 * self._settings.lease
        alive = (mine, *(other for other in found if other.seen_at >= lately))
        self.missing.known = frozenset(
            name for each in alive for name in (*each.executors, *each.serves)
        )
        self.missing.lookers = tuple(each.id for each in alive)
        self._missing_versions.known = frozenset(each.app_version for each in alive)
        self._is_archiver = self._archive is not None and self._archive.is_turn_of(mine, alive)
        self._is_sweeper = self._sweep is not None and self._sweep.is_turn_of(mine, alive)
        return self._settings.lease / 3

    def tell_record(self) -> None:
        """Write the record of this worker early, unless it has never been written."""
        if self._has_heartbeat:
            self._store.heartbeat(self._record())

    def _check_schedules(self, mine: WorkerRecord, found: Sequence[WorkerRecord]) -> None:
        """After an outage, compare the stored schedules with the settings again.

        A store that does not sync may have lost the last writes. Only the worker that started last
        compares: an older one would bring back schedules that a newer version has changed.
        """
        is_last = all(other.started_at <= mine.started_at for other in found)
        if is_last and self._scheduler is not None:
            self._scheduler.compare_anew()

    def _check_own_record(self, mine: WorkerRecord, stored: WorkerRecord | None) -> None:
        """Compare the store's record of this worker with what it told last.

        No record: the store was emptied, or a worker of the same name has left. Another process in
        it: two workers have the same name.
        """
        if stored is None:
            self._limit_restore.begin()
            self._due[self._restore] = 0.0
        elif (stored.host, stored.pid) != (mine.host, mine.pid) and not self._has_twin:
            self._has_twin = True
            logger.warning(
                "another worker on %s, process %d, has the name %r as well: they are listed as one",
                *(stored.host, stored.pid, mine.id),
            )

    def _restore(self) -> float:
        """Write limits and schedules of the settings again: the store does not know this worker.

        Schedules are written by the worker that started last, since a newer version may have
        changed them; by any worker when none of this application is left in the store.
        """
        if not self._limit_restore.turn():
            return 0.0
        scheduler, is_last = self._scheduler, self._record().started_at >= self._latest
        if scheduler is not None and (is_last or scheduler.are_gone()):
            scheduler.write_again(self._limit_restore.end())
            self._due[self._fire] = 0.0
        elif lost := self._limit_restore.end():
            self._report_lost(lost)
        return math.inf

    def _report_lost(self, lost: list[str]) -> None:
        logger.error(
            "the store has lost what was written there, and may have lost jobs as well;"
            " limits and schedules of the settings were written again: %s",
            ", ".join(lost),
        )
        self._report("store.emptied", {})

    def _rescue(self) -> float:
        return self.rescue.run()

    def _shorten_waits(self) -> float:
        """Heal the waits of retries after the clock was set back: at the start, and after jumps.

        That goes through all jobs that wait, so it is left out where the clock is known to have
        gone on: the last that any worker told of itself lies in the past.
        """
        if not self._was_set and self._has_gone_on():
            return math.inf
        number = self._store.shorten_waits()
        self._was_set = False
        if number:
            text = "the store's clock was set back: %d job(s) that waited too long were put forward"
            logger.warning(text, number)
        return math.inf

    def _has_gone_on(self) -> bool:
        """Whether the store's clock is later than all that workers told, which may have ended."""
        ended = [each.seen_at for each in self._store.ended_workers()]
        heartbeats = ended if self._seen_at is None else [*ended, self._seen_at]
        return bool(heartbeats) and max(heartbeats) <= self._store.now()

    def _prune(self) -> float:
        self._pruned_at = self._now()
        if self._archive is None:
            pruned = self._store.prune(PRUNE_BATCH)
        else:
            pruned = self._store.prune(PRUNE_BATCH, purges=False)
            if self._is_archiver:
                self._archive.wake()
        if self._sweep is not None and self._is_sweeper:
            self._sweep.wake(self._now())
        if pruned.outdated:
            self._report("job.expired", {"count": pruned.outdated})
        self._report_unreadable()
        if pruned.more:
            return 0.1
        # The next expiry may be near.
        return EXPIRE_INTERVAL if pruned.outdated else PRUNE_INTERVAL

    def _report_unreadable(self) -> None:
        """Report each row that cannot be read once, whichever worker met it first."""
        found = {each.key: each for each in self._store.unreadable(MAX_UNREADABLE)}
        new = [each for key, each in found.items() if key not in self._aside]
        self._aside = found.keys()
        for each in new:
            self._report("job.unreadable", {"job_id": each.id, "error": each.problem})
        if new:
            text = "%d row(s) of jobs cannot be read and were set aside: ergon jobs unreadable%s"
            logger.error(text, len(found), option_for(self._store))

    def _maintain(self) -> float:
        maintain = getattr(self._store, "maintain", None)
        if maintain is not None:
            maintain()
        return MAINTAIN_INTERVAL

    def _new_slice(self) -> Slice:
        return Slice(self._now, self._slice_seconds)

    def _fire(self) -> float:
        at = self._scheduler.turn() if self._scheduler is not None else None
        if self.is_under_way:
            return 0.0
        wait = SCHEDULE_INTERVAL if at is None else at - self._store.now()
        return min(max(wait, 0.01), SCHEDULE_INTERVAL)
