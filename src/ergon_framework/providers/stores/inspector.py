"""Read-only queries for operators, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, func, or_, select, union

from ergon_framework.core.circuit_breaker import CircuitState
from ergon_framework.core.rollup import DurationHistogram, Rollup
from ergon_framework.ports.providerstore import (
    ALL_TENANTS,
    AttemptRow,
    CallTotals,
    LaneCount,
    LaneKey,
    LaneNow,
    LetterPosition,
    LetterStatus,
    MinuteOfLane,
    ProviderStats,
    QuotaTotals,
)
from ergon_framework.providers.migrations.database import MigrationDatabase
from ergon_framework.providers.models import (
    ProviderDeadLetter,
    ProviderExecutionMetric,
    ProviderHealthState,
    ProviderMetricRollup,
    ProviderQuotaState,
)
from ergon_framework.providers.stores.database import from_db_time

_HOUR, _MINUTES = timedelta(hours=1), timedelta(minutes=5)
_health, _quota, _letter = ProviderHealthState, ProviderQuotaState, ProviderDeadLetter
_rollup, _attempt = ProviderMetricRollup, ProviderExecutionMetric


class SqlProviderInspector:
    """Reads lists and figures for operators, each in its own transaction."""

    def __init__(self, database: MigrationDatabase) -> None:
        self._database = database

    def tenants(self, limit: int) -> list[str]:
        """The tenants that have called a provider or have a quota, in order."""
        known = union(select(_health.tenant_id), select(_quota.tenant_id))
        names = known.order_by("tenant_id").limit(limit)
        with self._database.connect() as connection:
            return list(connection.scalars(names))

    def attempts_named(self, units: Sequence[str], limit: int) -> list[AttemptRow]:
        """The latest attempts under these ids or keys, or keys below them; the oldest first.

        The limit is for each tenant: one with many attempts hides none of another.
        """
        keys = [_attempt.idempotency_key.startswith(f"{unit}/", autoescape=True) for unit in units]
        named = (_attempt.correlation_id, _attempt.task_execution_id, _attempt.idempotency_key)
        newest_first = _attempt.created_at.desc()
        number = func.row_number().over(partition_by=_attempt.tenant_id, order_by=newest_first)
        found = (
            select(
                *(getattr(_attempt, name) for name in AttemptRow._fields), number.label("number")
            )
            .where(or_(*(column.in_(units) for column in named), *keys))
            .subquery()
        )
        wanted = (
            select(*(found.c[name] for name in AttemptRow._fields))
            .where(found.c.number <= limit)
            .order_by(found.c.created_at)
        )
        with self._database.connect() as connection:
            rows = [AttemptRow(*row) for row in connection.execute(wanted)]
        return [row._replace(created_at=from_db_time(row.created_at)) for row in rows]

    def letters_named(self, unit: str, keys: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
        """The ids of the dead letters of each tenant, the newest first.

        Of letters with this id, correlation id or key, or a key below it, and of those with one of
        the keys of their tenant. Only ids are read: a payload may be long.
        """
        wanted = (
            select(_letter.tenant_id, _letter.dead_letter_id)
            .where(
                or_(
                    _letter.dead_letter_id == unit,
                    _letter.correlation_id == unit,
                    _letter.idempotency_key == unit,
                    _letter.idempotency_key.startswith(f"{unit}/", autoescape=True),
                    *(
                        and_(_letter.tenant_id == tenant, _letter.idempotency_key.in_(theirs))
                        for tenant, theirs in keys.items()
                    ),
                )
            )
            .order_by(_letter.occurred_at.desc(), _letter.dead_letter_id.desc())
        )
        found: dict[str, list[str]] = {}
        with self._database.connect() as connection:
            for tenant, letter_id in connection.execute(wanted):
                found.setdefault(tenant, []).append(letter_id)
        return found

    def letter_places(
        self,
        statuses: Sequence[LetterStatus],
        reason: str | None,
        after: LetterPosition | None,
        limit: int,
    ) -> list[LetterPosition]:
        """Found by their indexed columns alone: a payload may be long."""
        wanted = (
            select(_letter.occurred_at, _letter.dead_letter_id)
            .where(_letter.status.in_([status.value for status in statuses]))
            .order_by(_letter.occurred_at.desc(), _letter.dead_letter_id.desc())
            .limit(limit)
        )
        if reason is not None:
            wanted = wanted.where(_letter.reason_code == reason)
        if after is not None:
            same = and_(_letter.occurred_at == after.at, _letter.dead_letter_id < after.id)
            wanted = wanted.where(or_(_letter.occurred_at < after.at, same))
        with self._database.connect() as connection:
            return [LetterPosition(at, letter_id) for at, letter_id in connection.execute(wanted)]

    def minutes(self, since: float, changed_since: float) -> list[MinuteOfLane]:
        """The minutes of all lanes that began after one instant and have changed since another."""
        began, changed = (datetime.fromtimestamp(at, UTC) for at in (since, changed_since))
        sums = (_rollup.succeeded, _rollup.failed, _rollup.dead_lettered, _rollup.histogram)
        lane = (_health.tenant_id, _health.provider_name, _health.capability)
        wanted = (
            select(*lane, _rollup.minute, *sums)
            .where(_health.tenant_id != ALL_TENANTS, _rollup.updated_at >= changed)
            .join(_rollup, _of_lane_since(_rollup, _rollup.minute, began))
        )
        with self._database.connect() as connection:
            return [_minute(row) for row in connection.execute(wanted)]

    def lanes_of(
        self, provider_name: str, capability: str, now: float, limit: int
    ) -> list[LaneNow]:
        """The lanes of a capability. Those whose circuit is not closed come first."""
        moment = datetime.fromtimestamp(now, UTC)
        names = LaneNow._fields[: LaneNow._fields.index("quota_used")]
        quota = (_quota.used_count, _quota.limit_count, _quota.window_start, _quota.window_end)
        wanted = (
            select(*(getattr(_health, name) for name in names), *quota)
            .where(_health.provider_name == provider_name, _health.capability == capability)
            .outerjoin(_quota, _running_window(moment))
            .order_by(_health.breaker_state == CircuitState.CLOSED.value, _health.tenant_id)
            .limit(limit)
        )
        with self._database.connect() as connection:
            return [LaneNow(*map(_plain, row)) for row in connection.execute(wanted)]

    def latest_attempts(
        self, provider_name: str, capability: str, since: float, limit: int
    ) -> list[AttemptRow]:
        """The latest attempts of all tenants at a capability, the newest first."""
        began = datetime.fromtimestamp(since, UTC)
        wanted = (
            select(*(getattr(_attempt, name) for name in AttemptRow._fields))
            .select_from(_health)
            .where(_health.provider_name == provider_name, _health.capability == capability)
            .join(_attempt, _of_lane_since(_attempt, _attempt.created_at, began))
            .order_by(_attempt.created_at.desc(), _attempt.id.desc())
            .limit(limit)
        )
        with self._database.connect() as connection:
            rows = [AttemptRow(*row) for row in connection.execute(wanted)]
        return [row._replace(created_at=from_db_time(row.created_at)) for row in rows]

    def figures(self, now: float, statuses: Sequence[LetterStatus]) -> ProviderStats:
        """How all lanes are, and how many dead letters have one of these statuses."""
        moment = datetime.fromtimestamp(now, UTC)
        named = _letter.status.in_([status.value for status in statuses])
        with self._database.connect() as connection:
            return ProviderStats(
                _circuits(connection, moment),
                _failures(connection, moment - _HOUR),
                _quotas(connection, moment),
                _ended(connection, moment - _HOUR),
                _reasons(connection, moment - _MINUTES),
                connection.scalar(select(func.count()).where(named)) or 0,
            )


def _minute(row: Any) -> MinuteOfLane:
    tenant_id, provider_name, capability, minute, succeeded, failed, dead_lettered, data = row
    rollup = Rollup(succeeded, failed, dead_lettered, DurationHistogram.decode(data))
    return MinuteOfLane(LaneKey(tenant_id, provider_name, capability), from_db_time(minute), rollup)


def _circuits(connection: Connection, now: datetime) -> list[LaneCount]:
    lane = (_health.provider_name, _health.capability)
    # The column changes with the next call; until then it is shown as it is.
    is_over = and_(_health.breaker_state == CircuitState.OPEN.value, _health.open_until <= now)
    state = case((is_over, CircuitState.HALF_OPEN.value), else_=_health.breaker_state).label(
        "state"
    )
    lanes = select(*lane, state).subquery()
    of_each = (lanes.c.provider_name, lanes.c.capability, lanes.c.state)
    wanted = select(*of_each, func.count()).group_by(*of_each)
    return [LaneCount(*row) for row in connection.execute(wanted)]


def _failures(connection: Connection, since: datetime) -> list[LaneCount]:
    lane = (_health.provider_name, _health.capability)
    wanted = (
        select(*lane, _health.last_error_code, func.count())
        .where(_health.last_error_at >= since, _health.last_error_code.is_not(None))
        .group_by(*lane, _health.last_error_code)
        .order_by(func.count().desc(), *lane)
    )
    return [LaneCount(*row) for row in connection.execute(wanted)]


def _quotas(connection: Connection, now: datetime) -> list[QuotaTotals]:
    lane = (_quota.provider_name, _quota.capability)
    wanted = (
        select(*lane, func.sum(_quota.used_count), func.sum(_quota.limit_count))
        .where(_quota.window_start <= now, _quota.window_end > now)
        .group_by(*lane)
        .order_by(*lane)
    )
    return [
        QuotaTotals(row[0], row[1], int(row[2]), int(row[3])) for row in connection.execute(wanted)
    ]


def _ended(connection: Connection, since: datetime) -> list[CallTotals]:
    lane = (_health.provider_name, _health.capability)
    sums = (_rollup.succeeded, _rollup.failed, _rollup.dead_lettered, _rollup.attempts)
    wanted = (
        select(*lane, *(func.coalesce(func.sum(column), 0) for column in sums))
        .where(_health.tenant_id != ALL_TENANTS)
        .outerjoin(_rollup, _of_lane_since(_rollup, _rollup.minute, since))
        .group_by(*lane)
        .order_by(*lane)
    )
    return [CallTotals(row[0], row[1], *map(int, row[2:])) for row in connection.execute(wanted)]


def _reasons(connection: Connection, since: datetime) -> list[LaneCount]:
    lane = (_health.provider_name, _health.capability)
    wanted = (
        select(*lane, _attempt.reason_code, func.count(_attempt.id))
        .where(_health.tenant_id != ALL_TENANTS)
        .outerjoin(_attempt, _of_lane_since(_attempt, _attempt.created_at, since))
        .group_by(*lane, _attempt.reason_code)
        .order_by(*lane, _attempt.reason_code)
    )
    return [LaneCount(*row) for row in connection.execute(wanted) if row[3]]


def _plain(value: Any) -> Any:
    return from_db_time(value) if isinstance(value, datetime) else value


def _running_window(now: datetime) -> ColumnElement[bool]:
    return and_(
        _quota.tenant_id == _health.tenant_id,
        _quota.provider_name == _health.provider_name,
        _quota.capability == _health.capability,
        _quota.window_start <= now,
        _quota.window_end > now,
    )


def _of_lane_since(table: Any, column: Any, moment: datetime) -> ColumnElement[bool]:
    """What came after a moment, found by the key of each lane: the table may go back for long.

    With an outer join no planner begins at the other end.
    """
    return and_(
        table.tenant_id == _health.tenant_id,
        table.provider_name == _health.provider_name,
        table.capability == _health.capability,
        column >= moment,
    )
