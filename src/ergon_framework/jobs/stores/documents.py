"""Stored JSON and listings, alike in every store: options, failures, workers, schedules, queues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from heapq import nsmallest
from typing import Any, TypeVar

import msgspec

from ergon_framework.core.claim import NO_LIMITS, QueueLimits
from ergon_framework.core.failure import Failure
from ergon_framework.core.job import JobStatus
from ergon_framework.core.unique import UniqueRule
from ergon_framework.jobs.stores.unreadable import shown
from ergon_framework.ports.flow import StepPlace
from ergon_framework.ports.jobstore import (
    Job,
    Named,
    NewJob,
    Queue,
    Schedule,
    Search,
    WorkerRecord,
    labels_of,
)


class StoredOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job may ask of its worker."""

    timeout: float | None = None
    max_attempts: int | None = None
    max_deliveries: int | None = None
    retry: str | None = None
    result_ttl: float | None = None
    correlation_id: str | None = None
    trace_context: dict[str, str] | None = None
    uses: Any = None
    flow_id: str | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, str] | None = None
    unique: UniqueRule | None = None
    waiting_key: str | None = None  # the unique key of a job that holds it only while it waits

    @classmethod
    def of(cls, job: NewJob | Job) -> StoredOptions:
        """Those of a job."""
        return cls(
            job.timeout,
            job.max_attempts,
            job.max_deliveries,
            None if job.retry is None else job.retry.decode(),
            job.result_ttl,
            job.correlation_id,
            job.trace_context,
            job.uses,
            None if job.step is None else job.step.flow_id,
            job.tags,
            job.metadata,
            job.unique,
            job.unique_key if job.is_waiting_only else None,
        )

    def of_job(self) -> dict[str, Any]:
        """As a ``Job`` wants them."""
        found = {"tags": self.tags, "metadata": self.metadata, "unique": self.unique}
        return self.fields() | found

    def fields(self) -> dict[str, Any]:
        """As a ``ClaimedJob`` wants them, in its order."""
        return {
            "timeout": self.timeout,
            "max_attempts": self.max_attempts,
            "max_deliveries": self.max_deliveries,
            "retry": None if self.retry is None else self.retry.encode(),
            "result_ttl": self.result_ttl,
            "correlation_id": self.correlation_id,
            "trace_context": self.trace_context,
            "uses": self.uses,
        }


NO_OPTIONS = StoredOptions()
_encode = msgspec.json.Encoder().encode
_options = msgspec.json.Decoder(StoredOptions).decode
_failure = msgspec.json.Decoder(Failure).decode
_feeds = msgspec.json.Decoder(tuple[str, ...]).decode


def text_of(value: Any) -> str:
    """JSON, to be stored as text."""
    return _encode(value).decode()


def step_options_text(job: NewJob) -> str | None:
    """The same as ``options_text`` for a new step: most ask for nothing of their own."""
    if job.step is None or is_special(job):
        return options_text(job)
    if job.uses is not None:
        return text_of(StoredOptions(uses=job.uses, flow_id=job.step.flow_id))
    # All plain steps of a flow have the same options: with thousands of steps it pays to encode
    # them once.
    return _of_flow(job.step.flow_id)


@lru_cache(maxsize=16)
def _of_flow(flow_id: str) -> str:
    return text_of(StoredOptions(flow_id=flow_id))


@lru_cache(maxsize=256)  # as :func:`feeds_from`
def feeds_text(feeds: tuple[str, ...]) -> str:
    """The joins at which the end of a step counts, as text."""
    return text_of(feeds)


def options_text(job: NewJob | Job) -> str | None:
    """The options of a job as text; None when it asks for nothing."""
    options = StoredOptions.of(job)
    return None if options == NO_OPTIONS else text_of(options)


def options_from(text: str | bytes | None) -> StoredOptions:
    """The options that :func:`options_text` wrote."""
    return NO_OPTIONS if text is None else _options(text)


def asked_of(text: str | bytes | None) -> tuple[Any, ...]:
    """The same as the last fields of a ``ClaimedJob``; none where all have their defaults."""
    if text is None:
        return ()
    options = _options(text)
    return (  # one by one: this is done for each step, and a dict would take three times as long
        options.timeout,
        options.max_attempts,
        options.max_deliveries,
        None if options.retry is None else options.retry.encode(),
        options.result_ttl,
        options.correlation_id,
        options.trace_context,
        options.uses,
        options.flow_id,
    )


def failure_from(text: str | bytes | None) -> Failure | None:
    """A failure that :func:`text_of` wrote."""
    return None if text is None else _failure(text)


@lru_cache(maxsize=16)
def states_from(text: str) -> tuple[str, ...]:
    """The ends after which a job holds its unique key, that :func:`text_of` wrote."""
    return _feeds(text)


@lru_cache(maxsize=256)  # all steps of a group count at the same join
def feeds_from(text: str) -> tuple[str, ...]:
    """The joins at which the end of a step counts, that :func:`text_of` wrote."""
    return _feeds(text)


def step_from(row: Mapping[str, Any]) -> StepPlace | None:
    """The place of a job in its flow, from the columns of its row; None if it is no step."""
    if row["feeds"] is None:
        return None
    return StepPlace(
        flow_id=row["flow_id"],
        join_id=row["join_id"],
        feeds=feeds_from(row["feeds"]),
        wait=row["wait"],
        signal=row["signal"],
    )


def entries_of(history: str | None) -> tuple[bytes, ...]:
    """The entries of a history that is kept as lines."""
    return tuple(history.encode().split(b"\n")) if history else ()


def is_special(job: NewJob) -> bool:
    """Whether a new job has something that the plain statement does not write."""
    # Without `uses`: only steps have it, and they have statements of their own.
    return (
        job.limit_key is not None
        or job.unique_key is not None
        or job.expires_at is not None
        or job.correlation_id is not None
        or job.trace_context is not None
        or job.timeout is not None
        or job.max_attempts is not None
        or job.max_deliveries is not None
        or job.retry is not None
        or job.result_ttl is not None
        or job.tags != ()
        or job.metadata is not None
    )


def column_key(job: NewJob | Job) -> str | None:
    """The unique key that a job has until it ends; None where it gives that back when it runs."""
    return None if job.is_waiting_only else job.unique_key


def has_labels(job: NewJob | Job, wanted: Search) -> bool:
    """Whether a job has the tags and the metadata that a search asks for."""
    asked = wanted.labels
    return not asked or set(asked) <= set(labels_of(job.tags, job.metadata))


def has_error(failure: Failure | None, wanted: Search) -> bool:
    """Whether the last failure of a job is of the family that a search asks for."""
    if wanted.error is None:
        return True
    return failure is not None and wanted.error in (failure.code, failure.kind.value)


def label_rows(jobs: Iterable[NewJob | Job]) -> list[tuple[str, str]]:
    """What each of these jobs is indexed under, with its id."""
    return [
        (label, job.id)
        for job in jobs
        if job.tags or job.metadata
        for label in labels_of(job.tags, job.metadata)
    ]


T = TypeVar("T")

logger = logging.getLogger("ergon.jobs")

_decode = msgspec.json.Decoder(WorkerRecord).decode


class Reader:
    """Reads rows. One that cannot be read is left out and logged once; the others are answered."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def workers(self, rows: Iterable[tuple[Any, ...]]) -> list[WorkerRecord]:
        """From rows of id, instant and JSON."""
        return list(self._readable("worker", rows, _worker))

    def schedules(self, rows: Iterable[tuple[Any, ...]]) -> list[Schedule]:
        """From rows with the fields of a schedule, in their order."""
        return list(self._readable("schedule", rows, _schedule))

    def _readable(
        self, what: str, rows: Iterable[tuple[Any, ...]], read: Callable[[tuple[Any, ...]], T]
    ) -> Iterator[T]:
        for row in rows:
            try:
                yield read(row)
            except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
                name = f"{what} {row[0]!r}"
                if name not in self._logged:
                    self._logged.add(name)
                    logger.warning("the row of %s is left out, it cannot be read: %s", name, error)


def earliest(schedules: Iterable[Schedule], limit: int) -> list[Schedule]:
    """Those that fire next, for stores without an index of them."""
    waiting = [each for each in schedules if each.next_at is not None and not each.is_paused]
    return nsmallest(limit, waiting, key=lambda each: (each.next_at, each.name))


def _worker(row: tuple[Any, ...]) -> WorkerRecord:
    _, seen_at, record = row
    return msgspec.structs.replace(_decode(record), seen_at=msgspec.convert(seen_at, float))


def _schedule(row: tuple[Any, ...]) -> Schedule:
    fields = dict(zip(Schedule.__struct_fields__, row, strict=True))
    job, is_paused = fields["job"], fields["is_paused"]
    fields["job"] = job.encode() if isinstance(job, str) else job  # written by hand
    return msgspec.convert(fields | {"is_paused": is_paused == 1}, Schedule)


def queue_of(
    name: str,
    settings: QueueLimits,
    counts: dict[str, int] | None = None,
    oldest_due_at: float | None = None,
    more: tuple[str, ...] = (),
) -> Queue:
    """A queue as callers of a store see it."""
    return Queue(
        name=name,
        is_paused=settings.is_paused,
        max_active=settings.max_active,
        rate=settings.rate,
        burst=settings.burst,
        key_max_active=settings.key_max_active,
        key_rate=settings.key_rate,
        key_burst=settings.key_burst,
        pinned_version=settings.pinned_version,
        counts=counts or {},
        more=more,
        oldest_due_at=oldest_due_at,
    )


def listed(
    counted: Iterable[tuple[Any, ...]],
    retrying: Mapping[str, int],
    settings: Mapping[str, QueueLimits],
    now: float,
) -> list[Queue]:
    """Every queue that was counted or has settings, by name.

    ``counted`` has rows of queue, status, number and oldest due time; the status of those that
    wait is ``waiting``, for the stages do not tell pending jobs from retrying ones.
    """
    counts: dict[str, dict[str, int]] = {}
    oldest: dict[str, float] = {}
    for name, status, number, run_at in counted:
        name = name if isinstance(name, str) else shown(name)  # noqa: PLW2901 - of an odd row
        mine = counts.setdefault(name, {})
        mine[status] = mine.get(status, 0) + number
        if run_at is not None and run_at <= now:
            oldest[name] = min(run_at, oldest.get(name, run_at))
    return [
        queue_of(
            name,
            settings.get(name, NO_LIMITS),
            _by_status(counts.get(name, {}), retrying.get(name, 0)),
            oldest.get(name),
        )
        for name in sorted({*counts, *settings})
    ]


def named_in(lanes: Iterable[tuple[str, str]], seen: Mapping[str, float]) -> list[Named]:
    """The executors of lanes, by name; ``seen`` says when each was last seen, if ever."""
    queues: dict[str, list[str]] = {}
    for executor, queue in sorted(lanes):
        if executor:
            queues.setdefault(executor, []).append(queue)
    # Under the empty name stands when the first worker reported. An executor that was never seen
    # counts as missing since then, not since ever.
    since = seen.get("")
    return [Named(each, tuple(found), seen.get(each, since)) for each, found in queues.items()]


def _by_status(counts: dict[str, int], retrying: int) -> dict[str, int]:
    waiting = counts.pop("waiting", 0)
    found = {JobStatus.PENDING.value: waiting - retrying, JobStatus.RETRYING.value: retrying}
    return {status: number for status, number in (found | counts).items() if number}
