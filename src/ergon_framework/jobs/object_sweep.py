"""Removes payload objects that no job names any more.

An object outlives its job: a job is pruned, purged or deleted in its store alone. An object may
also have no job at all, when a process died between writing the two, or when a worker lost a job
whose result it had written. So now and then a worker lists the objects that are older than a day,
and asks the store for the job that each object names. Objects of jobs of other stores are left
alone.

An object is removed when two sweeps, some minutes apart by a clock that nobody can set, have found
that no job names it. However the clock of a machine is set, an object that was written a moment ago
is safe.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ErgonError, UnreadableJobError
from ergon_framework.jobs.payload_codec import object_of
from ergon_framework.jobs.payload_objects import PayloadObjects
from ergon_framework.ports.jobstore import FullJobStore, Job, Search, WorkerRecord
from ergon_framework.storage.failpoints import declare, failpoint

logger = logging.getLogger("ergon.jobs")

MIN_AGE = 86_400.0
"""Seconds for which an object without a job is kept: its row may be in a transaction of a caller
that has not committed yet."""
SWEEP_INTERVAL = 600.0
"""Seconds between two sweeps."""
BATCH = 100
"""How many jobs one query asks for."""
MAX_KNOWN = 200_000
"""How many objects a worker remembers the owners of; it reads the beginning of each object once."""

declare("objects.sweep.unnamed", "objects.sweep.removed")


class ObjectSweep:
    """The sweeps of one worker."""

    def __init__(
        self,
        store: FullJobStore,
        objects: PayloadObjects,
        *,
        min_age: float = MIN_AGE,
        interval: float = SWEEP_INTERVAL,
        wall: Callable[[], float] = time.time,
        now: Callable[[], float] = SYSTEM_CLOCK.now,
    ) -> None:
        """``wall`` is the clock by which objects are dated; ``now`` is one that nobody can set."""
        self._store: FullJobStore = getattr(store, "plain", store)
        self._objects = objects
        self._min_age = min_age
        self.interval = interval
        self._wall = wall
        self._now = now
        # the owner of each object; empty: a job of another store
        self._known: dict[bytes, str] = {}
        self._unnamed: dict[bytes, float] = {}  # since when, by ``now``

    def look(self, is_stopped: Callable[[], bool] = lambda: False) -> int:
        """List all objects once, and remove those that two sweeps found unnamed. Returns how many.

        Raises StoreError when the store or the object store cannot be reached.
        """
        if not self._objects.tag:
            logger.warning(
                "payloads in %s are not swept: this store does not tell its id to this user",
                self._objects.place,
            )
            return 0
        self._objects.sweep_uploads(self._min_age)
        removed, found = 0, dict[bytes, float]()
        old = self._objects.written_before(self._wall() - self._min_age)
        while batch := list(islice(old, BATCH)):
            if is_stopped():
                return removed
            for digest in unnamed(self._store, self._mine(batch)):
                since = self._unnamed.get(digest, self._now())
                if self._now() - since < self.interval:
                    found[digest] = since
                    continue
                failpoint("objects.sweep.unnamed")
                removed += self._objects.remove(digest)
                failpoint("objects.sweep.removed")
                self._known.pop(digest, None)
        self._unnamed = found
        return removed

    def _mine(self, digests: Iterable[bytes]) -> dict[bytes, str]:
        """The objects that belong to jobs of this store, with the ids of these jobs."""
        if len(self._known) > MAX_KNOWN:
            self._known.clear()
        mine = {}
        for digest in digests:
            job_id = self._known.get(digest)
            if job_id is None:
                header = self._objects.header_of(digest)
                is_mine = header is not None and header.store == self._objects.tag
                job_id = self._known[digest] = header.job if header and is_mine else ""
            if job_id:
                mine[digest] = job_id
        return mine


def unnamed(store: FullJobStore, owners: Mapping[bytes, str]) -> set[bytes]:
    """The objects that no row names. ``owners`` has the ids of their jobs.

    A row that cannot be read may name any object of its job.
    """
    if not owners:
        return set()
    jobs: dict[str, Job | None] = {
        job.id: job for job in store.search(Search(ids=tuple(set(owners.values()))))
    }
    unreadable: set[str] = set()
    for job_id in {*owners.values()} - jobs.keys():
        try:
            jobs[job_id] = store.find(job_id)  # A search leaves out rows that cannot be read.
        except UnreadableJobError:
            unreadable.add(job_id)
    named = {digest for job in jobs.values() if job is not None for digest in objects_in(job)}
    return {d for d, job_id in owners.items() if d not in named and job_id not in unreadable}


def objects_in(job: Job) -> Iterator[bytes]:
    """The digests of the objects that a job's row names."""
    for payload in (job.args, job.result):
        name = object_of(payload)
        if name is not None:
            yield name.digest


class SweepThread:
    """Runs the sweeps in a thread beside the store thread of a worker, because a bucket may be
    slow.
    """

    def __init__(self, sweep: ObjectSweep, report: Callable[[str, dict[str, Any]], None]) -> None:
        self._sweep = sweep
        self._report = report
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._looked_at: float | None = None
        self._is_failing = False

    def is_turn_of(self, mine: WorkerRecord, alive: Iterable[WorkerRecord]) -> bool:
        """Whether this worker sweeps: of the live workers that can, the one with the lowest id
        does.
        """
        return mine.id == min({mine.id, *(each.id for each in alive if each.has_objects)})

    def wake(self, now: float) -> None:
        """Sweep, if that is due and no sweep is running."""
        is_early = self._looked_at is not None and now - self._looked_at < self._sweep.interval
        is_running = self._thread is not None and self._thread.is_alive()
        if is_early or is_running or self._stopped.is_set():
            return
        self._looked_at = now
        self._thread = SYSTEM_CLOCK.spawn("ergon-object-sweep", self.run)

    def run(self) -> None:
        """Sweep once, and report the result."""
        try:
            removed = self._sweep.look(self._stopped.is_set)
        # The store or the object store failed; the next sweep tries again.
        except Exception as error:
            if not self._stopped.is_set():
                self._failed(error)
            return
        self._is_failing = False
        if removed:
            self._report("objects.removed", {"count": removed})

    def _failed(self, error: Exception) -> None:
        if not self._is_failing:  # Reported once, until a sweep succeeds.
            is_expected = isinstance(error, ErgonError)
            text = "objects of payloads that no job needs cannot be removed for now: %s"
            logger.error(text, error, exc_info=None if is_expected else error)
        self._is_failing = True

    def stop(self) -> None:
        """Start no further sweep. May be called from any thread."""
        self._stopped.set()

    def join(self, seconds: float) -> None:
        """Wait for the running sweep. Leaving earlier loses nothing."""
        if self._thread is not None:
            self._thread.join(seconds)
