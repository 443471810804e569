"""What a job asks of its worker, as stores keep it: JSON that they do not look into."""

from __future__ import annotations

from typing import Any

import msgspec

from ergon_framework.core.failure import Failure
from ergon_framework.ports.jobstore import Job, NewJob


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job may ask of its worker."""

    timeout: float | None = None
    max_attempts: int | None = None
    max_deliveries: int | None = None
    retry: str | None = None
    result_ttl: float | None = None
    correlation_id: str | None = None
    trace_context: dict[str, str] | None = None

    @classmethod
    def of(cls, job: NewJob | Job) -> Options:
        """Those of a job."""
        return cls(
            job.timeout,
            job.max_attempts,
            job.max_deliveries,
            None if job.retry is None else job.retry.decode(),
            job.result_ttl,
            job.correlation_id,
            job.trace_context,
        )

    def fields(self) -> dict[str, Any]:
        """As a ``Job`` or a ``Leased`` wants them, in their order."""
        return {
            "timeout": self.timeout,
            "max_attempts": self.max_attempts,
            "max_deliveries": self.max_deliveries,
            "retry": None if self.retry is None else self.retry.encode(),
            "result_ttl": self.result_ttl,
            "correlation_id": self.correlation_id,
            "trace_context": self.trace_context,
        }


NO_OPTIONS = Options()
_encode = msgspec.json.Encoder().encode
_options = msgspec.json.Decoder(Options).decode
_failure = msgspec.json.Decoder(Failure).decode


def text_of(value: Any) -> str:
    """JSON, to be stored as text."""
    return _encode(value).decode()


def options_text(job: NewJob | Job) -> str | None:
    """The options of a job as text; None when it asks for nothing."""
    options = Options.of(job)
    return None if options == NO_OPTIONS else text_of(options)


def options_from(text: str | bytes | None) -> Options:
    """The options that :func:`options_text` wrote."""
    return NO_OPTIONS if text is None else _options(text)


def asked_of(text: str | bytes | None) -> tuple[Any, ...]:
    """The same as the last fields of a ``Leased``; none where all have their defaults."""
    return () if text is None else tuple(_options(text).fields().values())


def failure_from(text: str | bytes | None) -> Failure | None:
    """A failure that :func:`text_of` wrote."""
    return None if text is None else _failure(text)


def entries_of(history: str | None) -> tuple[bytes, ...]:
    """The entries of a history that is kept as lines."""
    return tuple(history.encode().split(b"\n")) if history else ()


def is_special(job: NewJob) -> bool:
    """Whether the plain statement cannot say all there is to say."""
    return (
        job.limit_key is not None
        or job.unique_key is not None
        or job.expires_at is not None
        or job.correlation_id is not None
        or job.trace_context is not None
        or job.timeout is not None
        or job.max_attempts is not None
        or job.max_deliveries is not None
        or job.retry is not None
        or job.result_ttl is not None
    )
