"""What a Celery task may raise to say how it ended, and what Ergon refuses.

Code under migration may import these names from here or from ``celery.exceptions``: both are
recognised, with or without Celery installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ergon_framework.errors import ConfigurationError

__all__ = [
    "CanvasError",
    "Ignore",
    "MaxRetriesExceededError",
    "Reject",
    "SoftTimeLimitExceeded",
    "TaskRetry",
    "UnsupportedNameError",
    "UnsupportedOptionError",
]


class TaskRetry(Exception):
    """The task is to be run again. Raised by ``self.retry()``."""

    def __init__(
        self,
        message: str | None = None,
        exc: BaseException | None = None,
        when: float | datetime | None = None,
    ) -> None:
        super().__init__(message, exc, when)
        self.message = message
        self.exc = exc
        self.when = when

    def __str__(self) -> str:
        if self.message:
            return self.message
        when = f"at {self.when}" if isinstance(self.when, datetime) else f"in {self.when}s"
        return f"Retry {when}" if self.exc is None else f"Retry {when}: {self.exc!r}"


class Ignore(Exception):
    """The task wants no result to be recorded: its job completes without one."""


class Reject(Exception):
    """The task gives its message back: to the queue, or for good as a dead letter."""

    def __init__(self, reason: Any = None, requeue: bool = False) -> None:
        super().__init__(reason, requeue)
        self.reason = reason
        self.requeue = requeue


class MaxRetriesExceededError(Exception):
    """``self.retry()`` was called without an ``exc`` once more than ``max_retries`` allows."""


class SoftTimeLimitExceeded(Exception):
    """Raised inside a task that has run for its ``soft_time_limit``."""


class UnsupportedOptionError(ConfigurationError):
    """A Celery option that matters and that Ergon has no counterpart for."""

    code = "celery_option"


class CanvasError(UnsupportedOptionError):
    """A chain, group, chord or callback, which Ergon does not run: it runs single calls."""

    code = "celery_canvas"


class UnsupportedNameError(UnsupportedOptionError, AttributeError):
    """A method or field of Celery that has no counterpart; ``hasattr`` says that it is missing."""

    code = "celery_name"


def missing_name(owner: str, name: str, remedies: Mapping[str, str]) -> AttributeError:
    """The error for an attribute that Celery has and ``owner`` does not."""
    if name not in remedies:
        return AttributeError(f"{owner} has no attribute {name!r}")
    return UnsupportedNameError(
        f"{owner} has no {name!r}: it runs with Ergon", remedy=remedies[name]
    )


def is_celery(error: BaseException, name: str) -> bool:
    """Whether an exception has this name and comes from here or from ``celery.exceptions``.

    Celery's classes are recognised by name, so that Celery does not have to be importable.
    """
    homes = (__name__, "celery.exceptions", "billiard.exceptions")
    names = (name, f"Task{name}")  # Users import TaskRetry under the name Retry.
    return any(each.__name__ in names and each.__module__ in homes for each in type(error).__mro__)
