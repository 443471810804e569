"""Options of jobs, as given to a handler or to one call, with their long and short names.

::

    @registry.handler(attempts=5, timeout=30, backoff=1.0, queue="slow")
    def resize(path: str) -> str: ...

This module has the names, and how options of a handler and of a call are merged. Their values are
checked where an option is set, and once more where a job is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypedDict

from ergon_framework.core.option_values import is_number, shown
from ergon_framework.errors import JobError
from ergon_framework.lazy_exports import LateModule
from ergon_framework.ports.job_fields import CHECKS as FIELD_CHECKS
from ergon_framework.ports.job_fields import FieldCheck, text

if TYPE_CHECKING:
    import ergon_framework.core.unique as unique_rule
    import ergon_framework.ports.unique as unique_port
    from ergon_framework.ports import settings_model
else:
    unique_rule = LateModule("ergon_framework.core.unique")
    settings_model = LateModule("ergon_framework.ports.settings_model")
    unique_port = LateModule("ergon_framework.ports.unique")


_text = text()


def _unique(field: str, value: Any) -> Any:
    if value is False:  # a call that does not want what its handler says
        return False
    if isinstance(value, str):
        return _text(field, value)
    from ergon_framework.ports.unique import unique_option  # late: few jobs have one

    return unique_option(value)


CHECKS: dict[str, FieldCheck] = {**FIELD_CHECKS, "unique": _unique}
"""What may stand in each option of a job, by its name."""


class JobOptions(TypedDict, total=False):
    """The options of a job, beside its handler and arguments. None is the same as leaving an option
    out.
    """

    id: str | None
    queue: str | None
    priority: int | None
    delay: float | None
    run_at: float | datetime | str | None
    expires_in: float | None
    expires_at: float | datetime | str | None
    timeout: float | None
    max_attempts: int | None
    max_deliveries: int | None
    retry: settings_model.SettingsModel | Mapping[str, Any] | None
    unique: str | unique_port.Unique | Mapping[str, Any] | Literal[False] | None
    """A key, or what makes two jobs the same, and for how long. False: neither."""
    on_duplicate: unique_rule.OnDuplicate | str | None
    limit_key: str | None
    limit: int | None
    result_ttl: float | None
    correlation_id: str | None
    trace_context: Mapping[str, str] | None
    tags: Iterable[str] | None
    """Short texts by which jobs are found, such as ``customer:42``."""
    metadata: Mapping[str, str] | None
    """Texts under names, by which jobs are found as well."""
    after: Iterable[str] | str | None
    """Ids of jobs that must complete before this one is due."""
    on_failure: str | None
    """What happens to this job when one of the jobs in ``after`` fails: ``cancel``, ``continue`` or
    ``hold``.
    """


ErrorTypes = str | type[BaseException] | Iterable[str | type[BaseException]]


class HandlerOptions(JobOptions, total=False):
    """The options with the short names that all kinds of handlers share."""

    attempts: int | None
    """``max_attempts``."""
    backoff: float | Mapping[str, Any] | None
    """Seconds before the second attempt, from which the wait grows; or base, multiplier, cap."""
    give_up_on: ErrorTypes | None
    """Exceptions after which a job is not tried again."""
    retry_on: ErrorTypes | None
    """Exceptions after which it is, although they count as final otherwise."""


_POLICY = ("backoff", "give_up_on", "retry_on")
"""Short names for parts of ``retry``."""
_SHORT = frozenset({"attempts", *_POLICY})
_OF_ONE_JOB = ("id", "run_at", "expires_at", "trace_context", "after", "on_failure")
_NONE: Mapping[str, Any] = {}


class JobCall(NamedTuple):
    """A call that fits its handler, as it travels in JSON, with the options of the handler."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    names: Sequence[str] | None = None
    """The names of the positional parameters; None if the handler is not known here."""


class Handlers(Protocol):
    """The handlers that a client knows, so that it can check what it enqueues."""

    @property
    def options(self) -> Mapping[str, Mapping[str, Any]]:
        """The job options of each handler, by its name."""
        ...

    def job_call(self, handler: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> JobCall:
        """What is to be stored for a call, or an error that says why it cannot be made."""
        ...


def job_options(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """The options under their long names, where a later mapping wins over those before it.

    Short names for parts of the retry policy change those parts of what came before; ``retry``
    itself takes the place of all of it.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        given = {name: value for name, value in layer.items() if value is not None}
        merged |= given if _SHORT.isdisjoint(given) else _long(given, merged.get("retry"))
    return merged


def handler_options(handler: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of all jobs of a handler, with names and values checked."""
    for field in options:
        if field not in HandlerOptions.__annotations__:
            raise unknown_option(field, f"the handler {handler!r} has")
        if field in _OF_ONE_JOB:
            raise JobError(
                f"{field} of the handler {handler!r} would be that of all its jobs",
                remedy=f"give {field} when you enqueue",
                details={"field": field},
            )
    return checked_options(handler, options)


def checked_options(
    handler: str, options: Mapping[str, Any], below: Mapping[str, Any] = _NONE
) -> dict[str, Any]:
    """The options under their long names, over those ``below``; the error about a wrong value names
    the handler.
    """
    try:
        for field, value in options.items():
            check = CHECKS.get(field)
            if check is not None and value is not None:
                check(field, value)
        merged = job_options(below, options)
        if "retry" in merged:
            CHECKS["retry"]("retry", merged["retry"])
    except JobError as error:
        raise JobError(
            f"the handler {handler!r}: {error.message}", remedy=error.remedy, details=error.details
        ) from None
    return merged


def exception_classes(given: ErrorTypes | None) -> tuple[type[BaseException], ...]:
    """The classes in ``give_up_on``: an executor can tell which errors derive from them."""
    if given is None or isinstance(given, str):
        return ()
    each = [given] if isinstance(given, type) else given
    return tuple(one for one in each if isinstance(one, type))


def unknown_option(field: str, who: str = "a job has") -> JobError:
    """The error for an unknown option."""
    from difflib import get_close_matches  # late: an executor loads this file

    known = list(HandlerOptions.__annotations__)
    near = get_close_matches(field, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else "known are " + ", ".join(known)
    return JobError(f"{who} no option {field!r}", remedy=hint, details={"field": field})


def _long(given: dict[str, Any], before: Any) -> dict[str, Any]:
    attempts = given.pop("attempts", None)
    if attempts is not None:
        if "max_attempts" in given:
            raise _twice("attempts", "max_attempts")
        given["max_attempts"] = attempts
    parts = {name: given.pop(name) for name in _POLICY if name in given}
    if not parts:
        return given
    if "retry" in given:
        raise _twice(next(iter(parts)), "retry")
    base = parts.get("backoff")
    if base is not None and not isinstance(base, Mapping):
        parts["backoff"] = {"base": _seconds("backoff", base)}
    for name in ("give_up_on", "retry_on"):
        if name in parts:
            parts[name] = _error_types(name, parts[name])
    dump = getattr(before, "model_dump", None)
    given["retry"] = {**(dump(exclude_none=True) if dump else before or {}), **parts}
    return given


def _seconds(field: str, value: Any) -> float:
    if not is_number(value) or value < 0:
        raise JobError(
            f"{field} is a number of seconds from 0 on, not {shown(value)}",
            remedy=f"write {field}=1.0, or a mapping with base, multiplier, cap and jitter",
            details={"field": field},
        )
    return float(value)


def _error_types(field: str, given: Any) -> list[str]:
    """The names of exceptions, by which a worker recognises the errors that its executors
    report.
    """
    each = [given] if isinstance(given, str | type | Mapping) else given
    try:
        return [one if isinstance(one, str) and one else _name_of(one) for one in each]
    except TypeError as error:
        raise JobError(
            f"{field} names no exceptions",
            remedy=f"give classes or their names, for example {field}=[ValueError]",
            details={"field": field},
        ) from error


def _name_of(error: Any) -> str:
    if not isinstance(error, type) or not issubclass(error, BaseException):
        raise TypeError("not a class of exceptions")
    return error.__name__


def _twice(field: str, other: str) -> JobError:
    return JobError(
        f"{field} contradicts {other}", remedy="give one of the two", details={"field": field}
    )
