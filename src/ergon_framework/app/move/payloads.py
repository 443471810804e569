"""Payloads in an object store on their way into a file or another store: they go into the rows.

What is moved or exported needs nothing else afterwards: no object store, and no worker of the old
store, which would remove the objects of jobs that it has deleted. A payload whose object is missing
or damaged is refused. Where that is allowed, its row is copied as it is, and a note names it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from ergon_framework.app.jobs import setup_of
from ergon_framework.app.settings import load_settings
from ergon_framework.app.settings.sections import Settings
from ergon_framework.errors import ErgonError, PayloadObjectError
from ergon_framework.jobs.payload_codec import PayloadCodec, names_object
from ergon_framework.jobs.payload_codec_store import inlined_job
from ergon_framework.ports.jobstore import Job
from ergon_framework.ports.transfer import PAGE_BYTES, C, JobRecord, RecordReader

ALLOW_LOST = "--allow-lost-payloads"


class InlinedRecords:
    """Reads the records of a store; those of jobs have all of their payloads."""

    def __init__(
        self,
        records: RecordReader,
        settings: Callable[[], Settings] | None,
        notes: list[str] | None = None,
    ) -> None:
        """``settings`` are read when a payload is in an object store; None: those that are found
        from here. ``notes`` gets a line for each payload that is lost; None: it is refused.
        """
        self._records = records
        self._notes = notes
        self._told: set[str] = set()
        self._settings = settings or load_settings
        self._codec: PayloadCodec | None = None

    def dump(self, kind: type[C], after: Any, limit: int) -> list[C]:
        """The records of a kind after a place (None: from the beginning), in order."""
        page = self._records.dump(kind, after, limit)
        if kind is not JobRecord:
            return page
        found: list[JobRecord] = []
        size = 0
        for copy in cast("list[JobRecord]", page):
            if size > PAGE_BYTES:
                break  # the next page begins here
            inlined = self._inlined(copy)
            if inlined is not copy:
                size += len(inlined.job.args) + len(inlined.job.result or b"")
            found.append(inlined)
        return cast("list[C]", found)

    def _inlined(self, copy: JobRecord) -> JobRecord:
        job = copy.job
        if not (names_object(job.args) or (job.result is not None and names_object(job.result))):
            return copy
        if self._codec is None:
            self._codec = setup_of(self._settings()).jobs.codec.compiled()
        try:
            return msgspec.structs.replace(copy, job=inlined_job(job, self._codec, self._lost))
        except PayloadObjectError as error:
            if "job_id" in error.details:
                raise
            raise PayloadObjectError(
                f"the job {job.id} cannot be copied: {error.message}",
                remedy="run this where ergon.toml has objects under [jobs.codec], or let"
                " ERGON_CONFIG name that file; and see that the object store answers",
                details={**error.details, "job_id": job.id},
            ) from error

    def _lost(self, job: Job, error: ErgonError) -> None:
        if self._notes is None:
            raise PayloadObjectError(
                f"the job {job.id} cannot be copied whole: {error.message}",
                remedy="bring the object back from a backup of that place, or correct objects in"
                f" [jobs.codec]; {ALLOW_LOST} copies such jobs as they are, and names each",
                details={**error.details, "job_id": job.id},
            ) from error
        note = f"job {job.id} was copied without a payload: {error.message}"
        if note not in self._told:  # everything is read more than once
            self._told.add(note)
            self._notes.append(note)
