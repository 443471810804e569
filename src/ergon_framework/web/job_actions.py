"""The actions of people and programs on one job, or on all that match. Each is recorded in the
audit log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import JobNotFoundError
from ergon_framework.jobs.change_requests import checked_reason
from ergon_framework.jobs.client import EnqueuedJob, JobClient
from ergon_framework.jobs.editing import JobEdit
from ergon_framework.ports.job_fields import name
from ergon_framework.ports.jobstore import Search
from ergon_framework.telemetry.notices import emit
from ergon_framework.web.audit import (
    DELETE_SCHEDULE,
    EDIT,
    FIRE,
    PAUSE,
    PAUSE_SCHEDULE,
    RESUME,
    RESUME_SCHEDULE,
)
from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.job_routes import JobsParams, search_for
from ergon_framework.web.responses import InvalidParameterError

MOST_AT_ONCE = 10_000
"""How many jobs one request changes, because its time is limited. The same request again continues
with the rest.
"""
DELETED = "deleted"
"""The state that the API gives a deleted job."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Action:
    """One action on jobs."""

    name: str
    title: str
    done: str
    statuses: tuple[JobStatus, ...]
    """The states of jobs to which it applies."""
    consequence: str
    asks_first: bool = False
    """Whether a person must confirm it even for one job, because it cannot be undone."""
    is_for_many: bool = True


_WAITING = (JobStatus.PENDING, JobStatus.RETRYING)
ACTIONS = {
    each.name: each
    for each in (
        Action(
            "requeue",
            "Requeue",
            "sent back",
            (JobStatus.FAILED,),
            "They begin anew, with fresh counters, in their own queues.",
        ),
        Action(
            "retry",
            "Run now",
            "made due",
            (*_WAITING, JobStatus.CANCELLED),
            "One that waits is due at once; one that failed or was cancelled begins anew.",
            is_for_many=False,
        ),
        Action(
            "cancel",
            "Cancel",
            "cancelled",
            (*_WAITING, JobStatus.ACTIVE),
            "Those that wait are cancelled now. Workers are asked to end those that run; one that"
            " completes first has completed.",
            asks_first=True,
        ),
        Action(
            "delete",
            "Delete",
            "deleted",
            (JobStatus.FAILED, JobStatus.COMPLETED, JobStatus.CANCELLED),
            "They are gone for good, with their history and their results.",
            asks_first=True,
        ),
    )
}


def actions_for(status: str) -> list[Action]:
    """The actions that a state of a job allows."""
    return [each for each in ACTIONS.values() if status in {s.value for s in each.statuses}]


def actions_for_all(statuses: list[JobStatus]) -> list[Action]:
    """The actions on all jobs of a list: only if the filter is limited to states that
    allow them.
    """
    if not statuses:
        return []
    fitting = [each for each in ACTIONS.values() if each.is_for_many]
    return [each for each in fitting if set(statuses) <= set(each.statuses)]


class JobActions:
    """Carries the actions out, in the threads of the job store."""

    def __init__(self, pool: BackendPool) -> None:
        self._pool = pool

    async def change_one(self, action: Action, job_id: str, actor: str, reason: str = "") -> str:
        """Do one action on one job. Returns its state then, and ``deleted`` for a deleted job."""
        change = partial(_change, action, job_id, actor, checked_reason(reason))
        return await self.recorded(actor, action.name, job_id, reason, change)

    async def edit(self, job_id: str, edit: JobEdit, actor: str) -> EnqueuedJob:
        """Send a dead-lettered job back with other arguments. Returns the new job."""

        def change(client: JobClient) -> EnqueuedJob:
            why, name = edit.reason, edit.new_id
            return client.edit_and_requeue(
                job_id, edit.args, edit.kwargs, by=actor, reason=why, new_id=name
            )

        return await self.recorded(actor, EDIT, job_id, checked_reason(edit.reason), change)

    async def pause(self, queue: str, actor: str, *, is_paused: bool) -> None:
        """Start no more jobs of a queue, or start them again. Jobs that run go on."""

        def change(client: JobClient) -> None:
            client.store.set_queue(name("queue", queue), is_paused=is_paused)
            emit("queue.paused" if is_paused else "queue.resumed", queue=queue)

        action = PAUSE if is_paused else RESUME
        what = f"the queue {queue!r}"
        # A queue may be paused before its first job.
        await self.recorded(actor, action, "", what, change, makes_tables=True)

    async def fire(self, schedule: str, actor: str) -> str:
        """Enqueue the job of a schedule now, besides its fires. Returns the id of the job."""

        def change(client: JobClient) -> str:
            return client.schedules.run(schedule).id

        return await self.recorded(actor, FIRE, "", f"the schedule {schedule!r}", change)

    async def pause_schedule(self, schedule: str, actor: str, *, is_paused: bool) -> None:
        """Let a schedule fire no more, or fire again; what it missed is not made up for."""

        def change(client: JobClient) -> None:
            if is_paused:
                client.schedules.pause(schedule)
            else:
                client.schedules.resume(schedule)

        action = PAUSE_SCHEDULE if is_paused else RESUME_SCHEDULE
        await self.recorded(actor, action, "", f"the schedule {schedule!r}", change)

    async def delete_schedule(self, schedule: str, actor: str) -> None:
        """Delete a schedule; jobs that it has enqueued stay."""

        def change(client: JobClient) -> None:
            client.schedules.get(schedule)  # which raises for one that is not there
            client.schedules.delete(schedule)

        detail = f"the schedule {schedule!r}"
        await self.recorded(actor, DELETE_SCHEDULE, "", detail, change)

    async def check_schedule(self, schedule: str) -> None:
        """Raise ``JobNotFoundError`` for a schedule that is not there."""
        await self.look(lambda client: client.schedules.get(schedule))

    async def check_job(self, job_id: str) -> None:
        """Raise ``JobNotFoundError`` for a job that is not there."""
        await self.look(lambda client: client.status(job_id))

    async def look(self, question: Callable[[JobClient], T]) -> T:
        """What the job store answers; nothing is changed."""
        source = self._pool.jobs()

        def ask() -> T:
            with source.opened() as client:
                return question(client)

        return await self._pool.call("jobs", ask)

    async def newest(self, search: Search) -> int | None:
        """The place of the newest job of a search: what is enqueued later lies above it."""

        def newest(client: JobClient) -> int | None:
            found = next(iter(client.store.search(search, 1)), None)
            return None if found is None else found.key

        return await self.look(newest)

    async def count(self, search: Search) -> int:
        """How many jobs there are of a search; nothing is changed."""
        return await self.look(lambda client: client.count(search))

    async def change_many(
        self,
        action: Action,
        search: Search,
        actor: str,
        *,
        chosen: str,
        reason: str = "",
        limit: int = MOST_AT_ONCE,
    ) -> int:
        """Do one action on all jobs that match, up to a bound. Returns how many.

        ``chosen`` is the filter in words, for the audit log.
        """
        change = partial(_change_many, action, search, actor, checked_reason(reason), limit)
        detail = f"{chosen}: {reason}" if reason else chosen
        return await self.recorded(actor, action.name, "", detail, change)

    async def recorded(
        self,
        actor: str,
        action: str,
        target: str,
        detail: str,
        change: Callable[[JobClient], T],
        *,
        makes_tables: bool = False,
    ) -> T:
        """Do something with an entry in the audit log before it. Returns its result."""
        source = self._pool.jobs()

        def do() -> T:
            with source.writing(makes_tables=makes_tables) as client:
                return change(client)

        return await self._pool.recorded("jobs", actor, action, target, detail, do)


def search_of(action: Action, asked: JobsParams) -> Search:
    """The jobs that a filter chooses, among those that the action applies to."""
    statuses = [each for each in asked.status or action.statuses if each in action.statuses]
    if not statuses:
        raise InvalidParameterError(
            "status",
            f"has no job to {action.name}",
            "choose " + " or ".join(each.value for each in action.statuses),
        )
    return search_for(asked.model_copy(update={"status": statuses}), None)


def _change(action: Action, job_id: str, by: str, reason: str, client: JobClient) -> str:
    if action.name == "requeue":
        client.requeue(job_id, by=by)
    elif action.name == "retry":
        client.retry(job_id, by=by)
    elif action.name == "cancel":
        client.cancel(job_id, running=True, by=by, reason=reason)
    else:
        client.delete(job_id)
        return DELETED
    try:
        return client.status(job_id).value
    except JobNotFoundError:  # It was changed, and somebody has deleted it since.
        return DELETED


def _change_many(
    action: Action, search: Search, by: str, reason: str, limit: int, client: JobClient
) -> int:
    if action.name == "requeue":
        return client.requeue_many(search, limit=limit, by=by)
    if action.name == "cancel":
        return client.cancel_many(search, running=True, by=by, reason=reason, limit=limit)
    return client.delete_many(search, limit=limit)
