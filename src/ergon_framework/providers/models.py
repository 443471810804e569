"""The tables of provider calls, as SQLAlchemy models that a host may read and join with its own.

The first three are the specification's, column by column; what we added stands at the end of each.
The other three are ours: keys of calls that must not be made twice, dead letters on their way to
the queue, one-minute roll-ups. ``migrations`` creates the same tables, and a test compares both.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    DateTime,
    Dialect,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine

ID, NAME, OPERATION, CODE, WORD, KEY = 36, 80, 120, 40, 16, 255
"""How long the texts of the tables may be."""

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""Every constraint has a name, so that a later migration can name it too."""


class UtcDateTime(TypeDecorator[datetime]):
    """An instant: ``timestamptz`` on PostgreSQL, elsewhere ISO text in UTC that sorts by time."""

    impl = String(32)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The type that a database keeps it as."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(DateTime(timezone=True))
        return dialect.type_descriptor(String(32))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """What the driver gets; a datetime without a time zone is refused."""
        if value is None:
            return None
        if value.tzinfo is None:
            message = f"an instant needs a time zone: {value.isoformat()}"
            raise ValueError(message)
        value = value.astimezone(UTC)
        return value if dialect.name == "postgresql" else value.isoformat(timespec="microseconds")

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """An aware datetime in UTC."""
        if value is None:
            return None
        read = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return read.astimezone(UTC)


class Base(DeclarativeBase):
    """What all tables of provider calls share: one metadata, apart from any host's."""

    metadata = MetaData(naming_convention=NAMING)


metadata = Base.metadata


def _not_negative(*columns: str) -> list[CheckConstraint]:
    return [CheckConstraint(f"{column} >= 0", name=f"{column}_not_negative") for column in columns]


def _one_of(column: str, *words: str) -> CheckConstraint:
    listed = ", ".join(f"'{word}'" for word in words)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


class ProviderQuotaState(Base):
    """The budget of a lane in one quota window."""

    __tablename__ = "provider_quota_states"
    __table_args__ = (
        UniqueConstraint(
            "tenant_id",
            "provider_name",
            "capability",
            "window_start",
            name="uq_provider_quota_states_lane_window",
        ),
        Index("ix_provider_quota_states_tenant_window_end", "tenant_id", "window_end"),
        *_not_negative("limit_count", "used_count", "remaining_count"),
    )

    id: Mapped[str] = mapped_column(String(ID), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(ID))
    provider_name: Mapped[str] = mapped_column(String(NAME))
    capability: Mapped[str] = mapped_column(String(NAME))
    window_start: Mapped[datetime] = mapped_column(UtcDateTime)
    window_end: Mapped[datetime] = mapped_column(UtcDateTime)
    limit_count: Mapped[int] = mapped_column(BigInteger)
    used_count: Mapped[int] = mapped_column(BigInteger)
    remaining_count: Mapped[int] = mapped_column(BigInteger)
    last_exhausted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ProviderHealthState(Base):
    """The state of a lane: its circuit, its cooldown, and its last outcome."""

    __tablename__ = "provider_health_states"
    __table_args__ = (
        UniqueConstraint(
            "tenant_id", "provider_name", "capability", name="uq_provider_health_states_lane"
        ),
        Index("ix_provider_health_states_tenant_breaker", "tenant_id", "breaker_state"),
        _one_of("breaker_state", "closed", "open", "half_open"),
        *_not_negative("consecutive_failures", "p95_latency_ms_1h", "state_version"),
        CheckConstraint("success_rate_1h BETWEEN 0 AND 1", name="success_rate_1h_a_share"),
    )

    id: Mapped[str] = mapped_column(String(ID), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(ID))
    provider_name: Mapped[str] = mapped_column(String(NAME))
    capability: Mapped[str] = mapped_column(String(NAME))
    breaker_state: Mapped[str] = mapped_column(String(WORD), server_default="closed")
    consecutive_failures: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    success_rate_1h: Mapped[float | None] = mapped_column(Float)
    p95_latency_ms_1h: Mapped[int | None] = mapped_column(BigInteger)
    last_error_code: Mapped[str | None] = mapped_column(String(CODE))
    last_error_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_success_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # What follows is not in the specification: without it no process could take up a circuit that
    # another one opened.
    open_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    state_version: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    cooldown_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    breaker_detail: Mapped[str | None] = mapped_column(Text)


class ProviderExecutionMetric(Base):
    """One attempt, written once and never changed.

    ``task_execution_id`` refers to the host's ``task_executions`` when the host has that table at
    the time of the migration; the model says nothing about it, since most hosts have none.
    """

    __tablename__ = "provider_execution_metrics"
    __table_args__ = (
        Index(
            "ix_provider_execution_metrics_lane_created",
            "tenant_id",
            "provider_name",
            "capability",
            "created_at",
        ),
        Index(
            "ix_provider_execution_metrics_outcome_created", "tenant_id", "outcome", "created_at"
        ),
        Index("ix_provider_execution_metrics_correlation", "correlation_id"),
        Index(
            "ix_provider_execution_metrics_campaign_created",
            "tenant_id",
            "campaign_id",
            "created_at",
        ),
        _one_of("outcome", "success", "retry", "failed", "dead_letter"),
        *_not_negative("attempt_number", "max_attempts", "duration_ms", "timeout_budget_ms"),
    )

    id: Mapped[str] = mapped_column(String(ID), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(ID))
    task_execution_id: Mapped[str | None] = mapped_column(String(ID))
    provider_name: Mapped[str] = mapped_column(String(NAME))
    capability: Mapped[str] = mapped_column(String(NAME))
    operation: Mapped[str] = mapped_column(String(OPERATION))
    idempotency_key: Mapped[str | None] = mapped_column(String(KEY))
    correlation_id: Mapped[str] = mapped_column(String(KEY))
    attempt_number: Mapped[int] = mapped_column(Integer)
    max_attempts: Mapped[int] = mapped_column(Integer)
    duration_ms: Mapped[int] = mapped_column(BigInteger)
    timeout_budget_ms: Mapped[int | None] = mapped_column(BigInteger)
    outcome: Mapped[str] = mapped_column(String(WORD))
    reason_code: Mapped[str | None] = mapped_column(String(CODE))
    retryable: Mapped[bool] = mapped_column(Boolean)
    http_status: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # Not in the specification, which names it everywhere else.
    campaign_id: Mapped[str | None] = mapped_column(String(KEY))


class ProviderIdempotencyRecord(Base):
    """A key under which a call is made, or was made, once."""

    __tablename__ = "provider_idempotency_records"
    __table_args__ = (
        Index("ix_provider_idempotency_records_expires", "expires_at"),
        _one_of("status", "in_progress", "succeeded", "failed"),
    )

    tenant_id: Mapped[str] = mapped_column(String(ID), primary_key=True)
    idempotency_key: Mapped[str] = mapped_column(String(KEY), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(KEY))
    status: Mapped[str] = mapped_column(String(WORD))
    owner: Mapped[str] = mapped_column(String(KEY))
    lease_expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    result_json: Mapped[str | None] = mapped_column(Text)
    reason_code: Mapped[str | None] = mapped_column(String(CODE))
    error_message: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ProviderDeadLetter(Base):
    """A call that was given up, and how far it got on its way to the dead-letter queue."""

    __tablename__ = "provider_dead_letters"
    __table_args__ = (
        Index("ix_provider_dead_letters_due", "status", "next_publish_at", "occurred_at"),
        Index("ix_provider_dead_letters_tenant_occurred", "tenant_id", "occurred_at"),
        Index("ix_provider_dead_letters_occurred", "occurred_at"),
        _one_of("status", "pending", "published", "redrive", "redriven", "discarded"),
        *_not_negative("attempts", "redrive_count", "publish_attempts"),
    )

    dead_letter_id: Mapped[str] = mapped_column(String(ID), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(ID))
    campaign_id: Mapped[str | None] = mapped_column(String(KEY))
    task_name: Mapped[str] = mapped_column(String(KEY))
    provider_name: Mapped[str] = mapped_column(String(NAME))
    capability: Mapped[str] = mapped_column(String(NAME))
    operation: Mapped[str] = mapped_column(String(OPERATION))
    idempotency_key: Mapped[str] = mapped_column(String(KEY))
    correlation_id: Mapped[str] = mapped_column(String(KEY))
    reason_code: Mapped[str] = mapped_column(String(CODE))
    error_type: Mapped[str] = mapped_column(String(KEY))
    error_message: Mapped[str] = mapped_column(Text)
    attempts: Mapped[int] = mapped_column(Integer)
    occurred_at: Mapped[datetime] = mapped_column(UtcDateTime)
    http_status: Mapped[int | None] = mapped_column(Integer)
    retryable: Mapped[bool] = mapped_column(Boolean, server_default=false())
    traceparent: Mapped[str | None] = mapped_column(String(KEY))
    redrive_count: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    payload_json: Mapped[str | None] = mapped_column(Text)
    has_secrets: Mapped[bool] = mapped_column(Boolean, server_default=false())
    status: Mapped[str] = mapped_column(String(WORD), server_default="pending")
    published_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    redriven_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    publish_attempts: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    next_publish_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class ProviderMetricRollup(Base):
    """The roll-up of one minute of a lane. Those of minutes and processes add up."""

    __tablename__ = "provider_metric_rollups"
    __table_args__ = (
        Index("ix_provider_metric_rollups_tenant_minute", "tenant_id", "minute", "attempts"),
        *_not_negative("succeeded", "failed", "dead_lettered", "attempts"),
    )

    tenant_id: Mapped[str] = mapped_column(String(ID), primary_key=True)
    provider_name: Mapped[str] = mapped_column(String(NAME), primary_key=True)
    capability: Mapped[str] = mapped_column(String(NAME), primary_key=True)
    minute: Mapped[datetime] = mapped_column(UtcDateTime, primary_key=True)
    succeeded: Mapped[int] = mapped_column(BigInteger)
    failed: Mapped[int] = mapped_column(BigInteger)
    dead_lettered: Mapped[int] = mapped_column(BigInteger)
    attempts: Mapped[int] = mapped_column(BigInteger)
    histogram: Mapped[bytes] = mapped_column(LargeBinary)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
