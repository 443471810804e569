"""Handlers of jobs that an App declares: functions whose calls can also be enqueued."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from ergon_framework.core.option_values import shown, switch_problem, word_problem
from ergon_framework.errors import ConfigurationError, JobError
from ergon_framework.executor import Registry, current_job
from ergon_framework.executor.loading import refuse_while_loading
from ergon_framework.jobs.newjob import check_options
from ergon_framework.lazy_exports import LateModule
from ergon_framework.ports.job_fields import MAX_SCHEDULE_NAME, SCHEDULE_NAME, instant, listed
from ergon_framework.ports.job_options import HandlerOptions, JobOptions, checked_options
from ergon_framework.ports.usage import shows

if TYPE_CHECKING:
    import ergon_framework.jobs.async_client as async_job_client
    import ergon_framework.jobs.client as job_client
    import ergon_framework.jobs.flows as job_flows
    import ergon_framework.jobs.scheduler as job_scheduler
else:
    async_job_client = LateModule("ergon_framework.jobs.async_client")
    job_client = LateModule("ergon_framework.jobs.client")
    job_flows = LateModule("ergon_framework.jobs.flows")
    job_scheduler = LateModule("ergon_framework.jobs.scheduler")

SCHEDULED = frozenset(
    {
        "limit",
        "limit_key",
        "max_attempts",
        "max_deliveries",
        "metadata",
        "on_duplicate",
        "priority",
        "queue",
        "result_ttl",
        "retry",
        "tags",
        "timeout",
        "unique",
    }
)
"""Options that the jobs of a schedule may have; whether one waits for another is ``overlap``."""
_EXAMPLES = {
    "cron": '"*/15 * * * *"',
    "timezone": 'timezone="Europe/Berlin"',
    "args": "args=[3]",
    "kwargs": 'kwargs={"days": 3}',
    "misfire": 'misfire="skip"',
    "overlap": "overlap=False",
    "jitter": "jitter=30",
}
P = ParamSpec("P")
Rest = ParamSpec("Rest")
"""The parameters of a handler without the first, which is the result of the step before."""
T = TypeVar("T")


class JobApp(Protocol):
    """What a handler needs of the App that declares it."""

    registry: Registry

    @property
    def executor(self) -> str:
        """The executor that its jobs name; empty where they name none."""

    @property
    def client(self) -> job_client.JobClient:
        """The client of its store."""

    @property
    def async_client(self) -> async_job_client.AsyncJobClient:
        """The client for event loops."""


@dataclass(frozen=True, slots=True)
class HandlerArguments:
    """Arguments that fit a handler, as they travel in JSON."""

    args: list[Any] = field(repr=False)
    kwargs: dict[str, Any] = field(repr=False)


class JobHandler(Generic[P, T]):
    """A typed callable whose calls can also be enqueued.

    ``resize("a.png")`` calls the function here and now; ``resize.enqueue("a.png")`` takes the same
    arguments, for the type checker as well, and checks them before anything is stored.
    """

    def __init__(
        self, app: JobApp, name: str, function: Callable[P, T], options: Mapping[str, Any]
    ) -> None:
        # Its retry policy was checked with the words. Here it would take pydantic, which is slow to
        # import, and a program that only declares handlers shall start quickly.
        # Which jobs it waits for is looked at when it is enqueued.
        later = ("retry", "after", "on_failure")
        check_options({name: value for name, value in options.items() if name not in later})
        self.app = app
        self.name = name
        self.function = function
        self._options = dict(options)
        # updated=(): attributes of the function, such as one called name, would replace those of
        # the handler.
        functools.update_wrapper(cast("Callable[..., Any]", self), function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<handler {self.name!r}>"

    @shows("resize.options(delay=5, queue='slow').enqueue(80)")
    def options(self, **options: Unpack[HandlerOptions]) -> JobHandler[P, T]:
        """The same handler with other options for its jobs: ``resize.options(delay=5)``."""
        given = cast("Mapping[str, Any]", options)
        merged = checked_options(self.name, given, below=self._options)
        return JobHandler(self.app, self.name, self.function, merged)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> HandlerArguments:
        """Checked arguments for :meth:`enqueue_many`."""
        return self._call(args, kwargs)

    def spec(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """The job as :meth:`JobClient.enqueue_many` takes it, for a transaction of yours say."""
        call = self._call(args, kwargs)
        options = self._options_of(call)
        return {"handler": self.routed, "args": call.args, "kwargs": call.kwargs, **options}

    @overload
    def step(self, *args: P.args, **kwargs: P.kwargs) -> job_flows.Step[T]: ...

    @overload
    def step(
        self: JobHandler[Concatenate[Any, Rest], T], *args: Rest.args, **kwargs: Rest.kwargs
    ) -> job_flows.Step[T]: ...

    def step(self, *args: Any, **kwargs: Any) -> job_flows.Step[T]:
        """A call of this handler as a step of a chain or group.

        In a chain the result of what comes before it is its first positional argument, which is
        left out here; ``step(…).without_result()`` gets none. ``other.result`` as an argument is
        the result of another step, which the step then waits for. A step that uses no results is
        checked when its flow is enqueued.
        """
        from ergon_framework.jobs.flows import Step

        options = dict(self._own_options())
        declared = self.app.registry.options[self.name]
        if options.get("unique") == declared.get("unique"):  # a step is no duplicate of another
            options.pop("unique", None)
            options.pop("on_duplicate", None)
        return Step(self.routed, args, kwargs, options, check=self._check_step)

    def _check_step(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._call(tuple(args), dict(kwargs))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> job_client.EnqueuedJob:
        """Have the function called with these arguments by a worker; returns the job's id."""
        call = self._call(args, kwargs)
        options = self._options_of(call)
        return self.app.client.enqueue(self.routed, call.args, call.kwargs, **options)

    async def aenqueue(
        self, *args: P.args, **kwargs: P.kwargs
    ) -> async_job_client.AsyncEnqueuedJob:
        """Enqueue from an event loop; see :meth:`enqueue`."""
        call = self._call(args, kwargs)
        options = self._options_of(call)
        return await self.app.async_client.enqueue(self.routed, call.args, call.kwargs, **options)

    @shows("resize.enqueue_many([(80,), (160,)])")
    def enqueue_many(
        self, calls: Iterable[HandlerArguments | tuple[Any, ...] | Mapping[str, Any]]
    ) -> list[job_client.EnqueuedJob]:
        """Store a job for each call in one commit: all of them or none.

        A call is what :meth:`call` makes, a tuple of positional or a dict of named arguments.
        """
        given = listed("calls", calls, "calls", "enqueue_many([(1,), (2,)])")
        made = (each if isinstance(each, HandlerArguments) else self._of(each) for each in given)
        options = self._own_options()
        # A unique key may be made of arguments, and differs from call to call; all other options
        # are the same for all calls, and are checked once.
        if "unique" not in options:
            specs = ((self.routed, call.args, call.kwargs) for call in made)
            return self.app.client.enqueue_many(specs, **options)
        keyed = (
            {
                "handler": self.routed,
                "args": call.args,
                "kwargs": call.kwargs,
                **self._bound(options, call),
            }
            for call in made
        )
        return self.app.client.enqueue_many(keyed)

    def checked_schedule(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a schedule; refused if no worker could carry it out."""
        # Here, because a script without schedules is to start without time zones and cron.
        from ergon_framework.jobs.cron import check_cron, check_zone, interval

        unfit = sorted(self._options.keys() - SCHEDULED)
        if unfit:
            raise JobError(
                f"a schedule of {self.name!r} cannot have the option {unfit[0]!r}",
                remedy=f"the options of its jobs may be {', '.join(sorted(SCHEDULED))}",
            )
        cron, every = fields["cron"], fields["every"]
        if cron is None and every is None:
            raise self._no_schedule("it needs either cron or every", 'write every="15m"')
        if cron is not None and every is not None:
            raise self._no_schedule(
                f"it has both cron {shown(cron)} and every {shown(every)}",
                f"write one of them; what names it is name={shown(cron)}",
            )
        problems = {
            "misfire": word_problem(fields["misfire"], ("once", "skip", "all")),
            "overlap": switch_problem(fields["overlap"]),
            "jitter": _jitter_problem(fields["jitter"]),
            "cron": "" if cron is None else _kind_problem(cron, str),
            "timezone": _kind_problem(fields["zone"], str),
            "args": _kind_problem(fields["args"], (list, tuple)),
            "kwargs": _kind_problem(fields["kwargs"], Mapping),
        }
        for name, problem in problems.items():
            if problem:
                raise self._no_schedule(f"{name} {problem}", f"write for example {_EXAMPLES[name]}")
        if fields["ends_at"] is not None:
            instant("ends_at", fields["ends_at"])
        checked = {**fields, "unique": not fields["overlap"]}
        del checked["overlap"]
        try:
            if cron is not None:
                check_cron(cron)
            else:
                checked["every"] = f"{interval(_interval_text(every))}s"
            check_zone(fields["zone"])
        except JobError as error:
            raise self._no_schedule(error.message, error.remedy) from error
        # Only to refuse, where the schedule is declared, arguments that do not fit.
        self._call(tuple(fields["args"]), dict(fields["kwargs"]))
        return checked

    def schedule_name(self, given: object = None) -> str:
        """The name of a schedule of this handler: the given one, or else the handler's own."""
        if given is None:
            return self.name
        is_text = isinstance(given, str) and len(given) <= MAX_SCHEDULE_NAME
        if is_text and re.fullmatch(SCHEDULE_NAME, str(given)):
            return str(given)
        raise self._no_schedule(
            f"its name is {shown(given)}",
            f"write a text of up to {MAX_SCHEDULE_NAME} letters, digits, '_', '-' and '.', which"
            " begins with none of the last two",
        )

    def schedule(self, fields: Mapping[str, Any]) -> job_scheduler.ScheduleSettings:
        """Settings of a schedule that enqueues this handler, with the options of its jobs."""
        from ergon_framework.jobs.scheduler import ScheduleSettings

        call = self._call(tuple(fields["args"]), dict(fields["kwargs"]))
        own = {"handler": self.routed, "args": call.args, "kwargs": call.kwargs}
        options = dict(self._options)
        if options.pop("unique", False) and not fields["unique"]:
            own["unique_by"] = self._scheduled_key(call)
        return ScheduleSettings.model_validate({**options, **fields, **own})

    def _scheduled_key(self, call: HandlerArguments) -> dict[str, Any]:
        """The unique key of a schedule's jobs, whose arguments are always the same."""
        from ergon_framework.ports.unique import unique_option  # late: few handlers have one

        names = self.app.registry.positional(self.name)
        unique = unique_option(self._options["unique"])
        bound = unique.bound(self.routed, call.args, call.kwargs, names)
        return {"key": bound.key, "period": bound.period, "states": list(bound.states or ())}

    def _no_schedule(self, problem: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(f"the schedule of {self.name!r}: {problem}", remedy=remedy)

    @property
    def routed(self) -> str:
        """The name in a job: with the script's executor, so that no other script runs it."""
        own = "" if "#" in self.name else self.app.executor
        return f"{own}#{self.name}" if own else self.name

    def _of(self, arguments: tuple[Any, ...] | Mapping[str, Any]) -> HandlerArguments:
        if isinstance(arguments, Mapping):
            return self._call((), dict(arguments))
        example = "(1,) for one argument"
        return self._call(tuple(listed("each call", arguments, "arguments", example)), {})

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HandlerArguments:
        # Dates, dataclasses and the like become what JSON can carry; the types of the handler's
        # parameters turn them back on the other side, which the check tries out.
        return HandlerArguments(*self.app.registry.check(self.name, args, kwargs))

    def _options_of(self, call: HandlerArguments) -> JobOptions:
        return self._bound(self._own_options(), call)

    def _bound(self, options: JobOptions, call: HandlerArguments) -> JobOptions:
        """The options of one call, with its key where the handler makes one of its arguments."""
        unique = options.get("unique")
        if isinstance(unique, str | bool | None):
            return options
        from ergon_framework.ports.unique import unique_option  # late: few handlers have one

        names = self.app.registry.positional(self.name)
        bound = unique_option(unique).bound(self.routed, call.args, call.kwargs, names)
        return {**options, "unique": bound}

    def _own_options(self) -> JobOptions:
        refuse_while_loading("enqueues a job")
        options = dict(self._options)
        job = current_job()
        if job is not None:  # enqueued by a handler: both belong together
            options.setdefault("correlation_id", job.correlation or job.job_id)
        return cast(JobOptions, options)


def _interval_text(every: object) -> str:
    """An interval as settings write it: whole seconds, or text such as ``1h30m``."""
    given = every.total_seconds() if isinstance(every, timedelta) else every
    if isinstance(given, float) and given.is_integer():
        given = int(given)
    return given.strip() if isinstance(given, str) else shown(given)


def _jitter_problem(value: object) -> str:
    is_fit = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf
    return "" if is_fit else f"is {shown(value)}"


def _kind_problem(value: object, kinds: type | tuple[type, ...]) -> str:
    return "" if isinstance(value, kinds) else f"is {shown(value)}"
