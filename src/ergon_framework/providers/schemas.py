"""The published documents of provider calls: the health summary and the dead letter.

Fields are those of the contracts and no others, so that validating a document against them shows
every difference. Names are long because a host publishes them beside its own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]


class ProviderHealthLevel(StrEnum):
    """The level of detail of a summary."""

    SUMMARY = "summary"
    FULL = "full"


class _Agreed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProviderHealthQuota(_Agreed):
    """The budget of the window that is running."""

    limit_count: Count
    used_count: Count
    remaining_count: Count
    window_end: AwareDatetime


class ProviderHealthQuotaDetail(ProviderHealthQuota):
    """The quota with the beginning of its window."""

    window_start: AwareDatetime


class ProviderHealthItem(_Agreed):
    """The health of one capability of a provider, as the tenant's calls find it."""

    provider_name: str
    capability: str
    breaker_state: Literal["closed", "open", "half_open"]
    success_rate_1h: Annotated[float, Field(ge=0, le=1)] | None = Field(
        description="Of the calls that ended in the last hour; null when none did."
    )
    p95_latency_ms_1h: Count | None = Field(
        description="Of the attempts of the last hour, failed ones included; null without any."
    )
    quota: ProviderHealthQuota | None = Field(description="Null when no window is running.")
    last_error_code: str | None
    last_error_at: AwareDatetime | None
    last_success_at: AwareDatetime | None


class ProviderHealthDetailItem(ProviderHealthItem):
    """The health of a capability with details for operators."""

    quota: ProviderHealthQuotaDetail | None = Field(description="Null when no window is running.")
    consecutive_failures: Count
    open_until: AwareDatetime | None
    cooldown_until: AwareDatetime | None = Field(
        description="Nobody calls before: the provider asked for a pause. Null when there is none."
    )
    updated_at: AwareDatetime


class ProviderHealthSummary(_Agreed):
    """How a tenant's providers stand."""

    tenant_id: UUID
    generated_at: AwareDatetime
    providers: list[ProviderHealthItem]


class ProviderHealthDetail(_Agreed):
    """The summary under ``detail=full``."""

    tenant_id: UUID
    generated_at: AwareDatetime
    is_current: bool = Field(
        description="Whether all that the answering process knows was in the store in time."
    )
    providers: list[ProviderHealthDetailItem]


class ProviderHealthError(_Agreed):
    """Why a request was not answered."""

    code: str
    message: str
    details: dict[str, Any]


class DeadLetterMessage(_Agreed):
    """A call that was given up, as the dead-letter queue carries it."""

    dead_letter_id: str
    schema_version: Literal[1]
    tenant_id: str
    campaign_id: str | None
    task_name: str
    provider_name: str
    capability: str
    operation: str
    idempotency_key: str
    correlation_id: str
    reason_code: str
    error_type: str
    error_message: str
    attempts: Count
    occurred_at: AwareDatetime
    http_status: int | None
    retryable: bool
    traceparent: str | None
    redrive_count: Count
