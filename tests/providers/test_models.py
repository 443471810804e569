"""The tables of provider calls: the specification's columns, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import Connection, UniqueConstraint, create_engine, insert, make_url, select, text
from sqlalchemy.exc import IntegrityError, StatementError
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateTable

from ergon_framework.core.circuit_breaker import CircuitState
from ergon_framework.ports.providerstore import AttemptOutcome, LetterStatus
from ergon_framework.providers.models import (
    Base,
    ProviderDeadLetter,
    ProviderExecutionMetric,
    ProviderHealthState,
    ProviderIdempotencyRecord,
    ProviderMetricRollup,
    ProviderQuotaState,
    metadata,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LANE = {"tenant_id": "t", "provider_name": "rank", "capability": "snapshot"}
ATTEMPT = {
    **LANE,
    "id": "a",
    "operation": "fetch",
    "correlation_id": "c",
    "attempt_number": 1,
    "max_attempts": 3,
    "duration_ms": 5,
    "outcome": "success",
    "retryable": False,
    "created_at": NOON,
}
HEALTH = {**LANE, "id": "h", "breaker_state": "closed", "updated_at": NOON}
QUOTA = {
    **LANE,
    "id": "q",
    "window_start": NOON,
    "window_end": NOON + timedelta(hours=1),
    "limit_count": 10,
    "used_count": 4,
    "remaining_count": 6,
    "updated_at": NOON,
}

SPECIFIED = {
    "provider_quota_states": "id tenant_id provider_name capability window_start window_end"
    " limit_count used_count remaining_count last_exhausted_at updated_at",
    "provider_health_states": "id tenant_id provider_name capability breaker_state"
    " consecutive_failures success_rate_1h p95_latency_ms_1h last_error_code last_error_at"
    " last_success_at updated_at",
    "provider_execution_metrics": "id tenant_id task_execution_id provider_name capability"
    " operation idempotency_key correlation_id attempt_number max_attempts duration_ms"
    " timeout_budget_ms outcome reason_code retryable http_status created_at",
}
ADDED = {
    "provider_quota_states": [],
    "provider_health_states": ["open_until", "state_version", "cooldown_until", "breaker_detail"],
    "provider_execution_metrics": ["campaign_id"],
}
UNIQUE = {
    "provider_quota_states": ["tenant_id", "provider_name", "capability", "window_start"],
    "provider_health_states": ["tenant_id", "provider_name", "capability"],
}
INDEXED = {
    "provider_quota_states": [["tenant_id", "window_end"]],
    "provider_health_states": [["tenant_id", "breaker_state"]],
    "provider_execution_metrics": [
        ["tenant_id", "provider_name", "capability", "created_at"],
        ["tenant_id", "outcome", "created_at"],
        ["correlation_id"],
        ["tenant_id", "campaign_id", "created_at"],
    ],
}


@pytest.fixture
def connection() -> Iterator[Connection]:
    """An SQLite database in memory that has the tables."""
    engine = create_engine("sqlite://")
    with engine.begin() as made:
        metadata.create_all(made)
        yield made
    engine.dispose()


@pytest.mark.req("PROVIDERS:storage", "PEF:A-13", "PEF:A-25")
@pytest.mark.parametrize("table", SPECIFIED)
def test_the_specified_columns_come_first_and_in_order(table: str) -> None:
    """What we added stands behind them."""
    columns = [column.name for column in metadata.tables[table].columns]
    assert columns == [*SPECIFIED[table].split(), *ADDED[table]]


@pytest.mark.req("PROVIDERS:storage", "PEF:H-1", "PEF:A-28")
@pytest.mark.parametrize("table", SPECIFIED)
def test_the_specified_keys_and_indexes(table: str) -> None:
    """Every one, and of ours only the one for campaigns."""
    found = metadata.tables[table]
    unique = [
        [column.name for column in each.columns]
        for each in found.constraints
        if isinstance(each, UniqueConstraint)
    ]
    assert unique == ([UNIQUE[table]] if table in UNIQUE else [])
    indexed = [[column.name for column in index.columns] for index in found.indexes]
    assert sorted(indexed) == sorted(INDEXED[table])


@pytest.mark.req("PEF:G-3")
def test_every_table_has_a_tenant() -> None:
    """As a column that is never empty."""
    assert len(metadata.tables) == 6
    assert [table.c.tenant_id.nullable for table in metadata.tables.values()] == [False] * 6


@pytest.mark.req("PEF:D-1", "PEF:A-19")
def test_a_dead_letter_has_all_thirteen_fields() -> None:
    """And what makes it findable, explainable and publishable."""
    columns = list(ProviderDeadLetter.__table__.columns.keys())
    thirteen = (
        "tenant_id campaign_id task_name provider_name capability operation idempotency_key"
        " correlation_id reason_code error_type error_message attempts occurred_at"
    )
    assert columns[:14] == ["dead_letter_id", *thirteen.split()]


@pytest.mark.req("PROVIDERS:storage")
def test_the_words_are_those_of_the_port() -> None:
    """A new state, outcome or status needs a migration."""
    for words, table in (
        (CircuitState, ProviderHealthState),
        (AttemptOutcome, ProviderExecutionMetric),
        (LetterStatus, ProviderDeadLetter),
    ):
        allowed = ", ".join(f"'{word.value}'" for word in words)
        checks = [str(getattr(each, "sqltext", "")) for each in table.__table_args__]
        assert [each for each in checks if each.endswith(f"IN ({allowed})")], checks


@pytest.mark.req("PEF:Q-3", "PEF:C-1", "PEF:H-4")
@pytest.mark.parametrize(
    ("model", "row", "wrong"),
    [
        (ProviderQuotaState, QUOTA, {"used_count": -1}),
        (ProviderQuotaState, QUOTA, {"remaining_count": -1}),
        (ProviderQuotaState, QUOTA, {"limit_count": -1}),
        (ProviderQuotaState, QUOTA, {"updated_at": None}),
        (ProviderHealthState, HEALTH, {"breaker_state": "ajar"}),
        (ProviderHealthState, HEALTH, {"success_rate_1h": 1.01}),
        (ProviderHealthState, HEALTH, {"consecutive_failures": -1}),
        (ProviderExecutionMetric, ATTEMPT, {"outcome": "maybe"}),
        (ProviderExecutionMetric, ATTEMPT, {"attempt_number": -1}),
        (ProviderExecutionMetric, ATTEMPT, {"tenant_id": None}),
    ],
)
def test_a_row_that_cannot_be_is_refused(
    connection: Connection, model: type[Base], row: dict[str, Any], wrong: dict[str, Any]
) -> None:
    """By the database itself, whoever writes it; the row without the mistake is taken."""
    with pytest.raises(IntegrityError), connection.begin_nested():
        connection.execute(insert(model).values({**row, **wrong}))
    connection.execute(insert(model).values(row))


@pytest.mark.req("PEF:H-1", "PEF:Q-6", "PEF:A-16", "PEF:A-22")
@pytest.mark.parametrize(
    ("model", "row", "other"),
    [
        (ProviderQuotaState, QUOTA, {"window_start": NOON + timedelta(hours=1)}),
        (ProviderHealthState, HEALTH, {"tenant_id": "u"}),
        (
            ProviderIdempotencyRecord,
            {
                "tenant_id": "t",
                "idempotency_key": "k",
                "fingerprint": "f",
                "status": "in_progress",
                "owner": "o",
                **dict.fromkeys(
                    ("lease_expires_at", "created_at", "updated_at", "expires_at"), NOON
                ),
            },
            {"tenant_id": "u"},
        ),
        (
            ProviderMetricRollup,
            {
                **LANE,
                "minute": NOON,
                **dict.fromkeys(("succeeded", "failed", "dead_lettered", "attempts"), 0),
                "histogram": b"",
                "updated_at": NOON,
            },
            {"minute": NOON + timedelta(minutes=1)},
        ),
    ],
)
def test_there_is_one_row_per_key(
    connection: Connection, model: type[Base], row: dict[str, Any], other: dict[str, Any]
) -> None:
    """A second one is refused; another window, tenant or minute is another key."""
    connection.execute(insert(model).values(row))
    with pytest.raises(IntegrityError), connection.begin_nested():
        connection.execute(insert(model).values({**row, **({"id": "2"} if "id" in row else {})}))
    connection.execute(
        insert(model).values({**row, **({"id": "2"} if "id" in row else {}), **other})
    )


@pytest.mark.req("PROVIDERS:storage")
def test_an_instant_comes_back_as_it_was(connection: Connection) -> None:
    """Aware and in UTC, to the microsecond, whatever zone it was given in."""
    instant = datetime(2026, 3, 1, 14, 0, 0, 7, tzinfo=timezone(timedelta(hours=2)))
    with Session(connection) as session:
        session.add(ProviderHealthState(**{**HEALTH, "last_error_at": instant}))
        session.flush()
        session.expunge_all()
        found = session.scalars(select(ProviderHealthState)).one()
    assert found.last_error_at == instant
    assert found.last_error_at is not None
    assert found.last_error_at.tzinfo is UTC
    assert found.last_success_at is None
    kept = connection.scalar(text("SELECT last_error_at FROM provider_health_states"))
    assert kept == "2026-03-01T12:00:00.000007+00:00"


@pytest.mark.req("PROVIDERS:storage")
def test_instants_sort_as_text(connection: Connection) -> None:
    """SQLite compares them as text: a whole second is written out in full."""
    steps = [NOON, NOON + timedelta(microseconds=1), NOON + timedelta(seconds=1)]
    for number, step in enumerate(reversed(steps)):
        row = {**ATTEMPT, "id": str(number), "created_at": step}
        connection.execute(insert(ProviderExecutionMetric).values(row))
    created = ProviderExecutionMetric.created_at
    assert list(connection.scalars(select(created).order_by(created))) == steps
    assert list(connection.scalars(select(created).where(created > NOON).order_by(created))) == [
        *steps[1:]
    ]


@pytest.mark.req("PROVIDERS:storage", "PROVIDERS:badinput")
def test_an_instant_without_a_zone_is_refused(connection: Connection) -> None:
    """Nobody knows which instant it is."""
    naive = NOON.replace(tzinfo=None)
    with pytest.raises(StatementError, match="an instant needs a time zone"):
        connection.execute(insert(ProviderHealthState).values({**HEALTH, "updated_at": naive}))


@pytest.mark.req("PROVIDERS:storage")
def test_postgresql_keeps_time_zones() -> None:
    """There an instant is a ``timestamptz``."""
    dialect = make_url("postgresql+psycopg://").get_dialect()()
    made = str(CreateTable(metadata.tables["provider_quota_states"]).compile(dialect=dialect))
    assert "window_start TIMESTAMP WITH TIME ZONE NOT NULL" in made


@pytest.mark.slow
@pytest.mark.req("PROVIDERS:package")
@pytest.mark.parametrize(
    "module",
    ["ergon_framework.cli.commands", "ergon_framework.providers.migrations"],
)
def test_only_who_needs_a_database_imports_one(module: str) -> None:
    """Every command would start later otherwise."""
    program = f"import sys, {module}; print({{'sqlalchemy', 'alembic'}} & {{*sys.modules}})"
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
