"""What Celery's options mean for a job. Pure: reads tasks and options, does no I/O.

Every option has one of three answers: it becomes an option of the job, it changes nothing that
matters here and is dropped, or it is refused with what to do instead. An option that is in no
table is refused as well, so that nothing is lost without a word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from ergon_framework.compat.celery.exceptions import CanvasError, UnsupportedOptionError
from ergon_framework.core.option_values import is_number, shown
from ergon_framework.errors import JobError
from ergon_framework.jobs.newjob import JobOptions
from ergon_framework.ports.job_fields import CHECKS, TEN_YEARS

DAY = 86_400.0
NO_TIME_LIMIT = 7 * DAY
"""Seconds for an attempt of a task without a time limit: the longest time that a job may have."""
MAX_RETRIES = 3
"""How often ``self.retry()`` may be called if a task does not say: Celery's default."""
SPARE_ATTEMPTS = 21
"""How many attempts a bound task has, because it may ask for more retries than it declares. The
task itself stops.
"""
UNBOUNDED_ATTEMPTS = 10_000
"""How many attempts a task with ``max_retries=None`` has: the most that a job may have."""

CANVAS = ("link", "link_error", "chain", "chord", "group_id")
DROPPED = frozenset(
    {
        *("add_to_parent", "argsrepr", "compression", "connection", "delivery_mode"),
        *("group_index", "ignore_result", "immediate", "kwargsrepr", "mandatory", "origin"),
        *("parent_id", "producer", "publisher", "replaced_task_nesting", "reply_to"),
        *("result_cls", "retries", "retry", "retry_policy", "route_name", "router", "shadow"),
        *("task_type", "trail", "utc"),
    }
)
"""Options of a call that concern the way to the broker and back, or logs."""
REFUSED = {
    "exchange": "name a queue: jobs have no exchanges",
    "headers": "pass it as an argument: a job has no headers",
    "on_failure": "declare it in the decorator of the task, where it is called after a failure",
    "routing_key": "name a queue: jobs have no routing keys",
    "stamped_headers": "pass it as an argument: a job has no headers",
}
MAPPED = frozenset(
    {
        *("countdown", "eta", "expires", "priority", "queue", "root_id", "serializer"),
        *("soft_time_limit", "task_id", "time_limit", "tags", "metadata"),
    }
)
OF_JOBS = ("tags", "metadata")
"""Options of a call that Celery does not have, by which its job is found. A message has neither."""
HOOKS = ("before_start", "on_success", "on_retry", "on_failure", "after_return")


@dataclass(frozen=True, slots=True)
class TaskPolicy:
    """What a task declares, as far as its jobs need it."""

    name: str
    max_retries: int | None = MAX_RETRIES
    is_bound: bool = True
    acks_late: bool = False
    time_limit: float | None = None
    soft_time_limit: float | None = None
    rate_limit: str | None = None
    tags: tuple[str, ...] | None = None

    @property
    def max_attempts(self) -> int:
        """How many attempts its jobs may have. The task itself decides when to stop."""
        if self.max_retries is None:
            return UNBOUNDED_ATTEMPTS
        most = min(self.max_retries + 1, UNBOUNDED_ATTEMPTS)
        return max(most, SPARE_ATTEMPTS) if self.is_bound else most

    @property
    def retry(self) -> dict[str, Any]:
        """When a job is tried again: when the task says, and otherwise as in Celery."""
        return {
            "on_error": "dead-letter",
            "on_timeout": "dead-letter",
            "on_lost": "retry" if self.acks_late else "dead-letter",
            # Ten years, so that no countdown or eta of a task is cut short.
            "max_retry_after": 3650 * DAY,
        }


def policy_of(task: Any) -> TaskPolicy:
    """The policy that a task of Celery, or of this package, declares. A mistake in it
    is refused.
    """
    for problem in option_problems(task):
        raise UnsupportedOptionError(
            f"the task {task.name!r} is declared with {problem}",
            remedy="correct it in the decorator of the task",
            details={"task": task.name},
        )
    # autoretry_for passes retry_kwargs to retry(), and so may allow more retries than the task
    # itself.
    declared = [task.max_retries, (getattr(task, "retry_kwargs", None) or {}).get("max_retries", 0)]
    return TaskPolicy(
        name=task.name,
        max_retries=None if None in declared else max(declared),
        is_bound=is_bound(task),
        acks_late=bool(task.acks_late),
        time_limit=task.time_limit,
        soft_time_limit=task.soft_time_limit,
        rate_limit=None if task.rate_limit is None else str(task.rate_limit),
        tags=declared_tags(task),
    )


def declared_tags(task: Any) -> tuple[str, ...] | None:
    """The tags of all jobs of a task. A class of the user may use the attribute for
    something else.
    """
    found = getattr(task, "tags", None)
    if not isinstance(found, list | tuple | set | frozenset):
        return None
    return tuple(found) if all(isinstance(each, str) for each in found) else None


def option_problems(task: Any) -> list[str]:
    """The options of a task with unusable values, each as a sentence for its author."""
    found = []
    for option, is_right, wanted in _DECLARED:
        value = getattr(task, option, None)
        if value is not None and not is_right(value):
            found.append(f"{option}={shown(value)}, which must be {wanted}")
    return found


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_errors(value: Any) -> bool:
    several = value if isinstance(value, list | tuple) else (value,)
    return all(isinstance(each, type) and issubclass(each, BaseException) for each in several)


def _is_limit(value: Any) -> bool:
    return is_number(value) and value >= 0


_SECONDS = "a number of seconds"
_DECLARED: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("max_retries", _is_whole, "a whole number, or None"),
    ("priority", lambda value: _whole_of(value) is not None, "a whole number"),
    ("retry_kwargs", lambda value: isinstance(value, Mapping), "a dict"),
    ("autoretry_for", _are_errors, "a tuple of exceptions"),
    ("dont_autoretry_for", _are_errors, "a tuple of exceptions"),
    ("retry_backoff", lambda value: isinstance(value, bool) or _is_limit(value), _SECONDS),
    ("retry_backoff_max", _is_limit, _SECONDS),
    ("default_retry_delay", is_number, _SECONDS),
    ("time_limit", _is_limit, _SECONDS),
    ("soft_time_limit", _is_limit, _SECONDS),
    *((hook, callable, "a function") for hook in HOOKS),
)
"""Options of a task, which values are right, and what to write."""


def is_bound(task: Any) -> bool:
    """Whether the task's code has ``self``, and may call ``self.retry()`` as often as it likes."""
    own = getattr(task, "_orig_run", task.run)  # under Celery's autoretry
    return getattr(own, "__self__", None) is not None


def job_options(
    policy: TaskPolicy,
    given: Mapping[str, Any],
    *,
    now: datetime,
    is_smaller_first: bool = False,
) -> JobOptions:
    """The options of the job for a call of a task with these options of ``apply_async``.

    ``is_smaller_first``: priority 0 is the highest, as with Redis, and not 9, as with RabbitMQ.
    """
    refuse_canvas(policy.name, given)
    # A chain of one task says that nothing follows it: chain=[].
    call = {key: value for key, value in given.items() if value is not None and key not in CANVAS}
    for key in call.keys() - MAPPED - DROPPED:
        _refuse(policy.name, key, call[key])
    if str(call.get("serializer", "json")) == "pickle":
        raise _unsupported(policy.name, "serializer='pickle'", "pass what JSON can hold, or an id")
    if call.get("soft_time_limit", policy.soft_time_limit) != policy.soft_time_limit:
        raise _unsupported(
            policy.name, "soft_time_limit of a call", "declare it in the decorator of the task"
        )
    made: dict[str, Any] = {
        "id": _right(policy, call, "task_id", "id"),
        "queue": _right(policy, call, "queue", "queue"),
        "priority": _priority(policy, call.get("priority"), is_smaller_first=is_smaller_first),
        "timeout": _time_limit(policy, call),
        "max_attempts": policy.max_attempts,
        "retry": policy.retry,
        "correlation_id": _right(policy, call, "root_id", "correlation_id"),
        "tags": _right(policy, {"tags": policy.tags, **call}, "tags", "tags"),
        "metadata": _right(policy, call, "metadata", "metadata"),
        **_due(call, now),
        **_expiry(call.get("expires"), now),
    }
    return cast(JobOptions, {key: value for key, value in made.items() if value is not None})


def refuse_canvas(name: str, options: Mapping[str, Any]) -> None:
    """Refuse a call that is part of a chain, group or chord, or has callbacks."""
    found = [key for key in CANVAS if options.get(key)]
    if found:
        raise CanvasError(
            f"the call of {name!r} is part of a canvas ({', '.join(found)}), and Ergon runs single"
            " calls",
            remedy="call the next task at the end of this one, or leave all its tasks with Celery:"
            f' route={{"{name}": "celery"}}',
            details={"task": name},
        )


def refuse_changes(name: str, changed: Iterable[str]) -> None:
    """Refuse a retry that asks for other options than its job has."""
    options = ", ".join(sorted(changed))
    if options:
        raise UnsupportedOptionError(
            f"the task {name!r} asks for a retry with {options}, and all attempts of a job have the"
            " same options",
            remedy="call apply_async with these options, and return",
            details={"task": name},
        )


def rate_of(limit: str) -> float:
    """Celery's ``10/m`` as starts per second; 0 for none."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:/\s*([smh]))?\s*", limit)
    if match is None:
        raise UnsupportedOptionError(
            f"rate_limit={limit!r} cannot be read", remedy="write it as 10/s, 10/m or 10/h"
        )
    return float(match[1]) / {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def check_rate(policy: TaskPolicy, queue: str, rates: Mapping[str, float | None]) -> None:
    """Refuse a task with a ``rate_limit`` unless its queue is limited at least as much.

    ``rates``: the rate of each queue that the settings limit.
    """
    limit = 0.0 if policy.rate_limit is None else rate_of(policy.rate_limit)
    found = rates.get(queue)
    # A thousandth more, because the remedy below rounds: it writes 10/m as 0.166667, which is above
    # 1/6.
    if not limit or (found is not None and found <= limit * 1.001):
        return
    raise UnsupportedOptionError(
        f"the task {policy.name!r} has rate_limit={policy.rate_limit!r}, and its queue {queue!r}"
        " is not limited: Ergon limits queues, across all workers",
        remedy=f"give the task a queue of its own and write [jobs.queues.{queue!r}] with"
        f" rate = {limit:.6g} in ergon.toml, or ignore=['rate_limit']",
        details={"task": policy.name, "queue": queue},
    )


def unkept(task: Any) -> list[str]:
    """What a task of Celery declares that has no effect on its jobs, as sentences for
    its author.
    """
    found = []
    if task.acks_late and not task.acks_on_failure_or_timeout:
        found.append(
            "acks_on_failure_or_timeout=False: a failed task is dead-lettered, not delivered again"
        )
    if str(task.Request) != "celery.worker.request:Request":
        found.append("its Request class belongs to Celery's worker and is not used")
    if getattr(task, "tags", None) and declared_tags(task) is None:
        found.append("its tags are no list of texts, and its jobs have none")
    return found


def to_be_changed(task: Any) -> list[str]:
    """What a task of Celery declares for which its calls will be refused."""
    found = []
    if task.rate_limit is not None and (rate := rate_of(str(task.rate_limit))):
        found.append(
            f"rate_limit={task.rate_limit!r}: give it a queue of its own with rate = {rate:.6g}"
        )
    if str(task.serializer) == "pickle":
        found.append("serializer='pickle': pass what JSON can hold, or an id")
    return found + option_problems(task)


def _right(policy: TaskPolicy, call: Mapping[str, Any], option: str, field: str) -> Any:
    """The value of an option, if the field of a job can have it."""
    value = call.get(option)
    if value is None:
        return None
    try:
        return CHECKS[field](option, value)
    except JobError as error:
        raise _wrong(policy.name, error.message, error.remedy or "leave it out") from error


def _time_limit(policy: TaskPolicy, call: Mapping[str, Any]) -> float:
    """Seconds for an attempt: those of the call, else of the task, else the longest time that a job
    may have.
    """
    limits = {"time_limit": call.get("time_limit", policy.time_limit) or NO_TIME_LIMIT}
    found: float = _right(policy, limits, "time_limit", "timeout")
    return found


def _priority(policy: TaskPolicy, value: Any, *, is_smaller_first: bool) -> int | None:
    if value is None:
        return None
    found = _whole_of(value)
    if found is None:
        remedy = "give a number from 0 to 9, as Celery's brokers have them"
        problem = f"priority must be a whole number, not {shown(value)}"
        raise _wrong(policy.name, problem, remedy)
    # The job with the greater number goes first, as with RabbitMQ.
    call = {"priority": -found if is_smaller_first else found}
    priority: int = _right(policy, call, "priority", "priority")
    return priority


def _whole_of(value: Any) -> int | None:
    """A whole number, also as text, because Celery's transports take one from the environment as
    text.
    """
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,9}\s*", value):
        return int(value)
    return value if _is_whole(value) else None


def _due(call: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    if call.get("countdown"):  # Given both, Celery takes the countdown.
        return {"delay": seconds_of(call["countdown"])}
    if "eta" in call:
        at = instant("eta", call["eta"])
        return {"run_at": at} if at > now else {}
    return {}


def _expiry(value: Any, now: datetime) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, datetime | str):
        at = instant("expires", value)
        # Celery's users write datetime.max for "never".
        is_far = (at - now).total_seconds() >= TEN_YEARS
        return {} if is_far else {"expires_at": at}
    seconds = _seconds("expires", value)
    # A negative one stays: Celery accepts calls that have expired, and expired_at() finds them.
    return {"expires_in": max(-TEN_YEARS, seconds)} if seconds < TEN_YEARS else {}


def expired_at(options: JobOptions, now: float) -> float | None:
    """The expiry of a call that can no longer be started before it. None if there is time.

    Celery accepts such a call, and its worker revokes it.
    """
    expires_in, expires_at = options.get("expires_in"), options.get("expires_at")
    if isinstance(expires_at, datetime):
        expiry = expires_at.timestamp()
    elif expires_in is not None:
        expiry = now + expires_in
    else:
        return None
    run_at = options.get("run_at")
    due = now + (options.get("delay") or 0.0)
    if isinstance(run_at, datetime):
        due = run_at.timestamp()
    return expiry if expiry <= max(now, due) else None


def without_expiry(options: JobOptions) -> JobOptions:
    """The same options without the expiry."""
    left = {key: value for key, value in options.items() if not key.startswith("expires_")}
    return cast(JobOptions, left)


def seconds_of(countdown: Any) -> float:
    """Seconds from now; none for a time that has passed. A number that is no time is refused."""
    return max(0.0, _seconds("countdown", countdown))


def _seconds(option: str, value: Any) -> float:
    try:
        seconds = math.nan if isinstance(value, bool | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise UnsupportedOptionError(
            f"{option} is {value!r}", remedy="give a number of seconds, for example 60"
        )
    return seconds


def instant(option: str, value: Any) -> datetime:
    """An instant as Celery takes it: text or a datetime.

    One without a zone is in UTC, whatever the application's ``timezone`` is, because Celery's
    worker reads the message that way.
    """
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        at = None
    if not isinstance(at, datetime):
        raise UnsupportedOptionError(
            f"{option}={value!r} is no instant", remedy="give a datetime or text in ISO 8601"
        )
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _refuse(name: str, key: str, value: Any) -> None:
    if key in ("headers", "stamped_headers") and not value:
        return
    remedy = REFUSED.get(key, "leave it out: Ergon does not know it")
    raise _unsupported(name, key, remedy)


def _wrong(name: str, problem: str, remedy: str) -> UnsupportedOptionError:
    return UnsupportedOptionError(
        f"the call of the task {name!r} has an option that it cannot have: {problem}",
        remedy=remedy,
        details={"task": name},
    )


def _unsupported(name: str, what: str, remedy: str) -> UnsupportedOptionError:
    return UnsupportedOptionError(
        f"the task {name!r} cannot be run by Ergon with {what}",
        remedy=remedy,
        details={"task": name, "option": what},
    )
