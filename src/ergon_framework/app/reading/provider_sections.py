"""``[providers]`` and ``[providers.NAME]``: the store of provider calls, and who is called how."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, SecretStr, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from ergon_framework.app.reading.secret_values import revealed
from ergon_framework.app.reading.sections import Built, Reference
from ergon_framework.errors import ConfigurationError
from ergon_framework.ports.settings_model import (
    Count,
    Document,
    FrozenDict,
    OrNone,
    Positive,
    PositiveOrZero,
    Ratio,
    Switch,
    unknown_key,
)

if TYPE_CHECKING:
    from ergon_framework.providers.circuit_breaker import CircuitBreaker
    from ergon_framework.providers.quota import QuotaPolicy
    from ergon_framework.providers.retry import RetryPolicy

_RENAMED = {"timeout", "timeout_seconds", "budget_seconds", "timeout_budget_seconds"}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


_RIGHT = "is no key: write timeout_budget for the whole call, or attempt_timeout for one attempt"


def _refusal(section: type[Document], wrong: list[tuple[str, str]]) -> ValidationError:
    """What is wrong with which key."""
    lines = [
        InitErrorDetails(
            type=PydanticCustomError("providers", "{text}", {"text": text}), loc=(name,), input=None
        )
        for name, text in wrong
    ]
    return ValidationError.from_exception_data(section.__name__, lines)


@contextmanager
def _told() -> Iterator[None]:
    """Word a refusal so that it may follow a key's name."""
    try:
        yield
    except ConfigurationError as error:
        raise ValueError(f"is refused: {error}") from None


class QuotaSettings(Document):
    """How many calls a tenant may make in a window."""

    limit: Count
    window: Positive = 3600.0
    period: Annotated[Literal["day", "month"] | None, OrNone] = None
    tz: str = "UTC"
    anchor: float = 0.0
    block: Count = 1

    @model_validator(mode="after")
    def _whole(self) -> Self:
        with _told():
            self.compiled()
        return self

    def compiled(self) -> QuotaPolicy:
        """As a provider takes it."""
        from ergon_framework.providers.quota import QuotaPolicy

        return QuotaPolicy(self.limit, self.window, self.period, self.tz, self.anchor, self.block)


class RetrySettings(Document):
    """How often a call is tried, and how long to wait in between."""

    max_attempts: Count = 3
    base_delay: PositiveOrZero = 0.5
    max_delay: PositiveOrZero = 8.0
    jitter: Ratio = 0.2
    max_retry_after: Annotated[PositiveOrZero | None, OrNone] = 3600.0

    @model_validator(mode="after")
    def _whole(self) -> Self:
        with _told():
            self.compiled()
        return self

    def compiled(self) -> RetryPolicy:
        """As a provider takes it."""
        from ergon_framework.providers.retry import RetryPolicy

        return RetryPolicy(
            self.max_attempts, self.base_delay, self.max_delay, self.jitter, self.max_retry_after
        )


class BreakerSettings(Document):
    """When calls are no longer tried, and for how long."""

    enabled: Switch = True
    failure_threshold: Count = 5
    open_cooldown: PositiveOrZero = 30.0
    half_open_max_calls: Count = 1
    half_open_success_threshold: Annotated[Count | None, OrNone] = None
    probe_lease: Annotated[Positive | None, OrNone] = None

    def compiled(self) -> CircuitBreaker | Literal[False]:
        """As a provider takes it."""
        from ergon_framework.providers.circuit_breaker import CircuitBreaker

        if not self.enabled:
            return False
        return CircuitBreaker(
            self.failure_threshold,
            self.open_cooldown,
            self.half_open_max_calls,
            self.half_open_success_threshold,
            self.probe_lease,
        )


def _switched(value: object) -> object:
    """``breaker = false`` is short for a table."""
    return {"enabled": value} if isinstance(value, bool) else value


class ProviderSettings(Built):
    """``[providers.NAME]``: a provider, how it is called, and its options."""

    provider: Reference
    quota: Annotated[QuotaSettings | None, OrNone] = None
    retry: Annotated[RetrySettings | None, OrNone] = None
    breaker: Annotated[BreakerSettings | None, OrNone, BeforeValidator(_switched)] = None
    timeout_budget: Annotated[Positive | None, OrNone] = 60.0
    attempt_timeout: Annotated[Positive | None, OrNone] = None
    store: Annotated[SecretStr | None, OrNone] = None

    @model_validator(mode="before")
    @classmethod
    def _reveal(cls, data: Any) -> Any:
        """Only options, and the store, may be secrets; the rest has types to be read by."""
        if not isinstance(data, Mapping):
            return data
        renamed = sorted(_RENAMED & data.keys())
        if renamed:
            raise _refusal(cls, [(name, _RIGHT) for name in renamed])
        known = cls.model_fields.keys() - {"store"}
        return {key: revealed(item) if key in known else item for key, item in data.items()}

    def arguments(self) -> dict[str, Any]:
        """What is said here about its calls, as a provider takes it."""
        policies = {
            "quota": self.quota,
            "retry_policy": self.retry,
            "circuit_breaker": self.breaker,
        }
        found: dict[str, Any] = {
            name: each.compiled() for name, each in policies.items() if each is not None
        }
        if "timeout_budget" in self.model_fields_set:
            found["timeout_budget_seconds"] = self.timeout_budget
        if self.attempt_timeout is not None:
            found["attempt_timeout_seconds"] = self.attempt_timeout
        return found


def _no_table(value: object) -> object:
    if isinstance(value, Mapping):
        raise ValueError("is a key of [providers], so no provider can have that name")  # noqa: TRY004
    return value


class ProvidersSettings(Document, extra="allow"):
    """``[providers]``: where provider calls keep what they know; its tables are the providers."""

    __pydantic_extra__: dict[str, ProviderSettings]

    store: Annotated[SecretStr | None, OrNone, BeforeValidator(_no_table)] = None
    keep_records: Annotated[Positive | None, OrNone, BeforeValidator(_no_table)] = 90 * 86_400.0

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        """Whatever is no table and no key of this one is a key that somebody misspelt."""
        wrong = []
        for name, value in data.items() if isinstance(data, Mapping) else ():
            if name not in cls.model_fields and not isinstance(value, Mapping):
                wrong.append((name, unknown_key(name, cls)))
            elif not _NAME.fullmatch(name):
                wrong.append((name, "must be a name of letters, digits, '_', '-' and '.'"))
        if wrong:
            raise _refusal(cls, wrong)
        return data

    def arguments(self) -> dict[str, Any]:
        """What is said here about every provider, as a provider takes it."""
        is_said = "keep_records" in self.model_fields_set
        return {"keep_records_seconds": self.keep_records} if is_said else {}

    @property
    def named(self) -> Mapping[str, ProviderSettings]:
        """The providers by name."""
        return FrozenDict(self.model_extra or {})
