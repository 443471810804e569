"""Decides what becomes of a job: from a reply to an event, a transition and a ``Settlement``."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from ergon_framework.core.executor_protocol import (
    DISCARDED,
    HANDLER_NOT_FOUND,
    HELD,
    Reply,
    Status,
)
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import (
    CancelRequested,
    Discarded,
    EditRequested,
    Failed,
    HeldBack,
    InvalidTransition,
    JobEvent,
    JobRule,
    JobSnapshot,
    JobStatus,
    RequeueRequested,
    RunRequested,
    Succeeded,
    Transition,
    next_transition,
)
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.core.text import several_lines
from ergon_framework.jobs.claims import Claim, without_nul
from ergon_framework.jobs.payload_codec import ENCODED_RESULT, MARK, PayloadCodec
from ergon_framework.jobs.stores.erasure import is_erased
from ergon_framework.ports.dice import roll
from ergon_framework.ports.jobstore import (
    CancelRequest,
    ClaimedJob,
    Job,
    Settlement,
)
from ergon_framework.redaction import redacted_message, redacted_text

if TYPE_CHECKING:
    from ergon_framework.jobs.settings import JobsSettings, RetrySettings

MAX_MESSAGE = 4096
"""How many characters of an error message are kept."""
MAX_CODE = 255
"""How many characters of an error type are kept; it appears in tables, log lines and searches."""
_encode = msgspec.json.Encoder().encode
# All that happens in one turn of the loop has the same instant.
_instant = lru_cache(maxsize=64)(format_rfc3339)
_SUCCEEDED = Succeeded()
_RESERVED = Failed(
    Failure(
        Kind.REJECTED,
        "reserved_field",
        f"the result begins with the field {MARK!r}, which marks what Ergon has encoded; give that"
        " field another name",
    )
)
# Names for values that are needed for each job: Python 3.11 needs ten times as long to look up a
# member of an enum.
_SUCCESS, _ACTIVE = Status.SUCCESS, JobStatus.ACTIVE
_EVENT_DETAILS = ("message", "traceback", "output", "by", "reason", "became")
"""What the history keeps of an event, where the event has it."""
_TOLD = (CancelRequested, EditRequested, RequeueRequested, RunRequested)
"""Requests of people, of which the history keeps more than the name."""


class Settler:
    """Decides settlements: an executor's reply becomes an event, and the event a transition."""

    def __init__(
        self, settings: JobsSettings, worker: str, codec: PayloadCodec | None = None
    ) -> None:
        """``codec`` is the store's, which knows the owner of the objects that it writes."""
        self._settings = settings
        self._worker = worker
        self._quoted = _encode(worker).decode()
        self._codec = settings.codec.compiled() if codec is None else codec
        self._encodes = self._codec.encodes  # read for each job
        self._rule = settings.rule()
        self._give_up_on = settings.final_codes()
        self._keep = settings.retention.keep
        self._timeout = settings.timeout

    def rule_of(self, job: ClaimedJob | Job) -> JobRule:
        """The rule of one job: its own settings first."""
        if job.max_attempts is None and job.max_deliveries is None and job.retry is None:
            return self._rule
        return self._settings.rule(job.max_attempts, job.max_deliveries, _own_retry(job.retry))

    def timeout_of(self, job: ClaimedJob) -> float:
        """Seconds that one attempt may take."""
        return self._timeout if job.timeout is None else job.timeout

    def event_of(self, reply: Reply, job: ClaimedJob) -> JobEvent:
        """The event that an executor's answer means."""
        if reply.status is _SUCCESS:
            return _SUCCEEDED if reply.error_type != DISCARDED else _discarded(reply)
        code = without_nul((reply.error_type or "")[:MAX_CODE])
        after = reply.retry_after_seconds
        text = without_nul(redacted_message((reply.error_message or "")[:MAX_MESSAGE]))
        if reply.status is Status.RETRY:
            if code == HELD:
                return HeldBack(Failure(Kind.HELD, HELD, text or "Held by the handler", after))
            text = text or "Job requested retry"
            failure = Failure(Kind.TRANSIENT, code or "retry_requested", text, after)
            return Failed(failure, traceback=_trace(reply))
        if reply.status is Status.TIMEOUT:
            text = text or f"Job timed out after {self.timeout_of(job):g} s"
            failure = Failure(Kind.TIMEOUT, code or "timeout", text)
            return Failed(failure, traceback=_trace(reply))
        if code == HANDLER_NOT_FOUND:
            return Failed(Failure(Kind.REJECTED, code, text or "Handler not found"))
        kind = Kind.REJECTED if code in self.final_codes(job) else Kind.DEFECT
        failure = Failure(kind, code or "error", text or "Job failed")
        return Failed(failure, traceback=_trace(reply))

    def final_codes(self, job: ClaimedJob) -> Collection[str]:
        """Error codes after which the job is given up."""
        own = _own_retry(job.retry)
        return self._give_up_on if own is None else self._settings.final_codes(own)

    def settle_claim(
        self,
        claim: Claim,
        event: JobEvent,
        now: float,
        seconds: float | None,
        result: bytes | None,
        *,
        is_encoded: bool = False,
    ) -> Settlement:
        """The settlement of a job that this worker holds. ``now`` is used for its history only.

        ``is_encoded``: whether the result is in the form that the store keeps, see
        :meth:`encoded_result`.
        """
        job = claim.job
        if result is not None and not is_encoded and result.startswith(ENCODED_RESULT):
            # It could not be told apart from a result that Ergon has encoded.
            event, result = (_RESERVED if isinstance(event, Succeeded) else event), None
        # Nearly all jobs complete, so this path does nothing that only others need.
        if event is _SUCCEEDED:
            transition = _completed(job.attempts, job.excused)
            entry = _completed_entry(
                self._quoted, transition.attempts, now, job.deliveries, seconds
            )
        else:
            snapshot = JobSnapshot(
                JobStatus.ACTIVE,
                job.attempts,
                job.deliveries,
                job.excused,
                is_solo=job.is_solo,
                is_cancelling=claim.cancel is not None,
            )
            transition = next_transition(snapshot, event, self.rule_of(job), roll())
            is_cancelled = transition.status is JobStatus.CANCELLED
            seen = claim.cancel if is_cancelled and claim.cancel is not None else event
            entry = self._entry(transition, now, job.deliveries, seconds, event=seen)
            if transition.status is not JobStatus.COMPLETED or transition.event == DISCARDED:
                result = None
        if self._encodes and result is not None and not is_encoded:
            result = self._codec.encode_result(result, job.id)
        # By position: this runs for each job, and keyword arguments take longer.
        return Settlement(
            job.key,
            job.id,
            job.fence,
            _ACTIVE,
            transition,
            entry,
            result,
            self._keep(job.queue, transition.status, job.result_ttl),
            False,
            job.handler,
            job.queue,
            job.flow_id is not None,
            job.feeds,
        )

    def is_slow(self, event: JobEvent, result: bytes | None) -> bool:
        """Whether a result may go to an object store, which takes longer than a turn of the loop
        may.
        """
        objects = self._codec.objects
        if objects is None or result is None or len(result) <= objects.above:
            return False
        return event is _SUCCEEDED and not result.startswith(ENCODED_RESULT)

    def encoded_result(self, claim: Claim, result: bytes) -> bytes:
        """A result in the form that the store keeps. May be called from any thread."""
        return self._codec.encode_result(result, claim.job.id)

    def settle_stored(
        self, job: Job, event: JobEvent, now: float, *, if_expired: bool = False
    ) -> Settlement:
        """The settlement of a job that the store listed. Raises InvalidTransition."""
        attempts = job.attempts - job.is_charged
        request = job.cancel_request
        snapshot = JobSnapshot(
            job.status,
            attempts,
            job.deliveries,
            job.excused,
            job.is_charged,
            job.is_solo,
            is_cancelling=request is not None,
        )
        transition = next_transition(snapshot, event, self.rule_of(job), roll())
        if not transition.status.is_final and is_erased(job):
            raise InvalidTransition(f"the job {job.id} was erased: nothing is left to run")
        is_told = isinstance(event, _TOLD)
        seen = event if is_told else request
        return Settlement(
            key=job.key,
            id=job.id,
            fence=job.fence,
            expected=job.status,
            transition=transition,
            entry=self._entry(
                transition, now, job.deliveries, None, lost_by=job.worker, event=seen
            ),
            keep=self._keep(job.queue, transition.status, job.result_ttl),
            if_expired=if_expired,
            handler=job.handler,
            queue=job.queue,
            is_step=job.step is not None,
        )

    def _entry(
        self,
        transition: Transition,
        now: float,
        delivery: int,
        seconds: float | None,
        lost_by: str | None = None,
        event: JobEvent | CancelRequest | None = None,
    ) -> bytes:
        entry: dict[str, Any] = {
            "at": _instant(now),
            "event": transition.event,
            "status": transition.status,
            "attempt": transition.attempts,
            "delivery": delivery,
            "worker": self._worker,
        }
        if seconds is not None:
            entry["seconds"] = round(seconds, 6)
        if lost_by is not None:
            entry["lost_by"] = lost_by
        if transition.failure is not None:
            failure = transition.failure
            entry |= {"kind": failure.kind, "code": failure.code, "message": failure.message}
        for name in _EVENT_DETAILS:
            if text := getattr(event, name, None):
                entry[name] = text
        if transition.why:
            entry["why"] = transition.why
        if transition.delay:
            entry["delay"] = round(transition.delay, 3)
        return _encode(entry)


def _discarded(reply: Reply) -> Discarded:
    return Discarded(without_nul(redacted_message((reply.error_message or "")[:MAX_MESSAGE])))


def notice_fields(settlement: Settlement) -> dict[str, Any]:
    """The fields of a notice about a settled job. Error trackers use the place where it failed."""
    transition = settlement.transition
    if transition.status is JobStatus.CANCELLED:
        return {"job_id": settlement.id}
    traceback = None
    if transition.failure is not None:
        traceback = msgspec.json.decode(settlement.entry).get("traceback")
    return {
        "job_id": settlement.id,
        "attempt": transition.attempts,
        "failure": transition.failure,
        "delay": transition.delay,
        "why": transition.why,
        "handler": settlement.handler,
        "queue": settlement.queue,
        "traceback": traceback,
    }


def _trace(reply: Reply) -> str | None:
    """Where the handler failed, if the executor says so, cut to what a history has room for."""
    traceback = reply.error_traceback
    return several_lines(redacted_text(traceback[-MAX_MESSAGE:])) if traceback else None


@lru_cache(maxsize=64)  # Jobs that were sent together often come back together.
def _completed_entry(
    worker: str, attempt: int, now: float, delivery: int, seconds: float | None
) -> bytes:
    """The entry of ``_entry`` for a success, made as text: most entries are of this kind, and this
    is faster.
    """
    duration = "" if seconds is None else f',"seconds":{round(seconds, 6)}'
    return (
        f'{{"at":"{_instant(now)}","event":"completed","status":"completed",'
        f'"attempt":{attempt},"delivery":{delivery},"worker":{worker}{duration}}}'
    ).encode()


@lru_cache(maxsize=64)
def _completed(attempts: int, excused: int) -> Transition:
    """The transition of a success, which depends on these two values only."""
    snapshot = JobSnapshot(JobStatus.ACTIVE, attempts, excused=excused)
    return next_transition(snapshot, _SUCCEEDED, JobRule())


@lru_cache(maxsize=256)
def _own_retry(text: bytes | None) -> RetrySettings | None:
    if text is None:
        return None
    # Imported late: pydantic takes longer to import than the rest of a client.
    from pydantic import ValidationError

    from ergon_framework.jobs.settings import RetrySettings

    try:
        return RetrySettings.model_validate_json(text)
    # It was written by another version. This worker's own settings are better than a crash.
    except ValidationError:
        return None
