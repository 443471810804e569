"""The documents of the server as OpenAPI publishes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Status = Literal["pending", "active", "retrying", "completed", "failed", "cancelled"]


class _Exact(BaseModel):
    """A document with exactly these fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Open(BaseModel):
    """A document with more fields than these."""

    model_config = ConfigDict(extra="allow", frozen=True)


class JobFailure(_Exact):
    """How a job failed last."""

    kind: str
    code: str
    message: str


class JobItem(_Open):
    """A job, as `ergon jobs show --json` prints it; `args`, `kwargs` and `result` on request."""

    id: str
    status: Status
    handler: str
    executor: str | None
    queue: str
    attempts: Count
    max_attempts: Count | None
    deliveries: Count
    priority: int
    last_error: JobFailure | None
    why: str | None
    created_at: AwareDatetime
    run_at: AwareDatetime
    finished_at: AwareDatetime | None
    worker: str | None
    correlation_id: str | None


class JobWhy(_Exact):
    """Why a job is where it is."""

    id: str
    status: Status
    why: list[str] = Field(description="Sentences: where it stands, then what led there.")


class QueueItem(_Exact):
    """A queue with its limits and its counts by status."""

    name: str
    paused: bool
    max_active: Count | None
    rate: float | None
    burst: Count
    key_max_active: Count | None
    key_rate: float | None
    key_burst: Count
    pinned_version: str | None
    counts: dict[Status, Count]
    more: list[Status] = Field(
        description="States that have at least as many jobs as were counted."
    )
    missing_executors: list[str]
    missing_handlers: list[str]
    missing_version: str | None
    oldest_due_at: AwareDatetime | None


class ScheduleItem(_Exact):
    """A cron schedule and when it fires next."""

    name: str
    cron: str
    zone: str
    misfire: str
    handler: str | None
    queue: str | None
    paused: bool
    next_at: AwareDatetime | None
    last_at: AwareDatetime | None
    source: str
    jitter: float = Field(description="Seconds over which the jobs of its fires are spread.")
    ends_at: AwareDatetime | None
    problem: str | None = Field(description="Why it never fires; null when it does.")


class WorkerItem(_Exact):
    """A worker as of its last heartbeat."""

    id: str
    host: str
    pid: int
    version: str = Field(description="Of Ergon.")
    app_version: str = Field(description="Of the program, as it was started; empty without one.")
    state: str = Field(description="`silent` when it has told nothing for a minute.")
    queues: list[str] | None = Field(description="Null when it takes all of them.")
    busy: Count
    executors: dict[str, Any]
    counters: dict[str, Any]
    started_at: AwareDatetime
    seen_at: AwareDatetime


class DeadLetterItem(_Open):
    """A job or a provider call that was given up; the other fields are those of its kind."""

    kind: Literal["job", "provider"]
    id: str
    status: str


class ZoneItem(_Open):
    """A zone of the settings, and how it stands."""

    zone: str
    up: bool = Field(description="Whether its node or its folder answered.")
    source: Literal["node", "folder"] | None
    problem: str | None = Field(description="The code of what is wrong when neither did.")


class ConsumerItem(_Open):
    """A consumer of a zone's log."""

    consumer_name: str
    log: str
    cursor: int
    lag: int


class QuarantineItem(_Open):
    """A fact that was set aside."""

    id: int
    consumer_name: str
    log: str
    offset: int
    reason: str
    state: str


class GapItem(_Open):
    """A recorded loss."""

    log: str
    first_offset: int
    last_offset: int
    reason: str


class FactChange(_Exact):
    """A fact that was released or discarded."""

    zone: str
    id: int = Field(description="Of the fact in the quarantine.")
    action: Literal["release", "discard"]
    state: Literal["released", "discarded"]


class JobChange(_Exact):
    """A job that was changed, and where it stands then."""

    id: str
    action: Literal["requeue", "retry", "cancel", "delete"]
    status: Literal[Status, "deleted"] = Field(
        description="One that runs is `active` until its worker has ended it."
    )


class EditedJob(_Exact):
    """A job that was stored in the place of another one."""

    id: str
    edited_from: str
    is_new: bool = Field(description="False: an earlier request with this `new_id` has stored it.")


FlowState = Literal["running", "held", "failing", "cancelling", "completed", "failed", "cancelled"]


class FlowItem(_Exact):
    """A flow, with how many of its steps stand how."""

    id: str
    name: str | None
    status: FlowState
    on_failure: Literal["cancel", "continue", "hold"]
    steps: Count
    completed: Count
    failed: Count
    cancelled: Count
    unfinished: Count
    created_at: AwareDatetime
    changed_at: AwareDatetime
    purge_at: AwareDatetime | None


class FlowList(_Exact):
    """Some flows, the newest first."""

    items: list[FlowItem]
    next_cursor: str | None = Field(description="For the next page; null when this is the last.")
    is_all: bool = Field(description="Whether this is the last page.")


class FlowOne(FlowItem):
    """One flow, why it stands as it does, and what can be done about it."""

    why: list[str] = Field(description="Sentences: how far it is, and what it waits for.")
    actions: list[Literal["retry", "skip", "cancel", "purge"]]
    signals: list[str] = Field(description="Signals that its steps wait for, or will.")


class FlowChanged(_Exact):
    """A flow that was changed, and where it stands then."""

    id: str
    action: Literal["retry", "skip", "cancel", "purge", "signal"]
    status: Literal[FlowState, "purged"]


class QueueChange(_Exact):
    """A queue that was paused or resumed."""

    queue: str
    paused: bool


class ScheduleChange(_Exact):
    """A schedule that was paused or resumed."""

    schedule: str
    paused: bool


class ScheduleDeleted(_Exact):
    """A schedule that was deleted."""

    schedule: str
    deleted: Literal[True]


class ScheduleFired(_Exact):
    """A schedule that was fired."""

    schedule: str
    id: str = Field(description="Of the job that was enqueued.")


class JobsChange(_Exact):
    """How many jobs matched, and how many were changed."""

    action: Literal["requeue", "cancel", "delete"]
    matched: Count
    changed: Count
    dry_run: bool
