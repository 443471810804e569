"""Jobs: a durable queue, and an orchestrator that runs handlers in any language.

Promises: an acknowledged job is on disk; it is held by at most one worker at a time; it ends as
completed, failed (dead-lettered, with its reason) or cancelled, exactly once; every attempt is
bounded. Not promised: that a handler runs exactly once. A worker or executor that dies between the
handler's effect and the record of it leaves a job that is delivered again.

Where to look first:

- ``client``, ``async_client``, ``newjob``, ``results``, ``finding``: enqueue, find, await
- ``admin``, ``bulk``, ``change_requests``: cancel, reschedule, requeue and purge, one or many
- ``editing``: send a dead letter back with other arguments
- ``flows``, ``flow_client``, ``flow_results``, ``flow_why``: jobs that wait for one another;
  ``fresh_results``: what a worker need not read; ``flow_notices``: what is told of them;
  ``flow_mistakes``: what was written in the place of a step
- ``worker``, ``store_thread``: the loop, and the link to the store; ``claims``, ``leases``: what
  the worker holds, and for how long; ``settlement``: what becomes of a job
- ``rescue``: what becomes of a dead worker's jobs
- ``maintenance``, ``missing_executors``, ``missing_versions``: heartbeat, retention, cron;
  executors, handlers and versions that nobody has
- ``archiver``, ``archive_files``, ``parquet_files``: ended jobs go into files before they are
  deleted
- ``pool``, ``executor_process``, ``child_process``, ``watchdog``, ``event_loop``: the processes
  that run handlers, and the loop that talks to them; ``memory_watch``: how much memory they have
- ``scheduler``, ``schedule_client``, ``cron``: schedules
- ``views``, ``why``: jobs and queues as people see them
- ``payload_codec``, ``payload_codec_store``: compressed and encrypted arguments and results
- ``payload_objects``, ``payload_threads``, ``object_sweep``: those in an object store
- ``settings``, ``store_urls``: the section ``[jobs]``, and which store a URL names
- ``totals``, ``tracing``: counters that outlive a worker, and spans
- ``stores``: memory, SQLite, PostgreSQL and Redis, all held to one suite
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ergon_framework.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ergon_framework.core.job import JobStatus
    from ergon_framework.jobs.async_client import AsyncJobClient
    from ergon_framework.jobs.client import JobClient
    from ergon_framework.jobs.cron import read_cron
    from ergon_framework.jobs.settings import ExecutorSettings, JobsSettings
    from ergon_framework.jobs.store_urls import open_store
    from ergon_framework.jobs.worker import Worker
    from ergon_framework.ports.jobstore import Job, Search
    from ergon_framework.ports.unique import Unique

_HOMES = {
    "AsyncJobClient": "jobs.async_client",
    "ExecutorSettings": "jobs.settings",
    "Job": "ports.jobstore",
    "JobClient": "jobs.client",
    "JobStatus": "core.job",
    "JobsSettings": "jobs.settings",
    "Search": "ports.jobstore",
    "Unique": "ports.unique",
    "Worker": "jobs.worker",
    "open_store": "jobs.store_urls",
    "read_cron": "jobs.cron",
}

__all__ = [
    "AsyncJobClient",
    "ExecutorSettings",
    "Job",
    "JobClient",
    "JobStatus",
    "JobsSettings",
    "Search",
    "Unique",
    "Worker",
    "open_store",
    "read_cron",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
