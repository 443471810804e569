"""A claimed job in a worker: what is known of it, and what came before it could be sent."""

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
    """What a job's handler is called in its executor."""
    return route(name)[1]


class Claim:
    """One claimed job. The dispatcher and the store thread both look at it."""

    __slots__ = (
        *("cancel", "handler", "is_recorded", "is_written", "job", "lost", "outcome"),
        *("progress", "span", "written_at"),
    )

    def __init__(self, job: ClaimedJob) -> None:
        self.job = job
        self.handler = _handler(job.handler)
        self.is_written = False  # a request went to an executor …
        self.is_recorded = False  # … and the store has charged the attempt
        self.written_at = 0.0
        self.lost = False  # the store says that somebody else holds it now
        self.cancel: CancelRequest | None = None  # the store says that somebody wants it cancelled
        self.progress: dict[str, Any] | None = (
            None  # what its handler has said last of how far it is
        )
        self.span: Span | None = None  # of the attempt under way, if the job is traced
        self.outcome: JobEvent | None = None  # it cannot be sent: this is settled instead

    def renewal(self) -> LeaseRenewal:
        """What the store needs to prolong the lease."""
        return LeaseRenewal(self.job.key, self.job.id, self.job.fence, self.is_written)


def progress_record(claim: Claim, report: ProgressReport, now: float) -> dict[str, Any]:
    """A handler's report as the record of its worker has it; it belongs to one claim alone."""
    message = without_nul(redacted_message(report.message[:MAX_PROGRESS_MESSAGE]))
    return {
        "fence": claim.job.fence,
        "fraction": report.fraction,
        "message": message,
        "at": format_rfc3339(now),
    }


def silence_of(heartbeat: float) -> Failed:
    """The event of an attempt whose handler had to report so often, in seconds, and did not."""
    text = f"reported nothing for {heartbeat:g} s and was ended"
    return Failed(Failure(Kind.TIMEOUT, "heartbeat_timeout", text))


def decode_claims(claims: Iterable[Claim], codec: PayloadCodec) -> None:
    """Give claimed jobs their plain arguments; one whose cannot be read gets an outcome instead.

    Workers do this whatever their settings say: a handler must never be called with what a client
    with other settings encoded.
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
    """What becomes of a job whose payload a worker cannot read.

    A missing key is a mistake in the settings of this worker: the job waits uncharged until they
    are mended, or another worker has the key. An object store that is away comes back, and so may
    an object that is missing. A damaged payload stays damaged.
    """
    if isinstance(error, PayloadKeyError | PayloadObjectError):
        return HeldBack(Failure(Kind.HELD, error.code, f"{error.message}; {error.remedy}"))
    return Failed(Failure(Kind.REJECTED, "unreadable_payload", error.message), is_written=False)


def without_nul(text: str) -> str:
    """What an executor says in words that every store can keep: not all of them take a NUL."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
