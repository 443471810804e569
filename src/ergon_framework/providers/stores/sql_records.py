"""Attempts, their roll-ups and the health of lanes: what is written together, and read in parts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ergon_framework.core.rollup import Durations, Rollup
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import AttemptRow, Batch, LaneKey
from ergon_framework.providers.stores.folding import LaneNote, fold
from ergon_framework.providers.stores.ground import (
    PACKAGE,
    Ground,
    Hand,
    Into,
    Row,
    TaskMissingError,
    fitted,
    listed,
    sure_instant,
)
from ergon_framework.providers.stores.sql_gates import Grounded, new_id
from ergon_framework.providers.stores.sql_letters import add_letters
from ergon_framework.providers.stores.sql_rates import Rates
from ergon_framework.storage.sql_files import load

_SQL = load(PACKAGE, "records.sql")
_ROLLUP, _ADD_ROLLUP, _SET_ROLLUP = _SQL["rollup"], _SQL["add_rollup"], _SQL["set_rollup"]
_NOTE, _RATES = _SQL["note"], _SQL["rates"]
_PRUNE_KEYS = load(PACKAGE, "keys.sql")["prune"]
_PRUNES = (
    _SQL["prune_attempts"],
    _SQL["prune_rollups"],
    _PRUNE_KEYS,
    load(PACKAGE, "letters.sql")["prune"],
    load(PACKAGE, "quota.sql")["prune"],
)
_TURNS = 3  # a minute is looked for, and put in, before somebody else must be told to stop
_AT_ONCE = 1000  # rows that one transaction deletes, so that nobody waits long for it
_LANES = 500  # whose rates one transaction brings up to date
_LARGEST = (1 << 31) - 1
_SHORT = 120  # texts that together are no longer fit each for itself
_ATTEMPTS = Into(
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


class Records(Grounded):
    """What was attempted, and how lanes are."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self._rates = Rates(ground)

    def record(self, batch: Batch) -> None:
        """Write attempts, their roll-ups, health and dead letters in one transaction."""
        attempts = {row.id: row for row in reversed(batch.attempts)}  # so that the first one stays
        if not attempts and not batch.letters:
            return
        now = self._ground.now()
        rows = [_fitting(row) for row in reversed(attempts.values())]

        def work(hand: Hand) -> dict[LaneKey, LaneNote]:
            add_letters(hand, self._ground, batch.letters)
            return self._add(hand, rows, now) if rows else {}

        try:
            notes = self._ground.write("record", work)
        except TaskMissingError:
            # The host's row is not committed yet, or is gone: the attempt was made all the same.
            rows = self._without_missing_tasks(rows)
            notes = self._ground.write("record", work)
        self._rates.heard(notes, now)
        if self._rates.are_too_many_stale:
            self.settle()

    def settle(self) -> None:
        """Bring the rates in the rows of lanes up to date with what this process recorded."""
        now = self._ground.now()
        while keys := self._rates.take_stale(_LANES):
            try:
                self._ground.write(
                    "settle", partial(self._set_rates, keys=keys, now=now), is_synced=False
                )
            except BaseException:
                self._rates.put_back(keys)
                raise

    def attempts_of(self, correlation_id: str) -> list[AttemptRow]:
        """The attempts under one correlation id, oldest first."""
        values = {"correlation_id": correlation_id}
        found = self._ground.read(lambda hand: hand.rows(_SQL["attempts_of"], values))
        return [_attempt_of(row) for row in found]

    def prune(self, before: float, limit: int = 10_000, *, keys_before: float | None = None) -> int:
        """Delete attempts, roll-ups, keys and settled letters older than ``before``; how many.

        Windows that ended before it go too, but never the latest of a lane.
        """
        count = 0
        for sql in _PRUNES:
            is_keys = sql is _PRUNE_KEYS and keys_before is not None
            end = self._ground.stamp(keys_before if is_keys else before)
            while count < limit:
                most = min(_AT_ONCE, limit - count)
                values = {"before": end, "limit": most}
                deleted = self._prune(sql, values)
                count += deleted
                if deleted < most:
                    break
        return count

    def _prune(self, sql: str, values: dict[str, Any]) -> int:
        return self._ground.write("prune", lambda hand: hand.run(sql, values), is_synced=False)

    def _add(self, hand: Hand, rows: Sequence[AttemptRow], now: float) -> dict[LaneKey, LaneNote]:
        stamp = self._ground.stamp
        fresh = hand.insert_new(_ATTEMPTS, [_row_of(row, stamp(row.created_at)) for row in rows])
        notes = fold(row for row in rows if row.id in fresh)
        # In one order for everybody: two who write the same lanes must not wait for each other.
        keys, at = sorted(notes), stamp(now)
        _add_minutes(
            hand,
            [
                ({**key._asdict(), "minute": stamp(minute), "now": at}, rollup)
                for key in keys
                for minute, rollup in sorted(notes[key].minutes.items())
            ],
        )
        hand.many(_NOTE, [self._note(key, notes[key], at) for key in keys])
        due = [key for key in keys if self._rates.is_snapshot_due(key, now)]
        if due:
            self._set_rates(hand, due, now)
        return notes

    def _set_rates(self, hand: Hand, keys: Sequence[LaneKey], now: float) -> None:
        hours = self._rates.of_lanes(hand, keys, now)
        hand.many(_RATES, [_rates(key, hour) for key, hour in zip(keys, hours, strict=True)])

    def _note(self, key: LaneKey, note: LaneNote, at: Any) -> dict[str, Any]:
        stamp = self._ground.stamp
        return {
            **key._asdict(),
            "id": new_id(),
            "last_success_at": stamp(note.last_success_at),
            "last_error_at": stamp(note.last_error_at),
            "last_error_code": note.last_error_code,
            "now": at,
        }

    def _without_missing_tasks(self, rows: Sequence[AttemptRow]) -> list[AttemptRow]:
        marks, values = listed("i", {row.task_execution_id for row in rows})
        sql = _SQL["known_tasks"].format(ids=marks)
        known = {found for (found,) in self._ground.read(lambda hand: hand.rows(sql, values))}
        return [
            row if row.task_execution_id in known else row._replace(task_execution_id=None)
            for row in rows
        ]


def _add_minutes(hand: Hand, minutes: list[tuple[dict[str, Any], Rollup]]) -> None:
    """Add to each minute what a batch says of it; who adds to one keeps others from it."""
    found = hand.each(_ROLLUP, [values for values, _ in minutes])
    fresh = [each for each, rows in zip(minutes, found, strict=True) if not rows]
    known = [(*each, rows[0]) for each, rows in zip(minutes, found, strict=True) if rows]
    added = hand.each(_ADD_ROLLUP, [{**values, **_columns(rollup)} for values, rollup in fresh])
    for (values, rollup), rows in zip(fresh, added, strict=True):
        if not rows and (row := _other_hand(hand, values, rollup)):
            known.append((values, rollup, row))
    hand.many(_SET_ROLLUP, [{**values, **_columns(_sum(more, row))} for values, more, row in known])


def _other_hand(hand: Hand, values: dict[str, Any], rollup: Rollup) -> Row | None:
    """The minute as somebody who was faster wrote it; None when ours is in after all.

    It may be there when it is to be inserted and gone when it is to be read: pruned in between.
    """
    for _ in range(_TURNS):
        if rows := hand.rows(_ROLLUP, values):
            return rows[0]
        if hand.rows(_ADD_ROLLUP, {**values, **_columns(rollup)}):
            return None
    raise StoreUnavailableError(
        "a minute's roll-up comes and goes under our hands",
        remedy="prune only what is older than the calls that are being recorded",
    )


def _sum(rollup: Rollup, row: Row) -> Rollup:
    succeeded, failed, dead_lettered, histogram = row
    whole = Rollup(succeeded, failed, dead_lettered, Durations.decode(histogram))
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


def _fitting(row: AttemptRow) -> AttemptRow:
    """A row that no database refuses for the length of a text: one must not hold up the others."""
    key, campaign_id = row.idempotency_key, row.campaign_id
    texts = f"{row.operation}{row.correlation_id}{key}{campaign_id}"
    if (
        len(texts) <= _SHORT
        and texts.isascii()
        and "\0" not in texts
        and 0 <= row.duration_ms <= _LARGEST
    ):
        return row
    return row._replace(
        operation=fitted(row.operation, 120),
        idempotency_key=None if key is None else fitted(key, 255),
        correlation_id=fitted(row.correlation_id, 255),
        duration_ms=min(max(row.duration_ms, 0), _LARGEST),
        campaign_id=None if campaign_id is None else fitted(campaign_id, 255),
    )


def _row_of(row: AttemptRow, created_at: Any) -> Row:
    return (*row[:16], created_at, row.campaign_id)


def _attempt_of(row: Row) -> AttemptRow:
    retryable, http_status, created_at, campaign_id = row[14:]
    rest = (bool(retryable), http_status, sure_instant(created_at), campaign_id)
    return AttemptRow._make((*row[:14], *rest))
