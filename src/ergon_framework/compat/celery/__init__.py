"""Celery's tasks as jobs, while a team moves from Celery to Ergon.

Promises: a task that is called through Ergon runs in the order of hooks, with the request and with
the retries that Celery would give it; an option that cannot be kept is refused when the task is
declared or called. Not promised: chains, groups and chords, which are refused.

Where to look first:

- ``bridge``: ``from_celery``, for an application that has Celery installed
- ``task``: ``Celery``, ``Task`` and ``shared_task``, for task modules without Celery
- ``options``: what each option of Celery means for a job
- ``execution``: one run of a task, and what its end means for the job
- ``result``: what ``delay`` returns
"""

from __future__ import annotations

from ergon_framework.compat.celery.bridge import CeleryBridge, from_celery
from ergon_framework.compat.celery.exceptions import (
    CanvasError,
    Ignore,
    MaxRetriesExceededError,
    Reject,
    SoftTimeLimitExceeded,
    UnsupportedNameError,
    UnsupportedOptionError,
)
from ergon_framework.compat.celery.exceptions import TaskRetry as Retry
from ergon_framework.compat.celery.result import JobResult
from ergon_framework.compat.celery.task import Celery, Task, refused_canvas, shared_task

chain = group = chord = signature = refused_canvas

__all__ = [
    "CanvasError",
    "Celery",
    "CeleryBridge",
    "Ignore",
    "JobResult",
    "MaxRetriesExceededError",
    "Reject",
    "Retry",
    "SoftTimeLimitExceeded",
    "Task",
    "UnsupportedNameError",
    "UnsupportedOptionError",
    "chain",
    "chord",
    "from_celery",
    "group",
    "shared_task",
    "signature",
]
