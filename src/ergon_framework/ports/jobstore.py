"""What a job store promises: jobs survive, each is held by at most one worker, nothing is settled
twice.

Three small ports, which one class may serve: :class:`JobStore` for clients and workers,
:class:`JobAdmin` for operators, :class:`ScheduleStore` for cron. A fourth, :class:`FlowStore`, is a
part of a store that keeps flows, and is named ``flows`` there. Every call is atomic and returns
only when its effect is as durable as the store's sentence (``durability``) says. Instants are
seconds since the epoch by **the store's** clock; callers give durations wherever they can. Handles
(``key``) belong to the store that gave them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.failure import Failure
from ergon_framework.core.flow import FlowEvent, FlowStatus
from ergon_framework.core.job import JobStatus, Transition
from ergon_framework.core.retention import JobRetention
from ergon_framework.core.unique import (
    OnDuplicate as OnDuplicate,  # noqa: PLC0414 - callers of a store find it here
)
from ergon_framework.core.unique import UniqueRule
from ergon_framework.ports.flow import Flow, Join, NewFlow, SignalOutcome, StepPlace

DEFAULT_QUEUE = "default"


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job as a client hands it in, checked at the edge. None means: as the worker's settings.

    Of JSON values alone: nothing that it holds can hold it, as the garbage collector looks for.
    """

    id: str
    handler: str  # as enqueued, an ``executor#`` in front included
    executor: str = ""  # that prefix; empty: the worker's routes decide
    queue: str = DEFAULT_QUEUE
    args: bytes = b"[]"  # JSON
    kwargs: bytes = b"{}"  # JSON
    priority: int = 0  # higher first
    delay: float = 0.0
    run_at: float | None = None  # instead of a delay
    expires_at: float | None = None  # not started by then: dead-lettered
    timeout: float | None = None
    max_attempts: int | None = None
    max_deliveries: int | None = None
    retry: bytes | None = None  # JSON of the job's own retry policy
    unique_key: str | None = None
    on_duplicate: OnDuplicate = OnDuplicate.REJECT
    limit_key: str | None = None  # at most ``limit`` jobs of one key run at once
    limit: int = 1
    result_ttl: float | None = None
    correlation_id: str | None = None
    trace_context: dict[str, str] | None = None
    uses: Any = None  # JSON: which arguments are results of other steps
    step: StepPlace | None = None  # None: it belongs to no flow
    tags: tuple[str, ...] = ()
    metadata: dict[str, str] | None = None
    unique: UniqueRule | None = None  # of ``unique_key``; None: held until the job ends

    @property
    def is_waiting_only(self) -> bool:
        """Whether the job gives up its unique key once it runs."""
        return self.unique is not None and self.unique.is_waiting_only


class EnqueueResult(msgspec.Struct, frozen=True):
    """What became of a new job: its id, or that of the job that holds its unique key."""

    id: str
    is_new: bool
    replaced: str | None = None  # the id of the job that was cancelled for it


class ClaimedJob(msgspec.Struct, frozen=True):
    """A claimed job: everything that running it needs.

    Stores make one for each job, by position: by name it takes eight times as long.
    """

    key: Any
    fence: int  # names this claim; grows with every claim and is never reset
    id: str
    handler: str
    executor: str
    queue: str
    args: bytes
    kwargs: bytes
    attempts: int  # before this delivery
    deliveries: int  # this one included
    excused: int
    is_solo: bool
    created_at: float
    claimed_at: float
    timeout: float | None = None
    max_attempts: int | None = None
    max_deliveries: int | None = None
    retry: bytes | None = None
    result_ttl: float | None = None
    correlation_id: str | None = None
    trace_context: dict[str, str] | None = None
    uses: Any = None
    flow_id: str | None = None  # a hint: a job may become a step after it was claimed
    feeds: str | None = None  # where its end counts, as the store had it; for its settlement


class ClaimResult(msgspec.Struct, frozen=True):
    """The jobs a worker got, and when asking again makes sense."""

    jobs: list[ClaimedJob]
    next_at: float | None = None  # None: nothing is waiting for time to pass
    more: bool = False  # something due was left for an executor of its own: no slot, or a limit
    outdated: int = 0  # jobs that were dead-lettered because their expiry had passed
    expires_at: float | None = None  # the first expiry of a job that waits, of whatever queue
    handler_lanes: tuple[str, ...] = ()  # in which jobs are due, see ``handler_lane``; the first


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """One transition of one job; applied only if the job was not changed since.

    It holds nothing that could hold it, so the garbage collector need not look at each of them.
    """

    key: Any
    id: str
    fence: int
    expected: JobStatus  # the state the transition was decided in
    transition: Transition
    entry: bytes  # one JSON object for the job's history, without a newline
    result: bytes | None = None
    keep: float | None = None  # seconds a final job is kept; None: for ever
    if_expired: bool = False  # a rescue: only while the lease is still expired
    handler: str = ""  # for notices; no store needs it
    queue: str = ""  # the same, and for a store that makes a cancellation of it
    is_step: bool = False  # a hint that spares the store a look
    feeds: str | None = None  # the same, of a claimed step: where its end counted then


class LeaseRenewal(msgspec.Struct, frozen=True):
    """A claim whose lease a worker wants to prolong."""

    key: Any
    id: str
    fence: int
    is_charged: bool  # a request was written: charge the attempt if that has not been done


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to cancel a running job. A store keeps it as JSON in the job's row."""

    at: str  # RFC 3339
    by: str = ""
    reason: str = ""


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job as callers of a store see it.

    What has a default was added later: a job without it is written as it always was.
    """

    key: Any
    id: str
    status: JobStatus
    handler: str
    executor: str
    queue: str
    args: bytes
    kwargs: bytes
    priority: int
    created_at: float
    run_at: float
    expires_at: float | None
    timeout: float | None
    max_attempts: int | None
    max_deliveries: int | None
    retry: bytes | None
    unique_key: str | None
    limit_key: str | None
    limit: int
    is_limited: bool  # waits because too many of its key are running
    attempts: int  # the charged one of a running delivery included
    is_charged: bool
    deliveries: int
    excused: int
    is_solo: bool
    fence: int
    why: str  # of a running job: the request to cancel it, see ``cancel_request``
    worker: str | None
    claimed_at: float | None
    lease_expires_at: float | None
    finished_at: float | None
    purge_at: float | None
    result: bytes | None
    result_ttl: float | None
    last_error: Failure | None
    correlation_id: str | None
    trace_context: dict[str, str] | None
    history: tuple[bytes, ...]  # JSON objects, the oldest first
    uses: Any = None
    step: StepPlace | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, str] | None = None
    unique: UniqueRule | None = None

    @property
    def is_waiting_only(self) -> bool:
        """Whether the job gives up its unique key once it runs."""
        return self.unique is not None and self.unique.is_waiting_only

    @property
    def cancel_request(self) -> CancelRequest | None:
        """The request to cancel the running job, if there is one."""
        return cancel_request_in(self.why) if self.status is JobStatus.ACTIVE else None


def cancel_request_in(note: str) -> CancelRequest | None:
    """The request that stands in the row of a running job; None where there is none."""
    if not note:
        return None
    try:
        return _cancel_request(note)
    except msgspec.MsgspecError:  # of a later version: it is a request all the same
        return CancelRequest(at="")


_cancel_request = msgspec.json.Decoder(CancelRequest).decode


class Subscription(Protocol):
    """Waits for changes of one topic in the store."""

    def wait(self, seconds: float | None) -> bool:
        """Block until notified, or until that much time has passed; whether it was notified."""

    def wake(self) -> None:
        """Wake the waiter, as a notification would."""

    def close(self) -> None:
        """Unsubscribe."""


class Topic(StrEnum):
    """What to subscribe to."""

    WORK = "work"  # a job may have become claimable
    DONE = "done"  # a job reached a final state
    CANCEL = "cancel"  # a running job is to be cancelled


MAX_CLOCK_SKEW = 1.0
"""Seconds by which two processes may disagree about the time, although no clock was set."""


class JobStore(Protocol):
    """What clients and workers need."""

    retention: JobRetention
    """How long jobs are kept that the store ends by itself: at an expiry, for another job with
    their unique key, with their flow. A worker or a client says so, by its settings."""

    @property
    def durability(self) -> str:
        """One sentence that says how durable an acknowledged job is."""

    @property
    def is_synced(self) -> bool:
        """Whether an acknowledged job is on disk."""

    def now(self) -> float:
        """The store's clock."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store all of them or none; raises DuplicateJobError. Notifies ``WORK``."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], request: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        """Apply what happened, then claim, in one commit.

        For each settlement: whether it was applied (False: fence, state or lease differ; then
        nothing of it was changed). A final transition frees the job's unique key and its limit key.
        One that would let a job wait whose cancellation was requested is applied as that
        cancellation. One with a ``lane`` lets it wait there: the job names it as its executor. A
        claim with ``wants_more`` also returns the lanes of handlers in which jobs are due.
        """

    def renew(self, renewals: Sequence[LeaseRenewal], lease: float) -> list[bool]:
        """Prolong leases and charge attempts; False for a job this holder has lost."""

    def request_cancel(self, job: Job, request: CancelRequest) -> bool:
        """Note that a running job is to be cancelled; False: this claim of it runs no more.

        The first request stays. The note lasts as long as the claim. Notifies ``CANCEL``.
        """

    def cancel_requests(self, claims: Sequence[LeaseRenewal]) -> Mapping[str, CancelRequest]:
        """Which of these claims are to be cancelled, by job id."""

    def shorten(self, leases: Mapping[str, float], others: float) -> int:
        """Cut leases that end later than they could if they were renewed now; how many.

        That happens when the store's clock is set back. ``leases`` says by worker how long it
        claims for, ``others`` how long any other worker may.
        """

    def shorten_waits(self) -> int:
        """Let jobs that went back to the queue wait for as long as was decided; how many changed.

        When the store's clock is set back, a job that was to be tried again in a minute would wait
        for as much longer. Such a job was changed at an instant that is yet to come; jobs that were
        never claimed keep the instant they were enqueued for.
        """

    def expired_leases(self, limit: int) -> list[Job]:
        """Running jobs whose lease has expired, the oldest first: what a rescue settles."""

    def find(self, job_id: str) -> Job | None:
        """The job with this id, or None."""

    def subscribe(self, topic: Topic) -> Subscription:
        """Subscribe this process to each change of that kind, made by any process."""

    def close(self) -> None:
        """Release all resources. May be called twice."""


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs an operator means; every filter that is set must match."""

    statuses: tuple[JobStatus, ...] = ()
    queue: str | None = None
    handler: str | None = None
    code: str | None = None  # of the last failure
    error: str | None = None  # the code or the kind of the last failure
    tags: tuple[str, ...] = ()  # all of them
    metadata: Mapping[str, str] = {}  # all of these values
    since: float | None = None  # created then or later
    until: float | None = None  # created before that instant
    before: float | None = None  # last changed before that instant
    ids: tuple[str, ...] = ()
    flow: str | None = None  # the steps of this flow
    is_released: bool = False  # only jobs that wait for no step of their flow
    below: Any = None  # older than the job with this key, for the next page

    @property
    def labels(self) -> tuple[str, ...]:
        """What a job must be indexed under, see :func:`labels_of`."""
        return labels_of(self.tags, self.metadata)


def labels_of(tags: Sequence[str], metadata: Mapping[str, str] | None) -> tuple[str, ...]:
    """What a job is indexed under: its tags, and ``key=value`` for its metadata.

    No tag and no key has an equals sign, so that neither is taken for the other.
    """
    if not metadata:
        return tuple(tags)
    return (*tags, *(f"{key}={value}" for key, value in sorted(metadata.items())))


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with its limits and its counts by status."""

    name: str
    is_paused: bool = False
    max_active: int | None = None
    rate: float | None = None  # jobs per second on average …
    burst: int = 1  # … and at once after a rest
    key_max_active: int | None = None  # the same for each limit key of the queue, …
    key_rate: float | None = None  # … which then counts instead of the jobs' own limit
    key_burst: int = 1
    pinned_version: str | None = None  # only workers of this version of the program claim from it
    counts: Mapping[str, int] = {}
    more: tuple[str, ...] = ()  # states that have at least as many jobs as were counted
    oldest_due_at: float | None = None


class StatusCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs a store has by status, counted up to a bound."""

    counts: Mapping[str, int]
    more: tuple[str, ...] = ()  # states that have at least as many jobs as were counted


MOST_COUNTED = 10_000
"""Jobs of one state that are counted in a queue, unless the caller says otherwise."""
MOST_SAMPLED = 10_000
"""Jobs that wait for their time, a limit key or other steps, of each kind, that are looked at to
count those of some queues: they stand in no order of queues.
"""


def bound_for(number: int) -> int:
    """The bound up to which jobs of one state are counted, when ``number`` queues are counted."""
    return max(1_000, min(MOST_COUNTED, _MOST_ENTRIES // max(1, number) // 1_000 * 1_000))


_MOST_ENTRIES = 200_000
"""Jobs of one state that are counted in all queues of one look together."""
ENDED = "ended"
"""The state of a record that a worker leaves behind."""


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as its last heartbeat said."""

    id: str
    host: str
    pid: int
    version: str
    started_at: float
    seen_at: float = 0.0  # by the store's clock
    state: str = "running"
    lease: float | None = None  # for how long it claims
    queues: tuple[str, ...] | None = None
    executors: Mapping[str, Any] = {}  # name to what it is doing
    counters: Mapping[str, int] = {}
    totals: Mapping[str, Any] = {}  # queue to what was done there since the start
    progress: Mapping[str, Any] = {}  # id of a running job to what its handler reported last
    app_version: str = ""  # of the program that it runs, by its settings
    serves: tuple[str, ...] = ()  # lanes of handlers in which jobs wait, and that it has
    has_archive: bool = False  # it may write ended jobs to an archive
    has_objects: bool = False  # it may remove objects of payloads that no job names

    @property
    def has_ended(self) -> bool:
        """Whether this is what a worker left behind."""
        return self.state == ENDED


class Named(msgspec.Struct, frozen=True):
    """An executor that due jobs name."""

    executor: str
    queues: tuple[str, ...]  # where these jobs are
    seen_at: float | None  # when a worker last had it, or since when such records are kept


class PruneResult(msgspec.Struct, frozen=True):
    """What a retention run removed or ended."""

    purged: int = 0
    outdated: int = 0
    workers: int = 0
    more: bool = False  # the limit was reached: call again


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """A row that the store cannot read and has set aside: not claimed, ended or purged."""

    key: Any
    id: str  # this and the next two as far as they can be read
    queue: str
    status: str  # when it was set aside
    problem: str  # nothing of what stands in the row
    since: float


class JobAdmin(Protocol):
    """What operators and a worker's maintenance need."""

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        """Matching jobs, the newest first, read in pages."""

    def count(self, search: Search) -> int:
        """How many match."""

    def replace(self, settlement: Settlement, job: NewJob) -> bool:
        """End a job that is no step of a flow, and add one in its place, in one commit.

        False: the settlement does not apply, and nothing is added. Raises DuplicateJobError where
        the new job cannot be added; then nothing has changed. Where a third job holds the unique
        key of both, a store answers with either of the two. Notifies ``WORK``.
        """

    def purge(self, jobs: Sequence[Job]) -> int:
        """Delete final jobs that have not been moved since they were read."""

    def erase(self, jobs: Sequence[Job]) -> int:
        """Erase the data of a subject from final jobs, for good; how many jobs were erased.

        Arguments, result, messages, tags, metadata, keys and lineage go; id, state, counters and
        instants stay. A job that has not ended or was moved since it was read is left as it is.
        """

    def check_tables(self) -> None:
        """Raise ``StoreError`` unless the store answers and has all that was made in it.

        It costs the same however many jobs there are.
        """

    def unreadable(self, limit: int | None = None) -> list[Unreadable]:
        """The rows that were set aside because they cannot be read, the newest first.

        A claim, a rescue and a prune set each such row aside that they meet; a search leaves it
        out, and ``find`` raises UnreadableJobError.
        """

    def left_out(self) -> Iterator[Unreadable]:
        """The unreadable rows that a search leaves out although they are not set aside.

        No claim has met them yet, their jobs have ended, or what cannot be read is only for
        readers. Every row is read to find them.
        """

    def restore_unreadable(self, key: Any) -> bool:
        """Read such a row again, and put it back where it stood; False: it is not set aside.

        Raises UnreadableJobError while it cannot be read, and DuplicateJobError while another job
        holds its unique key; it stays set aside then. Notifies ``WORK``.
        """

    def discard_unreadable(self, key: Any) -> bool:
        """Delete such a row for good; whether it was there."""

    def queues(self) -> list[Queue]:
        """Every queue that has jobs or settings, by name; it reads every job."""

    def queue_names(
        self, *, prefix: str = "", after: str = "", limit: int = 100, is_due: bool = False
    ) -> list[str]:
        """The next queues that have jobs or settings, by name; ``is_due``: only with due jobs.

        It costs the same however many jobs there are. A queue whose jobs all wait for their time, a
        limit key or other steps may be missing: see ``MOST_SAMPLED``.
        """

    def look_at_queues(
        self, names: Sequence[str], *, most: int = MOST_COUNTED, sample: int = MOST_SAMPLED
    ) -> list[Queue]:
        """These queues in this order, each state counted up to ``most`` jobs, or exactly.

        It costs the same however many jobs there are. Where a count is not exact, its state is in
        ``more``; where pending and retrying both are, at least their sum is what there are of both.
        """

    def count_by_status(self, *, most: int = MOST_COUNTED) -> StatusCounts:
        """The jobs of the whole store by status, each counted up to ``most`` jobs, or exactly.

        It costs the same however many jobs there are.
        """

    def set_queue(self, name: str, **changes: Any) -> Queue:
        """Change ``is_paused``, ``max_active``, ``rate``, ``burst``, the limits of each limit key
        in the queue (``key_max_active``, ``key_rate``, ``key_burst``), or the
        ``pinned_version``. Notifies ``WORK``.
        """

    def pinned_queues(self) -> Mapping[str, str]:
        """The versions that queues are pinned to, by queue; it reads no job."""

    def key_wakes_at(self, queue: str, limit_key: str) -> float | None:
        """When jobs that wait for a token of this limit key are due; None: none waits for one."""

    def heartbeat(self, record: WorkerRecord) -> None:
        """Record that a worker lives; one with state ``gone`` is removed.

        Also notes when its executors, and the lanes that it ``serves``, were last seen, which
        outlives the record. A record with state
        ``ended`` is what a worker leaves behind: it is none of :meth:`workers`.
        """

    def workers(self) -> list[WorkerRecord]:
        """The workers with a heartbeat, by id."""

    def ended_workers(self) -> list[WorkerRecord]:
        """What workers that have ended left behind: the totals of their jobs."""

    def named(self) -> list[Named]:
        """The executors that due jobs name, by name; it costs the same however many jobs wait."""

    def waiting_for(self, executor: str, due_before: float, limit: int) -> list[Job]:
        """Jobs that name this executor, could be claimed, and became due before that instant."""

    def prunable(self, limit: int) -> list[Job]:
        """Ended jobs that were kept long enough and are no steps of flows; it reads no others.

        Those that go first, first, among the jobs of one queue and state.
        """

    def prune(self, limit: int, *, purges: bool = True) -> PruneResult:
        """JobRetention: purge jobs kept long enough, end expired ones, forget dead workers.

        Also makes jobs due again that wait for a limit key which is free. Without ``purges``, jobs
        and flows that were kept long enough stay: they are to be archived first.
        """


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A cron schedule as stored."""

    name: str
    cron: str
    zone: str
    misfire: str
    job: bytes  # JSON of the NewJob to enqueue, without id
    next_at: float | None
    last_at: float | None = None
    is_paused: bool = False
    source: str = ""  # who defined it; a worker removes those of its own settings that are gone
    jitter: float = 0.0  # the job of a fire is due up to so many seconds after it
    ends_at: float | None = None  # nothing fires after this instant


class ScheduleStore(Protocol):
    """What cron needs."""

    def schedules(self) -> list[Schedule]:
        """All, by name."""

    def next_schedules(self, limit: int) -> list[Schedule]:
        """The schedules that fire next, earliest first, without paused and finished ones."""

    def put_schedule(self, schedule: Schedule) -> None:
        """Add or replace the definition, keeping nothing of the old one."""

    def drop_schedule(self, name: str) -> bool:
        """Remove a schedule; returns whether it was there."""

    def fire(
        self, name: str, expected: float, next_at: float | None, jobs: Sequence[NewJob]
    ) -> bool:
        """Move ``next_at`` on and add the jobs, in one commit, if it still is ``expected``.

        A job whose id is there already is skipped. False: another worker was faster.
        """


class FlowStore(Protocol):
    """What clients, operators and workers need to keep flows.

    The end of a step, its count at its joins, the counters of its flow and the release of the steps
    that waited for it are one commit with its settlement. Where many steps are released, cancelled
    or brought back, that happens in slices: with the event, with claims, and with ``prune``.
    """

    def add(self, flow: NewFlow, steps: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store a flow and its steps in one commit, or steps of a flow that is there.

        Raises JobNotFoundError for a job of ``after`` that is not there, and ConflictError for one
        that belongs to another flow by now. Notifies ``WORK``.
        """

    def find(self, flow_id: str) -> Flow | None:
        """The flow with this id, or None."""

    def search(self, statuses: Sequence[FlowStatus], limit: int) -> list[Flow]:
        """Flows in one of these states, or in any; the newest first."""

    def page(
        self, statuses: Sequence[FlowStatus], limit: int, below: int | None = None
    ) -> tuple[list[Flow], int | None]:
        """A page of them, and below which place the next one begins; None: there are no more.

        It costs the same wherever the page begins.
        """

    def joins(self, flow_id: str) -> list[Join]:
        """The joins of a flow, in the order of adding."""

    def apply(self, flow_id: str, event: FlowEvent) -> Flow:
        """Cancel, retry or skip; raises JobNotFoundError, and InvalidFlowChange where it cannot be.

        The answer is how the flow stands after the first slice. From this commit on, no step of a
        cancelled flow can be claimed, whether a slice has come to it or not.
        """

    def sweep(self, flow_id: str) -> bool:
        """Continue a sweep by one slice of steps; False when no step is left."""

    def purge(self, flow_id: str) -> None:
        """Let ``prune`` delete a flow that has ended, with its steps, however long it was kept.

        Raises JobNotFoundError, and JobStateError for a flow that has not ended.
        """

    def prunable(self, limit: int) -> list[Flow]:
        """Flows that have ended and were kept long enough, those that go first, first."""

    def delete(self, flow: Flow, limit: int) -> bool:
        """Delete at most so many steps of a flow that was kept long enough, and at last the flow.

        True: more of it is left. False: it is gone, or was changed since it was read; nothing of a
        flow that was changed is deleted.
        """

    def signal(self, flow_id: str, name: str, value: bytes) -> SignalOutcome:
        """Complete the step that waits for this signal, or keep the value for the first that will.

        One whose time limit is over fails with the same commit. A second value for a step that has
        not been reached is refused, unless it is the same.
        """

    def results(self, ids: Sequence[str]) -> Mapping[str, bytes | None]:
        """Results of jobs by id. Jobs that are missing or returned nothing are left out."""


class FullJobStore(JobStore, JobAdmin, ScheduleStore, Protocol):
    """A store that serves all three ports.

    One that also has ``holder(unique_key)``, which answers the id of the job that holds the key,
    lets us say why a job cannot come back.
    """
