"""What ``/metrics`` tells about jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.desk_shape import missing_executors, unsynced, worker_state
from ergon_framework.jobs.stores.unreadable import UNREADABLE
from ergon_framework.ports.jobstore import Named, Queue, WorkerRecord
from ergon_framework.web.exposition import Family
from ergon_framework.web.job_source import JobSource


def job_metrics(source: JobSource) -> list[Family]:
    """Read the store, then tell."""
    with source.opened() as client:
        now = client.store.now()
        queues, workers = client.store.queues(), client.store.workers()
        missing = missing_executors(client.store.named(), workers, now)
        is_unsynced = unsynced(client.store) is not None
    text = "1 when the store acknowledges jobs before they are on disk."
    synced = Family("ergon_job_store_unsynced", "gauge", text, [({}, int(is_unsynced))])
    return [*_of_queues(queues, now), *_of_workers(workers, now), _of_missing(missing, now), synced]


def _of_queues(queues: Sequence[Queue], now: float) -> list[Family]:
    counts = [
        ({"queue": queue.name, "status": status.value}, queue.counts.get(status.value, 0))
        for queue in queues
        for status in JobStatus
    ]
    counts += [
        ({"queue": queue.name, "status": UNREADABLE}, queue.counts[UNREADABLE])
        for queue in queues
        if queue.counts.get(UNREADABLE)
    ]
    ages = [({"queue": queue.name}, _age(queue.oldest_due_at, now)) for queue in queues]
    paused = [({"queue": queue.name}, int(queue.is_paused)) for queue in queues]
    dead = sum(queue.counts.get(JobStatus.FAILED.value, 0) for queue in queues)
    return [
        Family("ergon_jobs", "gauge", "Jobs in the store, by queue and status.", counts),
        Family(
            "ergon_queue_oldest_due_seconds",
            "gauge",
            "How long the oldest job that is due has waited; 0 when none is.",
            ages,
        ),
        Family("ergon_queue_paused", "gauge", "1 for a queue that is paused.", paused),
        dead_letters("job", dead),
    ]


def _of_workers(workers: Sequence[WorkerRecord], now: float) -> list[Family]:
    states = Counter({"running": 0, "silent": 0})
    states.update(worker_state(each, now) for each in workers)
    alive = sum(number for state, number in states.items() if state != "silent")
    return [
        Family(
            "ergon_workers_alive", "gauge", "Workers heard of in the last minute.", [({}, alive)]
        ),
        Family(
            "ergon_workers",
            "gauge",
            "Workers by state; silent ones have told nothing for a minute.",
            [({"state": state}, number) for state, number in sorted(states.items())],
        ),
    ]


def _of_missing(missing: Sequence[Named], now: float) -> Family:
    found = [({"executor": each.executor}, _age(each.seen_at, now)) for each in missing]
    text = "How long no worker has had an executor that due jobs wait for."
    return Family("ergon_executor_missing_seconds", "gauge", text, found)


def dead_letters(kind: str, number: int) -> Family:
    """How many of one kind wait for somebody to look."""
    text = "Jobs and provider calls that were given up and wait for an operator."
    return Family("ergon_dead_letters", "gauge", text, [({"kind": kind}, number)])


def _age(since: float | None, now: float) -> float:
    return 0.0 if since is None else round(max(0.0, now - since), 3)
