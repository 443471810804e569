"""Attempts, their roll-ups by minute and the health of lanes: written together, read in parts.

Success rates and durations of the last hour come from roll-ups, whatever the number of attempts.
For each tenant that is asked about, the minutes of its lanes are kept in memory as last read. The
next read fetches the minutes since the one before, to which other processes are still adding, and
of the older minutes only their sums. If those differ from what is kept, a process that was cut off
wrote late, and everything is read again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ergon_framework.core.circuit_breaker import Breaker
from ergon_framework.core.quota import QuotaUsage, QuotaWindow
from ergon_framework.core.rollup import DurationHistogram, Rollup, SlidingHour, merged
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import AttemptRow, LaneHealth, LaneKey, RecordBatch
from ergon_framework.providers.stores.database import (
    PACKAGE,
    ProviderDatabase,
    Row,
    SqlCursor,
    TableSpec,
    TaskMissingError,
    from_db_time,
    from_optional_db_time,
    placeholders,
    prune_rows,
    truncated,
)
from ergon_framework.providers.stores.roll_ups import (
    MINUTE,
    LaneChanges,
    first_minute,
    minute_of,
    roll_up,
)
from ergon_framework.providers.stores.sql.gates import breaker_of, new_id
from ergon_framework.providers.stores.sql.keys_and_dead_letters import add_letters
from ergon_framework.storage.conflicts import ConflictError, retry_conflicts
from ergon_framework.storage.sql_files import load

_SQL = load(PACKAGE, "attempts.sql")
_MAX_TENANTS = 64  # whose minutes are kept in memory
MAX_REMEMBERED_LANES = 10_000
"""Lanes of which a process remembers when their columns were last written."""
SNAPSHOT_INTERVAL = 15.0
"""Seconds between two writes of the rates into a lane's row, unless they are settled before."""

Lane = tuple[str, str]
Rate = tuple[float | None, int | None]


class _TenantHour:
    """The last hour of one tenant's lanes, as last read."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.hours: dict[Lane, SlidingHour] = {}
        self.rows: dict[Row, Row] = {}
        """The latest minutes as they were read, so that one that is the same costs nothing."""
        self.read_until = 0
        """The minute of the last look."""
        self.older = (0, 0)
        """The minutes that were not read again: the first, and the first that was."""
        self.in_older = (0, 0)
        """How many minutes of lanes they are, and the attempts in them."""


class HourlyRates:
    """The last hour of every lane. Any thread may ask."""

    def __init__(self, database: ProviderDatabase, max_lanes: int = MAX_REMEMBERED_LANES) -> None:
        self._database = database
        self._max_lanes = max_lanes
        self._lock = threading.Lock()
        self._views: OrderedDict[str, _TenantHour] = OrderedDict()
        self._written_at: dict[LaneKey, float] = {}
        self._stale: set[LaneKey] = set()
        renew_after_fork(self)

    def of_tenant(self, cursor: SqlCursor, tenant_id: str, now: float) -> dict[Lane, Rate]:
        """Each lane's share of successes, and the milliseconds that 95 of 100 did not exceed."""
        view = self._view(tenant_id)
        with view.lock:
            self._refresh(cursor, view, tenant_id, now)
            return {lane: (hour.success_rate, hour.p95) for lane, hour in view.hours.items()}

    def of_lanes(self, cursor: SqlCursor, keys: Sequence[LaneKey], now: float) -> list[Rollup]:
        """The last hour of some lanes, as the transaction sees it."""
        since = self._database.to_db_time(first_minute(now))
        found = cursor.fetch_each(
            _SQL["lane_minutes"], [{**key._asdict(), "since": since} for key in keys]
        )
        return [merged(_rollup_of(*row) for row in rows) for rows in found]

    def is_snapshot_due(self, key: LaneKey, now: float) -> bool:
        """Whether a lane's columns are to be written again."""
        written_at = self._written_at.get(key)
        # Also when the clock was set back: the columns would stay old until it has caught up.
        return written_at is None or not written_at <= now < written_at + SNAPSHOT_INTERVAL

    def note_snapshots(self, notes: Mapping[LaneKey, LaneChanges], now: float) -> None:
        """A batch was committed, and with it the columns of those of its lanes that were due."""
        due = {key for key in notes if self.is_snapshot_due(key, now)}
        with self._lock:
            if len(self._written_at) + len(due) > self._max_lanes:
                # Forgotten all at once: at worst some columns are written earlier than they had to
                # be.
                self._written_at.clear()
            self._written_at.update(dict.fromkeys(due, now))
            self._stale |= notes.keys() - due
            self._stale -= due

    @property
    def are_too_many_stale(self) -> bool:
        """Whether to write them now: memory is for lanes that are in use."""
        return len(self._stale) > self._max_lanes

    def take_stale(self, most: int) -> list[LaneKey]:
        """Take some lanes whose columns are out of date; the caller has to write them."""
        with self._lock:
            taken = sorted(self._stale)[:most]
            self._stale.difference_update(taken)
            return taken

    def put_back(self, keys: Sequence[LaneKey]) -> None:
        """Mark lanes as out of date again, whose columns could not be written."""
        with self._lock:
            self._stale.update(keys)

    def renew(self) -> None:
        """Called in a forked child: the threads that held locks do not exist there."""
        self._lock = threading.Lock()
        self._views = OrderedDict()
        self._stale = set()  # the parent writes them

    def _view(self, tenant_id: str) -> _TenantHour:
        with self._lock:
            view = self._views.setdefault(tenant_id, _TenantHour())
            self._views.move_to_end(tenant_id)
            if len(self._views) > _MAX_TENANTS:
                self._views.popitem(last=False)
            return view

    def _refresh(self, cursor: SqlCursor, view: _TenantHour, tenant_id: str, now: float) -> None:
        oldest, current = first_minute(now), minute_of(now)
        # One minute more: others add to a minute for a moment after it has ended.
        since = max(oldest, min(view.read_until, current) - MINUTE)
        count = self._read(cursor, view, tenant_id, since)
        if (oldest, since) != view.older:
            _move_on(view, oldest, since)
        is_same = count == len(view.rows)  # or else some were deleted
        if not is_same or self._sums(cursor, tenant_id, oldest, since) != view.in_older:
            view.hours.clear()
            view.rows.clear()
            self._read(cursor, view, tenant_id, oldest)
            _move_on(view, oldest, since)
        view.read_until = current

    def _read(self, cursor: SqlCursor, view: _TenantHour, tenant_id: str, since: int) -> int:
        values = {"tenant_id": tenant_id, "since": self._database.to_db_time(since)}
        found = cursor.fetch(_SQL["recent"], values)
        for row in found:
            place = row[:3]
            if view.rows.get(place) != row:
                view.rows[place] = row
                provider_name, capability, minute, *rest = row
                hour = view.hours.setdefault((provider_name, capability), SlidingHour())
                hour.put(round(from_db_time(minute)), _rollup_of(*rest))
        return len(found)

    def _sums(self, cursor: SqlCursor, tenant_id: str, oldest: int, since: int) -> Row:
        values = {
            "tenant_id": tenant_id,
            "since": self._database.to_db_time(oldest),
            "until": self._database.to_db_time(since),
        }
        return cursor.fetch(_SQL["sums"], values)[0]


def _move_on(view: _TenantHour, oldest: int, since: int) -> None:
    """Forget what is older than an hour, and add up what is not read again."""
    minutes = attempts = 0
    for lane, hour in list(view.hours.items()):
        hour.forget(oldest)
        if not len(hour):
            del view.hours[lane]
        later, made = hour.since(since)
        minutes += len(hour) - later
        attempts += hour.attempts - made
    view.rows = {place: row for place, row in view.rows.items() if from_db_time(place[2]) >= since}
    view.older, view.in_older = (oldest, since), (minutes, attempts)


def _rollup_of(succeeded: int, failed: int, dead_lettered: int, histogram: Any) -> Rollup:
    return Rollup(succeeded, failed, dead_lettered, DurationHistogram.decode(histogram))


_ROLLUP, _ADD_ROLLUP, _SET_ROLLUP = _SQL["rollup"], _SQL["add_rollup"], _SQL["set_rollup"]
_NOTE, _RATES = _SQL["note"], _SQL["rates"]
_MAX_CONFLICTS = 3  # tries to find a minute or to insert it
_LANE_ROWS, _RUNNING = _SQL["lanes"], load(PACKAGE, "quota.sql")["running"]
_LANES_PER_TRANSACTION = 500  # whose rates one transaction brings up to date
_MAX_INTEGER = (1 << 31) - 1
_LONGEST_WINDOW = 32 * 86_400.0
"""Seconds: a window that begins later than this was opened by a clock that ran ahead."""
_MAX_SHORT_TEXTS = 120  # texts that together are no longer fit each for itself
_ATTEMPTS = TableSpec(
    "provider_execution_metrics",
    (
        ("id", "text"),
        ("tenant_id", "text"),
        ("task_execution_id", "text"),
        ("provider_name", "text"),
        ("capability", "text"),
        ("operation", "text"),
        ("idempotency_key", "text"),
        ("correlation_id", "text"),
        ("attempt_number", "int"),
        ("max_attempts", "int"),
        ("duration_ms", "bigint"),
        ("timeout_budget_ms", "bigint"),
        ("outcome", "text"),
        ("reason_code", "text"),
        ("retryable", "boolean"),
        ("http_status", "int"),
        ("created_at", "timestamptz"),
        ("campaign_id", "text"),
    ),
)


class AttemptTables:
    """Attempts, their roll-ups by minute, and the health of lanes."""

    def __init__(
        self, database: ProviderDatabase, *, max_remembered_lanes: int = MAX_REMEMBERED_LANES
    ) -> None:
        self._database = database
        self._rates = HourlyRates(database, max_remembered_lanes)

    def record(self, batch: RecordBatch) -> None:
        """Write attempts, their roll-ups, health and dead letters in one transaction."""
        # Of rows with the same id the first one stays, hence from the end.
        attempts = {row.id: row for row in reversed(batch.attempts)}
        if not attempts and not batch.letters:
            return
        now = self._database.now()
        rows = [_truncated_row(row) for row in reversed(attempts.values())]

        def work(cursor: SqlCursor) -> dict[LaneKey, LaneChanges]:
            # In one transaction with the attempts: a letter without its last row would name a call
            # that is not on record.
            add_letters(cursor, self._database, batch.letters)
            return self._add(cursor, rows, now) if rows else {}

        try:
            notes = self._database.write("record", work)
        except TaskMissingError:
            # The host's row is not committed yet, or is gone: the attempt was made all the same.
            rows = self._without_missing_tasks(rows)
            notes = self._database.write("record", work)
        self._rates.note_snapshots(notes, now)
        if self._rates.are_too_many_stale:
            self.settle()

    def settle(self) -> None:
        """Bring the rates in the rows of lanes up to date with what this process recorded."""
        now = self._database.now()
        while keys := self._rates.take_stale(_LANES_PER_TRANSACTION):
            try:
                self._database.write(
                    "settle", partial(self._set_rates, keys=keys, now=now), is_synced=False
                )
            except BaseException:  # an interrupt too: the lanes would keep old rates for ever
                self._rates.put_back(keys)
                raise

    def attempts_of(self, correlation_id: str) -> list[AttemptRow]:
        """The attempts under one correlation id, oldest first."""
        values = {"correlation_id": correlation_id}
        found = self._database.read(lambda cursor: cursor.fetch(_SQL["attempts_of"], values))
        return [_attempt_of(row) for row in found]

    def health(self, tenant_id: str) -> list[LaneHealth]:
        """Every lane of a tenant, in order; rates over the last hour as of now."""
        now = self._database.now()
        to_db_time = self._database.to_db_time
        values = {
            "tenant_id": tenant_id,
            "now": to_db_time(now),
            "latest": to_db_time(now + _LONGEST_WINDOW),
        }

        def work(cursor: SqlCursor) -> list[LaneHealth]:
            lanes = {(row[0], row[1]): row[2:] for row in cursor.fetch(_LANE_ROWS, values)}
            budgets = _budgets(cursor.fetch(_RUNNING, values))
            rates = self._rates.of_tenant(cursor, tenant_id, now) if lanes else {}
            return [
                _health(
                    LaneKey(tenant_id, *lane),
                    lanes.get(lane),
                    rates.get(lane, (None, None)),
                    budgets.get(lane),
                )
                for lane in sorted({*lanes, *budgets})
            ]

        return self._database.read(work)

    def prune(self, before: float, limit: int) -> int:
        """Delete attempts and roll-ups older than ``before``."""
        count = prune_rows(self._database, _SQL["prune_attempts"], before, limit)
        return count + prune_rows(self._database, _SQL["prune_rollups"], before, limit - count)

    def _add(
        self, cursor: SqlCursor, rows: Sequence[AttemptRow], now: float
    ) -> dict[LaneKey, LaneChanges]:
        to_db_time = self._database.to_db_time
        fresh = cursor.insert_missing(
            _ATTEMPTS, [_row_of(row, to_db_time(row.created_at)) for row in rows]
        )
        # Only rows that were new: a batch that is written twice must not count twice.
        notes = roll_up(row for row in rows if row.id in fresh)
        # Every process locks lanes in the same order, or two of them could deadlock.
        keys, at = sorted(notes), to_db_time(now)
        add_minutes(
            cursor,
            [
                ({**key._asdict(), "minute": to_db_time(minute), "now": at}, rollup)
                for key in keys
                for minute, rollup in sorted(notes[key].minutes.items())
            ],
        )
        cursor.executemany(_NOTE, [self._note(key, notes[key], at) for key in keys])
        # Not at each batch: a busy lane would have its row rewritten many times a second.
        due = [key for key in keys if self._rates.is_snapshot_due(key, now)]
        if due:
            self._set_rates(cursor, due, now)
        return notes

    def _set_rates(self, cursor: SqlCursor, keys: Sequence[LaneKey], now: float) -> None:
        hours = self._rates.of_lanes(cursor, keys, now)
        cursor.executemany(
            _RATES, [_rates(key, hour) for key, hour in zip(keys, hours, strict=True)]
        )

    def _note(self, key: LaneKey, note: LaneChanges, at: Any) -> dict[str, Any]:
        to_db_time = self._database.to_db_time
        return {
            **key._asdict(),
            "id": new_id(),
            "last_success_at": to_db_time(note.last_success_at),
            "last_error_at": to_db_time(note.last_error_at),
            "last_error_code": note.last_error_code,
            "now": at,
        }

    def _without_missing_tasks(self, rows: Sequence[AttemptRow]) -> list[AttemptRow]:
        marks, values = placeholders("i", {row.task_execution_id for row in rows})
        sql = _SQL["known_tasks"].format(ids=marks)
        known = {
            found for (found,) in self._database.read(lambda cursor: cursor.fetch(sql, values))
        }
        return [
            row if row.task_execution_id in known else row._replace(task_execution_id=None)
            for row in rows
        ]


def add_minutes(cursor: SqlCursor, minutes: list[tuple[dict[str, Any], Rollup]]) -> None:
    """Add a batch to the roll-ups of its minutes, and lock each row until the commit."""
    found = cursor.fetch_each(_ROLLUP, [values for values, _ in minutes])
    fresh = [each for each, rows in zip(minutes, found, strict=True) if not rows]
    known = [(*each, rows[0]) for each, rows in zip(minutes, found, strict=True) if rows]
    added = cursor.fetch_each(
        _ADD_ROLLUP, [{**values, **_columns(rollup)} for values, rollup in fresh]
    )
    for (values, rollup), rows in zip(fresh, added, strict=True):
        if not rows and (row := _minute_of_another(cursor, values, rollup)):
            known.append((values, rollup, row))
    cursor.executemany(
        _SET_ROLLUP, [{**values, **_columns(_sum(more, row))} for values, more, row in known]
    )


def _minute_of_another(cursor: SqlCursor, values: dict[str, Any], rollup: Rollup) -> Row | None:
    """The minute as another process inserted it first; None when ours is in after all.

    The minute may be there when it is to be inserted and gone when it is to be read: pruned in
    between.
    """

    def attempt() -> Row | None:
        if rows := cursor.fetch(_ROLLUP, values):
            return rows[0]
        if cursor.fetch(_ADD_ROLLUP, {**values, **_columns(rollup)}):
            return None
        raise ConflictError

    return retry_conflicts(
        attempt,
        max_attempts=_MAX_CONFLICTS,
        give_up=lambda: StoreUnavailableError(
            "a minute's roll-up comes and goes under our hands",
            remedy="prune only what is older than the calls that are being recorded",
        ),
    )


def _sum(rollup: Rollup, row: Row) -> Rollup:
    succeeded, failed, dead_lettered, histogram = row
    whole = Rollup(succeeded, failed, dead_lettered, DurationHistogram.decode(histogram))
    whole.merge(rollup)
    return whole


def _rates(key: LaneKey, hour: Rollup) -> dict[str, Any]:
    return {**key._asdict(), "success_rate": hour.success_rate, "p95": hour.p95}


def _columns(rollup: Rollup) -> dict[str, Any]:
    return {
        "succeeded": rollup.succeeded,
        "failed": rollup.failed,
        "dead_lettered": rollup.dead_lettered,
        "attempts": rollup.attempts,
        "histogram": rollup.durations.encode(),
    }


def _truncated_row(row: AttemptRow) -> AttemptRow:
    """A row that no database refuses for the length of a text: one must not hold up the others."""
    key, campaign_id = row.idempotency_key, row.campaign_id
    texts = f"{row.operation}{row.correlation_id}{key}{campaign_id}"
    if (
        len(texts) <= _MAX_SHORT_TEXTS
        and texts.isascii()
        and "\0" not in texts
        and 0 <= row.duration_ms <= _MAX_INTEGER
    ):
        return row
    return row._replace(
        operation=truncated(row.operation, 120),
        idempotency_key=None if key is None else truncated(key, 255),
        correlation_id=truncated(row.correlation_id, 255),
        duration_ms=min(max(row.duration_ms, 0), _MAX_INTEGER),
        campaign_id=None if campaign_id is None else truncated(campaign_id, 255),
    )


def _row_of(row: AttemptRow, created_at: Any) -> Row:
    return (*row[:16], created_at, row.campaign_id)


def _attempt_of(row: Row) -> AttemptRow:
    retryable, http_status, created_at, campaign_id = row[14:]
    rest = (bool(retryable), http_status, from_db_time(created_at), campaign_id)
    return AttemptRow._make((*row[:14], *rest))


def _budgets(rows: list[Row]) -> dict[Lane, tuple[QuotaUsage, float]]:
    """The window of each lane, and when it was last counted."""
    found: dict[Lane, tuple[QuotaUsage, float]] = {}
    for provider_name, capability, start, end, limit, used, updated_at in rows:
        window = QuotaWindow(from_db_time(start), from_db_time(end))
        found[provider_name, capability] = QuotaUsage(window, limit, used), from_db_time(updated_at)
    return found


def _health(
    key: LaneKey, row: Row | None, rate: Rate, budget: tuple[QuotaUsage, float] | None
) -> LaneHealth:
    account, counted_at = budget or (None, 0.0)
    if row is None:
        return _quota_only(key, account, counted_at)
    state, failures, open_until, cooldown_until, code, error_at, success_at, at, detail = row
    breaker = breaker_of(key, state, failures, open_until, detail)
    return LaneHealth(
        key=key,
        breaker_state=breaker.state.value,
        consecutive_failures=breaker.failures,
        open_until=breaker.open_until,
        cooldown_until=from_optional_db_time(cooldown_until),
        success_rate_1h=rate[0],
        p95_latency_ms_1h=rate[1],
        last_error_code=code,
        last_error_at=from_optional_db_time(error_at),
        last_success_at=from_optional_db_time(success_at),
        updated_at=from_db_time(at),
        account=account,
    )


def _quota_only(key: LaneKey, account: QuotaUsage | None, counted_at: float) -> LaneHealth:
    """A lane that has a budget and nothing else yet."""
    return LaneHealth(
        key=key,
        breaker_state=Breaker().state.value,
        consecutive_failures=0,
        open_until=None,
        cooldown_until=None,
        success_rate_1h=None,
        p95_latency_ms_1h=None,
        last_error_code=None,
        last_error_at=None,
        last_success_at=None,
        updated_at=counted_at,
        account=account,
    )
