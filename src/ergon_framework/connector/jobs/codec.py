"""Turns transactions into jobs, jobs into transactions, and exceptions into outcomes of jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from ergon_framework.connector.base import Delivered, difference
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import Failed, HeldBack, JobEvent
from ergon_framework.core.transaction_lifecycle import LifecycleStep
from ergon_framework.engine.classify import classify
from ergon_framework.errors import (
    ConnectorError,
    DuplicateJobError,
    EnvelopeError,
    JobError,
    PayloadError,
    TransactionException,
    describe,
)
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.client import JobClient
from ergon_framework.ports.jobstore import ClaimedJob, FullJobStore, Job, NewJob
from ergon_framework.ports.transaction import Transaction
from ergon_framework.storage.conflicts import ConflictError, retry_conflicts
from ergon_framework.telemetry.propagation import extract, outgoing, written

_PAYLOAD = ("args", "kwargs")
_TRACE = ("traceparent", "tracestate")
_MAX_CONFLICTS = 100
"""How often others may add jobs of the same batch before we give up."""
_T = TypeVar("_T", bound=Transaction)
_decode = msgspec.json.decode


class JobsConnectorError(ConnectorError):
    """The connector refuses what it was asked to do."""

    code = "jobs_connector"


class ConflictingJobError(JobsConnectorError):
    """The transaction's id stands for a job with other content. Nothing of the batch was stored."""

    code = "conflicting_job"


class LeaseLostError(JobsConnectorError):
    """Another process has the job by now, and only its outcome counts."""

    code = "lease_lost"
    failure_kind = "lost"


class JobDelivery(Delivered):
    """A delivered job with its claim."""

    __slots__ = ("claim", "claimed_at")

    claim: Claim
    claimed_at: float


# ---- to a job ----


def job_of(
    transaction: Transaction,
    client: JobClient,
    routed: tuple[str | None, str],
    options: Mapping[str, Any],
) -> NewJob:
    """The job that a transaction becomes, checked; nothing is stored.

    ``routed`` are the handler of transactions that name none, and the executor.
    """
    if not isinstance(transaction, Transaction):
        raise EnvelopeError(
            f"dispatch_transactions takes Transactions, not {type(transaction).__name__}",
            remedy="wrap the payload: Transaction(transaction_id=..., payload=...)",
        )
    payload = transaction.payload
    args, kwargs = ([], payload) if isinstance(payload, dict) else ([payload], None)
    about: dict[str, Any] = {**options, "id": transaction.transaction_id}
    if transaction.correlation_id is not None:
        about["correlation_id"] = transaction.correlation_id
    trace = outgoing() or extract(transaction)
    if trace is not None:
        about["trace_context"] = written(trace)
    try:
        job = client.job(_routed(transaction, *routed), args, kwargs, **about)
    except JobError as error:
        raise _refused(transaction.transaction_id, error) from error
    _check_round_trip(transaction, job)
    return job


def _check_round_trip(transaction: Transaction, job: NewJob) -> None:
    """Refuse values that would arrive changed at a consumer of the job, such as a tuple."""
    found = difference(transaction.payload, _payload(job), "payload")
    if found is not None:
        path, problem = found
        raise PayloadError(
            f"transaction {transaction.transaction_id!r} cannot become a job: {path} {problem}",
            remedy="use a list instead of a tuple, and plain JSON values throughout",
            details={"transaction_id": transaction.transaction_id, "path": path},
        )


def _routed(transaction: Transaction, handler: str | None, executor: str) -> str:
    named = transaction.metadata.get("handler", handler)
    if named is None:
        raise JobsConnectorError(
            f"transaction {transaction.transaction_id!r} names no handler for its job",
            remedy='give the connector handler="...", or the transaction metadata["handler"]',
            details={"transaction_id": transaction.transaction_id},
        )
    is_plain = isinstance(named, str) and bool(named) and "#" not in named
    return f"{executor}#{named}" if executor and is_plain else named


def _refused(transaction_id: str, error: JobError) -> PayloadError | JobsConnectorError:
    kind = PayloadError if error.details.get("field") in _PAYLOAD else JobsConnectorError
    details = {"transaction_id": transaction_id, **error.details}
    text = f"transaction {transaction_id!r} cannot become a job: {error.message}"
    return kind(text, remedy=error.remedy, details=details)


def add_once(store: FullJobStore, jobs: list[NewJob]) -> None:
    """Store the jobs that do not exist yet, in one commit. Other content under an id is refused."""
    left = _distinct(jobs)

    def attempt() -> None:
        nonlocal left
        if not left:
            return
        try:
            store.add(left)
        except DuplicateJobError as error:
            # An id that is taken may be ours, of a dispatch whose answer was lost: only what is
            # missing is added.
            absent = [job for job in left if not _is_there(store.find(job.id), job)]
            if len(absent) == len(left):
                raise  # not an id, but a unique key that somebody holds
            left = absent
            raise ConflictError from error

    retry_conflicts(attempt, max_attempts=_MAX_CONFLICTS, give_up=_too_busy)


def _too_busy() -> JobsConnectorError:
    return JobsConnectorError(
        "others dispatch the same jobs all the time", remedy="try again later"
    )


def _distinct(jobs: list[NewJob]) -> list[NewJob]:
    """The jobs with each id once. The same id with other content is refused, as it is
    in the store.
    """
    found: dict[str, NewJob] = {}
    for job in jobs:
        _is_there(found.get(job.id), job)
        found.setdefault(job.id, job)
    return list(found.values())


def _is_there(found: Job | NewJob | None, job: NewJob) -> bool:
    """Whether that very job is stored. Raises if another job has the same id."""
    if found is None:
        return False
    if _content(found) == _content(job):
        return True
    raise ConflictingJobError(
        f"the id {job.id!r} stands for a job with another handler, queue or payload",
        remedy="a new unit of work needs an id of its own: transaction.derive(...) gives one",
        details={"transaction_id": job.id},
    )


def _content(job: Job | NewJob) -> tuple[str, str, bytes, bytes]:
    return job.handler, job.queue, _canonical(job.args), _canonical(job.kwargs)


def _canonical(text: bytes) -> bytes:
    return msgspec.json.encode(_decode(text), order="sorted")


# ---- and back ----


def delivery_of(claim: Claim, owner: object, source: str | None, claimed_at: float) -> JobDelivery:
    """The delivery for a claimed job."""
    delivery = _made(JobDelivery, claim.job, source)
    delivery.belongs_to(owner, claim=claim, claimed_at=claimed_at)
    return delivery


def transaction_of(job: Job, source: str | None) -> Transaction:
    """A job as a transaction that cannot be settled."""
    return _made(Transaction, job, source)


def _made(kind: type[_T], job: ClaimedJob | Job, source: str | None) -> _T:
    trace = job.trace_context or {}
    metadata: dict[str, Any] = {
        "handler": job.handler,
        "queue": job.queue,
        # While a job is claimed, the attempt under way may be counted already.
        "attempt": job.attempts + 1 - (isinstance(job, Job) and job.is_charged),
        **{key: trace[key] for key in _TRACE if key in trace},
    }
    if job.correlation_id is not None:
        metadata["correlation_id"] = job.correlation_id
    return kind(
        job.id,
        _payload(job),
        metadata,
        correlation_id=job.correlation_id,
        trace_id=_trace_id(trace.get("traceparent")),
        created_at=datetime.fromtimestamp(job.created_at, UTC),
        source=source,
    )


def _payload(job: ClaimedJob | Job | NewJob) -> Any:
    args, kwargs = _decode(job.args), _decode(job.kwargs)
    if not args:
        return kwargs
    if len(args) == 1 and not kwargs:
        return args[0]
    return {"args": args, "kwargs": kwargs}


def _trace_id(header: str | None) -> str | None:
    parts = (header or "").split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 else None


MAX_MESSAGE = 4096
"""Characters of an error message that are kept."""


def event_of(error: Exception, transaction_id: str, give_up_on: Collection[str]) -> JobEvent:
    """The event of a failed job, which its own rule judges. Business and final failures are
    rejections.
    """
    kind = classify(error, LifecycleStep.PROCESS, transaction_id)[0].kind
    plain = _inner(error)
    failure = classify(plain, LifecycleStep.PROCESS, transaction_id)[0]
    if failure.code in give_up_on:
        kind = Kind.REJECTED
    text = describe(plain)[:MAX_MESSAGE]
    found = Failure(kind, failure.code, text, failure.retry_after)
    return HeldBack(found) if kind is Kind.HELD else Failed(found)


def _inner(error: Exception) -> Exception:
    """The exception that the task raised, inside the category in which the engine has
    wrapped it.
    """
    if type(error) is TransactionException:
        cause = error.__cause__
        if cause is not None and issubclass(type(cause), Exception):
            return cause  # type: ignore[return-value]
    return error


def held_for(seconds: float) -> HeldBack:
    """The event for a closed gate: nothing was attempted."""
    return HeldBack(
        Failure(Kind.HELD, "held", "a gate refused before anything was attempted", seconds)
    )
