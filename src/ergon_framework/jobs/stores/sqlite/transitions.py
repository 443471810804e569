"""Every change of a job within one SQLite transaction: insert, settle, block, wake, set aside.

``Tx`` also remembers whom to notify when the transaction is committed.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from ergon_framework.core.job import JobStatus, Transition
from ergon_framework.errors import DuplicateJobError
from ergon_framework.jobs.stores.documents import is_special, options_text, text_of
from ergon_framework.jobs.stores.sqlite.rows import SQL, odd_row
from ergon_framework.jobs.stores.transitions import (
    DUE,
    LATER,
    MAX_HISTORY_BYTES,
    MAX_HISTORY_ENTRIES,
    JobPosition,
    cancel_replaced,
    expire,
    id_taken,
    is_plain_completion,
    latest,
    on_duplicate,
)
from ergon_framework.jobs.stores.unreadable import Note, log_set_aside
from ergon_framework.ports.jobstore import EnqueueResult, NewJob, Settlement
from ergon_framework.storage.sql_files import load
from ergon_framework.storage.sqlite.errors import is_barred

_TRANSITIONS = load(SQL, "transitions.sql")
_JOBS = load(SQL, "jobs.sql")
_COMPLETE = _TRANSITIONS["complete"]


class Tx:
    """The transitions of one transaction."""

    __slots__ = ("_is_any_blocked", "cursor", "is_done", "is_work", "now")

    def __init__(self, cursor: sqlite3.Cursor, now: float) -> None:
        self.cursor = cursor
        self.now = now
        # Notifications wait for the commit: a worker woken before it would find nothing.
        self.is_work = False  # something may have become claimable
        self.is_done = False  # something has ended
        self._is_any_blocked: bool | None = None  # whether any job waits for a key; None: not read

    def apply(self, settlement: Settlement) -> bool:
        """Apply a transition if the job still is where it was decided; otherwise change nothing.

        The fence in the condition of each statement tells a late report from a current one.
        """
        if is_plain_completion(settlement):
            is_final, was_applied = True, self._complete(settlement)
        elif settlement.transition.status.is_final:
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
        """Set a row aside that cannot be read; nothing else of it is changed."""
        found = odd_row(self.cursor, seq, problem)
        note = text_of(Note(found.status, problem))
        self.cursor.execute(_JOBS["set_aside"], (note, self.now, seq))
        log_set_aside(found)
        self.is_work = True  # it may have held a limit key, or a place in its queue

    def set_all_aside(self, odd: Iterable[tuple[int, str]]) -> None:
        """The same for many, by number and problem."""
        for seq, problem in odd:
            self.set_aside(seq, problem)

    def end_outdated(self, row: JobPosition) -> None:
        """Dead-letter a job that was not started before its expiry."""
        self.apply(expire(row, self.now))

    def replace(self, row: JobPosition) -> None:
        """Cancel a job for another one with its unique key."""
        self.apply(cancel_replaced(row, self.now))

    def block(self, seqs: list[int]) -> None:
        """Let jobs wait until one of their limit key has stopped."""
        self.cursor.executemany(_TRANSITIONS["block"], [(seq,) for seq in seqs])
        self._is_any_blocked = True

    def wake_keys(self, most: int) -> None:
        """Make blocked jobs due whose limit key is free: their wake-up was missed."""
        key = ""
        for _ in range(most):
            found = self.cursor.execute(_TRANSITIONS["next_blocked_key"], (key,)).fetchone()
            if found is None:
                return
            key = found[0]
            self._wake(key)

    def running_of_key(self, key: str) -> int:
        """How many jobs of a limit key run."""
        count: int = self.cursor.execute(_TRANSITIONS["running_of_key"], (key,)).fetchone()[0]
        return count

    def _complete(self, settlement: Settlement) -> bool:
        """The usual end of a job, by the cheapest statement: most settlements are this one."""
        transition, now = settlement.transition, self.now
        values = (
            transition.attempts,
            transition.excused,
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
        transition, now = settlement.transition, self.now
        self.cursor.execute(
            _TRANSITIONS["end"],
            (
                transition.status.value,
                transition.attempts,
                transition.excused,
                transition.is_solo,
                transition.why,
                settlement.result
                or (b"null" if transition.status is JobStatus.COMPLETED else None),
                None if settlement.keep is None else now + settlement.keep,
                now,
                *_witness(settlement, transition, now),
            ),
        )
        return self.cursor.rowcount == 1

    def _wait(self, settlement: Settlement) -> bool:
        transition, now = settlement.transition, self.now
        try:
            self.cursor.execute(
                _TRANSITIONS["restart" if transition.is_reset else "wait"],
                (
                    DUE if transition.delay <= 0.0 else LATER,
                    transition.status.value,
                    transition.attempts,
                    transition.excused,
                    transition.is_solo,
                    transition.why,
                    now + transition.delay,
                    now,
                    *_witness(settlement, transition, now),
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
        values = (seq, MAX_HISTORY_BYTES, MAX_HISTORY_ENTRIES)
        found = self.cursor.execute(_TRANSITIONS["long_history"], values).fetchone()
        if found is not None:
            self.cursor.execute(_TRANSITIONS["set_history"], (latest(found[0]), seq))

    def _release(self, seq: int) -> None:
        """A job stopped, or waits no more: wake the jobs that wait for its limit key."""
        # Read once for each transaction, as most stores have no limits at all: a look for each
        # settled job would cost more than the settlement.
        if self._is_any_blocked is None:
            self._is_any_blocked = self._finds("any_blocked")
            if self._finds("any_max_active"):
                self.is_work = True
        if self._is_any_blocked:
            [key] = self.cursor.execute(_TRANSITIONS["limit_key"], (seq,)).fetchone()
            if key is not None:
                self._wake(key)

    def _finds(self, statement: str) -> bool:
        return self.cursor.execute(_TRANSITIONS[statement]).fetchone() is not None

    def _wake(self, key: str) -> None:
        """Make the first of each lane due, not of one: a paused queue would keep the key unused."""
        running = self.running_of_key(key)
        lane = ("", "")
        while found := self.cursor.execute(
            _TRANSITIONS["next_lane_of_key"], (key, *lane)
        ).fetchone():
            lane = found
            self.cursor.execute(_TRANSITIONS["wake"], (key, *lane, running))
            self.is_work |= self.cursor.rowcount > 0


def _witness(settlement: Settlement, transition: Transition, now: float) -> tuple[Any, ...]:
    """What is written down about a transition, and where the job must stand for it."""
    return (
        None if transition.failure is None else text_of(transition.failure),
        settlement.entry.decode(),
        settlement.key,
        settlement.id,
        settlement.fence,
        settlement.expected.value,
        not settlement.if_expired,
        now,
    )


LARGE = 2048
"""Bytes of arguments above which they get a row of their own."""

# A purged job's number may be given to a new one, even of the same id. It does not begin with the
# same fence: a worker that comes back late with the old job finds that it has lost it.
_fences = itertools.count(int.from_bytes(os.urandom(5)))

_PLAIN = _JOBS["insert_plain"]
_FULL = _JOBS["insert"]


def add(tx: Tx, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
    """Add all of them; raises DuplicateJobError, and then the caller rolls back."""
    if len(jobs) == 1:
        return [_add(tx, jobs[0])]
    if any(job.unique_key is not None or _is_large(job) for job in jobs):
        return [_add(tx, job) for job in jobs]
    _insert_many(tx, jobs)
    return [EnqueueResult(job.id, True) for job in jobs]


def add_new(tx: Tx, jobs: Sequence[NewJob]) -> int:
    """Add those that can be added, and leave out the others; how many there were."""
    added = 0
    for job in jobs:
        if tx.cursor.execute(_JOBS["has_id"], (job.id,)).fetchone() is None:
            with suppress(DuplicateJobError):
                added += add(tx, [job])[0].is_new
    return added


def _add(tx: Tx, job: NewJob) -> EnqueueResult:
    if job.unique_key is None or (holder := _holder(tx, job.unique_key)) is None:
        _insert(tx, job)
        return EnqueueResult(job.id, True)
    is_running = holder[2] == JobStatus.ACTIVE
    if (existing := on_duplicate(job, holder[1], is_running=is_running)) is not None:
        return existing
    tx.replace(holder)  # first: two rows that hold one unique key would break its index
    _insert(tx, job)
    return EnqueueResult(job.id, True, holder[1])


def _holder(tx: Tx, key: str) -> JobPosition | None:
    """The job that holds a unique key."""
    row: JobPosition | None = tx.cursor.execute(_JOBS["key_holder"], (key,)).fetchone()
    return row


def _insert(tx: Tx, job: NewJob) -> None:
    row = _row(job, tx.now)
    try:
        if is_special(job):
            tx.cursor.execute(_FULL, row + _rest(job))
        else:
            tx.cursor.execute(_PLAIN, row)
    except sqlite3.IntegrityError as error:
        if is_barred(error):
            raise
        raise id_taken(job) from None
    if row[-1] is None:
        values = (tx.cursor.lastrowid, job.args, job.kwargs)
        tx.cursor.execute(_JOBS["insert_payload"], values)


def _insert_many(tx: Tx, jobs: Sequence[NewJob]) -> None:
    """Insert jobs without large arguments."""
    now, connection = tx.now, tx.cursor.connection
    statement, rows = _PLAIN, [_row(job, now) for job in jobs]
    if any(map(is_special, jobs)):
        statement, rows = _FULL, [row + _rest(job) for row, job in zip(rows, jobs, strict=True)]
    before = connection.total_changes
    try:
        tx.cursor.executemany(statement, rows)
    except sqlite3.IntegrityError as error:
        if is_barred(error):
            raise
        # Those before it are there, until the caller rolls back.
        raise id_taken(jobs[connection.total_changes - before]) from None


def _is_large(job: NewJob) -> bool:
    return len(job.args) + len(job.kwargs) > LARGE


def _row(job: NewJob, now: float) -> tuple[Any, ...]:
    """What every job has."""
    run_at = now + job.delay if job.run_at is None else job.run_at
    is_large = _is_large(job)
    return (
        DUE if run_at <= now else LATER,
        next(_fences),
        now,
        run_at,
        job.queue,
        job.executor,
        job.priority,
        job.id,
        job.handler,
        None if is_large else bytearray(job.args),
        None if is_large else bytearray(job.kwargs),
    )


def _rest(job: NewJob) -> tuple[Any, ...]:
    """What some jobs have."""
    return (
        job.expires_at,
        job.unique_key,
        job.limit_key,
        job.limit,
        options_text(job),
    )
