"""Circuits, cooldowns and quota windows of lanes, in the health and quota tables.

Each reservation of units is one statement that takes all of them or none.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec

from ergon_framework.core.circuit_breaker import Breaker, CircuitState, ProbeLease
from ergon_framework.core.quota import QuotaUsage, QuotaWindow, latest_start
from ergon_framework.ports.providerstore import CLOSED, LaneFailure, LaneKey, LaneState, QuotaGrant
from ergon_framework.providers.stores.database import (
    PACKAGE,
    ProviderDatabase,
    SqlCursor,
    from_db_time,
    from_optional_db_time,
    prune_rows,
    same_instant,
)
from ergon_framework.providers.telemetry import logger
from ergon_framework.storage.conflicts import ConflictError, retry_conflicts
from ergon_framework.storage.sql_files import load

_CIRCUIT_SQL = load(PACKAGE, "circuits.sql")
_LANE_STATE, _FIRST_SWAP = _CIRCUIT_SQL["standing"], _CIRCUIT_SQL["first_swap"]
_SWAP, _EXTEND_COOLDOWN = _CIRCUIT_SQL["swap"], _CIRCUIT_SQL["cool"]
_SHORTEN_COOLDOWN = _CIRCUIT_SQL["uncool"]
_MAX_FAILURES = (1 << 31) - 1  # the most that the column takes

_QUOTA_SQL = load(PACKAGE, "quota.sql")
_SPEND, _TAKE, _NEWEST = _QUOTA_SQL["spend"], _QUOTA_SQL["take"], _QUOTA_SQL["newest"]
_REFUSE, _REFUND = _QUOTA_SQL["refuse"], _QUOTA_SQL["refund"]
_MAX_UNITS = (1 << 62) - 1
_MARK_INTERVAL = 1.0
"""Seconds between two marks on a window that is used up: many callers may be refused."""
_MAX_CONFLICTS = 3


class _Detail(msgspec.Struct, omit_defaults=True):
    """What of a circuit has no column of its own; and ``open_until`` as it was, to the last bit."""

    generation: int = 0
    successes: int = 0
    probes: list[tuple[str, float]] = []
    open_until: float | None = None
    held_for: float = 0.0
    streak: list[float] = []
    streak_since: float | None = None
    heard: list[tuple[str, float]] = []


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Detail).decode


class GateTables:
    """Circuits, cooldowns and quota windows of lanes."""

    def __init__(self, database: ProviderDatabase) -> None:
        self._database = database

    def lane_state(self, key: LaneKey) -> LaneState:
        """The state of a lane; a fresh one when the lane was never written."""
        values = key._asdict()
        found = self._database.read(lambda cursor: cursor.fetch(_LANE_STATE, values))
        if not found:
            return LaneState()
        *circuit, cooldown_until, version, written_at = found[0]
        return LaneState(
            breaker_of(key, *circuit),
            from_optional_db_time(cooldown_until) or 0.0,
            version,
            from_optional_db_time(written_at) or 0.0,
        )

    def compare_and_set(
        self, key: LaneKey, version: int, breaker: Breaker, *, failed: LaneFailure | None = None
    ) -> bool:
        """Write the circuit if the lane's version is still ``version``; whether it was."""
        to_db_time = self._database.to_db_time
        values = {
            **key._asdict(),
            **self._columns(breaker),
            "now": to_db_time(self._database.now()),
        }
        values["error_code"] = None if failed is None else failed.reason_code
        values["error_at"] = None if failed is None else to_db_time(failed.at)
        if version:
            sql, values["version"] = _SWAP, version
        else:
            # The lane may have a row already, for a pause alone: an upsert serves both, and of two
            # processes one wins.
            sql, values["id"] = _FIRST_SWAP, new_id()
        return bool(
            self._database.write(
                "swap", lambda cursor: cursor.execute(sql, values), is_synced=False
            )
        )

    def extend_cooldown(self, key: LaneKey, until: float) -> float:
        """Let no call pass before ``until``; returns the cooldown's end, which may be later."""
        values = {
            **key._asdict(),
            "id": new_id(),
            "until": self._database.to_db_time(until),
            "now": self._database.to_db_time(self._database.now()),
        }

        def work(cursor: SqlCursor) -> Any:
            return cursor.fetch(_EXTEND_COOLDOWN, values)[0][0]

        # Not synced, as all of a lane: after a power cut a circuit or a pause is relearned in
        # seconds, and an fsync would slow every call down.
        held = from_db_time(self._database.write("cool", work, is_synced=False))
        # The column rounds to microseconds; the caller compares with what it asked for.
        return until if same_instant(held, until) else held

    def shorten_cooldown(self, key: LaneKey, known: float, until: float) -> bool:
        """Shorten the cooldown if it still ends at ``known``; returns whether it did."""
        to_db_time = self._database.to_db_time
        values = {
            **key._asdict(),
            "known": to_db_time(known),
            "until": to_db_time(until),
            "now": to_db_time(self._database.now()),
        }
        return bool(
            self._database.write(
                "cool", lambda cursor: cursor.execute(_SHORTEN_COOLDOWN, values), is_synced=False
            )
        )

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        """Reserve ``units`` of a window's budget atomically, all or none."""
        database, now = self._database, self._database.now()
        values = {
            **key._asdict(),
            "start": database.to_db_time(window.start),
            "limit": min(limit, _MAX_UNITS),
            "units": min(units, _MAX_UNITS),
            "now": database.to_db_time(now),
            "latest": database.to_db_time(latest_start(window, now)),
        }

        def work(cursor: SqlCursor) -> QuotaGrant:
            # One conditional UPDATE decides in the usual case. Only if it changed nothing is it
            # worth finding out why.
            spent = cursor.fetch(_SPEND, values)
            if spent:
                return QuotaGrant(QuotaUsage(window, limit, spent[0][0]), is_granted=True)
            more = {
                "id": new_id(),
                "end": database.to_db_time(window.end),
                "lately": database.to_db_time(now - _MARK_INTERVAL),
            }
            return _open_or_refuse(cursor, {**values, **more}, window)

        # Not synced: every call reserves. A power cut can give the units of the last moment back,
        # the death of a process cannot.
        return database.write("reserve", work, is_synced=False)

    def refund(self, key: LaneKey, window: QuotaWindow, units: int) -> None:
        """Return ``units`` to the window they came from; its use stays at zero or above."""
        to_db_time = self._database.to_db_time
        values = {
            **key._asdict(),
            "start": to_db_time(window.start),
            "units": min(units, _MAX_UNITS),
            "now": to_db_time(self._database.now()),
        }
        self._database.write(
            "refund", lambda cursor: cursor.execute(_REFUND, values), is_synced=False
        )

    def prune(self, before: float, limit: int) -> int:
        """Delete quota windows that ended before ``before``, never the latest of a lane."""
        return prune_rows(self._database, _QUOTA_SQL["prune"], before, limit)

    def _columns(self, breaker: Breaker) -> dict[str, Any]:
        detail = _Detail(
            breaker.generation,
            breaker.successes,
            [(probe.token, probe.expires_at) for probe in breaker.probes],
            breaker.open_until,
            breaker.held_for,
            list(breaker.streak),
            breaker.streak_since,
            list(breaker.heard),
        )
        return {
            "breaker_state": breaker.state.value,
            "consecutive_failures": min(breaker.failures, _MAX_FAILURES),
            "open_until": self._database.to_db_time(breaker.open_until),
            "breaker_detail": _encode(detail).decode(),
        }


def breaker_of(
    key: LaneKey, state: str, failures: int, open_until: Any, detail: str | None
) -> Breaker:
    """The circuit that a row holds. Where the columns and the detail differ, the columns win.

    A row that cannot be read, changed by hand or by another version, must not stop the lane: it
    is taken for a closed circuit, and the next change of the circuit writes it anew.
    """
    try:
        found = _Detail() if detail is None else _decode(detail)
        until = from_optional_db_time(open_until)
        return Breaker(
            CircuitState(state),
            int(failures),
            # The column is rounded, the detail exact: they differ for real only if somebody changed
            # the column by hand, and then the column holds.
            found.open_until if same_instant(found.open_until, until) else until,
            found.successes,
            tuple(ProbeLease(token, expires_at) for token, expires_at in found.probes),
            found.generation,
            found.held_for,
            tuple(found.streak),
            found.streak_since,
            tuple(found.heard),
        )
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        _warn_unreadable(key, type(error).__name__)
        return CLOSED


@lru_cache(maxsize=1000)
def _warn_unreadable(key: LaneKey, error: str) -> None:
    """Once for each lane: the row is read again and again."""
    text = "the circuit of %s cannot be read and counts as closed: %s"
    logger.warning(text, "/".join(key), error)


def new_id() -> str:
    """The id of a new row."""
    return str(uuid.uuid4())


def _open_or_refuse(cursor: SqlCursor, values: dict[str, Any], window: QuotaWindow) -> QuotaGrant:
    """Why nothing could be spent: the window is new, not the newest any more, or used up.

    Units that another process takes at the same moment are a conflict; after a few of them the
    caller is refused, because the window is nearly used up then.
    """
    limit, used = values["limit"], 0

    def attempt() -> QuotaGrant | None:
        nonlocal window, used
        newest = cursor.fetch(_NEWEST, values)
        if newest and newest[0][0] > values["start"]:
            # The caller's clock is behind, or was set back: an old budget is not opened again.
            # Spent from the newest window instead of refused: the clock of this process is late by
            # a little, and the budget is there.
            values["start"], values["end"], used = newest[0]
            window = QuotaWindow(from_db_time(values["start"]), from_db_time(values["end"]))
            taken = cursor.fetch(_SPEND, values)
        elif newest and newest[0][0] == values["start"]:
            used = newest[0][2]
            if used + values["units"] > limit:
                return None
            # Another process opened it just now, and there is enough for both.
            taken = cursor.fetch(_SPEND, values)
        else:
            taken = cursor.fetch(_TAKE, values)
        if not taken:
            raise ConflictError
        return QuotaGrant(QuotaUsage(window, limit, taken[0][0]), is_granted=True)

    # Conflicts without end count as a refusal: the call waits for the gate, and asks again.
    with suppress(ConflictError):
        granted = retry_conflicts(attempt, max_attempts=_MAX_CONFLICTS)
        if granted is not None:
            return granted
    # Marked now and then, so that operators see a budget that is used up.
    cursor.execute(_REFUSE, values)
    return QuotaGrant(QuotaUsage(window, limit, used), is_granted=False)
