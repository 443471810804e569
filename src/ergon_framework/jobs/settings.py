"""``[jobs]`` and ``[executors.NAME]``: how jobs are tried, and by which programs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from ergon_framework.core.claim import checked_version
from ergon_framework.core.failure import Kind
from ergon_framework.core.job import JOB_RETRIES, JobRule
from ergon_framework.core.option_values import MAX_PROCESSES
from ergon_framework.core.retention import DAY, JobRetention, KeptFor
from ergon_framework.core.retry import Backoff, RetryRule
from ergon_framework.errors import ConfigurationError, JobError
from ergon_framework.jobs.payload_codec import PLAIN, PayloadCodec
from ergon_framework.jobs.payload_objects import PayloadObjects, checked_place
from ergon_framework.ports.job_fields import TEN_YEARS, name, refusal
from ergon_framework.ports.settings_model import (
    Count,
    CountOrZero,
    Factor,
    FrozenDict,
    OrNone,
    Positive,
    PositiveOrZero,
    Ratio,
    SettingsModel,
    Switch,
    explain,
)

UpToTenYears = Annotated[PositiveOrZero, Field(le=TEN_YEARS)]
"""Seconds from now, up to ten years. A larger number is a mistake in the unit, and the instant may
be beyond the year 9999, which no store can read back.
"""
MORE_DELIVERIES = 3
"""How many more deliveries than attempts a job has by default."""


def _split(value: object) -> object:
    """Split a list that a variable gives as text with commas."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


def _version(value: str) -> str:
    """The version of a program; None when it is empty."""
    return checked_version(value) if value else value


def _command(value: object) -> object:
    if isinstance(value, str):
        raise ValueError('must be a list of words, for example ["node", "executor.js"]')  # noqa: TRY004
    return value


def _named(command: tuple[str, ...]) -> tuple[str, ...]:
    if not command or not command[0]:
        raise ValueError("must name a program")
    if any("\0" in word for word in command):
        raise ValueError("must not hold NUL characters")
    return command


def _queue(value: str) -> str:
    try:
        return name("it", value)
    except JobError as error:
        raise ValueError(f"names no queue: {error.message}; {error.remedy}") from None


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
Command = Annotated[tuple[str, ...], BeforeValidator(_command), AfterValidator(_named)]
Queue = Annotated[str, AfterValidator(_queue)]
"""The name of a queue, as a job may name it."""
AfterFailure: TypeAlias = Literal["retry", "dead-letter"]
EnvironmentVariables = Annotated[Mapping[str, str], AfterValidator(FrozenDict)]


RETENTION_KEYS = frozenset({"result_ttl", "failed_ttl", "cancelled_ttl"})
"""The settings that say how long ended jobs are kept, in ``[jobs]`` and ``[jobs.queues.NAME]``."""


class BackoffSettings(SettingsModel):
    """How the wait grows: ``base * multiplier**k`` up to ``cap``, give or take ``jitter``."""

    base: UpToTenYears = 5.0
    multiplier: Factor = 2.0
    cap: UpToTenYears = 3600.0
    jitter: Ratio = 0.1

    def compiled(self) -> Backoff:
        """The settings as the core's formula."""
        return Backoff(
            self.base, self.multiplier, self.cap, low=1 - self.jitter, high=1 + self.jitter
        )


class RetrySettings(SettingsModel):
    """A job's own retry policy. What is not set is taken from ``[jobs]``."""

    backoff: BackoffSettings | None = None
    on_error: AfterFailure | None = None
    on_lost: AfterFailure | None = None
    on_timeout: AfterFailure | None = None
    max_retry_after: UpToTenYears | None = None
    give_up_on: tuple[str, ...] | None = None  # in addition to the codes of the worker
    retry_on: tuple[str, ...] | None = None  # although the worker's settings give up on them


class KeyLimitSettings(SettingsModel):
    """``[jobs.queues.NAME.per_key]``: limits of each limit key in one queue, across all workers."""

    max_active: Annotated[Count | None, OrNone] = None
    rate: Annotated[Positive | None, OrNone] = None
    burst: Count = 1


class QueueSettings(SettingsModel):
    """``[jobs.queues.NAME]``: limits of one queue across all workers, and how long it keeps jobs.

    A time that is not set is taken from ``[jobs]``.
    """

    max_active: Annotated[Count | None, OrNone] = None
    rate: Annotated[Positive | None, OrNone] = None
    burst: Count = 1
    per_key: KeyLimitSettings = Field(default_factory=KeyLimitSettings)
    result_ttl: UpToTenYears | None = None
    failed_ttl: UpToTenYears | None = None
    cancelled_ttl: UpToTenYears | None = None

    @property
    def has_limits(self) -> bool:
        """Whether there is any limit."""
        own = self.max_active, self.rate, self.per_key.max_active, self.per_key.rate
        return any(each is not None for each in own)

    def limits(self) -> dict[str, Any]:
        """The limits as a store takes them."""
        named = ("max_active", "rate", "burst")
        own = {name: getattr(self, name) for name in named}
        return own | {f"key_{name}": getattr(self.per_key, name) for name in named}

    def kept_for(self, usual: KeptFor) -> KeptFor:
        """How long its jobs are kept, if those of other queues are kept for ``usual``."""
        own = (self.result_ttl, self.failed_ttl, self.cancelled_ttl)
        return KeptFor(
            *(of_all if ttl is None else ttl for ttl, of_all in zip(own, usual, strict=True))
        )

    @property
    def sets_limits(self) -> bool:
        """Whether the settings say anything about limits. A table without a key removes them."""
        return not self.model_fields_set or not self.model_fields_set <= RETENTION_KEYS


class ArchiveSettings(SettingsModel):
    """``[jobs.archive]``: where ended jobs are written before they are deleted."""

    folder: Annotated[str, Field(min_length=1)]
    format: Literal["jsonl", "parquet"] = "jsonl"
    max_file_size: Annotated[Count, Field(ge=1024)] = 256 * 1024 * 1024
    allow_lost_payloads: bool = False


GIVEN_UP = frozenset(
    {
        "invalid_arguments",
        "invalid_request",
        "unsupported_protocol_version",
        "Business",
        "NonRetryableException",
        "ProviderAuthError",
        "ProviderBadRequestError",
        "ProviderResponseFormatError",
        "ConfigurationError",
        "MissingExtraError",
        "SettingsError",
        "WiringError",
    }
)
"""Error codes that another attempt cannot fix. They are given up on whatever else the settings
say.
"""


MIN_OBJECT = 1024
"""How many bytes a payload in an object store has at least, because its row still needs some for
the name.
"""


def _object_place(value: str | None) -> str | None:
    if value is None:
        return None
    try:
        return checked_place(value)
    except ConfigurationError as error:
        raise ValueError(f"{error.message}; {error.remedy}") from error


class CodecSettings(SettingsModel):
    """``[jobs.codec]``: how arguments and results are kept, and where the large ones are."""

    compress_above: Annotated[CountOrZero | None, OrNone] = None
    objects: Annotated[str | None, OrNone, AfterValidator(_object_place)] = None
    objects_above: Annotated[Count, Field(ge=MIN_OBJECT)] = 256 * 1024
    active_key: str = ""
    keys: Annotated[Mapping[str, SecretStr], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict
    )

    @model_validator(mode="after")
    def _checked(self) -> CodecSettings:
        self.compiled()
        return self

    @property
    def is_set(self) -> bool:
        """Whether a payload may be encoded, or a key or place to read one is given."""
        is_coded = self.compress_above is not None or self.objects is not None
        return is_coded or bool(self.keys) or bool(self.active_key)

    def compiled(self) -> PayloadCodec:
        """The codec that these settings describe."""
        if not self.is_set:
            return PLAIN
        return PayloadCodec(
            compress_above=self.compress_above,
            active_key=self.active_key,
            keys={name: each.get_secret_value() for name, each in self.keys.items()},
            objects=None
            if self.objects is None
            else PayloadObjects(self.objects, self.objects_above),
        )


class JobsSettings(SettingsModel):
    """``[jobs]``: how jobs are tried, held and kept."""

    store: Annotated[SecretStr | None, OrNone] = None
    application: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]*$", max_length=100)] = ""
    version: Annotated[str, AfterValidator(_version)] = ""
    default_executor: str = ""
    routes: Annotated[Mapping[Queue, str], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict
    )
    max_attempts: Count = 5
    max_deliveries: Annotated[Count | None, OrNone] = None
    timeout: Positive = 300.0
    backoff: BackoffSettings = Field(default_factory=BackoffSettings)
    on_error: AfterFailure = "retry"
    on_lost: AfterFailure = "retry"
    on_timeout: AfterFailure = "retry"
    max_retry_after: UpToTenYears = DAY
    held_delay: UpToTenYears = 30.0
    give_up_on: Names = ()  # in addition to GIVEN_UP
    retry_on: Names = ()  # although they are in GIVEN_UP
    executor_wait: Annotated[PositiveOrZero | None, OrNone] = DAY
    lease: Annotated[Positive, Field(ge=0.5, le=3600)] = 15.0
    grace: PositiveOrZero = 30.0
    result_ttl: UpToTenYears = DAY
    failed_ttl: UpToTenYears = 30 * DAY
    cancelled_ttl: UpToTenYears = DAY
    max_payload: Count = 1024 * 1024
    wait_for_store: Switch = True
    poll: Annotated[Positive, Field(ge=0.05)] = 1.0
    queues: Annotated[Mapping[Queue, QueueSettings], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict
    )
    codec: CodecSettings = Field(default_factory=CodecSettings)
    archive: Annotated[ArchiveSettings | None, OrNone] = None

    @property
    def claimed_for(self) -> float:
        """Seconds for which a claim holds in the store.

        This is ``lease`` less a fifth, which is how long it takes until a worker searches for
        expired leases, and a little for the search itself. So jobs that a dead worker held run
        again within ``lease``.
        """
        return 0.8 * self.lease

    @property
    def retention(self) -> JobRetention:
        """How long ended jobs are kept."""
        usual = KeptFor(self.result_ttl, self.failed_ttl, self.cancelled_ttl)
        queues = {name: each.kept_for(usual) for name, each in self.queues.items()}
        return JobRetention(usual, {name: own for name, own in queues.items() if own != usual})

    def final_codes(self, retry: RetrySettings | None = None) -> frozenset[str]:
        """Error codes after which a job with this retry policy is given up."""
        codes = (GIVEN_UP | {*self.give_up_on}) - {*self.retry_on}
        if retry is None:
            return codes
        return (codes | {*(retry.give_up_on or ())}) - {*(retry.retry_on or ())}

    def rule(
        self,
        max_attempts: int | None = None,
        max_deliveries: int | None = None,
        retry: RetrySettings | None = None,
    ) -> JobRule:
        """The core's rule for a job with these settings."""
        own = retry or RetrySettings()
        attempts = max_attempts or self.max_attempts
        after = {
            Kind.DEFECT: own.on_error or self.on_error,
            Kind.LOST: own.on_lost or self.on_lost,
            Kind.TIMEOUT: own.on_timeout or self.on_timeout,
        }
        kinds = JOB_RETRIES - {kind for kind, what in after.items() if what == "dead-letter"}
        longest = self.max_retry_after if own.max_retry_after is None else own.max_retry_after
        rule = RetryRule(
            attempts,
            (own.backoff or self.backoff).compiled(),
            kinds,
            max_retry_after=longest,
            asked_replaces=True,
        )
        most = max_deliveries or self.max_deliveries or attempts + MORE_DELIVERIES
        return JobRule(rule, most, self.held_delay)


MAX_IN_FLIGHT = 1024
FORMER_MAX_JOBS = "recycle_after"


class ExecutorSettings(SettingsModel):
    """``[executors.NAME]``: a program that runs handlers, and how many processes of it
    there are.
    """

    command: Command
    env: EnvironmentVariables = Field(default_factory=FrozenDict, repr=False)
    pass_env: Names = ("*",)
    pass_secrets: Names = ()
    cwd: str | None = None
    pool_size: Annotated[Count, Field(le=MAX_PROCESSES)] = Field(
        default_factory=lambda: min(os.cpu_count() or 1, 8)
    )
    max_in_flight: Annotated[Count, Field(le=MAX_IN_FLIGHT)] = 1
    startup_grace: PositiveOrZero = 10.0
    response_limit: Annotated[Count, Field(ge=1024)] = 16 * 1024 * 1024
    shutdown_grace: PositiveOrZero | None = None
    kill_grace: PositiveOrZero = 2.0
    max_jobs: CountOrZero = 0
    max_memory: CountOrZero = 0
    max_age: PositiveOrZero = 0.0
    keep_output: Annotated[CountOrZero, Field(le=100)] = 0

    @model_validator(mode="before")
    @classmethod
    def _former_names(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or FORMER_MAX_JOBS not in given:
            return given
        if "max_jobs" in given:
            raise ValueError(
                f"{FORMER_MAX_JOBS} is the former name of max_jobs: keep only max_jobs"
            )
        rest = {key: value for key, value in given.items() if key != FORMER_MAX_JOBS}
        return {**rest, "max_jobs": given[FORMER_MAX_JOBS]}

    @property
    def max_processes(self) -> int:
        """How many of its processes there may be at once, including those that are
        being replaced.
        """
        is_recycled = self.max_jobs or self.max_memory or self.max_age
        return 2 * self.pool_size if is_recycled else self.pool_size

    @property
    def leaves_within(self) -> float:
        """Seconds that a process has to exit after its input has ended."""
        return self.kill_grace if self.shutdown_grace is None else self.shutdown_grace

    @property
    def sets_max_in_flight(self) -> bool:
        """Whether the number was set. If not, an executor with batch handlers may raise it."""
        return "max_in_flight" in self.model_fields_set


def encode_retry(field: str, value: Any) -> bytes:
    """A job's own retry policy as JSON."""
    if isinstance(value, RetrySettings):
        return _written(value)
    try:
        return _written(RetrySettings.model_validate(value))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        raise refusal(field, f"is wrong: {explain(found)}", "see RetrySettings") from error


@lru_cache(maxsize=256)
def _written(policy: RetrySettings) -> bytes:
    return policy.model_dump_json(exclude_none=True).encode()
