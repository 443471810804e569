"""Schedules: jobs that are enqueued by the clock, once per fire however many workers there are.

The store holds each schedule with the instant of its next fire. Every worker looks at what is due;
``fire`` moves that instant on and adds the jobs in one commit, for the first who asks. A job's id
names its schedule and its instant, so that even a record put back to an earlier instant adds no job
that is still known.

``SlicedScheduler`` runs inside a worker. Thousands of schedules outlast a lease, so it writes
and fires them in slices of bounded time; between two slices the worker renews, settles and claims.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, Any, Literal, Protocol, Self

import msgspec
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from ergon_framework.core.option_values import shown
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.core.schedule import (
    MISFIRE_GRACE,
    Due,
    Instants,
    Misfire,
    due,
    is_far_ahead,
    until,
    upcoming,
)
from ergon_framework.errors import JobError
from ergon_framework.jobs.cron import check_cron, check_zone, interval, read_cron
from ergon_framework.jobs.newjob import MAX_PAYLOAD, new_job
from ergon_framework.jobs.settings import RetrySettings, UpToTenYears
from ergon_framework.jobs.tracing import fired, firing
from ergon_framework.ports.job_fields import (
    MAX_SCHEDULE_NAME,
    SCHEDULE_NAME,
    dated,
    refusal,
)
from ergon_framework.ports.jobstore import DEFAULT_QUEUE, NewJob, Schedule, ScheduleStore
from ergon_framework.ports.settings_model import (
    Count,
    FrozenDict,
    FrozenList,
    OrNone,
    Positive,
    SettingsModel,
    Switch,
    frozen,
    thawed,
)
from ergon_framework.ports.unique import Unique, unique_option
from ergon_framework.telemetry.notices import emit

logger = logging.getLogger("ergon.jobs")

# ---- [schedules.NAME] ---------------------------------------------------------------------------


@contextmanager
def _as_value_error() -> Iterator[None]:
    """Turn a JobError into the ValueError that pydantic puts behind the field's name."""
    try:
        yield
    except JobError as error:
        raise ValueError(f"is refused: {error.message}; {error.remedy}") from None


def _line(text: str) -> str:
    with _as_value_error():
        return check_cron(text)


def _zone(text: str) -> str:
    with _as_value_error():
        check_zone(text)
    return text


def _seconds(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    with _as_value_error():
        return interval(str(value).strip())


def _instant(value: object) -> float:
    with _as_value_error():
        return dated("ends_at", value)


def _json(value: object) -> object:
    """Read lists and tables that a variable holds as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError("must be JSON") from None


Args = Annotated[list[Any], BeforeValidator(_json), AfterValidator(frozen)]
Kwargs = Annotated[dict[str, Any], BeforeValidator(_json), AfterValidator(frozen)]
Name = Annotated[str, Field(pattern=f"^{SCHEDULE_NAME}$", max_length=MAX_SCHEDULE_NAME)]


class UniqueSettings(SettingsModel):
    """``unique_by`` of a schedule: which of its jobs count as the same, and for how long."""

    by: Annotated[str | None, OrNone] = None
    fields: Annotated[list[str], BeforeValidator(_json), AfterValidator(frozen)] = Field(
        default_factory=FrozenList
    )
    key: Annotated[str | None, OrNone] = None
    period: Annotated[Positive | None, OrNone] = None
    states: Annotated[list[str] | str | None, OrNone] = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        with _as_value_error():
            self.option()
        return self

    def option(self) -> Unique:
        """The option as a job takes it."""
        states = self.states if isinstance(self.states, str | None) else tuple(self.states)
        return Unique(
            by=self.by, fields=tuple(self.fields), key=self.key, period=self.period, states=states
        )


def unique_fields(given: Any) -> dict[str, Any] | None:
    """What a program says about unique jobs, in the form of settings."""
    if given is False:
        return None
    unique = unique_option(given)
    states = list(unique.states or ())
    said = {"by": unique.by, "fields": list(unique.fields), "key": unique.key}
    return {**said, "period": unique.period, "states": states}


class ScheduleSettings(SettingsModel):
    """``[schedules.NAME]``: when to enqueue which job."""

    cron: Annotated[Annotated[str, AfterValidator(_line)] | None, OrNone] = None
    every: Annotated[Annotated[int, BeforeValidator(_seconds)] | None, OrNone] = None
    zone: Annotated[str, AfterValidator(_zone)] = "UTC"
    handler: str
    args: Args = Field(default_factory=FrozenList, repr=False)
    kwargs: Kwargs = Field(default_factory=FrozenDict, repr=False)
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    timeout: Annotated[Positive | None, OrNone] = None
    max_attempts: Annotated[Count | None, OrNone] = None
    max_deliveries: Annotated[Count | None, OrNone] = None
    retry: RetrySettings | None = None
    limit_key: Annotated[str | None, OrNone] = None
    limit: Annotated[Count | None, OrNone] = None
    result_ttl: Annotated[UpToTenYears | None, OrNone] = None
    tags: Args = Field(default_factory=FrozenList)
    metadata: Kwargs = Field(default_factory=FrozenDict)
    misfire: Literal["once", "skip", "all"] = "once"
    jitter: UpToTenYears = 0.0
    ends_at: Annotated[Annotated[float, BeforeValidator(_instant)] | None, OrNone] = None
    unique: Switch = False
    unique_by: UniqueSettings | None = None
    on_duplicate: Annotated[Literal["existing", "reject", "replace", "extend"] | None, OrNone] = (
        None
    )
    paused: Switch = False

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.cron is None) == (self.every is None):
            raise ValueError("needs either cron or every")
        if self.unique and self.unique_by is not None:
            raise ValueError("has both unique and unique_by: give one of the two")
        with _as_value_error():
            # Checked as if a client had enqueued it: a schedule must not fail at its first fire, in
            # the middle of the night.
            self.job(max_payload=sys.maxsize)
        return self

    @property
    def line(self) -> str:
        """The cron expression, however it was given."""
        return self.cron or f"@every {self.every}s"

    def job(self, unique_key: str | None = None, *, max_payload: int = MAX_PAYLOAD) -> NewJob:
        """The job of every fire, checked as a client's job would be. Its id is replaced later."""
        unique: str | Unique | None = unique_key
        if self.unique_by is not None:
            unique = self.unique_by.option()
        return new_job(
            self.handler,
            thawed(self.args),
            thawed(self.kwargs),
            queue=self.queue,
            priority=self.priority,
            timeout=self.timeout,
            max_attempts=self.max_attempts,
            max_deliveries=self.max_deliveries,
            retry=self.retry,
            limit_key=self.limit_key,
            limit=self.limit,
            result_ttl=self.result_ttl,
            tags=thawed(self.tags),
            metadata=thawed(self.metadata),
            unique=unique,
            on_duplicate=self.on_duplicate if unique is not None else None,
            max_payload=max_payload,
        )


OF_APP = "app:"
"""The beginning of the source of schedules that an App declares; its name follows."""

Schedules = Annotated[Mapping[Name, ScheduleSettings], AfterValidator(FrozenDict)]
"""The whole section ``[schedules]``."""


# ---- records and jobs ---------------------------------------------------------------------------


def checked_settings(name: str, fields: Mapping[str, Any]) -> ScheduleSettings:
    """Check settings that a program gives. Each mistake raises a :class:`JobError` with
    its field.
    """
    try:
        _NAME.validate_python(name, strict=True)
    except ValidationError:
        raise refusal(
            "name",
            f"is {shown(name)}",
            f"write a text of up to {MAX_SCHEDULE_NAME} letters, digits, '_', '-' and '.', which"
            " begins with none of the last two",
        ) from None
    try:
        return ScheduleSettings.model_validate(fields)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        field = ".".join(str(each) for each in found["loc"]) or "cron"
        problem = str(found["msg"]).removeprefix("Value error, ").rstrip(".")
        raise refusal(field, f"is not accepted: {problem}", _HOW) from None


_NAME = TypeAdapter(Name)
_HOW = "see docs/howto/schedule-jobs.md for what a schedule may have"


def schedule_of(name: str, settings: ScheduleSettings, source: str = "") -> Schedule:
    """The record of a schedule that has not been planned yet."""
    key = f"schedule:{name}" if settings.unique else None
    # The settings that have it are checked already.
    job = settings.job(key, max_payload=sys.maxsize)
    fields = msgspec.to_builtins(job)
    del fields["id"]
    if job.unique is None:
        # As earlier versions write it; otherwise each version would change what the other has
        # written.
        del fields["unique"]
    return Schedule(
        name=name,
        cron=settings.line,
        zone=settings.zone,
        misfire=settings.misfire,
        job=msgspec.json.encode(fields),
        next_at=None,
        is_paused=settings.paused,
        source=source,
        jitter=settings.jitter,
        ends_at=settings.ends_at,
    )


def job_of(schedule: Schedule, at: float) -> NewJob:
    """The job of one fire."""
    fields = msgspec.json.decode(schedule.job, type=dict[str, Any])
    job_id = job_id_of(schedule, at)
    if schedule.jitter:
        fields["run_at"] = at + schedule.jitter * _share(job_id)
    return msgspec.convert({**fields, "id": job_id}, NewJob)


def job_id_of(schedule: Schedule, at: float) -> str:
    """The id of the job of one fire."""
    return f"{schedule.name}@{format_rfc3339(at)}"


def _share(job_id: str) -> float:
    """A number from 0 to 1 that is the same for every worker: two workers that fire at once make
    the same job.
    """
    return int.from_bytes(sha256(job_id.encode()).digest()[:6]) / 2**48


def fires_of(schedule: Schedule) -> Instants:
    """The instants at which the schedule fires, up to its end."""
    return until(read_cron(schedule.cron, schedule.zone), schedule.ends_at)


def renewed(schedule: Schedule, old: Schedule | None, now: float) -> Schedule:
    """The schedule with its next fire. Only a change of its times, or a pause, moves that fire."""
    last_at = old.last_at if old else None
    if schedule.is_paused:
        return msgspec.structs.replace(schedule, next_at=None, last_at=last_at)
    # A schedule that was resumed begins anew: the fire that was planned before the pause may have
    # passed long ago.
    is_same = old and not old.is_paused and (old.cron, old.zone) == (schedule.cron, schedule.zone)
    if old and is_same and old.next_at is not None:
        next_at: float | None = old.next_at
    else:  # Fires that were due by the old times, or during a pause, are not made up for.
        # Not counted from the last fire alone: a wrong clock may have put that far ahead, and
        # nothing would fire until then.
        after = now if last_at is None or is_far_ahead(last_at, now) else max(now, last_at)
        next_at = next(fires_of(schedule)(after), None)
    # Its end may have been moved to before the planned fire.
    if schedule.ends_at is not None and next_at is not None and next_at > schedule.ends_at:
        next_at = None
    return msgspec.structs.replace(schedule, next_at=next_at, last_at=last_at)


def _dropped_notice(gone: Schedule) -> str:
    """What is logged when a schedule is dropped, in case two workers take it from each other."""
    if gone.source.startswith(OF_APP):
        own = f"the App {gone.source.removeprefix(OF_APP)!r}"
        remedy = "another App of this name has it, give one of them another: App(name=...)"
    else:
        own = repr(gone.source)
        remedy = "another application has it, let each have a name: [jobs] application"
    return f"schedule {gone.name!r} is gone from {own}, and is dropped; if {remedy}"


def is_paused_by_hand(schedule: Schedule) -> bool:
    """Whether an operator paused it. If so, it still has the next fire from before the pause."""
    return schedule.is_paused and schedule.next_at is not None


# ---- the scheduler ------------------------------------------------------------------------------


class ClockedScheduleStore(ScheduleStore, Protocol):
    """A store of schedules that tells the time."""

    def now(self) -> float:
        """The store's clock."""


class Synced(msgspec.Struct, frozen=True):
    """What a comparison of settings and store has changed, by the names of schedules."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


class Upcoming(msgspec.Struct, frozen=True):
    """A stored schedule with its next fires, or with the reason why it does not fire."""

    schedule: Schedule
    fires: tuple[float, ...] = ()
    problem: str = ""


class Scheduler:
    """Keeps the schedules in the store like those of the settings, and fires what is due.

    ``source`` names the settings, not the worker: all workers with the same settings give the same
    source, and other settings on the same store give another. ``more`` has the schedules of other
    sources, by source, such as those that an App declares beside its settings file. A source
    without schedules belongs into it, too, because schedules that it had before are dropped.
    """

    def __init__(
        self,
        store: ClockedScheduleStore,
        settings: Mapping[str, ScheduleSettings] | None = None,
        *,
        source: str = "settings",
        more: Mapping[str, Mapping[str, ScheduleSettings]] | None = None,
    ) -> None:
        self._store = store
        by_source = {source: settings or {}, **(more or {})}
        self._sources = {name: own for own, known in by_source.items() for name in known}
        self._own_sources = frozenset(by_source)
        self._settings = {
            name: each for known in by_source.values() for name, each in known.items()
        }
        self._unreadable: set[Schedule] = set()
        # What a sync under way has not compared yet, last first.
        self._left: list[str] | None = None
        self._is_stopped = False
        self._is_doubtful = True
        self._looked_at = 0.0

    def sync(
        self, now: float | None = None, *, goes_on: Callable[[], bool] = lambda: True
    ) -> Synced:
        """Store schedules that are new or differ, and drop those that are gone from these settings.

        ``goes_on`` is asked before each write; when it says no, the next call does the rest.
        Schedules that a stop leaves out still differ, so the next worker writes them.
        """
        now = self._store.now() if now is None else now
        # Read in each call, because other workers fire and operators pause in between. But no name
        # is written twice: two workers with different settings would overwrite each other for ever.
        stored = {schedule.name: schedule for schedule in self._store.schedules()}
        if self._left is None:
            self._left = [*self._settings][::-1]
        put = [*self._put(self._left, stored, goes_on, now)]
        # Only after all were compared: dropping comes last, so that a sync which is cut short loses
        # nothing.
        dropped = [] if self._left else [*self._dropped(stored.values(), goes_on)]
        return Synced(
            added=tuple(name for name in put if name not in stored),
            changed=tuple(name for name in put if name in stored),
            dropped=tuple(dropped),
        )

    def sync_anew(self) -> None:
        """Make the next sync begin with the first schedule, even if one is under way."""
        self._left = None

    def are_gone(self) -> bool:
        """Whether the settings have schedules and the store has none of their source."""
        stored = self._store.schedules() if self._settings else []
        return bool(self._settings) and all(each.source not in self._own_sources for each in stored)

    def fire_due(self, goes_on: Callable[[], bool] = lambda: True) -> float | None:
        """Enqueue the jobs of all schedules that are due. Returns the instant of the next fire, or
        None.

        That instant is about what the store holds now; a caller comes back earlier to notice new
        schedules. ``goes_on`` is asked before each fire. Schedules that are left out are still due
        and come first in the next call, because the oldest come first.
        """
        now = self._store.now()
        # The plans may be those of a clock that was wrong: checked once at first, and after the
        # clock was set back.
        is_doubtful = self._is_doubtful or now < self._looked_at
        self._is_doubtful, self._looked_at = False, now
        found, is_more = self._next(is_all=is_doubtful)
        wakes = [self._fired(each, now, goes_on, is_doubtful=is_doubtful) for each in found]
        # The last schedule that was read has fired, so there may be others after it that are due.
        if is_more and wakes[-1] != found[-1].next_at:
            return now  # All of them have fired: read those that come after.
        return min((at for at in wakes if at is not None), default=None)

    def _next(self, *, is_all: bool) -> tuple[list[Schedule], bool]:
        """The schedules to check, the earliest first, and whether there may be more.

        A program may have stored thousands, of which a few are due at a time. All are read when
        that is not enough: schedules that cannot fire would otherwise come before the others for
        ever.
        """
        if is_all or self._unreadable:
            return sorted(self._store.schedules(), key=lambda each: each.next_at or 0.0), False
        found = self._store.next_schedules(MAX_LOOK)
        return found, len(found) == MAX_LOOK

    def stop(self) -> None:
        """Write nothing more; a write that is under way is the last. May be called from
        any thread.
        """
        self._is_stopped = True

    def preview(self, count: int = 5) -> list[Upcoming]:
        """Every stored schedule with its next fires."""
        return [self.upcoming(schedule, count) for schedule in self._store.schedules()]

    def upcoming(self, schedule: Schedule, count: int = 5) -> Upcoming:
        """A schedule with its next fires."""
        return _previewed(schedule, count)

    def _put(
        self,
        left: list[str],
        stored: Mapping[str, Schedule],
        goes_on: Callable[[], bool],
        now: float,
    ) -> Iterator[str]:
        """Compare the schedules that are left, and store those that differ. Returns their names."""
        while left and not self._is_stopped and goes_on():
            # Removed from the list only when it was written, so that one that fails is tried again.
            name = left[-1]
            old = stored.get(name)
            wanted = self._wanted(name, old, now)
            if wanted != old:
                self._store.put_schedule(wanted)
                yield name
            left.pop()

    def _dropped(self, stored: Iterable[Schedule], goes_on: Callable[[], bool]) -> Iterator[str]:
        """Drop schedules that are gone from the settings: the last part of a sync. Returns their
        names.
        """
        for gone in [each for each in stored if self._is_gone(each)]:
            if self._is_stopped or not goes_on():
                return
            if self._store.drop_schedule(gone.name):
                logger.warning("%s", _dropped_notice(gone))
                yield gone.name
        self._left = None

    def _is_gone(self, schedule: Schedule) -> bool:
        return schedule.source in self._own_sources and schedule.name not in self._settings

    def _wanted(self, name: str, old: Schedule | None, now: float) -> Schedule:
        source = self._sources[name]
        if old and old.source != source:
            # Usually a settings file was moved; refusing to start would be worse.
            logger.warning("schedule %r of %r is taken over", name, old.source)
        wanted = schedule_of(name, self._settings[name], source)
        new = renewed(wanted, old, now)
        # The pause of an operator survives a restart with other settings.
        if old is not None and is_paused_by_hand(old) and not wanted.is_paused:
            return msgspec.structs.replace(new, is_paused=True)
        return new

    def _fired(
        self, schedule: Schedule, now: float, goes_on: Callable[[], bool], *, is_doubtful: bool
    ) -> float | None:
        expected = schedule.next_at
        if expected is None or schedule.is_paused:
            return None
        if expected > now and not (is_doubtful and is_far_ahead(expected, now)):
            return expected
        if self._is_stopped or not goes_on():
            # Not all were checked: the next call has to check the others, too.
            self._is_doubtful |= is_doubtful
            return expected
        if expected > now:
            return self._planned_anew(schedule, expected, now)
        try:
            plan = _planned(schedule, expected, now)
            jobs = [job_of(schedule, at) for at in plan.fires]
        except (ValueError, msgspec.MsgspecError) as error:
            self._log_failure(schedule, error)
            return None
        jobs, spans = firing(schedule.name, jobs)
        # Advanced and enqueued in one commit, and only by the first worker that asks.
        if not self._store.fire(schedule.name, expected, plan.next_at, jobs):
            return now  # Another worker has fired it: read it again.
        fired(spans)
        emit("schedule.fired", schedule=schedule.name, jobs=len(jobs), late=now - expected)
        if now - expected > MISFIRE_GRACE:
            _tell_late(schedule, expected, now, len(jobs))
        return plan.next_at

    def _planned_anew(self, schedule: Schedule, expected: float, now: float) -> float | None:
        """Plan fires anew that a wrong clock had planned far ahead before it was corrected."""
        try:
            next_at = next(fires_of(schedule)(now), None)
        except ValueError as error:
            self._log_failure(schedule, error)
            return None
        # A plan is thrown away only if a clock that was merely set back does not explain it;
        # otherwise a fire could happen twice.
        if next_at is None or not is_far_ahead(expected, next_at):
            return expected
        if not self._store.fire(schedule.name, expected, next_at, []):
            return now  # Another worker was faster: read it again.
        text = "the clock was set back: the schedule %r was planned for %s, and is due at %s"
        logger.warning(text, schedule.name, format_rfc3339(expected), format_rfc3339(next_at))
        return next_at

    def _log_failure(self, schedule: Schedule, error: Exception) -> None:
        # Logged once for each schedule, because every turn of every worker meets it.
        if schedule not in self._unreadable:
            self._unreadable.add(schedule)
            logger.error("the schedule %r cannot fire here: %s", schedule.name, error)


def _planned(schedule: Schedule, expected: float, now: float) -> Due:
    return due(fires_of(schedule), expected, now, Misfire(schedule.misfire))


# Only the schedule itself says when it fires next, and rare fires take long to compute.
@lru_cache(maxsize=1000)
def _previewed(schedule: Schedule, count: int) -> Upcoming:
    if schedule.is_paused:
        return Upcoming(schedule, problem="it is paused")
    if schedule.next_at is None:
        end = schedule.ends_at
        over = "has no further fire" if end is None else f"ended at {format_rfc3339(end)}"
        return Upcoming(schedule, problem=f"it {over}")
    try:
        instants = fires_of(schedule)
    except JobError as error:
        return Upcoming(schedule, problem=str(error))
    try:
        return Upcoming(schedule, upcoming(instants, schedule.next_at, count))
    # It is no instant that Ergon writes, and it must not hide other schedules.
    except (ValueError, OverflowError, OSError):
        return Upcoming(schedule, problem="its next fire is not a point in time")


def _tell_late(schedule: Schedule, expected: float, now: float, count: int) -> None:
    logger.warning(
        "the schedule %r was due at %s, %.0f s ago; misfire is %r, jobs: %d",
        schedule.name,
        format_rfc3339(expected),
        now - expected,
        schedule.misfire,
        count,
    )


MAX_LOOK = 100
"""How many schedules are read at a time to find those that are due."""

MAX_SLICE = 0.2
"""Seconds after which other tasks have their turn, unless a short lease requires less."""


class CronJobs(Protocol):
    """The scheduler as ``SlicedScheduler`` uses it.

    When ``goes_on`` says no, a call returns early and the next call continues there.
    """

    def sync(self, *, goes_on: Callable[[], bool]) -> Synced:
        """Make the stored schedules equal to the settings."""

    def sync_anew(self) -> None:
        """Begin with the first schedule in the next call."""

    def are_gone(self) -> bool:
        """Whether the settings have schedules and the store has none of them."""

    def fire_due(self, goes_on: Callable[[], bool]) -> float | None:
        """Fire what is due. Returns the next instant by the store's clock."""

    def stop(self) -> None:
        """Write nothing more: thousands of schedules would delay the end of a worker."""


class Slice:
    """A bounded piece of time. Called before each step, it says whether there is time for it.

    There always is time for the first step: otherwise nothing would ever be written if reading the
    store took longer than a slice.
    """

    def __init__(self, now: Callable[[], float], seconds: float) -> None:
        self.is_cut = False
        self._now = now
        self._seconds = seconds
        self._until: float | None = None

    def __call__(self) -> bool:
        """Whether to take the next step."""
        if self._until is None:
            self._until = self._now() + self._seconds
        else:
            self.is_cut = self.is_cut or self._now() >= self._until
        return not self.is_cut


class SlicedScheduler:
    """The schedules of a worker. Nothing is fired before all are written, because some may be out
    of date.
    """

    def __init__(
        self,
        schedules: CronJobs,
        now: Callable[[], float],
        lease: float,
        tell_lost: Callable[[list[str]], None],
        *,
        max_slice: float = MAX_SLICE,
    ) -> None:
        """``tell_lost`` is called with the names of schedules that had to be written again."""
        self.is_under_way = False  # The next turn continues with it.
        self._schedules = schedules
        self._now = now
        # Well below the lease, because between two slices the worker renews the leases of its jobs.
        self._seconds = min(max_slice, lease / 10)
        self._tell_lost = tell_lost
        self._is_synced = False
        self._was_synced = False  # Some time ago, or just now.
        self._added: set[str] = set()
        self._lost: list[str] | None = None

    def write_again(self, lost: list[str]) -> None:
        """Write all schedules again, and then report what was lost. ``lost`` is what is known to be
        lost.
        """
        self._lost = [*(self._lost or ()), *lost]
        self.compare_anew()

    def compare_anew(self) -> None:
        """Write schedules that are missing or differ from the settings."""
        self._is_synced = False
        self._schedules.sync_anew()

    def are_gone(self) -> bool:
        """Whether the store has no schedule of this application, so that none would be
        overwritten.
        """
        return self._schedules.are_gone()

    def stop(self) -> None:
        """Write nothing more."""
        self._schedules.stop()

    def turn(self) -> float | None:
        """Do one slice. Returns the instant of the next fire, or None.

        When ``is_under_way`` is set, there is more to do before that.
        """
        # After an error it is tried again, but a worker that stops does not wait for it.
        is_under_way = False
        try:
            at, is_under_way = self._turned()
        finally:
            self.is_under_way = is_under_way
        return at

    def _turned(self) -> tuple[float | None, bool]:
        if not self._is_synced and not self._was_written():
            return None, True
        piece = self._slice()
        return self._schedules.fire_due(piece), piece.is_cut

    def _was_written(self) -> bool:
        """Write schedules for one slice. Returns whether all are written."""
        piece = self._slice()
        added = self._schedules.sync(goes_on=piece).added
        if self._lost is not None:
            # A schedule counts as lost only if it had been written: when a worker of the same name
            # leaves during the first sync, the rest of that sync is new and not lost.
            self._lost += [name for name in added if self._was_synced or name in self._added]
        self._added.update(added)
        if piece.is_cut:
            return False
        self._is_synced = self._was_synced = True
        self._added.clear()
        lost, self._lost = self._lost, None
        if lost:
            self._tell_lost(lost)
        return True

    def _slice(self) -> Slice:
        return Slice(self._now, self._seconds)
