"""Group commit: callers that arrive while a commit is under way share the next one.

One thread leads: it runs the work of all who wait, commits once and tells each caller its result.
Everything here is written for an interrupt between any two steps.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from threading import Lock, get_ident
from time import monotonic
from typing import Any, TypeVar

from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.storage.sqlite.checkpoints import Maintenance
from ergon_framework.storage.sqlite.connections import (
    Connect,
    Watch,
    WritingConnection,
    ended_early,
)
from ergon_framework.storage.sqlite.errors import is_spent, translate
from ergon_framework.storage.sqlite.migrations import Schema

Work = Callable[[sqlite3.Connection], Any]


def _nothing(_: sqlite3.Connection) -> None:
    """The work of a caller that has none."""


class Caller:
    """Someone in line: what it wants done, and what became of it.

    Without work it only wants a turn of its own, for closing or for maintenance.
    """

    __slots__ = (
        *("error", "has_work", "is_begun", "is_gone", "is_leading", "is_served", "is_synced"),
        *("may_leave", "patience", "result", "thread", "wake", "work"),
    )

    def __init__(
        self,
        work: Work | None,
        patience: float,
        *,
        is_synced: bool = True,
        may_leave: bool = False,
    ) -> None:
        self.has_work = work is not None
        self.work: Work = work or _nothing
        self.patience = patience
        self.is_synced = is_synced
        self.may_leave = may_leave
        """Whether whoever serves it has to ask first if it is still there."""
        self.is_gone = False
        self.is_begun = False
        self.thread = get_ident()
        self.is_leading = False
        self.is_served = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.wake = wake = Lock()
        wake.acquire()

    def outcome(self) -> Any:
        """What its work returned; raises what it raised."""
        if self.error is not None:
            raise self.error
        return self.result


def nested() -> StoreError:
    """The error of a thread that leads and wants to lead again: it would wait for itself."""
    return StoreError(
        "work that is being written tried to write again",
        remedy="use the connection that the work was given",
    )


def given_up() -> StoreUnavailableError:
    """The error of a caller whose leader was interrupted."""
    return StoreUnavailableError(
        "the commit was given up before it was made; nothing was written", remedy="try again"
    )


class Turns:
    """The line, who leads, and whom the leader serves.

    An interrupt may be raised in the main thread between any two steps. Whatever it is doing then,
    leaving wakes everybody it was to serve and lets the next one lead.
    """

    def __init__(self) -> None:
        self.leader: int | None = None
        """The thread that leads."""
        self.group: list[Caller] = []
        """Those it serves; the first is the leader itself."""
        self._lock = Lock()
        self._waiting: deque[Caller] = deque()

    def try_enter(self, thread: int) -> bool:
        """Lead if nobody does and nobody waits."""
        with self._lock:
            if self.leader is not None:
                return False
            self.leader = thread
            return True

    def wait(self, caller: Caller, most: int, timeout: float = -1) -> bool:
        """Wait until the caller leads a group (True), or was served by somebody else (False).

        ``TimeoutError`` when neither came in time; one whose work has begun is heard out.
        """
        try:
            with self._lock:
                self._waiting.append(caller)
                if self.leader is None:
                    self._promote()
            is_awake = caller.wake.acquire(timeout=timeout)
            if not is_awake and not self._withdraw(caller):
                is_awake = caller.wake.acquire()
            if is_awake and caller.is_leading:
                self._gather(most)
        except BaseException:
            self._withdraw(caller)
            raise
        if not is_awake:
            raise TimeoutError
        return caller.is_leading

    def begin(self, caller: Caller) -> bool:
        """Begin the work of somebody in the group who may leave; whether it is still there."""
        with self._lock:
            caller.is_begun = not caller.is_gone
            return caller.is_begun

    def put_back(self) -> None:
        """Serve nobody but oneself: the others are in line again, ahead of who came since."""
        with self._lock:
            rest = deque(caller for caller in self.group[1:] if not caller.is_gone)
            rest.extend(self._waiting)
            self.group, self._waiting = self.group[:1], rest  # nothing can come between these two

    def dismiss(self) -> None:
        """Wake those who were served, or who will not be any more."""
        group = self.group
        for caller in group:
            if not caller.is_served:
                caller.error = given_up()
            if not caller.is_leading:
                try:  # noqa: SIM105 - suppress() would take longer than all the rest
                    caller.wake.release()
                except RuntimeError:  # woken before, just ahead of an interrupt
                    pass
        group.clear()

    def leave(self) -> None:
        """Stop leading; the first in line is next."""
        leader = self.leader
        try:
            self._pass_on()
        except BaseException:
            if self.leader == leader:  # an interrupt came before anybody else was told to lead
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        self.dismiss()
        with self._lock:
            if self._waiting:
                self._promote()
            else:
                self.leader = None

    def _promote(self) -> None:
        first = self._waiting[0]
        self.leader = first.thread
        first.is_leading = True
        first.wake.release()

    def _gather(self, most: int) -> None:
        """Take those who can be served together off the line."""
        with self._lock:
            line = self._waiting
            behind = (n for n, caller in enumerate(line) if n and not caller.has_work)
            count = min(next(behind, len(line)), most if line[0].has_work else 1)
            group, rest = list(islice(line, count)), deque(islice(line, count, None))
            self.group, self._waiting = group, rest  # nothing can come between these two

    def _withdraw(self, caller: Caller) -> bool:
        """Leave before one's turn came, as when a signal interrupts the wait; whether it had not.

        From the line, or from the group of a leader who still waits for others itself.
        """
        with self._lock:
            if caller in self._waiting:
                self._waiting.remove(caller)
                if caller.is_leading:
                    self.leader = None
                    if self._waiting:
                        self._promote()
                return True
            caller.is_gone = not caller.is_begun  # put back into the line, it would lead nobody
            return caller.is_gone


T = TypeVar("T")

MOST = 512
"""Callers served by one commit."""


class Writer:
    """Runs work in transactions and returns when they are on disk. Any thread may call it."""

    def __init__(self, path: Path, connect: Connect, watch: Watch) -> None:
        self.turns = Turns()
        self._path = path
        self._held = WritingConnection(path, connect, watch)
        self._maintenance = Maintenance(path)

    def write(
        self,
        work: Callable[[sqlite3.Connection], T],
        patience: float,
        *,
        is_synced: bool = True,
        before_waiting: Callable[[], None] | None = None,
    ) -> T:
        """Run ``work`` in a transaction of its own or in one shared with others."""
        turns, me = self.turns, get_ident()
        if turns.leader == me:
            raise nested()
        try:
            if turns.try_enter(me):
                return self._commit_one(work, patience, before_waiting, is_synced=is_synced)
            if before_waiting is not None:
                before_waiting()
            caller = Caller(work, patience, is_synced=is_synced)
            if turns.wait(caller, MOST):
                if len(turns.group) == 1:
                    return self._commit_one(work, patience, is_synced=is_synced)
                self._commit_group(turns.group)
        finally:
            try:
                if turns.leader == me:  # asked and not remembered: an interrupt may come anywhere
                    turns.leave()
            except BaseException:  # an interrupt at the first step of leaving
                if turns.leader == me:
                    turns.leave()
                raise
        result: T = caller.outcome()
        return result

    def write_within(
        self, work: Callable[[sqlite3.Connection], T], seconds: float, *, is_synced: bool = True
    ) -> T:
        """The same for who has so many seconds and no more, the wait for its turn included.

        It leads as anybody does, and waits for the lock of the file only as long as it may: those
        it leads are in line again then, since they may have more time.
        """
        turns, me, until = self.turns, get_ident(), monotonic() + seconds
        if turns.leader == me:
            raise nested()
        try:
            if turns.try_enter(me):
                return self._commit_one(work, seconds, is_synced=is_synced)
            caller = Caller(work, seconds, is_synced=is_synced, may_leave=True)
            if self._leads_in_time(caller, seconds):
                left = max(0.0, until - monotonic())
                if len(turns.group) == 1:
                    return self._commit_one(work, left, is_synced=is_synced)
                self._commit_group(turns.group, within=left)
        finally:
            try:
                if turns.leader == me:
                    turns.leave()
            except BaseException:  # an interrupt at the first step of leaving
                if turns.leader == me:
                    turns.leave()
                raise
        result: T = caller.outcome()
        return result

    def adopt(self, schema: Schema, patience: float) -> None:
        """Open now and bring the tables of one more part up to date, so that trouble shows."""
        with self.turn():
            self._held.adopt(schema, patience)

    def maintain(self, patience: float) -> bool:
        """Checkpoint when the log is long enough and nobody else does."""
        with self.turn():
            connection = self._held.ready(patience)
            return self._maintenance.is_long() and self._checkpoint(connection)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        with self.turn():
            self.drop()

    def drop(self) -> None:
        """Close the connection; only for who has the turn."""
        self._held.drop()

    @contextlib.contextmanager
    def turn(self, timeout: float = -1) -> Iterator[None]:
        """Have the connection to oneself."""
        turns, me = self.turns, get_ident()
        if turns.leader == me:
            raise nested()
        try:
            if not turns.try_enter(me):
                turns.wait(Caller(None, 0.0), 1, timeout)
            yield
        finally:
            try:
                if turns.leader == me:
                    turns.leave()
            except BaseException:  # an interrupt at the first step of leaving
                if turns.leader == me:
                    turns.leave()
                raise

    def _leads_in_time(self, caller: Caller, seconds: float) -> bool:
        try:
            return self.turns.wait(caller, MOST, seconds)
        except TimeoutError:
            raise StoreUnavailableError(
                f"{self._path} was busy for {seconds:.3g} seconds", remedy="try again"
            ) from None

    def _commit_one(
        self,
        work: Callable[[sqlite3.Connection], T],
        patience: float,
        before_waiting: Callable[[], None] | None = None,
        *,
        is_synced: bool,
    ) -> T:
        held = self._held
        connection = held.begin(patience, before_waiting, is_synced=is_synced)
        try:
            result = work(connection)
            held.commit()
        except BaseException as error:
            told = held.undo(connection, error)
            if told is error:
                raise
            raise told from error
        if self._maintenance.is_due():
            self._checkpoint(connection)
        return result

    def _commit_group(self, callers: list[Caller], *, within: float | None = None) -> None:
        """Serve everyone with one commit. Only an interrupt of this very thread is raised here."""
        try:
            connection = self._begin(callers, within)
            self._serve(connection, callers)
        except Exception as error:
            for caller in self.turns.group:
                caller.error = caller.error or _retold(error)
                caller.is_served = True
            return
        self.turns.dismiss()
        if self._maintenance.is_due():
            self._checkpoint(connection)

    def _begin(self, callers: list[Caller], within: float | None) -> sqlite3.Connection:
        """Begin for all of them, with the most patience among them or that of a hasty leader."""
        is_synced = any(caller.is_synced for caller in callers)
        if within is None:
            patience = max(caller.patience for caller in callers)
            return self._held.begin(patience, is_synced=is_synced)
        try:
            return self._held.begin(within, is_synced=is_synced)
        except Exception:
            self.turns.put_back()
            raise

    def _serve(self, connection: sqlite3.Connection, callers: list[Caller]) -> None:
        is_committing = False
        try:
            for caller in callers:
                self._run(connection, caller)
            is_committing = True
            self._held.commit()
            _mark_served(callers)
        except BaseException as error:
            if is_committing and not isinstance(error, Exception):
                # Interrupted during or after the commit: if it was made, the others hear so.
                _mark_served(callers, unless=connection.in_transaction)
            told = self._held.undo(connection, error)
            if told is error:
                raise
            raise told from error

    def _run(self, connection: sqlite3.Connection, caller: Caller) -> None:
        """Do one caller's work so that it alone is undone when it raises."""
        if caller.may_leave and not self.turns.begin(caller):
            return
        connection.execute("SAVEPOINT ergon_caller")
        try:
            caller.result = caller.work(connection)
        except Exception as error:
            caller.error = self._own_error(connection, error)
            connection.execute("ROLLBACK TO ergon_caller")
        if not connection.in_transaction:
            raise ended_early(self._path)
        connection.execute("RELEASE ergon_caller")

    def _own_error(self, connection: sqlite3.Connection, error: Exception) -> Exception:
        """What the caller is told; raises when the others' part of the transaction is lost too."""
        if not isinstance(error, sqlite3.Error):
            return error
        if is_spent(error):
            raise self._held.failed(error) from error
        told = translate(error, self._path)
        if not connection.in_transaction:
            raise told or ended_early(self._path) from error
        if told is not None:
            told.__cause__ = error
        return told or error

    def _checkpoint(self, connection: sqlite3.Connection) -> bool:
        """What was committed is on disk, whatever comes of this."""
        try:
            return self._maintenance.run(connection)
        except (sqlite3.Error, OSError) as error:
            self._held.undo(connection, error)
            return False


def _mark_served(callers: list[Caller], *, unless: bool = False) -> None:
    for caller in callers:
        caller.is_served = not unless


def _retold(error: Exception) -> Exception:
    """The error for one of several callers: each gets an instance of its own to raise."""
    if isinstance(error, StoreError):
        told = type(error)(error.message, remedy=error.remedy, details=error.details)
        told.__cause__ = error.__cause__
        return told
    return given_up()
