"""The checks of the connector's arguments, before anything is opened."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from ergon_framework.errors import ConfigurationError, JobError
from ergon_framework.jobs.edge import check_options
from ergon_framework.jobs.fields import name
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.ports.document import explain

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
    wait: float,
    options: Mapping[str, Any] | None,
    settings: JobsSettings | Mapping[str, Any] | None,
) -> Given:
    """Refuse what could not work later."""
    if not store:
        raise ConfigurationError(
            "a JobsConnector needs a store",
            remedy='JobsConnector("sqlite:///work.db"), or url under [store] in the settings',
        )
    try:
        name("queue", queue)
        if handler is not None:
            name("handler", handler)
        if executor is not None and "#" in name("executor", executor):
            raise ConfigurationError("executor has a '#' in it", remedy="write it in the handler")
    except JobError as error:
        raise ConfigurationError(error.message, remedy=error.remedy) from error
    if isinstance(wait, bool) or not (math.isfinite(wait) and wait >= 0):
        raise ConfigurationError(f"wait is {wait!r}", remedy="give seconds, 0 for none")
    changes = {} if lease is None else {"lease": lease}
    return Given(_settings(settings, changes), _options(options or {}))


def _settings(
    given: JobsSettings | Mapping[str, Any] | None, changes: dict[str, Any]
) -> JobsSettings:
    known = given if isinstance(given, JobsSettings) else None
    values = dict(given or {}) if known is None and isinstance(given, Mapping | None) else {}
    try:
        if known is None:
            return JobsSettings.model_validate({**values, **changes})
        return known.model_copy(
            update={"lease": JobsSettings(**changes).lease} if changes else None
        )
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, found["loc"]))
        raise ConfigurationError(f"{where}: {explain(found)}", remedy="see [jobs]") from error


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
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
