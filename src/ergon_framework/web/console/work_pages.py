"""The pages of dead letters by family, of schedules with their next fires, and of workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.scheduler import Scheduler
from ergon_framework.jobs.views import moment, schedule_view, worker_view
from ergon_framework.ports.jobstore import Job, Schedule, Search
from ergon_framework.web.backends import JobBackend
from ergon_framework.web.console.job_look import MOST_COMPARED, families
from ergon_framework.web.job_routes import by_name
from ergon_framework.web.responses import cursor_place, cursor_text, page

MOST_RUNNING = 500
"""How many running jobs, the newest, are read to show who holds them."""
MOST_HELD = 10
"""How many jobs the row of a worker names."""
FIRES = 10
FAMILY_COLUMNS = ("number", "handler", "code", "message", "first_at", "last_at", "queues")
SCHEDULE_COLUMNS = (
    "name",
    "cron",
    "zone",
    "handler",
    "queue",
    "paused",
    "next_at",
    "last_at",
    "misfire",
    "source",
    "problem",
    "fires",
)
WORKER_COLUMNS = (
    "id",
    "host",
    "pid",
    "state",
    "busy",
    "queues",
    "version",
    "app_version",
    "started_at",
    "seen_at",
)
NEVER = 1e18
"""An instant later than all others, in seconds, which JSON can hold."""


def dead_letters_document(source: JobBackend) -> dict[str, Any]:
    """The latest dead-lettered jobs, in families of one handler and one error."""
    with source.opened() as client:
        search = Search(statuses=(JobStatus.FAILED,))
        found = list(islice(client.store.search(search, MOST_COMPARED), MOST_COMPARED))
    return {
        "compared": len(found),
        "is_all": len(found) < MOST_COMPARED,
        "items": families(found),
    }


def families_page(found: Mapping[str, Any], limit: int, cursor: str | None) -> dict[str, Any]:
    """Some of the families, and how many there are."""
    begin = 0 if cursor is None else max(0, cursor_place(cursor, int))
    rows = found["items"]
    end = begin + limit
    following = cursor_text(end) if len(rows) > end else None
    return {**found, "number": len(rows), **page(rows[begin:end], following)}


def schedules_document(source: JobBackend, limit: int, cursor: str | None) -> dict[str, Any]:
    """Some schedules with their next fires, the next to fire first, and how many there are."""
    with source.opened() as client:
        scheduler = Scheduler(client.store)
        stored = sorted(client.store.schedules(), key=_firing)
        behind = None if cursor is None else cursor_place(cursor, tuple[float, str])
        left = [each for each in stored if behind is None or _firing(each) > behind]
        # Only for the schedules that are shown: finding ten fires of thousands of schedules takes
        # seconds.
        found = [scheduler.upcoming(each, FIRES) for each in left[:limit]]
    rows = [
        {
            **schedule_view(each.schedule),
            "fires": [moment(at) for at in each.fires],
            "problem": each.problem or None,
        }
        for each in found
    ]
    following = cursor_text(_firing(found[-1].schedule)) if len(left) > limit else None
    return {"number": len(stored), **page(rows, following)}


def _firing(schedule: Schedule) -> tuple[float, str]:
    """The order of schedules. A paused one does not fire."""
    fires_at = None if schedule.is_paused else schedule.next_at
    return NEVER if fires_at is None else fires_at, schedule.name


def workers_document(source: JobBackend, limit: int, cursor: str | None) -> dict[str, Any]:
    """Some workers by id, with their executors and the jobs that they hold, and how many workers
    there are.
    """
    with source.opened() as client:
        now = client.store.now()
        stored = client.store.workers()
        held = held_by(client.store.search(Search(statuses=(JobStatus.ACTIVE,)), MOST_RUNNING))
    rows = [
        {
            **worker_view(each, now),
            "quiet_for": round(max(0.0, now - each.seen_at), 1),
            "jobs": held.get(each.id, []),
        }
        for each in stored
    ]
    after = None if cursor is None else cursor_place(cursor, str)
    return {"number": len(rows), **by_name(rows, "id", limit, after)}


def held_by(running: Iterable[Job]) -> dict[str, list[dict[str, Any]]]:
    """The running jobs by the worker that holds them: the first ones of each."""
    found: dict[str, list[dict[str, Any]]] = {}
    for job in islice(running, MOST_RUNNING):
        jobs = found.setdefault(job.worker or "", [])
        if len(jobs) < MOST_HELD:
            since = moment(job.claimed_at)
            jobs.append({"id": job.id, "handler": job.handler, "queue": job.queue, "since": since})
    return found


def pools_of(worker: Mapping[str, Any]) -> list[tuple[str, int, int | None]]:
    """The executors of a worker, each with how many jobs and processes it has."""
    found = []
    for name, pool in sorted(worker["executors"].items()):
        known = pool if isinstance(pool, Mapping) else {}
        size = known.get("pool_size")
        found.append((name, int(known.get("in_flight", 0)), size if type(size) is int else None))
    return found
