"""Schedules that programs put, pause and delete while workers run, such as one for each tenant.

Workers keep the schedules of their settings and of their App up to date. Schedules of a client they
only fire. A client therefore refuses to change the definition of a schedule that a worker would
change back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Generic, NamedTuple, TypeVar, Unpack, cast

import msgspec

from ergon_framework.core.option_values import shown
from ergon_framework.errors import JobError, JobNotFoundError
from ergon_framework.ports.job_fields import check_call, is_storable, refusal
from ergon_framework.ports.job_fields import name as name_of
from ergon_framework.ports.job_options import HandlerOptions
from ergon_framework.ports.jobstore import EnqueueResult, FullJobStore, Job, Schedule
from ergon_framework.telemetry.notices import emit

E = TypeVar("E")
"""A job that was enqueued, as the client of the jobs hands it out."""

OF_CLIENT = "client"
"""The source of schedules that a client has stored."""
_ALIKE = 0.9
"""How similar a name must be for it to count as a typing mistake, and not as the name of another
App.
"""


class Fire(NamedTuple):
    """One fire of a schedule, and the job it enqueued."""

    at: float
    """When it was due, in seconds since the epoch."""
    job_id: str
    job: Job | None
    """The job of the fire. None when there is none: it was purged, or the fire was skipped or
    missed.
    """


class ScheduleClient(Generic[E]):
    """The schedules of a client, ``client.schedules``. Any thread may call any method."""

    def __init__(
        self, store: FullJobStore, max_payload: int, enqueued: Callable[[EnqueueResult], E]
    ) -> None:
        """``enqueued`` makes the return value of ``run``."""
        self._store = store
        self._max_payload = max_payload
        self._enqueued = enqueued

    def put(
        self,
        name: str,
        handler: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        cron: str | None = None,
        every: float | str | timedelta | None = None,
        timezone: str = "UTC",
        misfire: str = "once",
        overlap: bool = True,
        jitter: float = 0.0,
        ends_at: float | str | datetime | None = None,
        paused: bool = False,
        **options: Unpack[HandlerOptions],
    ) -> Schedule:
        """Store a schedule, or change the one of this name; workers fire it from now on.

        The next fire stays where it is unless the times change. ``jitter`` spreads the jobs of
        fires that many schedules have at the same instant: each is due up to so many seconds later.
        After ``ends_at`` nothing fires. A schedule that an operator paused stays paused.
        """
        # Imported late: most clients put no schedules, and need not import what reads cron
        # expressions.
        from ergon_framework.jobs.scheduler import (
            checked_settings,
            is_paused_by_hand,
            renewed,
            schedule_of,
            unique_fields,
        )

        # Checked here: lists are made of them below, and text would become one argument for each
        # character.
        check_call(args, kwargs)
        by = options.pop("unique", None)
        settings = checked_settings(
            name,
            {
                **options,
                "unique_by": None if by is None else unique_fields(by),
                "handler": name_of("handler", handler),
                "args": list(args),
                "kwargs": dict(kwargs or {}),
                "cron": cron,
                "every": _interval(every),
                "zone": timezone,
                "misfire": misfire,
                "unique": not overlap,
                "jitter": jitter,
                "ends_at": ends_at,
                "paused": paused,
            },
        )
        settings.job(max_payload=self._max_payload)
        old = self._known().get(name)
        if old is not None:
            _refuse_other_source(old)
        new = renewed(schedule_of(name, settings, OF_CLIENT), old, self._store.now())
        if old is not None and is_paused_by_hand(old) and not paused:
            new = msgspec.structs.replace(new, is_paused=True)
        self._store.put_schedule(new)
        emit("schedule.put", schedule=name)
        return new

    def all(self) -> list[Schedule]:
        """All schedules of the store, by name, whichever program stored them."""
        return self._store.schedules()

    def get(self, name: str) -> Schedule:
        """One schedule. Raises JobNotFoundError when there is none of this name."""
        _refuse_other_than_text(name)
        known = self._known()
        if name in known:
            return known[name]
        near = " or ".join(map(repr, near_schedules(name, known)))
        remedy = f"did you mean {near}?" if near else "a worker stores those of its settings"
        raise JobNotFoundError(f"there is no schedule {name!r}", remedy=remedy)

    def pause(self, name: str) -> Schedule:
        """Stop a schedule from firing until it is resumed, also by workers that start meanwhile."""
        return self._paused(name, is_paused=True)

    def resume(self, name: str) -> Schedule:
        """Let a schedule fire again. Fires that it missed while it was paused are not
        made up for.
        """
        return self._paused(name, is_paused=False)

    def delete(self, name: str) -> bool:
        """Remove a schedule. Returns whether it existed. Jobs that it has enqueued stay.

        A schedule of the settings or of an App comes back with the next worker.
        """
        _refuse_other_than_text(name)
        if not is_storable(name):
            return False
        is_removed = self._store.drop_schedule(name)
        if is_removed:
            emit("schedule.deleted", schedule=name)
        return is_removed

    def run(self, name: str) -> E:
        """Enqueue the job of a schedule now, besides its fires."""
        from ergon_framework.jobs.newjob import new_id
        from ergon_framework.jobs.scheduler import job_of

        schedule = self.get(name)
        try:
            job = job_of(schedule, self._store.now())
        except (ValueError, msgspec.MsgspecError) as error:
            raise JobError(
                f"the schedule {name!r} cannot fire: what it enqueues cannot be read",
                remedy="put it again, or restart the worker whose settings have it",
            ) from error
        now = msgspec.structs.replace(job, id=new_id(), run_at=None)
        (added,) = self._store.add([now])
        return self._enqueued(added)

    def fires(self, name: str, limit: int = 10) -> list[Fire]:
        """The last fires, the newest first, each with its job.

        They are those of its present line: after a change of it, only the last fire is known of
        those before. The oldest one listed has a job, unless the last fire is all there is.
        """
        from ergon_framework.core.schedule import latest
        from ergon_framework.jobs.scheduler import fires_of, job_id_of

        schedule = self.get(name)
        last_at = schedule.last_at
        if last_at is None or limit < 1:
            return []
        instants = [at for at in latest(fires_of(schedule), last_at, limit) if at < last_at]
        ids = [(at, job_id_of(schedule, at)) for at in (last_at, *reversed(instants))][:limit]
        found = [Fire(at, job_id, self._store.find(job_id)) for at, job_id in ids]
        while len(found) > 1 and found[-1].job is None:
            found.pop()  # It may be from before the schedule was put.
        return found

    def _paused(self, name: str, *, is_paused: bool) -> Schedule:
        from ergon_framework.jobs.scheduler import renewed

        old = self.get(name)
        new = msgspec.structs.replace(old, is_paused=is_paused)
        if not is_paused:
            new = renewed(new, old, self._store.now())
        self._store.put_schedule(new)
        emit("schedule.paused" if is_paused else "schedule.resumed", schedule=name)
        return new

    def _known(self) -> dict[str, Schedule]:
        return {schedule.name: schedule for schedule in self._store.schedules()}


def _refuse_other_than_text(name: object) -> None:
    if not isinstance(name, str):
        raise refusal("name", f"is {shown(name)}", "write the name of a schedule as text")


def near_schedules(name: str, known: Collection[str]) -> list[str]:
    """Schedules with a similar name, which the caller may have meant.

    The schedules of an App have its name before their own, ``thumbs.sweep``, and people type what
    stands in the script. So each name is also compared by what follows one of its dots.
    """
    endings: dict[str, list[str]] = {}
    for each in sorted(known):
        parts = each.split(".")
        for n in range(len(parts)):
            endings.setdefault(".".join(parts[n:]), []).append(each)
    if name in endings:
        return endings[name]
    alike = get_close_matches(name, known, 1, _ALIKE)
    own = name.rpartition(".")[2]  # Behind the name of an App that has another name.
    if alike or own in endings:
        return alike or endings[own]
    near = get_close_matches(name, endings, 1) or get_close_matches(own, endings, 1)
    return endings[near[0]] if near else []


def _interval(every: float | str | timedelta | None) -> float | str | None:
    return every.total_seconds() if isinstance(every, timedelta) else every


class AsyncScheduleClient:
    """The schedules of an :class:`AsyncJobClient`, ``client.schedules``: the same for an event
    loop.
    """

    def __init__(
        self, call: Callable[[Callable[[ScheduleClient[Any]], Any]], Awaitable[Any]]
    ) -> None:
        self._call = call

    async def put(
        self,
        name: str,
        handler: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Schedule:
        """Store a schedule, or change the one of this name; see :meth:`ScheduleClient.put`."""
        return cast(
            "Schedule",
            await self._call(lambda client: client.put(name, handler, args, kwargs, **fields)),
        )

    async def all(self) -> list[Schedule]:
        """All schedules of the store, by name, whichever program stored them."""
        return cast("list[Schedule]", await self._call(ScheduleClient.all))

    async def get(self, name: str) -> Schedule:
        """One schedule. Raises JobNotFoundError when there is none of this name."""
        return cast("Schedule", await self._call(lambda client: client.get(name)))

    async def pause(self, name: str) -> Schedule:
        """Stop a schedule from firing until it is resumed, also by workers that start meanwhile."""
        return cast("Schedule", await self._call(lambda client: client.pause(name)))

    async def resume(self, name: str) -> Schedule:
        """Let a schedule fire again. Fires that it missed while it was paused are not
        made up for.
        """
        return cast("Schedule", await self._call(lambda client: client.resume(name)))

    async def delete(self, name: str) -> bool:
        """Remove a schedule. Returns whether it existed. Jobs that it has enqueued stay."""
        return cast("bool", await self._call(lambda client: client.delete(name)))

    async def run(self, name: str) -> str:
        """Enqueue the job of a schedule now, besides its fires. Returns the id of the job."""
        return cast("str", await self._call(lambda client: str(client.run(name))))

    async def fires(self, name: str, limit: int = 10) -> list[Fire]:
        """The last fires, the newest first, each with its job."""
        return cast("list[Fire]", await self._call(lambda client: client.fires(name, limit)))


def _refuse_other_source(schedule: Schedule) -> None:
    """Refuse to change a schedule of another source, such as the settings."""
    if schedule.source != OF_CLIENT:
        raise JobError(
            f"the schedule {schedule.name!r} belongs to {schedule.source!r}, whose workers would"
            " change it back",
            remedy="change it there, or put this one under another name",
            details={"schedule": schedule.name, "source": schedule.source},
        )
