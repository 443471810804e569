"""Rows, bodies and tales of jobs, and what the rest of the product sees of them.

``lua/rows.lua`` writes the rows, and reads what is written here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from struct import Struct
from struct import error as struct_error
from typing import Any, NamedTuple

import msgspec

from ergon_framework.core.claim import QueueLimits
from ergon_framework.core.job import JobStatus
from ergon_framework.core.unique import OnDuplicate, UniqueRule, is_held
from ergon_framework.jobs.stores.documents import column_key, failure_from, text_of
from ergon_framework.jobs.stores.transitions import JobPosition, copied_stage, early_signal
from ergon_framework.jobs.stores.unreadable import RowError, check_arguments, check_instant, checked
from ergon_framework.ports.flow import StepPlace
from ergon_framework.ports.jobstore import (
    CancelRequest,
    ClaimedJob,
    Job,
    LeaseRenewal,
    NewJob,
    Schedule,
    Settlement,
    Unreadable,
    cancel_request_in,
    labels_of,
)

STATUSES = tuple(JobStatus)
"""By the number that stands for each in a row."""
NUMBERS = {status: number for number, status in enumerate(STATUSES)}
ENDED, RUNNING, WAITS, LATER, LIMITED, OUTDATED, JOINING, SIGNALLING = range(8)
"""The stages: an outdated job is about to be ended, a joining step waits for others."""

_HEAD = Struct(">BBBQIIIddddddIIQIddIIII")
_HISTORY_HEAD = Struct(">IIB")
_CHARGED, _SOLO, _EXPIRY, _HAS_HISTORY, _UNIQUE, _KEYED, _STEP = 1, 2, 4, 8, 16, 32, 64
_RESET, _IF_EXPIRED, _ALONE = 1, 2, 4
_ON_DUPLICATE = {
    OnDuplicate.REJECT: 0,
    OnDuplicate.EXISTING: 1,
    OnDuplicate.REPLACE: 2,
    OnDuplicate.EXTEND: 3,
}


class Body(msgspec.Struct, frozen=True, array_like=True):
    """What running a job needs; the scripts do not look into it."""

    handler: str
    args: bytes
    kwargs: bytes
    timeout: float | None = None
    max_attempts: int | None = None
    max_deliveries: int | None = None
    retry: bytes | None = None
    result_ttl: float | None = None
    correlation_id: str | None = None
    trace_context: dict[str, str] | None = None
    uses: Any = None
    flow_id: str | None = None  # of a job that was added as a step
    tags: tuple[str, ...] = ()
    metadata: dict[str, str] | None = None
    unique: UniqueRule | None = None


_ASKED = Body.__struct_fields__.index("tags")
"""How many fields of a body a worker needs."""


class RedisRow(NamedTuple):
    """The numbers and texts of one row."""

    stage: int
    status: int
    flags: int
    fence: int
    deliveries: int
    attempts: int
    excused: int
    changed_at: float
    claimed_at: float
    leased_until: float
    purge_at: float
    run_at: float
    expires_at: float
    why_length: int
    worker_length: int
    seq: int
    limit: int
    priority: float
    created_at: float
    queue_length: int
    executor_length: int
    unique_length: int
    key_length: int
    queue: str
    executor: str
    unique_key: str
    limit_key: str
    why: str
    worker: str


Place = tuple[str, str | bool, tuple[str, ...], float | bool, str | bool, str | bool]
"""The place of a step: its flow, where it waits and counts, how long it waits, its signal, and the
value of a signal that came early."""


class Blobs(list[bytes]):
    """What goes to a script beside its arguments, which can only hold text."""

    def add(self, blob: bytes | None) -> int | None:
        """The number under which the script finds it."""
        if blob is None:
            return None
        self.append(blob)
        return len(self)


def _plain(value: Any) -> str:
    """An id that remembers its client is text like any other."""
    if isinstance(value, str):
        return str(value)
    raise NotImplementedError(f"a script cannot be given a {type(value).__name__}")


encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_body = msgspec.msgpack.Decoder(Body).decode
_taker = msgspec.msgpack.Decoder(tuple[str, list[int], float | bool]).decode
_place = partial(msgspec.convert, type=Place)
_noted = msgspec.msgpack.Decoder(tuple[int, str, int, str, float]).decode


# ---- into the store -----------------------------------------------------------------------------


def wire_job(job: NewJob, blobs: Blobs) -> tuple[Any, ...]:
    """A new job as ``add.lua`` wants it."""
    found = (
        job.id,
        job.queue,
        job.executor,
        job.priority,
        job.delay,
        job.run_at,
        job.expires_at,
        job.unique_key,
        _ON_DUPLICATE[job.on_duplicate],
        job.limit_key,
        job.limit,
        blobs.add(encode(body_of(job))),
    )
    labels = labels_of(job.tags, job.metadata)
    if job.unique is not None:
        return *found, labels or False, wire_rule(job.unique)
    return (*found, labels) if labels else found


def wire_rule(rule: UniqueRule | None) -> tuple[list[int], float | bool] | None:
    """How long a job holds its unique key as ``transitions.lua`` wants it."""
    if rule is None:
        return None
    ends = [NUMBERS[JobStatus(each)] for each in rule.ended_states]
    return ends, False if rule.period is None else rule.period


def wire_step(job: NewJob, blobs: Blobs) -> tuple[Any, ...]:
    """A new step of a flow as ``steps.lua`` wants it."""
    step = job.step
    assert step is not None  # noqa: S101 - whoever adds a flow gives each job its place
    body = blobs.add(encode(body_of(job, step.flow_id)))
    return (
        *(job.id, job.queue, job.executor, job.priority, job.delay, job.run_at, job.expires_at),
        *(job.limit_key, job.limit, body),
        *(step.join_id, step.feeds, step.wait, step.signal),
        (labels_of(job.tags, job.metadata) or None) if job.tags or job.metadata else None,
    )


def body_of(job: NewJob | Job, flow_id: str | None = None) -> Body:
    """What running a job needs."""
    return Body(
        job.handler,
        job.args,
        job.kwargs,
        job.timeout,
        job.max_attempts,
        job.max_deliveries,
        job.retry,
        job.result_ttl,
        job.correlation_id,
        job.trace_context,
        job.uses,
        flow_id,
        job.tags,
        job.metadata,
        job.unique,
    )


def wire_settlement(settlement: Settlement, blobs: Blobs) -> tuple[Any, ...]:
    """A settlement as ``transitions.lua`` wants it."""
    transition = settlement.transition
    is_final = transition.status.is_final
    result = settlement.result
    if result is None and transition.status is JobStatus.COMPLETED:
        result = b"null"
    failure = b"" if transition.failure is None else text_of(transition.failure).encode()
    return (
        settlement.id,
        settlement.key,
        settlement.fence,
        NUMBERS[settlement.expected],
        NUMBERS[transition.status],
        transition.attempts,
        transition.excused,
        transition.is_reset * _RESET
        + settlement.if_expired * _IF_EXPIRED
        + transition.is_solo * _ALONE,
        settlement.keep if is_final else transition.delay,
        transition.why,
        blobs.add(tale_of(settlement.entry, failure, result if is_final else None)),
        *((transition.lane,) if transition.lane else ()),
    )


def tale_of(history: bytes, failure: bytes, result: bytes | None) -> bytes:
    """What happened to a job."""
    head = _HISTORY_HEAD.pack(len(history), len(failure), result is not None)
    return head + history + failure + (result or b"")


def wire_copy(job: Job, changed_at: float, blobs: Blobs) -> tuple[Any, ...]:
    """A whole job as ``load.lua`` wants it: the fields of its row, its texts, body and tale."""
    failure = b"" if job.last_error is None else text_of(job.last_error).encode()
    history = b"\n".join(job.history)
    # One that is not due yet is found out by the script.
    stage = copied_stage(job, WAITS, joining=JOINING, signalling=SIGNALLING)
    early = early_signal(job)
    result = job.result if early is None else None
    has_tale = bool(history or failure or result is not None)
    tale = tale_of(history, failure, result) if has_tale else None
    flags = (
        job.is_charged * _CHARGED
        + job.is_solo * _SOLO
        + has_tale * _HAS_HISTORY
        + (column_key(job) is not None) * _UNIQUE
        + (job.limit_key is not None) * _KEYED
        + (job.step is not None) * _STEP
    )
    fields = (
        *(stage, NUMBERS[job.status], flags, job.fence),
        *(job.deliveries, job.attempts, job.excused, changed_at, job.claimed_at or 0.0),
        *(job.lease_expires_at or 0.0, job.purge_at, job.run_at, job.expires_at, 0, 0, 0),
        *(job.limit, job.priority, job.created_at, 0, 0, 0, 0),
    )
    texts = (job.queue, job.executor, job.unique_key or "", job.limit_key or "", job.why)
    step, body, place = job.step, body_of(job), None
    if step is not None:
        body = msgspec.structs.replace(body, flow_id=step.flow_id)
        wait = False if step.wait is None else step.wait
        kept = blobs.add(early)
        place = (step.flow_id, step.join_id or False, step.feeds, wait, step.signal or False, kept)
    names = (*texts, job.worker or "")
    labels = labels_of(job.tags, job.metadata) or None
    rest = labels, place, wire_rule(job.unique)
    return job.id, fields, names, blobs.add(encode(body)), blobs.add(tale), *rest


def holder_in(taker: bytes, status: Callable[[str], JobStatus | None], now: float) -> str | None:
    """Who holds a unique key by a rule, of what is kept of the job that took it last."""
    job_id, ends, until = _taker(taker)
    found = status(job_id)
    states = tuple(STATUSES[each].value for each in ends)
    bound = None if isinstance(until, bool) else float(until)
    return job_id if found is not None and is_held(found, states, bound, now) else None


def wire_erased(job: Job, left: Job, blobs: Blobs) -> tuple[Any, ...]:
    """A job and what is left of it, as ``erase.lua`` wants them."""
    failure = b"" if left.last_error is None else text_of(left.last_error).encode()
    flow_id = None if left.step is None else left.step.flow_id
    body = msgspec.structs.replace(body_of(left), flow_id=flow_id)
    tale = tale_of(b"\n".join(left.history), failure, left.result)
    place = (job.id, job.key, job.fence, NUMBERS[job.status], job.finished_at)
    return *place, blobs.add(encode(body)), blobs.add(tale)


def wire_hold(hold: LeaseRenewal) -> tuple[Any, ...]:
    """A hold as ``renew.lua`` wants it."""
    return hold.id, hold.key, hold.fence, hold.is_charged


# ---- out of it ----------------------------------------------------------------------------------


def rows_in(data: bytes) -> Iterator[RedisRow]:
    """The rows that a script gave, one after the other."""
    at = 0
    while at < len(data):
        numbers = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        texts = []
        for length in (*numbers[-4:], numbers[13], numbers[14]):
            texts.append(data[at : at + length].decode() if length else "")
            at += length
        yield RedisRow(*numbers, *texts)


def parts_in(data: bytes, lengths: Sequence[int]) -> Iterator[memoryview]:
    """Bodies or tales that a script gave, one after the other."""
    view, at = memoryview(data), 0
    for length in lengths:
        yield view[at : at + length]
        at += length


def claimed_job(job_id: str, row: RedisRow, body: memoryview) -> ClaimedJob:
    """A job as the worker that has just claimed it needs it."""
    handler, args, kwargs, *asked = msgspec.structs.astuple(_body(body))[:_ASKED]
    check_arguments(args, kwargs)
    check_instant("created_at", row.created_at)
    return ClaimedJob(
        row.seq,
        row.fence,
        job_id,
        handler,
        row.executor,
        row.queue,
        args,
        kwargs,
        row.attempts,
        row.deliveries,
        row.excused,
        bool(row.flags & _SOLO),
        row.created_at,
        row.claimed_at,
        *asked,
    )


def job_from(
    job_id: str, row: RedisRow, body: memoryview, tale: memoryview, place: Place | None = None
) -> Job:
    """A job as callers of the store see it."""
    history, failure, result = _history_parts(bytes(tale))
    is_running = row.stage == RUNNING
    if row.flags & _STEP and place is None:
        raise RowError("its place in a flow cannot be read")
    if place is not None and isinstance(early := place[-1], str):
        result = early.encode()  # a signal that came before its step was reached
    needs = msgspec.structs.asdict(_body(body))
    del needs["flow_id"]  # its place says so
    job = Job(
        key=row.seq,
        id=job_id,
        status=STATUSES[row.status],
        executor=row.executor,
        queue=row.queue,
        priority=int(row.priority),
        created_at=row.created_at,
        run_at=row.run_at,
        expires_at=_or_none(row.expires_at),
        unique_key=row.unique_key or None,
        limit_key=row.limit_key if row.flags & _KEYED else None,
        limit=row.limit,
        is_limited=row.stage == LIMITED,
        attempts=row.attempts,
        is_charged=bool(row.flags & _CHARGED),
        deliveries=row.deliveries,
        excused=row.excused,
        is_solo=bool(row.flags & _SOLO),
        fence=row.fence,
        why=row.why,
        worker=row.worker if is_running else None,
        claimed_at=row.claimed_at if is_running else None,
        lease_expires_at=row.leased_until if is_running else None,
        finished_at=row.changed_at if row.stage == ENDED else None,
        purge_at=_or_none(row.purge_at),
        result=result,
        last_error=failure_from(failure or None),
        history=tuple(history.split(b"\n")) if history else (),
        step=None if place is None else _step_of(place),
        **needs,
    )
    return checked(job)


def place_in(blob: bytes | None) -> Place | None:
    """The place of a step as it is kept; None of a job that is no step."""
    return None if blob is None else _place(msgspec.msgpack.decode(blob)[:6])


def _step_of(place: Place) -> StepPlace:
    flow_id, join_id, feeds, wait, signal, _ = place
    return StepPlace(
        flow_id=flow_id,
        join_id=None if isinstance(join_id, bool) else join_id,
        feeds=feeds,
        wait=None if isinstance(wait, bool) else float(wait),
        signal=None if isinstance(signal, bool) else signal,
    )


def cancel_request_of(data: bytes, claim: LeaseRenewal) -> CancelRequest | None:
    """Who asked for the cancellation of a claim that runs."""
    try:
        [row] = rows_in(data)
    except (struct_error, ValueError):  # no job's; whoever claims it sets it aside
        return None
    if row.stage != RUNNING or (row.seq, row.fence) != (claim.key, claim.fence):
        return None
    return cancel_request_in(row.why)


def unreadable_from(job_id: str, blob: bytes) -> Unreadable:
    """What was noted of a row that was set aside."""
    try:
        _, queue, status, problem, since = _noted(blob)
    except msgspec.MsgspecError:
        queue, status, problem, since = "", 0, "", 0.0
    name = STATUSES[status].value if status < len(STATUSES) else ""
    return Unreadable(
        key=job_id, id=job_id, queue=queue, status=name, problem=problem, since=float(since)
    )


def standing(job_id: str, row: RedisRow) -> JobPosition:
    """What the store needs to settle a job by itself."""
    status = STATUSES[row.status].value
    numbers = row.attempts, row.deliveries, row.excused
    return row.seq, job_id, status, row.fence, *numbers, row.queue


def _history_parts(tale: bytes) -> tuple[bytes, bytes, bytes | None]:
    """History, last failure and result."""
    if not tale:
        return b"", b"", None
    history, failure, has_result = _HISTORY_HEAD.unpack_from(tale)
    at = _HISTORY_HEAD.size + history
    result = tale[at + failure :] if has_result else None
    return tale[_HISTORY_HEAD.size : at], tale[at : at + failure], result


def status_in(row: bytes | None) -> JobStatus | None:
    """The status that a row says, without the rest of it."""
    is_known = row is not None and len(row) > 1 and row[1] < len(STATUSES)
    return STATUSES[row[1]] if row is not None and is_known else None


def result_in(tale: bytes | None) -> bytes | None:
    """The result that a tale has."""
    return None if tale is None or len(tale) < _HISTORY_HEAD.size else _history_parts(tale)[2]


def _or_none(instant: float) -> float | None:
    return None if math.isinf(instant) else instant


_AT = Struct(">d")
_fields = msgspec.msgpack.Decoder(list[Any]).decode


class _Settings(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The settings of a queue, as the scripts want them: false for what is not there.

    Earlier versions wrote fewer. The last is left out of a queue that is pinned to no version.
    """

    is_paused: bool
    max_active: int | bool
    rate: float | bool
    burst: int
    full_at: float
    key_max_active: int | bool = False
    key_rate: float | bool = False
    key_burst: int = 1
    pinned_version: str | None = None


_settings = msgspec.msgpack.Decoder(_Settings).decode


def pairs(flat: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
    """Names and values, which the server gives one after the other."""
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        yield name.decode(), value


def worker_row(name: str, blob: bytes) -> tuple[Any, ...]:
    """Id, instant and JSON; no instant where the value is not what a store writes."""
    if len(blob) < _AT.size:
        return name, None, blob
    return name, *_AT.unpack_from(blob), blob[_AT.size :]


_FEWEST_SCHEDULE_FIELDS = 9
"""Fields of a schedule before it had a jitter and an end."""


def schedule_row(name: str, blob: bytes) -> tuple[Any, ...]:
    """The fields of a schedule; only its name where the value is not what a store writes."""
    try:
        row = _fields(blob)
    except msgspec.MsgspecError:
        row = []
    width = len(Schedule.__struct_fields__)
    if not _FEWEST_SCHEDULE_FIELDS <= len(row) <= width:
        return (name, *[None] * (width - 1))
    # A version wrote it that had fewer fields: the others are what they were for all schedules.
    missing = width - len(row)
    return (*row, *Schedule.__struct_defaults__[-missing:]) if missing else tuple(row)


def schedule_blob(schedule: Schedule) -> bytes:
    """A schedule, as it is kept."""
    return encode(msgspec.structs.astuple(schedule))


def read_settings(blob: bytes) -> QueueLimits:
    """The settings of a queue, as they are kept."""
    try:
        found = _settings(blob)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return QueueLimits(is_paused=True)  # its limits cannot be read: it waits until they are set
    return QueueLimits(
        is_paused=found.is_paused,
        max_active=found.max_active or None,
        rate=found.rate or None,
        burst=found.burst,
        full_at=found.full_at,
        key_max_active=found.key_max_active or None,
        key_rate=found.key_rate or None,
        key_burst=found.key_burst,
        pinned_version=found.pinned_version,
    )


def settings_blob(settings: QueueLimits) -> bytes:
    """As the scripts want them: false for what is not there."""
    return encode(
        (
            settings.is_paused,
            settings.max_active or False,
            settings.rate or False,
            settings.burst,
            settings.full_at,
            settings.key_max_active or False,
            settings.key_rate or False,
            settings.key_burst,
            *(() if settings.pinned_version is None else (settings.pinned_version,)),
        )
    )


def name_of_key(queue: str, key: str) -> str:
    """What the scripts call a limit key of a queue that limits each of its keys."""
    return f"{len(queue.encode())}:{queue}:{key}"


def key_of_queue(name: bytes) -> tuple[str, str]:
    """The queue and the limit key of such a name."""
    length, _, rest = name.partition(b":")
    queue, key = rest[: int(length)], rest[int(length) + 1 :]
    return queue.decode(), key.decode()
