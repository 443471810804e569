"""What ``/metrics`` tells about providers: all tenants together, so that nobody is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Executable, and_, func, select

from ergon_framework.ports.providerstore import EVERYBODY
from ergon_framework.providers.models import (
    ProviderDeadLetter,
    ProviderExecutionMetric,
    ProviderHealthState,
    ProviderMetricRollup,
    ProviderQuotaState,
)
from ergon_framework.web.exposition import Family, Series
from ergon_framework.web.job_metrics import dead_letters
from ergon_framework.web.provider_letters import WAITING
from ergon_framework.web.provider_source import ProviderSource

_HOUR, _MINUTES = timedelta(hours=1), timedelta(minutes=5)
_STATES = ("closed", "open", "half_open")
_OUTCOMES = ("succeeded", "failed", "dead_lettered")
_health, _quota = ProviderHealthState, ProviderQuotaState
_rollup, _attempt = ProviderMetricRollup, ProviderExecutionMetric


def provider_metrics(source: ProviderSource) -> list[Family]:
    """Read the tables, then tell; nothing about a store that has none."""
    source.check()
    if source.database is None or not source.has_tables():
        return []
    now = datetime.fromtimestamp(source.opened().now(), UTC)
    with source.database.connect() as connection:
        return [
            *_circuits(connection, now),
            *_quotas(connection, now),
            *_calls(connection, now),
            _reasons(connection, now),
            _letters(connection),
        ]


def _circuits(connection: Connection, now: datetime) -> list[Family]:
    lane = (_health.provider_name, _health.capability)
    states = connection.execute(
        select(*lane, _health.breaker_state, func.count()).group_by(*lane, _health.breaker_state)
    ).all()
    found = {(row[0], row[1], row[2]): row[3] for row in states}
    lanes = sorted({(row[0], row[1]) for row in states})
    errors = connection.execute(
        select(*lane, _health.last_error_code, func.count())
        .where(_health.last_error_at >= now - _HOUR, _health.last_error_code.is_not(None))
        .group_by(*lane, _health.last_error_code)
        .order_by(func.count().desc(), *lane)
    ).all()
    return [
        Family(
            "ergon_provider_circuits",
            "gauge",
            "Lanes (a tenant's calls to a capability) by the state of their circuit.",
            [
                ({**_labels(pair), "state": state}, found.get((*pair, state), 0))
                for pair in lanes
                for state in _STATES
            ],
        ),
        Family(
            "ergon_provider_lanes_failed_1h",
            "gauge",
            "Lanes that failed in the last hour, by the reason of their latest failure.",
            [({**_labels(row), "reason": str(row[2])}, row[3]) for row in errors],
        ),
    ]


def _quotas(connection: Connection, now: datetime) -> list[Family]:
    lane = (_quota.provider_name, _quota.capability)
    rows = connection.execute(
        select(*lane, func.sum(_quota.used_count), func.sum(_quota.limit_count))
        .where(_quota.window_start <= now, _quota.window_end > now)
        .group_by(*lane)
        .order_by(*lane)
    ).all()
    used: list[Series] = [(_labels(row), int(row[2])) for row in rows]
    limits: list[Series] = [(_labels(row), int(row[3])) for row in rows]
    text = "of the quota windows that are running, all tenants together."
    return [
        Family("ergon_provider_quota_used", "gauge", f"Units used {text}", used),
        Family("ergon_provider_quota_limit", "gauge", f"Units allowed {text}", limits),
    ]


def _calls(connection: Connection, now: datetime) -> list[Family]:
    rows = connection.execute(_last_hour(now)).all()
    ends: list[Series] = [
        ({**_labels(row), "outcome": outcome}, int(row[2 + n]))
        for row in rows
        for n, outcome in enumerate(_OUTCOMES)
    ]
    attempts: list[Series] = [(_labels(row), int(row[5])) for row in rows]
    return [
        Family(
            "ergon_provider_calls_1h",
            "gauge",
            "Calls that ended in the last hour, by outcome; from one-minute roll-ups.",
            ends,
        ),
        Family(
            "ergon_provider_attempts_1h",
            "gauge",
            "Attempts of the last hour, failed ones included; from one-minute roll-ups.",
            attempts,
        ),
    ]


def _last_hour(now: datetime) -> Executable:
    lane = (_health.provider_name, _health.capability)
    sums = (_rollup.succeeded, _rollup.failed, _rollup.dead_lettered, _rollup.attempts)
    return (
        select(*lane, *(func.coalesce(func.sum(column), 0) for column in sums))
        .where(_health.tenant_id != EVERYBODY)
        .outerjoin(_rollup, _since(_rollup, _rollup.minute, now - _HOUR))
        .group_by(*lane)
        .order_by(*lane)
    )


def _reasons(connection: Connection, now: datetime) -> Family:
    lane = (_health.provider_name, _health.capability)
    rows = connection.execute(
        select(*lane, _attempt.reason_code, func.count(_attempt.id))
        .where(_health.tenant_id != EVERYBODY)
        .outerjoin(_attempt, _since(_attempt, _attempt.created_at, now - _MINUTES))
        .group_by(*lane, _attempt.reason_code)
        .order_by(*lane, _attempt.reason_code)
    ).all()
    return Family(
        "ergon_provider_attempts_5m",
        "gauge",
        "Attempts of the last five minutes, and calls that a gate refused, by reason;"
        " none for those that succeeded.",
        [({**_labels(row), "reason": row[2] or "none"}, row[3]) for row in rows if row[3]],
    )


def _since(table: Any, column: Any, moment: datetime) -> ColumnElement[bool]:
    """What came after a moment, found by the key of each lane: the table may go back for long.

    With an outer join no planner begins at the other end.
    """
    return and_(
        table.tenant_id == _health.tenant_id,
        table.provider_name == _health.provider_name,
        table.capability == _health.capability,
        column >= moment,
    )


def _letters(connection: Connection) -> Family:
    statuses = [status.value for status in WAITING]
    wanted = select(func.count()).where(ProviderDeadLetter.status.in_(statuses))
    return dead_letters("provider", connection.scalar(wanted) or 0)


def _labels(row: Sequence[Any]) -> Mapping[str, str]:
    return {"provider": row[0], "capability": row[1]}
