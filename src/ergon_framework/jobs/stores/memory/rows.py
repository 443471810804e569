"""A job as the memory store keeps it, and the two views of it that it gives out."""

from __future__ import annotations

from collections import deque

import msgspec

from ergon_framework.core.failure import Failure
from ergon_framework.core.job import JobSnapshot, JobStatus
from ergon_framework.core.unique import is_held
from ergon_framework.jobs.stores.documents import column_key, has_error, has_labels
from ergon_framework.jobs.stores.erasure import erased
from ergon_framework.jobs.stores.transitions import JobPosition
from ergon_framework.ports.flow import StepPlace
from ergon_framework.ports.jobstore import (
    CancelRequest,
    ClaimedJob,
    Job,
    NewJob,
    Search,
    cancel_request_in,
)

MAX_HISTORY = 100
"""How many entries of a job's history are kept: the latest."""


class MemoryJob(msgspec.Struct, kw_only=True, eq=False):
    """One job. Of ``new`` the arguments change when it is extended, the executor when it waits for
    a handler, and all that it is about when it is erased; the rest changes under the lock.
    """

    key: int  # also the order of adding
    new: NewJob
    created_at: float
    changed_at: float
    run_at: float
    expires_at: float | None
    status: JobStatus = JobStatus.PENDING
    is_limited: bool = False
    attempts: int = 0  # without the one of a running delivery
    is_charged: bool = False
    deliveries: int = 0
    excused: int = 0
    is_solo: bool = False
    fence: int = 0
    why: str = ""
    worker: str | None = None
    claimed_at: float | None = None
    lease_expires_at: float | None = None
    finished_at: float | None = None
    purge_at: float | None = None
    result: bytes | None = None
    last_error: Failure | None = None
    flow_id: str | None = None
    join_id: str | None = None
    feeds: tuple[str, ...] | None = None  # None: it is no step of a flow
    wait: float | None = None
    signal: str | None = None
    history: deque[bytes] = msgspec.field(default_factory=lambda: deque(maxlen=MAX_HISTORY))

    @property
    def held_key(self) -> str | None:
        """The unique key that it has until it ends."""
        return column_key(self.new)

    def holds_key(self, now: float) -> bool:
        """Whether it holds its unique key by its rule, when it was the last to take it."""
        rule = self.new.unique
        return rule is not None and is_held(
            self.status, rule.ended_states, rule.until(self.created_at), now
        )

    @property
    def is_joining(self) -> bool:
        """Whether it waits for other steps, or for a signal."""
        is_bound = self.join_id is not None or self.signal is not None
        return is_bound and self.status is JobStatus.PENDING

    @property
    def cancel_request(self) -> CancelRequest | None:
        """Who asked for its cancellation while it runs."""
        return cancel_request_in(self.why) if self.status is JobStatus.ACTIVE else None

    def step(self) -> StepPlace | None:
        """Its place in its flow."""
        if self.feeds is None:
            return None
        return StepPlace(
            flow_id=self.flow_id or "",
            join_id=self.join_id,
            feeds=self.feeds,
            wait=self.wait,
            signal=self.signal,
        )

    def is_outdated(self, now: float) -> bool:
        """Whether it may no longer be started."""
        return self.expires_at is not None and self.expires_at <= now

    def is_expired(self, now: float) -> bool:
        """Whether it runs under a lease that was not renewed in time."""
        return self.lease_expires_at is not None and self.lease_expires_at <= now

    def snapshot(self) -> JobSnapshot:
        """What the machine needs to know of it."""
        return JobSnapshot(
            self.status, self.attempts, self.deliveries, self.excused, self.is_charged
        )

    def position(self) -> JobPosition:
        """What is needed to settle it."""
        numbers = self.attempts, self.deliveries, self.excused
        return (self.key, self.new.id, self.status.value, self.fence, *numbers, self.new.queue)

    def matches(self, search: Search) -> bool:
        """Whether an operator's filters let it through."""
        code = None if self.last_error is None else self.last_error.code
        return (
            (not search.statuses or self.status in search.statuses)
            and (not search.ids or self.new.id in search.ids)
            and search.queue in {None, self.new.queue}
            and search.handler in {None, self.new.handler}
            and search.flow in {None, self.flow_id}
            and not (search.is_released and self.join_id is not None)
            and search.code in {None, code}
            and has_error(self.last_error, search)
            and has_labels(self.new, search)
            and (search.since is None or self.created_at >= search.since)
            and (search.until is None or self.created_at < search.until)
            and (search.before is None or self.changed_at < search.before)
            and (search.below is None or self.key < search.below)
        )

    def job(self) -> Job:
        """As callers of the store see it."""
        new = self.new
        return Job(
            key=self.key,
            id=new.id,
            status=self.status,
            handler=new.handler,
            executor=new.executor,
            queue=new.queue,
            args=new.args,
            kwargs=new.kwargs,
            priority=new.priority,
            created_at=self.created_at,
            run_at=self.run_at,
            expires_at=self.expires_at,
            timeout=new.timeout,
            max_attempts=new.max_attempts,
            max_deliveries=new.max_deliveries,
            retry=new.retry,
            unique_key=new.unique_key,
            limit_key=new.limit_key,
            limit=new.limit,
            is_limited=self.is_limited,
            attempts=self.attempts + self.is_charged,
            is_charged=self.is_charged,
            deliveries=self.deliveries,
            excused=self.excused,
            is_solo=self.is_solo,
            fence=self.fence,
            why=self.why,
            worker=self.worker,
            claimed_at=self.claimed_at,
            lease_expires_at=self.lease_expires_at,
            finished_at=self.finished_at,
            purge_at=self.purge_at,
            result=self.result,
            result_ttl=new.result_ttl,
            last_error=self.last_error,
            correlation_id=new.correlation_id,
            trace_context=_copied(new.trace_context),
            history=tuple(self.history),
            uses=new.uses,
            step=self.step(),
            tags=new.tags,
            metadata=_copied(new.metadata),
            unique=new.unique,
        )

    def erase(self, now: float) -> None:
        """Keep nothing of what it is about."""
        left = erased(self.job(), now)
        names = ("args", "kwargs", "uses", "unique_key", "limit_key", "correlation_id")
        more = ("trace_context", "tags", "metadata", "unique")
        fields = {name: getattr(left, name) for name in (*names, *more)}
        self.new = msgspec.structs.replace(self.new, **fields)
        self.result, self.last_error = left.result, left.last_error
        self.history = deque(left.history, maxlen=MAX_HISTORY)

    def leased(self, now: float) -> ClaimedJob:
        """As the worker that claims it needs it."""
        new = self.new
        return ClaimedJob(
            key=self.key,
            fence=self.fence,
            id=new.id,
            handler=new.handler,
            executor=new.executor,
            queue=new.queue,
            args=new.args,
            kwargs=new.kwargs,
            attempts=self.attempts,
            deliveries=self.deliveries,
            excused=self.excused,
            is_solo=self.is_solo,
            created_at=self.created_at,
            claimed_at=now,
            timeout=new.timeout,
            max_attempts=new.max_attempts,
            max_deliveries=new.max_deliveries,
            retry=new.retry,
            result_ttl=new.result_ttl,
            correlation_id=new.correlation_id,
            trace_context=_copied(new.trace_context),
            uses=new.uses,
            flow_id=None if new.step is None else new.step.flow_id,
        )


def _copied(given: dict[str, str] | None) -> dict[str, str] | None:
    """A copy: a caller that changes what it was given must not change what is kept."""
    return None if given is None else dict(given)
