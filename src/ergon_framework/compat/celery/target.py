"""Where calls of tasks go: the registry that runs them, and the client that stores their jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import structs

from ergon_framework.compat.celery.options import (
    TaskPolicy,
    check_rate,
    expired_at,
    without_expiry,
)
from ergon_framework.compat.celery.result import JobResult
from ergon_framework.errors import WiringError
from ergon_framework.executor import Registry, current_job
from ergon_framework.executor.loading import refuse_while_loading
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.newjob import JobOptions

DEFAULT_QUEUE = "default"


class ErgonApp(Protocol):
    """What is needed of an :class:`~ergon_framework.App`."""

    @property
    def registry(self) -> Registry:
        """The handlers of its executors."""

    @property
    def client(self) -> JobClient:
        """The client of its store, opened at the first use."""

    @property
    def executor(self) -> str:
        """The executor that its jobs name; empty if they name none."""


class CallTarget:
    """A registry with a client: those of an App, or given one by one."""

    def __init__(
        self,
        app: ErgonApp | None = None,
        *,
        registry: Registry | None = None,
        client: JobClient | Callable[[], JobClient] | None = None,
        ignore: Sequence[str] = (),
    ) -> None:
        if (app is None) == (registry is None):
            raise WiringError(
                "tasks need the App that their jobs belong to, or a registry",
                remedy="give app=App(), or registry=Registry() and client=JobClient(url)",
            )
        unknown = set(ignore) - {"rate_limit"}
        if unknown:
            raise WiringError(f"{min(unknown)!r} cannot be ignored", remedy="only 'rate_limit' can")
        self._app = app
        self._client = client
        self._ignore = frozenset(ignore)
        self.registry = app.registry if app is not None else registry or Registry()

    @property
    def client(self) -> JobClient:
        """The client of the store; opened at the first use."""
        if self._app is not None:
            return self._app.client
        if self._client is None:
            raise WiringError(
                "these tasks have a registry and no client: they can be run and not be called",
                remedy="give client=JobClient(url) beside registry",
            )
        if not isinstance(self._client, JobClient):
            self._client = self._client()
        return self._client

    def send(
        self, policy: TaskPolicy, args: list[Any], kwargs: Mapping[str, Any], options: JobOptions
    ) -> JobResult:
        """Store the job of a call, even of one that has expired: a worker then records that."""
        refuse_while_loading(f"calls the task {policy.name!r}")
        client = self.client
        if policy.rate_limit is not None and "rate_limit" not in self._ignore:
            rates = {name: each.rate for name, each in client.settings.queues.items()}
            check_rate(policy, options.get("queue") or DEFAULT_QUEUE, rates)
        job = current_job()
        if job is not None:  # It was called by another task, so both belong together.
            options.setdefault("correlation_id", job.correlation or job.job_id)
        executor = "" if self._app is None else self._app.executor
        name = f"{executor}#{policy.name}" if executor else policy.name
        late = expired_at(options, client.store.now())
        if late is None:
            return JobResult(client.enqueue(name, args, kwargs, **options), client)
        # A client refuses a job that expires before it is due. Celery accepts such a call and later
        # revokes it.
        in_time = without_expiry(options)
        expired = structs.replace(client.job(name, args, kwargs, **in_time), expires_at=late)
        client.store.add([expired])
        return JobResult(expired.id, client)

    def result(self, job_id: str) -> JobResult:
        """The result of a job that was stored before."""
        return JobResult(job_id, lambda: self.client)
