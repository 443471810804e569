"""Moving jobs within one transaction, and whom to wake when it is committed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from ergon_framework.core.job import JobStatus, Move
from ergon_framework.jobs.stores.options import text_of
from ergon_framework.jobs.stores.own_moves import (
    DUE,
    LATER,
    LONGEST_HISTORY,
    MOST_ENTRIES,
    Standing,
    is_usual,
    latest,
    outdated,
    replaced,
)
from ergon_framework.jobs.stores.sqlite.rows import SQL, odd_row
from ergon_framework.jobs.stores.unreadable import Note, tell_set_aside
from ergon_framework.ports.jobstore import Settlement
from ergon_framework.storage.sql_files import load
from ergon_framework.storage.sqlite.errors import is_barred

_SQL = load(SQL, "moves.sql")
_JOBS = load(SQL, "jobs.sql")
_COMPLETE = _SQL["complete"]


class Moves:
    """The moves of one transaction."""

    __slots__ = ("_is_any_blocked", "cursor", "is_done", "is_work", "now")

    def __init__(self, cursor: sqlite3.Cursor, now: float) -> None:
        self.cursor = cursor
        self.now = now
        self.is_work = False  # something may have become claimable: ring when it is committed …
        self.is_done = False  # … and so for something that has ended
        self._is_any_blocked: bool | None = None  # not looked yet

    def apply(self, settlement: Settlement) -> bool:
        """Move a job if it still is where the move was decided; otherwise change nothing."""
        if is_usual(settlement):
            is_final, was_applied = True, self._complete(settlement)
        elif settlement.move.status.is_final:
            is_final, was_applied = True, self._end(settlement)
        else:
            is_final, was_applied = False, self._wait(settlement)
        if was_applied:
            self.is_done |= is_final
            self.is_work |= not is_final
            if self._is_any_blocked is not False:
                self._release(settlement.key)
        return was_applied

    def set_aside(self, seq: int, problem: str) -> None:
        """Take a row that cannot be read out of everybody's way; nothing else of it is changed."""
        found = odd_row(self.cursor, seq, problem)
        note = text_of(Note(found.status, problem))
        self.cursor.execute(_JOBS["set_aside"], (note, self.now, seq))
        tell_set_aside(found)
        self.is_work = True  # it may have held a limit key, or a place in its queue

    def set_all_aside(self, odd: Iterable[tuple[int, str]]) -> None:
        """The same for many, by number and problem."""
        for seq, problem in odd:
            self.set_aside(seq, problem)

    def end_outdated(self, row: Standing) -> None:
        """Dead-letter a job that was not started before its expiry."""
        self.apply(outdated(row, self.now))

    def replace(self, row: Standing) -> None:
        """Cancel a job for another one with its unique key."""
        self.apply(replaced(row, self.now))

    def block(self, seqs: list[int]) -> None:
        """Let jobs wait until one of their limit key has stopped."""
        self.cursor.executemany(_SQL["block"], [(seq,) for seq in seqs])
        self._is_any_blocked = True

    def wake_keys(self, most: int) -> None:
        """Let jobs go whose limit key is free; nobody has told them."""
        key = ""
        for _ in range(most):
            found = self.cursor.execute(_SQL["next_blocked_key"], (key,)).fetchone()
            if found is None:
                return
            key = found[0]
            self._wake(key)

    def running_of_key(self, key: str) -> int:
        """How many jobs of a limit key run."""
        count: int = self.cursor.execute(_SQL["running_of_key"], (key,)).fetchone()[0]
        return count

    def _complete(self, settlement: Settlement) -> bool:
        """The usual end, in fewer words."""
        move, now = settlement.move, self.now
        values = (
            move.attempts,
            move.excused,
            bytearray(settlement.result or b"null"),
            now + (settlement.keep or 0.0),
            now,
            settlement.entry.decode(),
            settlement.key,
            settlement.id,
            settlement.fence,
        )
        return self.cursor.execute(_COMPLETE, values).rowcount == 1

    def _end(self, settlement: Settlement) -> bool:
        move, now = settlement.move, self.now
        self.cursor.execute(
            _SQL["end"],
            (
                move.status.value,
                move.attempts,
                move.excused,
                move.is_solo,
                move.why,
                settlement.result or (b"null" if move.status is JobStatus.COMPLETED else None),
                None if settlement.keep is None else now + settlement.keep,
                now,
                *_witness(settlement, move, now),
            ),
        )
        return self.cursor.rowcount == 1

    def _wait(self, settlement: Settlement) -> bool:
        move, now = settlement.move, self.now
        try:
            self.cursor.execute(
                _SQL["restart" if move.is_reset else "wait"],
                (
                    DUE if move.delay <= 0.0 else LATER,
                    move.status.value,
                    move.attempts,
                    move.excused,
                    move.is_solo,
                    move.why,
                    now + move.delay,
                    now,
                    *_witness(settlement, move, now),
                ),
            )
        except sqlite3.IntegrityError as error:
            if is_barred(error):
                raise
            return False  # it had ended, and another job holds its unique key now
        if self.cursor.rowcount != 1:
            return False
        self._shorten(settlement.key)
        return True

    def _shorten(self, seq: int) -> None:
        values = (seq, LONGEST_HISTORY, MOST_ENTRIES)
        found = self.cursor.execute(_SQL["long_history"], values).fetchone()
        if found is not None:
            self.cursor.execute(_SQL["set_history"], (latest(found[0]), seq))

    def _release(self, seq: int) -> None:
        """A job stopped, or waits no more: whoever waits for its limit key may be next."""
        if self._is_any_blocked is None:
            self._is_any_blocked = self._finds("any_blocked")
            if self._finds("any_max_active"):
                self.is_work = True
        if self._is_any_blocked:
            [key] = self.cursor.execute(_SQL["limit_key"], (seq,)).fetchone()
            if key is not None:
                self._wake(key)

    def _finds(self, statement: str) -> bool:
        return self.cursor.execute(_SQL[statement]).fetchone() is not None

    def _wake(self, key: str) -> None:
        """Let the first of each lane go: of some, a paused queue's say, nobody may come for it."""
        running = self.running_of_key(key)
        lane = ("", "")
        while found := self.cursor.execute(_SQL["next_lane_of_key"], (key, *lane)).fetchone():
            lane = found
            self.cursor.execute(_SQL["wake"], (key, *lane, running))
            self.is_work |= self.cursor.rowcount > 0


def _witness(settlement: Settlement, move: Move, now: float) -> tuple[Any, ...]:
    """What is written down about a move, and where the job must stand for it."""
    return (
        None if move.failure is None else text_of(move.failure),
        settlement.entry.decode(),
        settlement.key,
        settlement.id,
        settlement.fence,
        settlement.expected.value,
        not settlement.if_expired,
        now,
    )
