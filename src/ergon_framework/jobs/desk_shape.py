"""Queues, workers and schedules as plain values: the one shape in which they leave the process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.shape import SILENT, decoded, moment
from ergon_framework.ports.jobstore import JobStore, Named, Queue, Schedule, WorkerRecord


def queue_settings_shape(queue: Queue) -> dict[str, Any]:
    """What holds a queue back."""
    return {
        "name": queue.name,
        "paused": queue.is_paused,
        "max_active": queue.max_active,
        "rate": queue.rate,
        "burst": queue.burst,
    }


def queue_shapes(
    queues: Iterable[Queue], named: Iterable[Named], workers: Sequence[WorkerRecord], now: float
) -> list[dict[str, Any]]:
    """Queues, each with the executors that its due jobs name and no living worker has."""
    missing = missing_executors(named, workers, now)
    return [
        queue_shape(queue, [each.executor for each in missing if queue.name in each.queues])
        for queue in queues
    ]


def missing_executors(
    named: Iterable[Named], workers: Sequence[WorkerRecord], now: float
) -> list[Named]:
    """The executors that due jobs name and no living worker has."""
    there = {name for each in workers if now - each.seen_at < SILENT for name in each.executors}
    return [each for each in named if each.executor not in there]


def unsynced(store: JobStore) -> str | None:
    """Why what a store acknowledges may be lost; None when it is on disk.

    One in memory has the jobs of this process alone, or stands for a file that nobody made yet.
    """
    from ergon_framework.jobs.stores.memory import MemoryJobStore

    return None if store.is_synced or isinstance(store, MemoryJobStore) else store.durability


def queue_shape(queue: Queue, missing: Sequence[str] = ()) -> dict[str, Any]:
    """A queue with its limits and its counts."""
    return {
        **queue_settings_shape(queue),
        "missing_executors": list(missing),
        "counts": {status.value: queue.counts.get(status.value, 0) for status in JobStatus}
        | ({"unreadable": aside} if (aside := queue.counts.get("unreadable")) else {}),
        "oldest_due_at": moment(queue.oldest_due_at),
    }


def worker_shape(record: WorkerRecord, now: float) -> dict[str, Any]:
    """A worker; one that has told nothing for long is ``silent``."""
    pools = [each for each in record.executors.values() if isinstance(each, dict)]
    return {
        "id": record.id,
        "host": record.host,
        "pid": record.pid,
        "version": record.version,
        "state": worker_state(record, now),
        "queues": None if record.queues is None else list(record.queues),
        "busy": sum(int(each.get("in_flight", 0)) for each in pools),
        "executors": dict(record.executors),
        "counters": dict(record.counters),
        "started_at": moment(record.started_at),
        "seen_at": moment(record.seen_at),
    }


def worker_state(record: WorkerRecord, now: float) -> str:
    """What a worker says of itself, unless it has been silent for too long."""
    return record.state if now - record.seen_at < SILENT else "silent"


def schedule_shape(schedule: Schedule) -> dict[str, Any]:
    """A cron schedule; the arguments of its job stay out."""
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
    }
