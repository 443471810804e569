"""A claimed job in a worker: what is known of it, and what happened to it before it was sent."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from ergon_framework.core.executor_protocol import (
    MAX_PROGRESS_MESSAGE,
    ProgressReport,
)
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import (
    Failed,
    HeldBack,
    JobEvent,
    route,
)
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.errors import PayloadKeyError, PayloadObjectError, UnreadableJobError
from ergon_framework.jobs.payload_codec import ENCODED_ARGS, PayloadCodec
from ergon_framework.ports.jobstore import (
    CancelRequest,
    ClaimedJob,
    LeaseRenewal,
)
from ergon_framework.redaction import redacted_message

if TYPE_CHECKING:
    from opentelemetry.trace import Span


@lru_cache(maxsize=256)
def _handler(name: str) -> str:
    """The name by which the executor knows the handler of a job."""
    return route(name)[1]


class Claim:
    """One claimed job. The dispatcher and the store thread both read it."""

    __slots__ = (
        *("cancel", "handler", "is_recorded", "is_written", "job", "lost", "outcome"),
        *("progress", "span", "written_at"),
    )

    def __init__(self, job: ClaimedJob) -> None:
        self.job = job
        self.handler = _handler(job.handler)
        self.is_written = False  # A request was written to an executor …
        self.is_recorded = False  # … and the store has charged the attempt
        self.written_at = 0.0
        self.lost = False  # the store says that somebody else holds it now
        # the store reports that somebody wants the job cancelled
        self.cancel: CancelRequest | None = None
        self.progress: dict[str, Any] | None = None  # the progress that its handler reported last
        self.span: Span | None = None  # the span of the attempt under way, if the job is traced
        self.outcome: JobEvent | None = None  # the outcome to settle when the job cannot be sent

    def renewal(self) -> LeaseRenewal:
        """What the store needs to prolong the lease."""
        return LeaseRenewal(self.job.key, self.job.id, self.job.fence, self.is_written)


def progress_record(claim: Claim, report: ProgressReport, now: float) -> dict[str, Any]:
    """A handler's progress report as the worker's record holds it. It counts for one claim only."""
    message = without_nul(redacted_message(report.message[:MAX_PROGRESS_MESSAGE]))
    return {
        "fence": claim.job.fence,
        "fraction": report.fraction,
        "message": message,
        "at": format_rfc3339(now),
    }


def silence_of(heartbeat: float) -> Failed:
    """The event for an attempt whose handler had to report every so many seconds, and did not."""
    text = f"reported nothing for {heartbeat:g} s and was ended"
    return Failed(Failure(Kind.TIMEOUT, "heartbeat_timeout", text))


def decode_claims(claims: Iterable[Claim], codec: PayloadCodec) -> None:
    """Decode the arguments of claimed jobs. A job whose arguments cannot be read gets an outcome
    instead.

    Workers decode whatever their own settings say: a handler must never be called with arguments
    that a client with other settings has encoded.
    """
    for claim in claims:
        job = claim.job
        if job.args.startswith(ENCODED_ARGS):
            try:
                args, kwargs = codec.decode_arguments(job.args, job.kwargs)
            except UnreadableJobError as error:
                claim.outcome = unreadable_outcome(error)
            else:
                claim.job = msgspec.structs.replace(job, args=args, kwargs=kwargs)


def unreadable_outcome(error: UnreadableJobError) -> Failed | HeldBack:
    """The outcome of a job whose payload a worker cannot read.

    When a key is missing, the settings of this worker are wrong: the job waits without a charge
    until they are corrected, or until a worker that has the key takes it. An object store that
    cannot be reached comes back, and so may a missing object. A damaged payload stays damaged.
    """
    if isinstance(error, PayloadKeyError | PayloadObjectError):
        return HeldBack(Failure(Kind.HELD, error.code, f"{error.message}; {error.remedy}"))
    return Failed(Failure(Kind.REJECTED, "unreadable_payload", error.message), is_written=False)


def without_nul(text: str) -> str:
    """A text of an executor without NUL characters, which not every store can keep."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
