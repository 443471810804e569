"""What stores decide alike: transitions that a store makes by itself, and why a job is not added.

What becomes of the job is decided by the core; a store says what it saw. Also here: the stages of a
job in the tables, how much history is kept, and the failpoints around the commit of each call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from ergon_framework.core.job import (
    REPLACED,
    CancelRequested,
    Expired,
    JobEvent,
    JobRule,
    JobSnapshot,
    JobStatus,
    RunRequested,
    Signalled,
    Transition,
    cancelled_instead,
    next_transition,
)
from ergon_framework.core.retention import DAY, JobRetention
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.core.unique import OnDuplicate, decide
from ergon_framework.errors import DuplicateJobError, StoreError
from ergon_framework.jobs.stores.unreadable import RowError, UnreadableRowError, status_of
from ergon_framework.ports.flow import CANCELLED_BY_FLOW
from ergon_framework.ports.jobstore import (
    CancelRequest,
    Job,
    LeaseRenewal,
    NewJob,
    Settlement,
)
from ergon_framework.storage.failpoints import declare

logger = logging.getLogger("ergon.jobs")

_CALLS = ("add", "exchange", "renew", "fire", "sweep", "desk")
_PLACES = {call: f"jobs.{call}" for call in _CALLS} | {"move": "move.jobs"}
BEFORE = {call: f"{place}.before_commit" for call, place in _PLACES.items()}
AFTER = {call: f"{place}.after_commit" for call, place in _PLACES.items()}
declare(*BEFORE.values(), *AFTER.values())


def id_taken(job: NewJob) -> DuplicateJobError:
    """There is a job with this id."""
    return DuplicateJobError(
        f"there is a job with the id {job.id!r}",
        remedy="give each job an id of its own, or none to get one",
        details={"id": job.id},
    )


def key_unseen(job: NewJob, holder: str) -> DuplicateJobError:
    """The holder of its unique key is none that the caller's transaction could cancel."""
    return DuplicateJobError(
        f"a job that this transaction cannot see holds the unique key {job.unique_key!r}",
        remedy="the transaction is REPEATABLE READ or SERIALIZABLE and older than that job: roll"
        " back and begin again, or use READ COMMITTED",
        details={"unique_key": job.unique_key, "id": holder},
    )


def key_held(
    job: NewJob, holder: str | None = None, *, has_ended: bool = False
) -> DuplicateJobError:
    """Another job holds its unique key."""
    details = {"unique_key": job.unique_key}
    found, remedy = "has not ended", "wait for it, cancel it, or ask for the job that is there"
    if has_ended:
        found, remedy = "ended within its period", "wait, or ask for the job that is there"
    return DuplicateJobError(
        f"a job that {found} holds the unique key {job.unique_key!r}",
        remedy=remedy,
        details=details if holder is None else details | {"id": holder},
    )


def on_duplicate(job: NewJob, holder: str, status: JobStatus) -> OnDuplicate:
    """What becomes of a job whose unique key another one holds, by its ``on_duplicate``.

    Raises ``DuplicateJobError`` where the job is refused.
    """
    decided = decide(job.on_duplicate, status)
    if decided is OnDuplicate.REJECT:
        raise key_held(job, holder, has_ended=status.is_final)
    return decided


def due_at(job: NewJob, now: float) -> float:
    """When a new job is due."""
    return now + job.delay if job.run_at is None else job.run_at


def check_extension(job: NewJob, holder: str, handler: str, due: float) -> None:
    """Raise where a job that waits cannot take the arguments and the expiry of another."""
    if handler != job.handler:
        raise other_handler(job, holder)
    if job.expires_at is not None and job.expires_at <= due:
        raise expires_too_soon(job, holder)


def other_handler(job: NewJob, holder: str) -> DuplicateJobError:
    """The arguments of one handler are not those of another."""
    return DuplicateJobError(
        f"a job of another handler holds the unique key {job.unique_key!r}, and cannot be extended"
        f" with arguments of {job.handler}",
        remedy="give the key to one handler only, or put the handler's name into it",
        details={"unique_key": job.unique_key, "id": holder},
    )


def expires_too_soon(job: NewJob, holder: str) -> DuplicateJobError:
    """It would be dead-lettered without having been started."""
    return DuplicateJobError(
        f"the job {holder} that holds the unique key {job.unique_key!r} is due after this one"
        " expires",
        remedy="let it expire later, or leave the expiry out",
        details={"field": "expires_at", "unique_key": job.unique_key, "id": holder},
    )


ENDED, RUNNING, DUE, LATER, BLOCKED, JOINING, SIGNALLING = range(7)
"""The stages of a job in the tables; their schema says what each means."""


def copied_stage(
    job: Job, waits: int, *, joining: int = JOINING, signalling: int = SIGNALLING
) -> int:
    """The stage of a job that comes from another store.

    ``waits`` is that of a job which waits for nothing but its time. The keys of Redis have other
    numbers for the last two.
    """
    if job.status.is_final:
        return ENDED
    if job.status is JobStatus.ACTIVE:
        return RUNNING
    if job.step is not None and job.step.join_id is not None:
        return joining
    if job.step is not None and job.step.signal is not None:
        return signalling
    return waits


def early_signal(job: Job) -> bytes | None:
    """The value of a signal that came before its step was reached; it stands where results do."""
    is_waited_for = job.step is not None and job.step.signal is not None
    return job.result if is_waited_for and job.status is not JobStatus.COMPLETED else None


MAX_WOKEN = 1000
"""Limit keys whose jobs are looked at again when limits of keys change; a prune does the rest."""
WORKER_FORGOTTEN_AFTER = DAY
"""Seconds after which a worker that said nothing more is taken off the list."""

MAX_HISTORY_BYTES = 32 * 1024
MAX_HISTORY_ENTRIES = 200
"""Characters and entries of history that a job keeps: the latest."""

replace_settlement = msgspec.structs.replace
# Asked for with each settlement: Python 3.11 looks a member of an enum up in ten times the time.
_ACTIVE, _COMPLETED = JobStatus.ACTIVE, JobStatus.COMPLETED
_RULE = JobRule()
_encode = msgspec.json.Encoder().encode

JobPosition = tuple[int, str, str, int, int, int, int, str]
"""What a store needs to settle a job by itself: seq, id, status, fence, attempts, deliveries,
excused, queue."""


def expire(row: JobPosition, now: float, retention: JobRetention) -> Settlement:
    """Dead-letter a job that was not started before its expiry."""
    return _settlement(row, Expired(), now, retention)


def cancel_replaced(row: JobPosition, now: float, retention: JobRetention) -> Settlement:
    """Cancel a job for another one with its unique key."""
    return _settlement(row, CancelRequested(), now, retention, why=REPLACED)


def cancel_step(row: JobPosition, now: float, retention: JobRetention) -> Settlement:
    """Cancel a step because its flow is cancelled."""
    return _settlement(row, CancelRequested(), now, retention, why=CANCELLED_BY_FLOW)


def bring_back(row: JobPosition, now: float) -> Settlement:
    """Let a step begin anew that failed or was cancelled."""
    return _settlement(row, RunRequested(), now)


def complete_signal(row: JobPosition, value: bytes, now: float) -> Settlement:
    """Complete a step that waits for a signal; it is kept as long as its flow."""
    return replace_settlement(_settlement(row, Signalled(), now), result=value, keep=0.0)


def may_be_cancelled(settlement: Settlement) -> bool:
    """Whether it lets a job wait that ran: not if the job's cancellation was requested."""
    return settlement.expected is JobStatus.ACTIVE and not settlement.transition.status.is_final


def cancel_running(
    settlement: Settlement, request: CancelRequest, retention: JobRetention
) -> Settlement:
    """The cancellation of a job that was requested while it ran, in place of letting it wait.

    Whoever settles the job has not seen the request; its history tells what it saw, and who asked.
    """
    transition = cancelled_instead(settlement.transition)
    entry = msgspec.json.decode(settlement.entry)
    kept = {name: value for name, value in entry.items() if name not in _OF_A_WAIT}
    outcome = {"event": transition.event, "status": transition.status, "why": transition.why}
    return replace_settlement(
        settlement,
        transition=transition,
        entry=_encode(kept | outcome | request_fields(request)),
        keep=retention.keep(settlement.queue, transition.status),
    )


def settle_cancelled(
    settlements: Sequence[Settlement],
    applied: list[bool],
    requests: Callable[[Sequence[LeaseRenewal]], Mapping[str, CancelRequest]],
    settle: Callable[[Sequence[Settlement]], list[bool]],
    retention: JobRetention,
) -> list[bool]:
    """Cancel the jobs that the store did not let wait, because that was requested while they ran.

    For stores that cannot do so in the same transaction. A process that dies in between leaves a
    running job with a request in its row: a rescue cancels it.
    """
    left = {each.id: each for each in _refused(settlements, applied) if may_be_cancelled(each)}
    if not left:
        return applied
    claims = [LeaseRenewal(each.key, each.id, each.fence, False) for each in left.values()]
    try:
        found = requests(claims)
        again = [cancel_running(left[name], request, retention) for name, request in found.items()]
        done = dict(zip(found, settle(again), strict=True)) if again else {}
    except StoreError as error:  # what was committed before has to be answered
        logger.warning("%d cancellation(s) are left to a rescue: %s", len(left), error)
        return applied
    return [
        # By identity: a call may hold two settlements of one job, of which only one was tried
        # again.
        was_applied or (each is left.get(each.id) and done.get(each.id, False))
        for each, was_applied in zip(settlements, applied, strict=True)
    ]


def _refused(settlements: Sequence[Settlement], applied: list[bool]) -> list[Settlement]:
    if all(applied):
        return []
    return [each for each, is_so in zip(settlements, applied, strict=True) if not is_so]


_OF_A_WAIT = ("delay", "why", "kind", "code", "message")


def request_fields(request: CancelRequest) -> dict[str, str]:
    """Who asked for a cancellation and why, as the history tells it."""
    fields = {"by": request.by, "reason": request.reason}
    return {name: text for name, text in fields.items() if text}


def is_plain_completion(settlement: Settlement) -> bool:
    """Whether a running job has completed, and nothing else is to be said about it."""
    transition = settlement.transition
    return (
        transition.status is _COMPLETED
        and settlement.expected is _ACTIVE
        and settlement.keep is not None
        and not settlement.if_expired
        and not (transition.failure or transition.why or transition.is_solo)
    )


def entry_of(transition: Transition, deliveries: int, now: float) -> bytes:
    """What the history says of a transition that the store made by itself."""
    entry = {
        "at": format_rfc3339(now),
        "event": transition.event,
        "status": transition.status,
        "attempt": transition.attempts,
        "delivery": deliveries,
    }
    if transition.failure is not None:
        failure = transition.failure
        entry |= {"kind": failure.kind, "code": failure.code, "message": failure.message}
    if transition.why:
        entry["why"] = transition.why
    return _encode(entry)


def latest(history: str) -> str:
    """Half of what may be kept, so that it is not shortened again with every transition."""
    entries = history.split("\n")[-MAX_HISTORY_ENTRIES // 2 :]
    length = 0
    for n, entry in enumerate(reversed(entries)):
        length += len(entry) + 1
        if n and length > MAX_HISTORY_BYTES // 2:
            return "\n".join(entries[-n:])
    return "\n".join(entries)


def _settlement(
    row: JobPosition,
    event: JobEvent,
    now: float,
    retention: JobRetention | None = None,
    why: str = "",
) -> Settlement:
    seq, job_id, status, fence, attempts, deliveries, excused, queue = row
    # The store does not decide what becomes of the job: it asks the core, as a worker would.
    try:
        snapshot = JobSnapshot(status_of(status), attempts, deliveries, excused)
    except RowError as error:
        raise UnreadableRowError(seq, str(error)) from None
    transition = next_transition(snapshot, event, _RULE)
    if why:
        transition = replace(transition, why=why)
    return Settlement(
        key=seq,
        id=job_id,
        # Applied like a worker's report: a job that was claimed since it was read is left alone.
        fence=fence,
        expected=snapshot.status,
        transition=transition,
        entry=entry_of(transition, deliveries, now),
        keep=None if retention is None else retention.keep(queue, transition.status),
    )
