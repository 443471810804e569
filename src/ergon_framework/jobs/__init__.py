"""Jobs: a durable queue, and an orchestrator that runs handlers in any language.

Promises: an acknowledged job is on disk; it is held by at most one worker at a time; it ends as
completed, failed (dead-lettered, with its reason) or cancelled, exactly once; every attempt is
bounded. Not promised: that a handler runs exactly once. A worker or executor that dies between the
handler's effect and the record of it leaves a job that is delivered again.

Where to look first:

- ``client``, ``async_client``, ``newjob``, ``validation``, ``results``: enqueue, ask, await
- ``worker``, ``store_thread``, ``claims``: the loop, the link to the store, how a claim is settled
- ``rescue``: what becomes of a dead worker's jobs
- ``maintenance``, ``missing_executors``: heartbeat, retention, cron; executors that nobody has
- ``pool``, ``executor_process``, ``child_process``, ``watchdog``: the processes that run handlers
- ``scheduler``, ``cron``: schedules
- ``views``, ``why``: jobs and queues as people see them
- ``store_urls``: which store a URL names; ``stores``: memory, SQLite, PostgreSQL and Redis, all held
  to one suite
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ergon_framework.jobs.async_client import AsyncJobClient
    from ergon_framework.jobs.client import JobClient
    from ergon_framework.jobs.settings import ExecutorSettings, JobsSettings
    from ergon_framework.jobs.worker import Worker

_HOMES = {
    "AsyncJobClient": "async_client",
    "ExecutorSettings": "settings",
    "JobClient": "client",
    "JobsSettings": "settings",
    "Worker": "worker",
}

__all__ = ["AsyncJobClient", "ExecutorSettings", "JobClient", "JobsSettings", "Worker"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
