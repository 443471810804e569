"""Commits that callers share: whoever comes first commits for all who came meanwhile."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import get_ident
from time import monotonic
from typing import TypeVar

from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.storage.connections import Connect, Watch
from ergon_framework.storage.faults import is_spent, translate
from ergon_framework.storage.maintenance import Maintenance
from ergon_framework.storage.schema import Schema
from ergon_framework.storage.turns import Caller, Turns, given_up, nested
from ergon_framework.storage.writing import WritingConnection, ended_early

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
