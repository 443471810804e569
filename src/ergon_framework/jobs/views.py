"""Jobs, queues, workers and schedules as plain values, for every place that shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from ergon_framework.core.failure import Failure
from ergon_framework.core.job import DISCARDED, JobStatus, route
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.jobs.payload_codec import PLAIN, encoding_of
from ergon_framework.jobs.payload_codec_store import decoded_job
from ergon_framework.ports.jobstore import Job, JobStore, Named, Queue, Schedule, WorkerRecord

if TYPE_CHECKING:
    from ergon_framework.jobs.settings import JobsSettings

SILENT_AFTER = 60.0
"""Seconds after which a worker that has sent no heartbeat counts as gone."""
_decode = msgspec.json.decode


def job_view(
    job: Job,
    settings: JobsSettings,
    workers: Iterable[WorkerRecord] = (),
    problems: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Everything that is known of a job. Fields that it leaves open come from the settings.

    ``workers`` have the progress of running jobs. ``problems`` say why its arguments or its result
    cannot be read.
    """
    rule = settings.rule(job.max_attempts, job.max_deliveries)
    return {
        "id": job.id,
        "status": job.status.value,
        "handler": job.handler,
        "executor": executor_of(job, settings) or None,
        "queue": job.queue,
        "attempts": job.attempts,
        "max_attempts": rule.retry.attempts,
        "deliveries": job.deliveries,
        "max_deliveries": rule.max_deliveries,
        "excused": job.excused,
        "priority": job.priority,
        **_payload_view(job, problems),
        "last_error": None if job.last_error is None else error_view(job.last_error),
        "why": None if job.status is JobStatus.ACTIVE else job.why or None,
        "history": list(entries(job)),
        "created_at": moment(job.created_at),
        "run_at": moment(job.run_at),
        "claimed_at": moment(job.claimed_at),
        "lease_expires_at": moment(job.lease_expires_at),
        "finished_at": moment(job.finished_at),
        "expires_at": moment(job.expires_at),
        "purge_at": moment(job.purge_at),
        "timeout": settings.timeout if job.timeout is None else job.timeout,
        "retry": None if job.retry is None else decoded(job.retry),
        "worker": job.worker,
        "unique_key": job.unique_key,
        **_unique_view(job),
        "limit_key": job.limit_key,
        "limit": job.limit if job.limit_key is not None else None,
        "correlation_id": job.correlation_id,
        "trace_context": job.trace_context,
        **_label_view(job),
        **_step_view(job),
        **_cancel_view(job),
        **_progress_view(job, workers),
    }


def _payload_view(job: Job, problems: Mapping[str, str]) -> dict[str, Any]:
    """The arguments and the result. Encrypted ones that no key opened are marked as encrypted."""
    job = decoded_job(job, PLAIN)  # A payload that is only compressed can be read without a key.
    view = {
        "args": decoded(job.args),
        "kwargs": decoded(job.kwargs),
        "result": None if job.result is None else decoded(job.result),
    }
    hidden = {"args": encoding_of(job.args), "result": encoding_of(job.result or b"")}
    encoded = {name: how for name, how in hidden.items() if how is not None}
    for name in encoded.keys() & problems.keys():
        encoded[name]["problem"] = problems[name]
    if not encoded:
        return view
    return {**view, **dict.fromkeys(encoded), "encoded": encoded}


def _unique_view(job: Job) -> dict[str, Any]:
    """The states in which a job holds its unique key, and until when it holds it after its end."""
    rule = job.unique
    if rule is None:
        return {}
    until = rule.until(job.created_at)
    return {"unique_states": list(rule.states), "unique_until": until and moment(until)}


def _label_view(job: Job) -> dict[str, Any]:
    """The tags and metadata by which a job can be found."""
    labels = {"tags": list(job.tags), "metadata": job.metadata}
    return {name: value for name, value in labels.items() if value}


def progress_of(job: Job, workers: Iterable[WorkerRecord]) -> dict[str, Any] | None:
    """The progress of a running job: ``fraction``, ``message``, ``at``. None if there is none.

    Only its present claim counts: what an earlier attempt reported, from this or another worker,
    says nothing about this one.
    """
    if job.status is not JobStatus.ACTIVE:
        return None
    for worker in workers:
        progress = worker.progress.get(job.id) if worker.id == job.worker else None
        if isinstance(progress, Mapping) and progress.get("fence") == job.fence:
            return {name: progress.get(name) for name in ("fraction", "message", "at")}
    return None


def progress_text(progress: Mapping[str, Any]) -> str:
    """A progress in a few words, such as ``40 %, page 40 of 100``."""
    fraction, message = progress.get("fraction"), progress.get("message")
    percent = f"{fraction:.0%}".replace("%", " %") if isinstance(fraction, int | float) else ""
    return ", ".join(filter(None, (percent, str(message or ""))))


def _progress_view(job: Job, workers: Iterable[WorkerRecord]) -> dict[str, Any]:
    progress = progress_of(job, workers)
    return {} if progress is None else {"progress": progress}


def _cancel_view(job: Job) -> dict[str, Any]:
    """Who asked to cancel a running job, since when and why."""
    request = job.cancel_request
    if request is None:
        return {}
    requested = {"at": request.at, "by": request.by or None, "reason": request.reason or None}
    return {"cancel_requested": requested}


def _step_view(job: Job) -> dict[str, Any]:
    """The flow of a step, and what it waits for."""
    step = job.step
    if step is None:
        return {}
    is_pending = job.status is JobStatus.PENDING
    return {
        "flow_id": step.flow_id,
        "waits_for_steps": is_pending and step.join_id is not None,
        "signal": step.signal,
    }


def executor_of(job: Job, settings: JobsSettings) -> str:
    """The executor that runs a job: the one that the job names, its queue's, or the default."""
    named = job.executor.partition("#")[0] or route(job.handler)[0]
    return named or settings.routes.get(job.queue) or settings.default_executor


def error_view(failure: Failure) -> dict[str, str]:
    """A failure's kind, code and message."""
    return {"kind": failure.kind.value, "code": failure.code, "message": failure.message}


def entries(job: Job) -> Iterator[dict[str, Any]]:
    """The job's history, the oldest event first."""
    for line in job.history:
        entry = decoded(line)
        yield entry if isinstance(entry, dict) else {"event": "unreadable"}


def last_entry_with(job: Job, name: str) -> dict[str, Any] | None:
    """The last event of the job's history with this name, if it belongs to the job's
    present run.
    """
    latest: dict[str, Any] | None = None
    for entry in entries(job):
        if entry.get("event") in ("requeued", "completed", DISCARDED):
            latest = None
        elif entry.get(name):
            latest = entry
    return latest


_EARLIEST, _LATEST = -62_167_219_200.0, 253_402_300_799.0
"""The first and the last second that such text can represent."""


def moment(at: float | None) -> str | None:
    """An instant as RFC 3339 text. One beyond the range of such text becomes the nearest that fits.

    A row may have been written by another program, and must not keep all others from being shown.
    """
    return None if at is None else format_rfc3339(min(max(at, _EARLIEST), _LATEST))


def decoded(text: bytes) -> Any:
    """The value of stored JSON; None for bytes that no version of Ergon has written."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def queue_limits_view(queue: Queue) -> dict[str, Any]:
    """The limits that hold a queue back."""
    return {
        "name": queue.name,
        "paused": queue.is_paused,
        "max_active": queue.max_active,
        "rate": queue.rate,
        "burst": queue.burst,
        "key_max_active": queue.key_max_active,
        "key_rate": queue.key_rate,
        "key_burst": queue.key_burst,
        "pinned_version": queue.pinned_version,
    }


def queue_views(
    queues: Iterable[Queue], named: Iterable[Named], workers: Sequence[WorkerRecord], now: float
) -> list[dict[str, Any]]:
    """Queues, each with what it needs and no worker has: executors and handlers of its due jobs,
    and the version to which it is pinned.
    """
    missing = missing_executors(named, workers, now)
    queues = list(queues)
    wanted: dict[str, list[str]] = {queue.name: [] for queue in queues}
    for each in missing:
        for name in each.queues:
            if name in wanted:
                wanted[name].append(each.executor)
    pins = {each.name: each.pinned_version for each in queues if each.pinned_version is not None}
    lacking = without_version(pins, workers, now)
    return [
        queue_view(queue, wanted[queue.name]) | {"missing_version": lacking.get(queue.name)}
        for queue in queues
    ]


def missing_executors(
    named: Iterable[Named], workers: Sequence[WorkerRecord], now: float
) -> list[Named]:
    """The executors that due jobs name and no live worker has; likewise for lanes of handlers."""
    alive = [each for each in workers if now - each.seen_at < SILENT_AFTER]
    there = {name for each in alive for name in (*each.executors, *each.serves)}
    return [each for each in named if each.executor not in there]


def without_version(
    pins: Mapping[str, str], workers: Sequence[WorkerRecord], now: float
) -> dict[str, str]:
    """The pinned queues whose version no live worker runs."""
    there = {each.app_version for each in workers if now - each.seen_at < SILENT_AFTER}
    return {queue: version for queue, version in pins.items() if version not in there}


def unsynced(store: JobStore) -> str | None:
    """Why acknowledged writes of the store may be lost. None when they are on disk.

    A store in memory has the jobs of this process only, or stands for a file that was not made yet.
    """
    from ergon_framework.jobs.stores.memory import MemoryJobStore

    return None if store.is_synced or isinstance(store, MemoryJobStore) else store.durability


def queue_view(queue: Queue, missing: Sequence[str] = ()) -> dict[str, Any]:
    """A queue with its limits and its counts."""
    return {
        **queue_limits_view(queue),
        "missing_executors": [name for name in missing if "#" not in name],
        "missing_handlers": [name.removeprefix("#") for name in missing if "#" in name],
        "counts": {status.value: queue.counts.get(status.value, 0) for status in JobStatus}
        | ({"unreadable": aside} if (aside := queue.counts.get("unreadable")) else {}),
        "more": list(queue.more),
        "oldest_due_at": moment(queue.oldest_due_at),
    }


def worker_view(record: WorkerRecord, now: float) -> dict[str, Any]:
    """A worker. One that has sent no heartbeat for long is ``silent``."""
    pools = [each for each in record.executors.values() if isinstance(each, dict)]
    return {
        "id": record.id,
        "host": record.host,
        "pid": record.pid,
        "version": record.version,
        "app_version": record.app_version,
        "state": worker_state(record, now),
        "queues": None if record.queues is None else list(record.queues),
        "busy": sum(int(each.get("in_flight", 0)) for each in pools),
        "executors": dict(record.executors),
        "counters": dict(record.counters),
        "started_at": moment(record.started_at),
        "seen_at": moment(record.seen_at),
    }


def worker_state(record: WorkerRecord, now: float) -> str:
    """The state that a worker reports, unless its last heartbeat is too old."""
    return record.state if now - record.seen_at < SILENT_AFTER else "silent"


def schedule_view(schedule: Schedule) -> dict[str, Any]:
    """A cron schedule, without the arguments of its job."""
    job = decoded(schedule.job) or {}
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "zone": schedule.zone,
        "misfire": schedule.misfire,
        "handler": job.get("handler"),
        "queue": job.get("queue"),
        "paused": schedule.is_paused,
        "next_at": None if schedule.is_paused else moment(schedule.next_at),
        "last_at": moment(schedule.last_at),
        "source": schedule.source,
        "jitter": schedule.jitter,
        "ends_at": moment(schedule.ends_at),
    }
