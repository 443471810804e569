"""The policy documents of RFC-003: every number and word that steers an engine, and nothing else.

Policies are frozen, compare by value, survive JSON, pickle and deepcopy, and do nothing. They
accept what an environment variable can hold: numbers and switches as text, and ``""``, ``"none"``
or ``"null"`` for a value that may be absent. All durations are seconds.

What a policy refuses, it refuses with pydantic's ``ValidationError``, which is a ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, ValidationInfo, field_validator

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
    frozen,
    thawed,
)


def _arguments(value: object) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError("must be a table")  # noqa: TRY004 - pydantic lets a TypeError through
    if "batch_size" in value:
        raise ValueError("must not hold 'batch_size', which the engine passes from loop.batch.size")
    return frozen(value)


Arguments = Annotated[Mapping[str, Any], PlainValidator(_arguments), PlainSerializer(thawed)]


def _bound(bound: int | None, info: ValidationInfo, name: str) -> int | None:
    """Refuse a lower bound above the field it bounds, and an upper bound below it."""
    value = info.data.get(name)  # absent when it was itself refused
    if bound is None or value is None:
        return bound
    if str(info.field_name).startswith("min") and bound > value:
        raise ValueError(f"must be at most {name}, which is {value}")
    if str(info.field_name).startswith("max") and bound < value:
        raise ValueError(f"must be at least {name}, which is {value}")
    return bound


# ---- one step -----------------------------------------------------------------------------------


class RetryPolicy(SettingsModel):
    """How often one step is tried, how long one attempt may take, how long to wait in between.

    RFC-003 gives it this name, and the specification of provider calls gives it to another class,
    ``ergon_framework.providers.RetryPolicy``, whose waits are computed differently.
    """

    max_attempts: Count = 1
    timeout: Annotated[Positive | None, OrNone] = None
    backoff: PositiveOrZero = 0.0
    backoff_multiplier: Factor = 2.0
    backoff_cap: PositiveOrZero = 0.0
    jitter: Ratio = 0.0


class FetchPolicy(SettingsModel):
    """How a consumer reads its connector; ``extra`` becomes keyword arguments of each fetch."""

    retry: RetryPolicy = Field(default_factory=RetryPolicy)
    extra: Arguments = Field(default_factory=FrozenDict)
    connector_name: Annotated[str | None, OrNone] = None


class ProcessPolicy(SettingsModel):
    """The ``process_transaction`` step."""

    retry: RetryPolicy = Field(default_factory=RetryPolicy)


class SuccessPolicy(SettingsModel):
    """The success handler's step."""

    retry: RetryPolicy = Field(default_factory=RetryPolicy)


class ExceptionPolicy(SettingsModel):
    """The exception handler's step."""

    retry: RetryPolicy = Field(default_factory=RetryPolicy)


class ProducePolicy(SettingsModel):
    """The ``produce_transaction`` step."""

    retry: RetryPolicy = Field(default_factory=RetryPolicy)


# ---- the loop -----------------------------------------------------------------------------------


class ConcurrencyPolicy(SettingsModel):
    """How many lifecycles run at once, and what hung calls may cost."""

    value: Count = 1
    min: Count = 1
    max: Annotated[Count | None, OrNone] = None
    max_abandoned: Annotated[Count | None, OrNone] = None
    abandoned: Literal["release", "hold"] = "release"

    @field_validator("min", "max")
    @classmethod
    def _fits(cls, bound: int | None, info: ValidationInfo) -> int | None:
        return _bound(bound, info, "value")


class BatchPolicy(SettingsModel):
    """How many transactions one fetch asks for, or one producer batch holds."""

    size: Count = 1
    min_size: Count = 1
    max_size: Annotated[Count | None, OrNone] = None
    interval: PositiveOrZero = 0.0  # reserved by RFC-003: accepted and ignored

    @field_validator("min_size", "max_size")
    @classmethod
    def _fits(cls, bound: int | None, info: ValidationInfo) -> int | None:
        return _bound(bound, info, "size")


class EmptyQueuePolicy(SettingsModel):
    """How long a streaming consumer waits after fetches that delivered nothing."""

    backoff: PositiveOrZero = 0.1
    backoff_multiplier: Factor = 2.0
    backoff_cap: PositiveOrZero = 10.0
    interval: PositiveOrZero = 0.0  # reserved by RFC-003: accepted and ignored


class _LoopPolicy(SettingsModel):
    """What both loops share."""

    batch: BatchPolicy = Field(default_factory=BatchPolicy)
    concurrency: ConcurrencyPolicy = Field(default_factory=ConcurrencyPolicy)
    timeout: Annotated[Positive | None, OrNone] = None
    limit: Annotated[CountOrZero | None, OrNone] = None
    transaction_timeout: Annotated[Positive | None, OrNone] = None
    stop_grace: PositiveOrZero = 30.0
    cancel_grace: PositiveOrZero = 1.0
    payload_copies: Switch = False


class ConsumerLoopPolicy(_LoopPolicy):
    """The bounds and the manner of one ``consume_transactions`` call."""

    streaming: Switch = False
    empty_queue: EmptyQueuePolicy = Field(default_factory=EmptyQueuePolicy)
    mode: Literal["batch", "continuous"] = "batch"
    settlement: Literal["engine", "manual"] = "engine"
    settlement_timeout: Positive = 30.0
    settlement_attempts: Count = 5
    release_grace: PositiveOrZero = 5.0
    max_hold: Annotated[PositiveOrZero | None, OrNone] = None


class ProducerLoopPolicy(_LoopPolicy):
    """The bounds of one ``produce_transactions`` call."""


# ---- the whole ----------------------------------------------------------------------------------


class ConsumerSteps(SettingsModel):
    """One independent retry budget per step of a consumer."""

    fetch: FetchPolicy = Field(default_factory=FetchPolicy)
    process: ProcessPolicy = Field(default_factory=ProcessPolicy)
    success: SuccessPolicy = Field(default_factory=SuccessPolicy)
    exception: ExceptionPolicy = Field(default_factory=ExceptionPolicy)


class ConsumerPolicy(SettingsModel):
    """Everything that steers one ``consume_transactions`` call."""

    loop: ConsumerLoopPolicy = Field(default_factory=ConsumerLoopPolicy)
    steps: ConsumerSteps = Field(default_factory=ConsumerSteps)
    name: Annotated[str | None, OrNone] = None


class ProducerSteps(SettingsModel):
    """One independent retry budget per step of a producer."""

    produce: ProducePolicy = Field(default_factory=ProducePolicy)
    success: SuccessPolicy = Field(default_factory=SuccessPolicy)
    exception: ExceptionPolicy = Field(default_factory=ExceptionPolicy)


class ProducerPolicy(SettingsModel):
    """Everything that steers one ``produce_transactions`` call."""

    loop: ProducerLoopPolicy = Field(default_factory=ProducerLoopPolicy)
    steps: ProducerSteps = Field(default_factory=ProducerSteps)
    name: Annotated[str | None, OrNone] = None
