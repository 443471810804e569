"""The worker: claims jobs, has executors run them, and records how each ended.

It has two threads. The loop (the thread that calls :meth:`Worker.run`) talks to executor processes
and never to the store. The store thread talks to the store and to nothing else. Claims go from the
store thread to the loop, and settlements go back.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import Failed, JobEvent, JobStatus, route
from ergon_framework.core.text import failure_text, indented, one_line, toml_table
from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    ExecutorError,
    StoreError,
)
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.event_loop import EventLoop
from ergon_framework.jobs.executor_process import CONFUSED_AFTER
from ergon_framework.jobs.maintenance import Maintenance
from ergon_framework.jobs.memory_watch import MemoryWatch
from ergon_framework.jobs.payload_codec_store import codec_of, with_codec
from ergon_framework.jobs.payload_threads import PayloadThreads
from ergon_framework.jobs.pool import ExecutorPool, allow_descriptors, checked
from ergon_framework.jobs.scheduler import MAX_SLICE, CronJobs
from ergon_framework.jobs.settings import ExecutorSettings, JobsSettings
from ergon_framework.jobs.settlement import Settler, notice_fields
from ergon_framework.jobs.store_thread import StoreThread, executor_of
from ergon_framework.jobs.totals import WorkerTotals, outcome_of
from ergon_framework.jobs.tracing import came_back
from ergon_framework.jobs.watchdog import Watchdog
from ergon_framework.ports.job_fields import name as name_of
from ergon_framework.ports.jobstore import FullJobStore, Search, Settlement, WorkerRecord
from ergon_framework.ports.notice import Notice
from ergon_framework.storage.deadlines import MIN_TIMEOUT
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.telemetry.conventions import (
    MessagingInstruments,
    messaging_instruments,
    queue_place,
)
from ergon_framework.telemetry.notices import NoticeDispatcher, has_listeners

if TYPE_CHECKING:
    from ergon_framework.jobs.archiver import ArchiveThread
    from ergon_framework.jobs.object_sweep import SweepThread

logger = logging.getLogger("ergon.jobs")

MAX_FAILED_STARTS = 4
"""How many failed starts in a row a burst waits for an executor."""
BURST_PROBE_INTERVAL = 0.2
"""Seconds between two queries of a burst whether anything due is left."""
BURST_DUE_WITHIN = 1.0
"""Seconds for which a burst waits for a job that is not due yet."""
NOTICE_OF = dict.fromkeys(JobStatus, "job.returned") | {
    JobStatus.CANCELLED: "job.cancelled",
    JobStatus.COMPLETED: "job.completed",
    JobStatus.FAILED: "job.dead_lettered",
    JobStatus.RETRYING: "job.retrying",
}


MAX_TO_WRITE = 64 << 20
"""Bytes of results waiting for an object store at which no more jobs are taken. Without a bound, a
worker would hold the results of thousands of jobs while the object store does not answer.
"""
NO_HANDLERS: Mapping[str, tuple[str, ...]] = {}


@dataclass(frozen=True)
class WorkerTiming:
    """Intervals, timeouts (in seconds) and one bound of a worker that no setting changes."""

    shutdown_grace: float = 10.0
    """How long the last settlements may take to reach a store that does not answer."""
    poll_interval: float = 1.0
    """How long a turn of the loop waits at most without being woken."""
    burst_poll_interval: float = 0.02
    """The same in a burst, which checks after every turn whether it is over."""
    held_only_timeout: float = 10.0
    """After how long a burst stops when its jobs are only ever held for a short time."""
    confused_after: float = CONFUSED_AFTER
    """See ``CONFUSED_AFTER``."""
    scheduler_slice: float = MAX_SLICE
    """See ``MAX_SLICE``."""
    max_to_write: int = MAX_TO_WRITE
    """See ``MAX_TO_WRITE``."""


class BurstEnd:
    """Decides when a burst is over. The worker asks after every turn of its loop."""

    def __init__(
        self,
        store_thread: StoreThread,
        pools: Mapping[str, ExecutorPool],
        store: FullJobStore,
        queues: tuple[str, ...] | None,
        settled: Callable[[], tuple[int, int]],
        *,
        held_only_timeout: float,
    ) -> None:
        """``settled`` returns how many jobs were held for no longer than a burst waits, and how
        many were settled otherwise.
        """
        self.error: ErgonError | None = None
        """Why the burst leaves work behind, if it does."""
        self._settled = settled
        self._held_only_timeout = held_only_timeout
        # At ``_since`` so many jobs had been held, and so many settled otherwise. Both counts begin
        # anew whenever a job is settled otherwise than by a short hold.
        self._others = -1
        self._since = 0.0
        self._held = 0
        self._store_thread = store_thread
        self._pools = pools
        self._store = store
        self._queues = queues
        self._probes: int | None = None  # the store thread's count at the last request for a probe
        self._look_at = 0.0
        # the expiry of leases that other workers hold, by job id
        self._leases: dict[str, float] = {}
        self._is_nothing_held = False  # jobs that other workers held at the last check

    def is_over(self, now: float) -> bool:
        """Whether the worker may stop. ``error`` is set when it leaves work behind.

        A burst is over when two checks in a row find nothing due and nothing held by other workers,
        with a new answer of the store in between.
        """
        # Before the probe below: jobs that are held for milliseconds are always due again, and a
        # burst would never end.
        if self._is_only_held(now) and self._is_idle():
            return True
        was_asked = self._probes is not None
        if was_asked and (self._store_thread.probes == self._probes or now < self._look_at):
            return False  # The store has not answered the probe yet, or was just asked.
        if not self._is_idle():
            self._probes = None
            self._is_nothing_held = False
            return False
        if self._probes is None:
            self._probes = self._store_thread.probes
            self._store_thread.probe()
            return False
        self._look_at = now + BURST_PROBE_INTERVAL
        self._probes = None  # The decision below needs a new answer.
        was_nothing_held, self._is_nothing_held = self._is_nothing_held, False
        # Something is due that this worker could not claim. It continues unless no executor of its
        # own can ever take it.
        if self._store_thread.is_left:
            return self._has_only_unstartable()
        if self._store_thread.handler_lanes and self._is_any_unknown():
            return False  # Jobs wait for handlers that an executor may have which is starting.
        due_at = self._store_thread.due_at
        if due_at is not None and due_at <= now + BURST_DUE_WITHIN:
            return False  # Due soon: a short backoff must not decide what is left behind.
        if was_nothing_held:
            return True
        if not self._is_held_elsewhere():
            # A job that was held at the probe may have been rescued since and be due, so ask again.
            self._is_nothing_held = True
            self._look_at = now
        return False

    def _is_only_held(self, now: float) -> bool:
        """Whether every job comes back held for so short a time that it is due at once."""
        held, others = self._settled()
        if others != self._others or held == self._held:
            self._others, self._since, self._held = others, now, held
        return now - self._since >= self._held_only_timeout

    def _is_idle(self) -> bool:
        store_thread = self._store_thread
        in_hand = any(pool.in_hand for pool in self._pools.values())
        return not in_hand and store_thread.is_settled

    def _has_only_unstartable(self) -> bool:
        """Whether all jobs that are left are for executors that do not start.

        The other executors have free slots, so they would have claimed any job of theirs.
        """
        down = {
            name: pool
            for name, pool in self._pools.items()
            if pool.gate.failures >= MAX_FAILED_STARTS and not pool.is_up
        }
        others = [pool for name, pool in self._pools.items() if name not in down]
        if not down or not all(pool.is_free for pool in others):
            return False
        name, pool = next(iter(down.items()))
        self.error = ExecutorError(
            f"jobs are left, but executor {name!r} does not start: {pool.gate.reason}",
            remedy="run its command by hand; the jobs wait and lost no attempt",
        )
        return True

    def _is_any_unknown(self) -> bool:
        """Whether an executor has not reported its handlers yet, and may still do so."""
        return any(
            not pool.is_known and pool.gate.failures < MAX_FAILED_STARTS
            for pool in self._pools.values()
        )

    def _is_held_elsewhere(self) -> bool:
        """Whether another worker may be dead while it holds a job: its lease was not renewed since
        the last check.

        A lease that was renewed between two checks belongs to a live worker, and this burst need
        not wait for its job.
        """
        search = Search(statuses=(JobStatus.ACTIVE,))
        try:
            leases = {
                job.id: job.lease_expires_at or 0.0
                for job in self._store.search(search)
                if self._queues is None or job.queue in self._queues
            }
        except StoreError:  # Away: the store thread waits for its return, and so does the burst.
            return True
        before, self._leases = (
            # Each lease keeps the expiry that it had when it was first seen, so that a renewal
            # shows as a difference.
            self._leases,
            {name: self._leases.get(name, at) for name, at in leases.items()},
        )
        return any(before.get(name, at) == at for name, at in leases.items())


declare("worker.result_stored")


class WorkerReport(msgspec.Struct, frozen=True):
    """What a worker did, from its start to its end."""

    completed: int = 0
    retried: int = 0
    failed: int = 0
    held: int = 0
    released: int = 0
    rescued: int = 0
    late: int = 0
    unsettled: int = 0  # outcomes that the store never took; their leases expire
    stop_reason: str = "stopped"


class Worker:
    """Runs jobs until it is stopped, or in ``burst`` until nothing is due."""

    def __init__(
        self,
        store: FullJobStore,
        *,
        executors: Mapping[str, ExecutorSettings],
        settings: JobsSettings | None = None,
        queues: Sequence[str] | None = None,
        burst: bool = False,
        name: str | None = None,
        schedules: CronJobs | None = None,
        prepare: Callable[[], Iterable[str]] | None = None,
        read_elsewhere: frozenset[str] = frozenset(),
        timing: WorkerTiming | None = None,
        max_failed_starts: int | None = None,
        own_handlers: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        """``prepare`` writes queue limits that the store has lost, and yields the name of each.

        ``read_elsewhere``: variables with secrets of other parts, which executors do not get.
        ``max_failed_starts``: after so many failed starts in a row the worker ends with an error,
        if the executor has never come up; None: it tries for ever, and its jobs wait.
        ``own_handlers``: for each executor, the handlers that this program has and its processes
        should have.
        """
        self.settings = settings or JobsSettings()
        self.executors = {key: checked(key, value) for key, value in executors.items()}
        self.default = default_executor(self.settings, self.executors)
        self.name = name_of("worker name", name) if name else _made_up()
        self.read_elsewhere = read_elsewhere
        # As long as a lease: when the watchdog ends the executors of a stopped worker, other
        # workers may claim its jobs, and these must not run twice.
        self.watchdog = Watchdog(self.settings.claimed_for)
        self.queues = tuple(queues) if queues else None
        self._store = with_codec(store, self.settings)
        store.retention = self.settings.retention
        self.settler = Settler(self.settings, self.name, codec_of(self._store, self.settings))
        self._burst = burst
        self._timing = timing = timing or WorkerTiming()
        self._poll_interval = timing.burst_poll_interval if burst else timing.poll_interval
        self._schedules = schedules
        self._prepare = prepare
        self._max_failed_starts = max_failed_starts
        self._own_handlers = own_handlers or {}
        self._stops = 0
        self._stop_lock = threading.Lock()
        self._is_ending = False  # only the ends of processes are waited for
        self._reason = "burst" if burst else "stopped"
        self._error: ErgonError | None = None
        self._counts: Counter[str] = Counter()
        self._totals = WorkerTotals()
        self._messaging: MessagingInstruments | None = None
        self._held_shortly = 0
        self._payload_threads = PayloadThreads()
        self._writing = 0  # how many results are on their way to the object store
        self._bytes_to_write = 0  # how many bytes they have together
        self._pools: dict[str, ExecutorPool] = {}
        self._dirty: dict[ExecutorPool, None] = {}
        self._settled: list[Settlement] = []
        self._sink = NoticeDispatcher(None, (), ())

    # ---- for programs that embed a worker ----

    def run(self) -> WorkerReport:
        """Work until stopped. Returns when every process has ended and all is settled.

        Raises ExecutorError, after all that, when an executor does not start or did not end well
        when it was asked to exit.
        """
        self.loop = EventLoop()
        self._messaging = messaging_instruments()
        self._make_store_thread()
        self._make_pools()
        self._started_at = self._store.now()
        # Calls the store once in this thread, so that a store that is away is reported before any
        # process is started.
        self._store_thread.start()
        memory = self._begun_memory_watch()
        self.tell("worker.started", worker=self.name)
        try:
            self._work()
            self._drain()
        finally:
            try:
                report = self._leave()
            finally:
                memory.close()
                self.watchdog.close()
        error = self._error or self._bad_end()
        if error is not None:
            raise error
        return report

    @property
    def is_stopping(self) -> bool:
        """Whether a stop was asked for."""
        return self._stops > 0

    def record(self) -> WorkerRecord:
        """What the heartbeat reports of this worker: its state, its executors and its counters.

        May be called from any thread once ``run`` has begun, also after its end.
        """
        return WorkerRecord(
            id=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version(),
            started_at=self._started_at,
            state="stopping" if self._stops else "running",
            lease=self.settings.claimed_for,
            queues=self.queues,
            executors={key: pool.status() for key, pool in self._pools.items()},
            counters={
                **self._counts,
                **self._store_thread.counters,
                "rescued": self._maintenance.rescue.count,
            },
            totals=self._totals.document(),
            progress=self._store_thread.leases.progress(),
            app_version=self.settings.version,
            serves=self._maintenance.missing.served,
            has_archive=self._archive is not None,
            has_objects=self._sweep is not None,
        )

    def stop(self, *, now: bool = False) -> None:
        """Ask for a graceful stop; a second time, or with ``now``, for an immediate one.

        May be called from any thread, also from one that handles signals.
        """
        # Several threads may stop it at the same time, and two requests must count as two.
        with self._stop_lock:
            self._stops = 2 if now else self._stops + 1
        # ``stop`` may come before ``run``, which makes the loop.
        loop = getattr(self, "loop", None)
        if loop is not None:
            loop.post(lambda: None)  # Wakes a loop that waits for descriptors.

    # ---- what a run is made of ----

    def _make_store_thread(self) -> None:
        """Make the thread that talks to the store, and the maintenance that it does."""
        self._store_thread = StoreThread(
            self._store,
            self.settings,
            self._claim_request,
            self._delivered,
            self._was_settled,
            self._reported,
        )
        self._archive = self._archive_thread()
        self._sweep = self._sweep_thread()
        self._maintenance = Maintenance(
            self._store,
            self.settings,
            self.settler,
            self.record,
            self._store_thread.leases.holds,
            self._reported,
            self._schedules,
            self._prepare,
            max_slice=self._timing.scheduler_slice,
            serves=self._serves,
            archive=self._archive,
            sweep=self._sweep,
        )
        self._store_thread.maintenance = self._maintenance
        self._store_thread.leases.when_lost = self._lost
        self._store_thread.leases.when_cancelled = self._cancelled

    def _archive_thread(self) -> ArchiveThread | None:
        """The thread that writes ended jobs to the archive, if the settings name one."""
        archive = self.settings.archive
        if archive is None:
            return None
        from ergon_framework.jobs.archive_files import JobArchive
        from ergon_framework.jobs.archiver import Archiver, ArchiveThread

        folder = JobArchive(
            Path(archive.folder),
            max_file_size=archive.max_file_size,
            now=self._store.now,
            version=version(),
            format=archive.format,
        )
        archiver = Archiver(self._store, folder, allows_lost=archive.allow_lost_payloads)
        return ArchiveThread(archiver, self._reported, archive.folder)

    def _sweep_thread(self) -> SweepThread | None:
        """The thread that removes objects that no job names, if the settings name a place for
        objects.
        """
        objects = codec_of(self._store, self.settings).objects
        if objects is None:
            return None
        from ergon_framework.jobs.object_sweep import ObjectSweep, SweepThread

        return SweepThread(ObjectSweep(self._store, objects), self._reported)

    def _make_pools(self) -> None:
        confused_after = self._timing.confused_after
        self._pools = {
            key: ExecutorPool(
                key,
                value,
                self,
                confused_after=confused_after,
                own_handlers=self._own_handlers.get(key, frozenset()),
            )
            for key, value in self.executors.items()
        }
        allow_descriptors(sum(each.max_processes for each in self.executors.values()))

    def _begun_memory_watch(self) -> MemoryWatch:
        """The thread that measures the memory of processes. It is started where an executor has
        such a limit.
        """
        memory = MemoryWatch(self._watched_processes, self._memory_measured)
        if any(each.max_memory for each in self.executors.values()):
            memory.start()
        return memory

    # ---- the loop ----

    def _work(self) -> None:
        for pool in self._pools.values():
            self._dirty[pool] = None
        burst = self._begun_burst() if self._burst else None
        while not self._stops:
            self._turn()
            if burst is not None and burst.is_over(self.loop.now()):
                self._error = burst.error
                return
            if self._max_failed_starts is not None and burst is None:
                self._error = self._no_start(self._max_failed_starts)
                if self._error is not None:
                    return

    def _no_start(self, limit: int) -> ErgonError | None:
        """The error for an executor that has failed to start too often and never came up."""
        for name, pool in self._pools.items():
            if pool.gate.failures > limit and pool.never_started:
                return ExecutorError(
                    f"executor {name!r} does not start, tried {pool.gate.failures} times:"
                    f" {pool.gate.reason}",
                    remedy="fix it and start again; the jobs wait, and lost no attempt",
                )
        return None

    def _not_running(self) -> ErgonError | None:
        """The error for an executor that could not be started before the worker was
        asked to stop.
        """
        for name, pool in self._pools.items():
            if pool.start_problem:
                return ExecutorError(
                    f"executor {name!r} was not running at the end, for it does not start:"
                    f" {pool.start_problem}",
                    remedy="fix it and start again; the jobs wait, and lost no attempt",
                )
        return None

    def _bad_end(self) -> ErgonError | None:
        """The error for an executor that left something open."""
        for name, pool in self._pools.items():
            if pool.bad_end:
                return ExecutorError(
                    f"executor {name!r} was asked to leave, and did not end well: {pool.bad_end}",
                    remedy="a job that it ran has its outcome; see what it waits for when it ends",
                )
        return None

    def _begun_burst(self) -> BurstEnd:
        def settled() -> tuple[int, int]:
            return self._held_shortly, self._counts.total() - self._held_shortly

        return BurstEnd(
            self._store_thread,
            self._pools,
            self._store,
            self.queues,
            settled,
            held_only_timeout=self._timing.held_only_timeout,
        )

    def _turn(self, until: float | None = None) -> None:
        now = self.loop.now()
        if self.watchdog.was_stopped(now):
            self._was_stopped()
        times = [now + self._poll_interval]
        for pool in self._pools.values():
            if pool in self._dirty or (pool.next_at is not None and now >= pool.next_at):
                self._dirty.pop(pool, None)
                pool.maintain_processes(now)
            if pool.next_at is not None:
                times.append(pool.next_at)
        if until is not None:
            times.append(until)
        # Before the loop waits, or the outcomes of this turn would wait with it.
        self._hand_over()
        if not self._is_ending or self._pools_left():
            self.loop.turn(min(times))
        self._hand_over()

    def _was_stopped(self) -> None:
        """Note executors that the watchdog killed while this process was suspended."""
        ended = sum(pool.note_killed() for pool in self._pools.values())
        if ended:
            text = "this worker was stopped for %g s or more: its watchdog ended %d executor(s)"
            logger.warning(text, self.watchdog.timeout, ended)

    def _hand_over(self) -> None:
        """Give the store thread all settlements of this turn at once, for one commit."""
        if self._settled:
            settled, self._settled = self._settled, []
            self._store_thread.settle(settled)

    def _drain(self) -> None:
        """Let running jobs finish within the grace; then end their processes and give the jobs
        back.
        """
        # Not waited for: a claim under way may hang with its server. What it brings is given back
        # in ``_leave``.
        self._store_thread.stop_claiming(0.0)
        if self._stops and not self._burst:
            self._error = self._error or self._not_running()
        for pool in self._pools.values():
            pool.stop_taking()
        # The loop goes on during the grace, because the outcomes of jobs that end now have to be
        # read and settled.
        until = self.loop.now() + self.settings.grace
        while (self._in_hand() or self._writing) and self._stops < 2 and self.loop.now() < until:
            self._turn(until)
        for pool in self._pools.values():
            if self._in_hand() or self._stops > 1:
                pool.end(at_once=self._stops > 1)
            else:
                # An idle executor exits when its input ends, and runs its shutdown hooks; a signal
                # would cut these short.
                pool.close_inputs()
        self._wait_for_ends()

    def _wait_for_ends(self) -> None:
        """Wait for processes that were asked to exit, with ever stronger signals."""
        asked_at = self.loop.now()
        # First a signal that can be handled, then one that cannot.
        louder = iter((False, True))
        grace = max(each.leaves_within for each in self.executors.values())
        self._is_ending = True
        while self._pools_left():
            self._turn()
            if self._stops > 1 or self.loop.now() > asked_at + grace:
                asked_at = self.loop.now()
                grace = max(each.kill_grace for each in self.executors.values())
                at_once = self._stops > 1 or next(louder, True)
                for pool in self._pools.values():
                    pool.end(at_once=at_once)

    def _pools_left(self) -> bool:
        return not all(pool.is_gone for pool in self._pools.values())

    def _in_hand(self) -> int:
        return sum(pool.in_hand for pool in self._pools.values())

    def _leave(self) -> WorkerReport:
        for pool in self._pools.values():  # After an error of this worker: leave no process behind.
            if not pool.is_gone:
                pool.end(at_once=True)
        since = self.loop.now()
        if self._store_thread.stop_claiming(self._store_has(since)):
            since = self.loop.now()  # The store answers, and may have brought jobs.
        self.loop.turn(self.loop.now())  # Jobs that were claimed at the last moment go back.
        self._hand_over()
        if self._archive is not None and not self._stops:
            self._archive.join(self._store_has(since))  # A burst has time for its archive.
        self._store_thread.end(with_maintenance=not self._stops)  # … and for its schedules.
        # Before the last heartbeat: a worker that is reported as gone must not have outcomes left
        # to write.
        self._store_thread.join(self._store_has(since))
        if self._archive is not None:
            self._archive.stop()
            self._archive.join(self._store_has(since))
        if self._sweep is not None:
            self._sweep.stop()
            self._sweep.join(self._store_has(since))
        self._maintenance.leave(self._store_has(since))
        self.loop.close()
        counts = self._counts
        report = WorkerReport(
            completed=counts["completed"],
            retried=counts["retrying"],
            failed=counts["failed"],
            held=counts["held"],
            released=counts["released"],
            rescued=self._maintenance.rescue.count,
            late=self._store_thread.counters["late"],
            unsettled=len(self._store_thread.leases.claims)
            + self._store_thread.counters["refused"],
            stop_reason=self._reason if not self._stops else "stopped",
        )
        self.tell("worker.stopped", worker=self.name, report=report)
        return report

    def _store_has(self, since: float) -> float:
        """Seconds left for a store that may not answer. When no settlement waits for it, this is
        the grace.
        """
        is_owed = bool(self._store_thread.leases.claims)
        grace = self._timing.shutdown_grace
        most = grace if is_owed else min(grace, max(MIN_TIMEOUT, self.settings.grace))
        return max(0.0, since + most - self.loop.now())

    # ---- for the pools ----

    def offer(self, executor: str, slots: int) -> int:
        """See :meth:`StoreThread.offer`."""
        return self._store_thread.offer(executor, slots)

    def finish(
        self, claim: Claim, event: JobEvent, seconds: float | None, result: bytes | None
    ) -> None:
        """Settle a claimed job by what happened to it."""
        if self.settler.is_slow(event, result):
            self._keep_apart(claim, event, seconds, result or b"")
        else:
            self._finish(claim, event, seconds, result)

    def _keep_apart(
        self, claim: Claim, event: JobEvent, seconds: float | None, result: bytes
    ) -> None:
        """Write a large result to the object store in a thread; its job is settled afterwards.

        Meanwhile its lease is renewed, and its process may have the next job, until the results
        that wait for an object store that does not answer would fill the memory.
        """
        self._writing += 1
        self._add_to_write(len(result))

        def write() -> None:
            encoded = self.settler.encoded_result(claim, result)
            failpoint("worker.result_stored")
            self.loop.post(lambda: written(encoded))

        def written(encoded: bytes) -> None:
            self._writing -= 1
            self._add_to_write(-len(result))
            self._finish(claim, event, seconds, encoded, is_encoded=True)

        self._payload_threads.submit(write)

    def _add_to_write(self, size: int) -> None:
        """Add bytes of results that wait for the object store, or subtract them."""
        was_full = self.is_full
        self._bytes_to_write += size
        if self.is_full is not was_full:
            self._dirty.update(dict.fromkeys(self._pools.values()))

    def _finish(
        self,
        claim: Claim,
        event: JobEvent,
        seconds: float | None,
        result: bytes | None,
        *,
        is_encoded: bool = False,
    ) -> None:
        if claim.span is not None:
            came_back(claim, event)
        now = self.loop.at + self._store_thread.offset  # by the clock of ``wall``, for each job
        settlement = self.settler.settle_claim(
            claim, event, now, seconds, result, is_encoded=is_encoded
        )
        self._totals.count(claim.job.queue, outcome_of(settlement.transition), seconds)
        if self._messaging is not None and seconds is not None:
            failure = settlement.transition.failure
            place = queue_place(claim.job.queue)
            self._messaging.consumed("run", place)
            error = None if failure is None else failure.kind.value
            self._messaging.processed(place, seconds, error)
        # Collected, not sent: ``_hand_over`` puts all outcomes of a turn into one commit.
        self._settled.append(settlement)

    def progressed(self) -> None:
        """Have the store told soon about the progress of jobs."""
        self._store_thread.tell_progress()

    def wall(self) -> float:
        """The store's clock when this turn began, about."""
        return self.loop.at + self._store_thread.offset

    @property
    def is_full(self) -> bool:
        """Whether so many results wait for the object store that no more jobs are taken."""
        return self._bytes_to_write >= self._timing.max_to_write

    @property
    def is_forced(self) -> bool:
        """Whether a second signal asked for an end at once."""
        return self._stops > 1

    def dirty(self, pool: ExecutorPool) -> None:
        """Attend to this pool after the turn."""
        self._dirty[pool] = None

    def tell(self, name: str, **fields: Any) -> None:
        """Emit a notice, if there are listeners."""
        if has_listeners():
            self._sink.emit(Notice(name, self._store.now(), fields))

    # ---- for the store_thread, in its thread ----

    def _claim_request(self, slots: Mapping[str, int], is_thorough: bool = True) -> ClaimRequest:
        return ClaimRequest(
            worker=self.name,
            lease=self.settings.claimed_for,
            slots=slots,
            default=self.default,
            routes=self.settings.routes,
            own=frozenset(self.executors),
            handlers=self._waited_for() if self._store_thread.handler_lanes else NO_HANDLERS,
            queues=self.queues,
            version=self.settings.version,
            wants_more=is_thorough,
        )

    def _waited_for(self) -> dict[str, tuple[str, ...]]:
        """By executor, the handlers that jobs wait for."""
        wanted = sorted({route(lane)[1] for lane in self._store_thread.handler_lanes})
        found = {
            name: tuple(handler for handler in wanted if pool.may_have(handler))
            for name, pool in self._pools.items()
        }
        return {name: handlers for name, handlers in found.items() if handlers}

    def _serves(self, lane: str, queues: Iterable[str]) -> bool:
        """Whether an executor of this worker has the handler that the jobs of a lane wait for."""
        named, handler = route(lane)
        names = {named or self.settings.routes.get(queue, self.default) for queue in queues}
        return any(name in self._pools and self._pools[name].may_have(handler) for name in names)

    def _delivered(self, claims: list[Claim]) -> None:
        self.loop.post(lambda: self._receive(claims))

    def _lost(self) -> None:
        """Some leases were lost, and other workers have the jobs: stop working on them."""
        self.loop.post(self._drop_lost)

    def _drop_lost(self) -> None:
        for pool in self._pools.values():
            pool.drop_lost()

    def _cancelled(self) -> None:
        """Somebody asked to cancel jobs of this worker."""
        self.loop.post(self._cancel_marked)

    def _cancel_marked(self) -> None:
        for pool in self._pools.values():
            pool.cancel_marked()

    def _watched_processes(self) -> list[int]:
        """The processes of executors with a memory limit, for the thread that measures them."""
        limited = [pool for pool in self._pools.values() if pool.settings.max_memory]
        return [process.child.pid for pool in limited for process in tuple(pool.processes)]

    def _memory_measured(self, used: Mapping[int, int]) -> None:
        self.loop.post(lambda: self._note_memory(used))

    def _note_memory(self, used: Mapping[int, int]) -> None:
        for pool in self._pools.values():
            if pool.settings.max_memory:
                pool.note_memory(used)

    def _reported(self, name: str, fields: dict[str, Any]) -> None:
        # Called in the store thread. After a failed fsync no settlement would be durable, so the
        # worker ends and its leases expire.
        if name == "store.broken":
            self._error = ErgonError("the store takes no more writes; see the log")
            self.stop(now=True)
        else:
            self.tell(name, **fields)

    def _was_settled(self, settlements: Sequence[Settlement]) -> None:
        counts, completed = self._counts, JobStatus.COMPLETED
        for settlement in settlements:
            transition = settlement.transition
            if transition.status is completed:
                counts["completed"] += 1
                continue
            if transition.failure is not None and transition.event == "failed":
                log_failure(settlement)
            word = outcome_of(transition)
            counts[word] += 1
            self._held_shortly += word == "held" and transition.delay <= BURST_DUE_WITHIN
        heard = {status for status, name in NOTICE_OF.items() if has_listeners(name)}
        for settlement in settlements if heard else ():
            if settlement.transition.status in heard:
                self._tell_of(settlement)

    def _tell_of(self, settlement: Settlement) -> None:
        self.tell(NOTICE_OF[settlement.transition.status], **notice_fields(settlement))

    def _receive(self, claims: list[Claim]) -> None:
        # Made anew instead of being kept with the claim, because only routes and the default
        # executor matter here.
        request = self._claim_request({})
        by_executor: dict[str, list[Claim]] = {}
        for claim in claims:
            by_executor.setdefault(executor_of(request, claim.job), []).append(claim)
        for executor, found in by_executor.items():
            pool = self._pools[executor]
            nameless = [claim for claim in found if not claim.handler]
            self._refuse(nameless, "empty_handler", "the job names no handler")
            for claim in found:
                if claim.handler and claim.outcome is not None:
                    self.finish(claim, claim.outcome, None, None)
            usable = [claim for claim in found if claim.handler and claim.outcome is None]
            # Also for claims that end without a process: the slots that they were claimed for are
            # free again.
            pool.take(len(found), usable)

    def _refuse(self, claims: Sequence[Claim], code: str, text: str) -> None:
        for claim in claims:
            failure = Failure(Kind.REJECTED, code, text)
            self.finish(claim, Failed(failure, is_written=False), None, None)


def default_executor(settings: JobsSettings, executors: Mapping[str, ExecutorSettings]) -> str:
    """The executor of jobs that name none. Refused if the settings name one that does not exist."""
    if not executors:
        raise ConfigurationError(
            "no executor is configured", remedy="add a table [executors.NAME] with a command"
        )
    name = settings.default_executor
    if not name and len(executors) == 1:
        return next(iter(executors))
    known = ", ".join(repr(each) for each in executors)
    if not name:
        raise ConfigurationError(
            f"several executors and no default: {known}", remedy="set jobs.default_executor"
        )
    for wanted in (name, *settings.routes.values()):
        if wanted not in executors:
            raise ConfigurationError(
                f"there is no executor {wanted!r}; known are {known}",
                remedy=f"add a table {toml_table('executors', wanted)}, or correct [jobs]",
            )
    return name


def log_failure(settlement: Settlement) -> None:
    """Log a failed attempt and where it failed; the last one as an error."""
    transition = settlement.transition
    is_last = transition.status is JobStatus.FAILED
    level = logging.ERROR if is_last else logging.INFO
    if transition.failure is None or not logger.isEnabledFor(level):
        return
    entry = msgspec.json.decode(settlement.entry)
    trace = entry.get("traceback")
    logger.log(
        level,
        "job %s: attempt %d failed%s: %s%s",
        settlement.id,
        transition.attempts,
        ", and the job is dead-lettered" if is_last else "",
        failure_text(one_line(transition.failure.code), one_line(transition.failure.message)),
        f"\n{indented(trace)}" if trace else "",
        extra={"ending": "failed"} if is_last else None,
    )


def _made_up() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def version() -> str:
    """The version of the installed distribution."""
    try:
        return metadata.version("ergon-framework")
    except metadata.PackageNotFoundError:
        return "unknown"
