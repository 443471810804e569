"""Consumers: creating, confirming, seeking, setting aside."""

from __future__ import annotations

import sqlite3

from ergon_framework.boundary.logs.refusing import refuse_late
from ergon_framework.boundary.logs.sqlite import quarantine
from ergon_framework.boundary.logs.sqlite.ground import SQL, note
from ergon_framework.boundary.logs.sqlite.quarantine import SqliteQuarantine
from ergon_framework.boundary.logs.sqlite.readers import (
    reader_named,
    reader_of,
    refuse_truncated,
    with_lag,
)
from ergon_framework.boundary.logs.sqlite.rows import LogRow, log_or_new
from ergon_framework.boundary.logs.sqlite.runs import next_after
from ergon_framework.errors import BoundaryError
from ergon_framework.ports.factstore import ConsumerInfo, Quarantined
from ergon_framework.storage.statements import load

_SQL = load(SQL, "consumers.sql")
_ITEMS = load(SQL, "quarantine.sql")


class SqliteDesk(SqliteQuarantine):
    """The part of the store that knows who reads, and how far."""

    def create_consumer(
        self,
        name: str,
        log: str,
        *,
        from_end: bool = False,
        to_zone: str | None = None,
        is_required: bool = True,
    ) -> ConsumerInfo:
        """Create one at the start (the first kept fact) or the end of its log."""

        def work(cursor: sqlite3.Cursor) -> ConsumerInfo:
            row = cursor.execute(_SQL["consumer"], (name,)).fetchone()
            if row is None:
                found = log_or_new(cursor, log)
                start = found.head if from_end else found.first - 1
                values = (name, found.id, start, to_zone, is_required, self._clock())
                cursor.execute(_SQL["create"], values)
                row = cursor.execute(_SQL["consumer"], (name,)).fetchone()
            info = with_lag(cursor, *reader_of(cursor, row))
            if (info.log, info.to_zone) != (log, to_zone):
                raise _exists(info)
            return info

        return self._write(work, "desk")

    def consumers(self) -> list[ConsumerInfo]:
        """Every consumer, by name."""

        def work(cursor: sqlite3.Cursor) -> list[ConsumerInfo]:
            rows = cursor.execute(_SQL["consumers"]).fetchall()
            return [with_lag(cursor, *reader_of(cursor, row)) for row in rows]

        return self._read(work)

    def consumer(self, name: str) -> ConsumerInfo:
        """One of them; ``BoundaryNotFoundError`` when there is none."""
        return self._read(lambda cursor: with_lag(cursor, *reader_named(cursor, name)))

    def delete_consumer(self, name: str) -> None:
        """Forget it and its quarantine; retention no longer waits for it."""

        def work(cursor: sqlite3.Cursor) -> None:
            info, _ = reader_named(cursor, name)
            cursor.execute(_SQL["delete"], (name,))
            cursor.execute(_ITEMS["forget"], (name,))
            text = f"{name}, which had confirmed {info.log} up to {info.cursor}"
            note(cursor, self._clock(), "delete_consumer", text)

        self._write(work, "desk")

    def confirm(self, name: str, offset: int, *, holder: str | None = None) -> int:
        """Move the cursor up to ``offset``, never down; the cursor then."""

        def work(cursor: sqlite3.Cursor) -> int:
            info, _ = reader_named(cursor, name)
            now = self._clock()
            refuse_late(info, holder, now)
            if offset > max(info.served, info.cursor):
                raise _not_served(info, offset)
            cursor.execute(_ITEMS["delivered"], (name, offset))
            if offset > info.cursor:
                cursor.execute(_SQL["move"], (name, offset))
            if holder is not None:
                cursor.execute(_SQL["renew"], (now, name, holder))
            return max(offset, info.cursor)

        return self._write(work, "confirm")

    def release_lease(self, name: str, holder: str) -> None:
        """The holder lets go of the name; nothing happens when it does not hold it."""

        def work(cursor: sqlite3.Cursor) -> None:
            cursor.execute(_SQL["drop_lease"], (name, holder))

        self._write(work, "desk", is_synced=False)

    def seek(self, name: str, offset: int, *, reason: str) -> ConsumerInfo:
        """Set the cursor, also backwards, and write down that it was done and why."""

        def work(cursor: sqlite3.Cursor) -> ConsumerInfo:
            info, log = reader_named(cursor, name)
            target = _target(info, log, offset)
            cursor.execute(_SQL["seek"], (target, name))
            text = f"{name} from {info.cursor} to {target} of {info.log}: {reason}"
            note(cursor, self._clock(), "seek", text)
            return with_lag(cursor, *reader_named(cursor, name))

        return self._write(work, "desk")

    def set_aside(
        self,
        name: str,
        offset: int,
        *,
        reason: str,
        message: str,
        attempts: int,
        holder: str | None = None,
    ) -> Quarantined:
        """Quarantine the next fact of the view and move the cursor past it, in one commit."""

        def work(cursor: sqlite3.Cursor) -> Quarantined:
            info, log = reader_named(cursor, name)
            now = self._clock()
            refuse_late(info, holder, now)
            ahead = next_after(cursor, log, info.cursor, info.to_zone)
            if ahead is not None and ahead.offset == offset:
                cursor.execute(_SQL["move"], (name, offset))
            elif quarantine.state_at(cursor, name, offset) != "released":
                raise _not_next(info, offset, None if ahead is None else ahead.offset)
            item = Quarantined(0, name, log.name, offset, reason, message, attempts, now)
            return quarantine.set_aside(cursor, item)

        return self._write(work, "quarantine")


def _target(info: ConsumerInfo, log: LogRow, offset: int) -> int:
    """Where a seek leads."""
    if offset > log.head:
        raise BoundaryError(
            f"{info.log} ends at {log.head}, and {offset} lies beyond",
            code="out_of_range",
            reason="beyond_head",
            remedy=f"seek to {log.head} to read only what comes from now on",
            details={"consumer_name": info.name, "head_offset": log.head},
        )
    refuse_truncated(info, (offset + 1, log.first - 1) if offset + 1 < log.first else None)
    return offset


def _exists(info: ConsumerInfo) -> BoundaryError:
    view = "" if info.to_zone is None else f" to the zone {info.to_zone!r}"
    return BoundaryError(
        f"there is a consumer {info.name!r} already, which reads {info.log}{view}",
        code="already_exists",
        reason="consumer_exists",
        remedy="take another name, or delete that one first",
        details={"consumer_name": info.name, "log": info.log, "to_zone": info.to_zone},
    )


def _not_served(info: ConsumerInfo, offset: int) -> BoundaryError:
    return BoundaryError(
        f"{offset} was never given to the consumer {info.name!r}, which has seen up to"
        f" {info.served}",
        code="failed_precondition",
        reason="not_served",
        remedy="fetch first, and confirm what was fetched",
        details={"consumer_name": info.name, "served": info.served, "cursor": info.cursor},
    )


def _not_next(info: ConsumerInfo, offset: int, ahead: int | None) -> BoundaryError:
    return BoundaryError(
        f"{offset} is not the next fact of the consumer {info.name!r}, nor a released one",
        code="failed_precondition",
        reason="not_next",
        remedy="fetch again, and set aside the first fact of the page",
        details={"consumer_name": info.name, "cursor": info.cursor, "next_offset": ahead},
    )
