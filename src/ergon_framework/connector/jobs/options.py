"""The checks of the connector's arguments, before anything is opened."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from ergon_framework.errors import ConfigurationError, JobError
from ergon_framework.jobs.newjob import check_options
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.validation import name
from ergon_framework.ports.settings_model import explain

_OURS = {"id": "the transaction's id", "correlation_id": "the transaction's"}
_OURS |= {"trace_context": "the current trace", "queue": "the connector's queue"}


class Given(NamedTuple):
    """What was said, checked."""

    settings: JobsSettings
    options: dict[str, Any]


def checked(
    store: object,
    queue: object,
    handler: object,
    executor: object,
    lease: float | None,
    wait: object,
    options: object,
    settings: object,
) -> Given:
    """Refuse what could not work later."""
    if not store:
        raise ConfigurationError(
            "a JobsConnector needs a store",
            remedy='JobsConnector("sqlite:///work.db"), or url under [store] in the settings',
        )
    if not isinstance(store, str) and not callable(getattr(store, "exchange", None)):
        raise ConfigurationError(
            f"{type(store).__name__} is no store", remedy="give its URL or an open one"
        )
    try:
        name("queue", queue)
        if handler is not None:
            name("handler", handler)
        if executor is not None and "#" in name("executor", executor):
            raise ConfigurationError("executor has a '#' in it", remedy="write it in the handler")
    except JobError as error:
        raise ConfigurationError(error.message, remedy=error.remedy) from error
    seconds_of("wait", wait)
    changes = {} if lease is None else {"lease": lease}
    return Given(_settings(settings, changes), _options({} if options is None else options))


def seconds_of(field: str, value: object) -> float:
    """Seconds that somebody may wait: a finite number, and not below none."""
    is_flag = isinstance(value, bool)
    if isinstance(value, int | float) and not is_flag and 0 <= value <= sys.float_info.max:
        return float(value)
    raise ConfigurationError(f"{field} is {value!r}", remedy="give seconds, 0 for none")


def check_batch(size: object) -> None:
    """Refuse what is no number of transactions."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ConfigurationError(
            f"batch_size must be at least 1, not {size!r}", remedy="give a whole number above 0"
        )


def _settings(given: object, changes: dict[str, Any]) -> JobsSettings:
    if not isinstance(given, JobsSettings | Mapping | None):
        raise ConfigurationError(
            f"settings is {type(given).__name__}", remedy="give JobsSettings or a mapping"
        )
    try:
        if not isinstance(given, JobsSettings):
            return JobsSettings.model_validate({**(given or {}), **changes})
        return given.model_copy(
            update={"lease": JobsSettings(**changes).lease} if changes else None
        )
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, found["loc"]))
        inside = f"{where}: " if "." in where else ""  # the name itself is told already
        raise ConfigurationError(f"{inside}{explain(found)}", remedy="see [jobs]") from error


def _options(options: object) -> dict[str, Any]:
    if not isinstance(options, Mapping):
        raise ConfigurationError(
            f"options is {type(options).__name__}", remedy="give a mapping of a job's options"
        )
    for field, whose in _OURS.items():
        if field in options:
            raise ConfigurationError(
                f"options must not hold {field}: a job has {whose}", remedy=f"leave {field} out"
            )
    try:
        check_options(options)
    except JobError as error:
        raise ConfigurationError(f"options: {error.message}", remedy=error.remedy) from error
    return dict(options)


def refuse_extra(extra: Mapping[str, Any]) -> None:
    """Refuse a setting of one call that nobody knows."""
    if extra:
        raise ConfigurationError(
            f"JobsConnector does not know the setting {min(extra)!r}",
            remedy="a fetch takes wait, and a dispatch takes none",
        )
