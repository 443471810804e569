"""Quota, health and metrics of provider calls; keys, dead letters and roll-ups."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    "provider_quota_states",
    "provider_health_states",
    "provider_execution_metrics",
    "provider_idempotency_records",
    "provider_dead_letters",
    "provider_metric_rollups",
)
_TASKS = "task_executions"
_TASK_KEY = "fk_provider_execution_metrics_task_execution_id_task_executions"
_TASK_INDEX = "ix_provider_execution_metrics_task_execution"

# PostgreSQL decides by itself whether the host's table can be referred to, so that a script written
# without a connection does the same. Deleting a row of the host's looks for ours: hence the index.
_REFER_TO_TASKS = f"""
DO $$
BEGIN
    IF to_regclass('{_TASKS}') IS NOT NULL THEN
        ALTER TABLE provider_execution_metrics ADD CONSTRAINT {_TASK_KEY}
            FOREIGN KEY (task_execution_id) REFERENCES {_TASKS} (id) ON DELETE SET NULL;
        CREATE INDEX {_TASK_INDEX} ON provider_execution_metrics (task_execution_id)
            WHERE task_execution_id IS NOT NULL;
    END IF;
EXCEPTION
    WHEN datatype_mismatch OR invalid_foreign_key OR undefined_column OR wrong_object_type
            OR insufficient_privilege THEN
        RAISE NOTICE '{_TASKS} has no id that could be referred to: there is no foreign key';
END
$$
"""
_UNIQUE_ID = """
SELECT count(*) FROM pragma_index_list('task_executions') AS one
 WHERE one."unique" AND NOT one.partial
   AND (SELECT group_concat(name) FROM pragma_index_info(one.name)) = 'id'
"""


def upgrade() -> None:
    """Add six tables."""
    _add_quota_states()
    _add_health_states()
    _add_metrics()
    _add_idempotency_records()
    _add_dead_letters()
    _add_rollups()


def downgrade() -> None:
    """Drop them, with all that is in them."""
    for table in reversed(TABLES):
        op.drop_table(table)


def _instant(name: str, *, nullable: bool = False) -> sa.Column[object]:
    kind = sa.DateTime(timezone=True).with_variant(sa.String(32), "sqlite")
    return sa.Column(name, kind, nullable=nullable)


def _text(name: str, length: int | None, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text() if length is None else sa.String(length), nullable=nullable)


def _lane() -> list[sa.Column[str]]:
    return [_text("tenant_id", 36), _text("provider_name", 80), _text("capability", 80)]


def _count(name: str, *, large: bool = True, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger() if large else sa.Integer(), nullable=nullable)


def _from_zero(name: str, *, large: bool = False) -> sa.Column[int]:
    kind = sa.BigInteger() if large else sa.Integer()
    return sa.Column(name, kind, server_default=sa.text("0"), nullable=False)


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), server_default=sa.false(), nullable=False)


def _not_negative(table: str, *columns: str) -> list[sa.CheckConstraint]:
    return [
        sa.CheckConstraint(f"{column} >= 0", name=op.f(f"ck_{table}_{column}_not_negative"))
        for column in columns
    ]


def _one_of(table: str, column: str, *words: str) -> sa.CheckConstraint:
    listed = ", ".join(f"'{word}'" for word in words)
    return sa.CheckConstraint(f"{column} IN ({listed})", name=op.f(f"ck_{table}_{column}_known"))


def _add_quota_states() -> None:
    table = "provider_quota_states"
    op.create_table(
        table,
        _text("id", 36),
        *_lane(),
        _instant("window_start"),
        _instant("window_end"),
        _count("limit_count"),
        _count("used_count"),
        _count("remaining_count"),
        _instant("last_exhausted_at", nullable=True),
        _instant("updated_at"),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}")),
        sa.UniqueConstraint(
            "tenant_id",
            "provider_name",
            "capability",
            "window_start",
            name="uq_provider_quota_states_lane_window",
        ),
        *_not_negative(table, "limit_count", "used_count", "remaining_count"),
    )
    op.create_index(
        "ix_provider_quota_states_tenant_window_end", table, ["tenant_id", "window_end"]
    )


def _add_health_states() -> None:
    table = "provider_health_states"
    op.create_table(
        table,
        _text("id", 36),
        *_lane(),
        sa.Column("breaker_state", sa.String(16), server_default="closed", nullable=False),
        _from_zero("consecutive_failures"),
        sa.Column("success_rate_1h", sa.Float()),
        _count("p95_latency_ms_1h", nullable=True),
        _text("last_error_code", 40, nullable=True),
        _instant("last_error_at", nullable=True),
        _instant("last_success_at", nullable=True),
        _instant("updated_at"),
        _instant("open_until", nullable=True),
        _from_zero("state_version", large=True),
        _instant("cooldown_until", nullable=True),
        _text("breaker_detail", None, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}")),
        sa.UniqueConstraint(
            "tenant_id", "provider_name", "capability", name="uq_provider_health_states_lane"
        ),
        _one_of(table, "breaker_state", "closed", "open", "half_open"),
        *_not_negative(table, "consecutive_failures", "p95_latency_ms_1h", "state_version"),
        sa.CheckConstraint(
            "success_rate_1h BETWEEN 0 AND 1", name=op.f(f"ck_{table}_success_rate_1h_a_share")
        ),
    )
    op.create_index(
        "ix_provider_health_states_tenant_breaker", table, ["tenant_id", "breaker_state"]
    )


def _add_metrics() -> None:
    table = "provider_execution_metrics"
    refers_inline = _has_tasks_on_sqlite()
    tenant, provider, capability = _lane()
    op.create_table(
        table,
        _text("id", 36),
        tenant,
        _text("task_execution_id", 36, nullable=True),
        provider,
        capability,
        _text("operation", 120),
        _text("idempotency_key", 255, nullable=True),
        _text("correlation_id", 255),
        _count("attempt_number", large=False),
        _count("max_attempts", large=False),
        _count("duration_ms"),
        _count("timeout_budget_ms", nullable=True),
        _text("outcome", 16),
        _text("reason_code", 40, nullable=True),
        sa.Column("retryable", sa.Boolean(), nullable=False),
        _count("http_status", large=False, nullable=True),
        _instant("created_at"),
        _text("campaign_id", 255, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}")),
        _one_of(table, "outcome", "success", "retry", "failed", "dead_letter"),
        *_not_negative(table, "attempt_number", "max_attempts", "duration_ms", "timeout_budget_ms"),
        *([_task_reference()] if refers_inline else []),
    )
    for name, columns in (
        ("lane_created", ["tenant_id", "provider_name", "capability", "created_at"]),
        ("outcome_created", ["tenant_id", "outcome", "created_at"]),
        ("correlation", ["correlation_id"]),
        ("campaign_created", ["tenant_id", "campaign_id", "created_at"]),
    ):
        op.create_index(f"ix_{table}_{name}", table, columns)
    if refers_inline:
        given = sa.text("task_execution_id IS NOT NULL")
        op.create_index(_TASK_INDEX, table, ["task_execution_id"], sqlite_where=given)
    elif op.get_context().dialect.name == "postgresql":
        op.execute(_REFER_TO_TASKS)


def _task_reference() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["task_execution_id"], [f"{_TASKS}.id"], name=op.f(_TASK_KEY), ondelete="SET NULL"
    )


def _has_tasks_on_sqlite() -> bool:
    """Whether the host has tasks with an id that is unique; SQLite takes a reference only now."""
    if op.get_context().dialect.name != "sqlite" or context.is_offline_mode():
        return False
    host = sa.inspect(op.get_bind())
    if _TASKS not in host.get_table_names():
        return False
    if host.get_pk_constraint(_TASKS)["constrained_columns"] == ["id"]:
        return True
    return bool(op.get_bind().scalar(sa.text(_UNIQUE_ID)))


def _add_idempotency_records() -> None:
    table = "provider_idempotency_records"
    op.create_table(
        table,
        _text("tenant_id", 36),
        _text("idempotency_key", 255),
        _text("fingerprint", 255),
        _text("status", 16),
        _text("owner", 255),
        _instant("lease_expires_at"),
        _text("result_json", None, nullable=True),
        _text("reason_code", 40, nullable=True),
        _text("error_message", None, nullable=True),
        _instant("created_at"),
        _instant("updated_at"),
        _instant("expires_at"),
        sa.PrimaryKeyConstraint("tenant_id", "idempotency_key", name=op.f(f"pk_{table}")),
        _one_of(table, "status", "in_progress", "succeeded", "failed"),
    )
    op.create_index(f"ix_{table}_expires", table, ["expires_at"])


def _add_dead_letters() -> None:
    table = "provider_dead_letters"
    tenant, provider, capability = _lane()
    op.create_table(
        table,
        _text("dead_letter_id", 36),
        tenant,
        _text("campaign_id", 255, nullable=True),
        _text("task_name", 255),
        provider,
        capability,
        _text("operation", 120),
        _text("idempotency_key", 255),
        _text("correlation_id", 255),
        _text("reason_code", 40),
        _text("error_type", 255),
        _text("error_message", None),
        _count("attempts", large=False),
        _instant("occurred_at"),
        _count("http_status", large=False, nullable=True),
        _flag("retryable"),
        _text("traceparent", 255, nullable=True),
        _from_zero("redrive_count"),
        _text("payload_json", None, nullable=True),
        _flag("has_secrets"),
        sa.Column("status", sa.String(16), server_default="pending", nullable=False),
        _instant("published_at", nullable=True),
        _instant("redriven_at", nullable=True),
        _from_zero("publish_attempts"),
        _instant("next_publish_at", nullable=True),
        sa.PrimaryKeyConstraint("dead_letter_id", name=op.f(f"pk_{table}")),
        _one_of(table, "status", "pending", "published", "redrive", "redriven", "discarded"),
        *_not_negative(table, "attempts", "redrive_count", "publish_attempts"),
    )
    op.create_index(f"ix_{table}_due", table, ["status", "next_publish_at", "occurred_at"])
    op.create_index(f"ix_{table}_tenant_occurred", table, ["tenant_id", "occurred_at"])
    op.create_index(f"ix_{table}_occurred", table, ["occurred_at"])


def _add_rollups() -> None:
    table = "provider_metric_rollups"
    key = ("tenant_id", "provider_name", "capability", "minute")
    op.create_table(
        table,
        *_lane(),
        _instant("minute"),
        _count("succeeded"),
        _count("failed"),
        _count("dead_lettered"),
        _count("attempts"),
        sa.Column("histogram", sa.LargeBinary(), nullable=False),
        _instant("updated_at"),
        sa.PrimaryKeyConstraint(*key, name=op.f(f"pk_{table}")),
        *_not_negative(table, "succeeded", "failed", "dead_lettered", "attempts"),
    )
    op.create_index(f"ix_{table}_tenant_minute", table, ["tenant_id", "minute", "attempts"])
