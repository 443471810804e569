"""Archives ended jobs and deletes them: read what may go, append it, sync, delete just that.

A process that dies between the append and the deletion leaves jobs in the store that are in the
archive: they are archived once more, never less than once. Nothing is deleted that is not on the
disk. One worker does it at a time; two that both believe it is their turn do no harm, since the
lock of the folder lets one in, and in another folder a job would be archived twice.

A job whose payload object is lost stays in the store with the row that names the object, and so
does a flow with such a step: the object may come back from a backup, or the settings may name the
wrong place. The others are archived meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from ergon_framework.errors import ErgonError, PayloadObjectError
from ergon_framework.jobs.archive_files import ArchiveBusyError, ArchiveWriter, JobArchive
from ergon_framework.jobs.payload_codec import PLAIN, PayloadCodec
from ergon_framework.jobs.payload_codec_store import bounded, inlined_job, log_lost
from ergon_framework.ports.flow import Flow
from ergon_framework.ports.jobstore import FlowStore, FullJobStore, Job, Search, WorkerRecord
from ergon_framework.ports.transfer import FlowRecord, JobRecord
from ergon_framework.storage.failpoints import declare, failpoint

logger = logging.getLogger("ergon.jobs")

MIN_SLICE, MAX_SLICE = 10, 500
"""The smallest and the largest number of jobs that are read, appended and deleted together."""
SLICE_BYTES = 4 * 1024 * 1024
"""The size of a slice in bytes. Where jobs are larger than this allows, the next slice has fewer.
"""
PAUSE = 0.02
"""Seconds between two slices, so that other work gets at the store."""
HELD_FOR = 600.0
"""Seconds after which a job whose payload is lost is tried again."""
MAX_HELD = 400
"""How many jobs and flows are passed over. More lost payloads than this point to a wrong place or a
lost bucket, not to damage of single objects. It is more than the 500 that one read of a store
returns at most, so that a read always reaches jobs behind the ones that are passed over.
"""
NAMED = 10
"""How many ids a notice names."""

declare("archive.slice.appended", "archive.slice.deleted")


class HeldJob(NamedTuple):
    """A job or flow that is not archived, because a payload of it is lost."""

    until: float
    """When archiving the job is tried again."""
    why: str


class _LostPayloadError(Exception):
    """A payload of a job is missing or damaged where that is not allowed."""


class Archiver:
    """Moves what was kept long enough from a store into an archive, slice by slice.

    ``allows_lost``: a job is archived without what is missing or damaged in the object store.
    """

    def __init__(
        self,
        store: FullJobStore,
        archive: JobArchive,
        *,
        allows_lost: bool = False,
        max_held: int = MAX_HELD,
    ) -> None:
        # The archive gets rows as the store keeps them, so what is encrypted in the store is
        # encrypted in the archive. Only payloads in the object store are copied into the row,
        # because their objects are deleted with the job.
        self._store: FullJobStore = getattr(store, "plain", store)
        self._codec: PayloadCodec = getattr(store, "codec", PLAIN)
        self._archive = archive
        self._size = MIN_SLICE
        self._max_held = max_held
        self._lost = log_lost if allows_lost else _refuse_lost
        self.held: dict[str, HeldJob] = {}
        """By id: what stays in the store because a payload of it is lost."""

    def turn(self, is_stopped: Callable[[], bool] = lambda: False) -> int:
        """Archive and delete one slice of jobs, or one flow with its steps; how many jobs.

        0: nothing may go now. Raises ArchiveBusyError, and StoreError where the store or the
        archive fails; then nothing was deleted that is not in the archive.
        """
        with self._archive.locked() as writer:
            self._look_again()
            # Read while the archive is locked: a job that is erased afterwards is erased in the
            # archive, too.
            while jobs := self._prunable_jobs():
                archived = sum(
                    self._archive_jobs(writer, some) for some in bounded(jobs, SLICE_BYTES)
                )
                if archived:
                    return archived
            flows: FlowStore | None = getattr(self._store, "flows", None)
            while flows is not None and (flow := self._prunable_flow(flows)) is not None:
                try:
                    return self._archive_flow(writer, flows, flow, is_stopped)
                except _LostPayloadError as error:
                    self._hold(flow.id, str(error))
            # Only when nothing else is to be done, because rewriting a large file takes long.
            while self._archive.format == "parquet" and not is_stopped() and writer.convert():
                pass
            return 0

    def _look_again(self) -> None:
        now = self._store.now()
        self.held = {key: each for key, each in self.held.items() if each.until > now}

    def _prunable_jobs(self) -> list[Job]:
        found = self._store.prunable(self._size + len(self.held))
        return [job for job in found if job.id not in self.held][: self._size]

    def _prunable_flow(self, flows: FlowStore) -> Flow | None:
        found = flows.prunable(1 + len(self.held))
        return next((flow for flow in found if flow.id not in self.held), None)

    def _archive_jobs(self, writer: ArchiveWriter, jobs: list[Job]) -> int:
        """Archive and delete the jobs that have all their payloads; returns how many."""
        whole: list[Job] = []
        records: list[JobRecord] = []
        for job in jobs:
            try:
                records.append(_record(inlined_job(job, self._codec, self._lost)))
            except _LostPayloadError as error:
                self._hold(job.id, str(error))
            else:
                whole.append(job)
        if whole:
            written = writer.append(records)
            failpoint("archive.slice.appended")
            self._store.purge(whole)
            failpoint("archive.slice.deleted")
            self._adapt(written, len(whole))
        return len(whole)

    def _hold(self, unit_id: str, why: str) -> None:
        if len(self.held) >= self._max_held:
            raise PayloadObjectError(
                f"payloads of more than {self._max_held} ended jobs are lost; of {unit_id}: {why}",
                remedy="see that objects under [jobs.codec] names the right place, or bring it back"
                " from a backup; allow_lost_payloads under [jobs.archive] archives such jobs"
                " without these payloads",
                details={"job_id": unit_id},
            )
        self.held[unit_id] = HeldJob(self._store.now() + HELD_FOR, why)

    def _adapt(self, written: int, number: int) -> None:
        """Choose the size of the next slice by the size of this one; it grows slowly."""
        fitting = SLICE_BYTES * number // max(written, 1)
        self._size = max(MIN_SLICE, min(MAX_SLICE, fitting, 2 * self._size))

    def _archive_flow(
        self, writer: ArchiveWriter, flows: FlowStore, flow: Flow, is_stopped: Callable[[], bool]
    ) -> int:
        """Archive the steps of a flow, then the flow itself.

        A reader that finds the flow in the archive therefore finds all its steps. They are deleted
        from the store when all of them are archived. A flow that was not finished, because the
        worker stops, is archived again as a whole.
        """
        # Otherwise half of the flow would be archived again in each turn.
        if self._codec.objects is not None:
            for step in self._store.search(Search(flow=flow.id)):
                if is_stopped():
                    return 0
                inlined_job(step, self._codec, self._lost)
        number = 0
        for steps in _slices(self._store.search(Search(flow=flow.id)), MAX_SLICE // 5):
            if is_stopped():
                return 0
            for some in bounded(steps, SLICE_BYTES):
                records = [_record(inlined_job(step, self._codec, self._lost)) for step in some]
                writer.append(records)
            number += len(steps)
        writer.append([FlowRecord(flow, tuple(flows.joins(flow.id)), {})])
        failpoint("archive.slice.appended")
        while flows.delete(flow, MAX_SLICE) and not is_stopped():
            pass
        failpoint("archive.slice.deleted")
        return max(number, 1)


class ArchiveThread:
    """Runs an archiver in a thread beside the store thread, so that a slow disk delays no lease
    renewal.
    """

    def __init__(
        self, archiver: Archiver, report: Callable[[str, dict[str, Any]], None], where: str
    ) -> None:
        self._archiver = archiver
        self._report = report
        self._where = where
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_failing = False
        self._told: set[str] = set()

    def is_turn_of(self, mine: WorkerRecord, alive: Iterable[WorkerRecord]) -> bool:
        """Whether this worker archives: of the live workers with an archive, the one with the
        lowest id does.
        """
        return mine.id == min({mine.id, *(each.id for each in alive if each.has_archive)})

    def wake(self) -> None:
        """Archive what may go now, unless the thread is already at it."""
        if self._stopped.is_set() or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self.run, name="ergon-archive", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Archive slice by slice until nothing is left, and send notices of the results."""
        total = 0
        try:
            while not self._stopped.is_set() and (
                number := self._archiver.turn(self._stopped.is_set)
            ):
                total += number
                self._is_failing = False
                self._stopped.wait(PAUSE)
        except ArchiveBusyError:
            pass  # The archive is being rewritten, or another worker archives.
        except Exception as error:  # The disk or the store failed; the next turn tries again.
            if not self._stopped.is_set():
                self._failed(error)
        if total:
            self._report("jobs.archived", {"count": total, "where": self._where})
        self._tell_of_held()

    def _tell_of_held(self) -> None:
        """Send one notice for each job that is passed over, until it was archived or deleted."""
        held = self._archiver.held
        new = [key for key in held if key not in self._told]
        self._told = set(held)
        if not new:
            return
        for key in new[:NAMED]:
            logger.error(
                "the job or flow %s is not archived, and stays in the store: %s", key, held[key].why
            )
        fields = {"count": len(new), "jobs": new[:NAMED], "where": self._where}
        self._report("archive.held", fields)

    def stop(self) -> None:
        """Begin no further slice. From any thread."""
        self._stopped.set()

    def join(self, seconds: float) -> None:
        """Wait for the slice under way. Leaving earlier loses nothing."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _failed(self, error: Exception) -> None:
        if not self._is_failing:  # Sent once, until a slice succeeds.
            is_expected = isinstance(error, ErgonError)
            logger.error(
                "ended jobs cannot be archived, and stay in the store: %s",
                error,
                exc_info=None if is_expected else error,
            )
            self._report("archive.failed", {"error": str(error), "where": self._where})
        self._is_failing = True


def _refuse_lost(job: Job, error: ErgonError) -> None:
    where = "" if job.step is None else f"step {job.id}: "
    raise _LostPayloadError(f"{where}{error}") from error


def _record(job: Job) -> JobRecord:
    return JobRecord(job, job.created_at if job.finished_at is None else job.finished_at)


def _slices(jobs: Iterator[Job], size: int) -> Iterator[list[Job]]:
    while some := list(islice(jobs, size)):
        yield some
