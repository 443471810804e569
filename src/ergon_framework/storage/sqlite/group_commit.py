"""Group commit: callers that arrive while a commit is under way share the next one.

The first caller in the queue leads. Its thread runs the work of every caller in its group, each in
a savepoint, commits once, and hands each of them its result. Everything here is written for an
interrupt between any two steps: do not reorder it.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from threading import Lock, get_ident
from time import monotonic
from typing import Any, TypeVar

from ergon_framework.errors import StoreError, StoreFullError, StoreUnavailableError
from ergon_framework.storage.sqlite.checkpoints import CHECKPOINT_THREAD, Checkpointer
from ergon_framework.storage.sqlite.connections import (
    DEFAULT_LIMITS,
    Connect,
    FileWatch,
    SqliteLimits,
    WriteConnection,
    ended_early,
    open_writer,
)
from ergon_framework.storage.sqlite.errors import is_spent, translate
from ergon_framework.storage.sqlite.migrations import SqliteSchema

Work = Callable[[sqlite3.Connection], Any]


def _nothing(_: sqlite3.Connection) -> None:
    """The work of a caller without work."""


class PendingWrite:
    """One caller in the commit queue: its work, and the result or error of it.

    A caller without work only wants the connection to itself, to close it or to checkpoint.
    """

    __slots__ = (
        *("error", "has_work", "is_begun", "is_gone", "is_leading", "is_served", "is_synced"),
        *("may_leave", "result", "thread", "timeout", "wake", "work"),
    )

    def __init__(
        self,
        work: Work | None,
        timeout: float,
        *,
        is_synced: bool = True,
        may_leave: bool = False,
    ) -> None:
        self.has_work = work is not None
        self.work: Work = work or _nothing
        self.timeout = timeout
        self.is_synced = is_synced
        self.may_leave = may_leave
        """Whether the caller may time out while it waits. The leader checks that before it runs the
        work.
        """
        self.is_gone = False
        self.is_begun = False
        self.thread = get_ident()
        self.is_leading = False
        self.is_served = False
        self.result: Any = None
        self.error: BaseException | None = None
        # A lock that is held is the cheapest event there is: releasing it wakes one thread.
        self.wake = wake = Lock()
        wake.acquire()

    def outcome(self) -> Any:
        """The result of the work; raises what the work raised."""
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


class CommitQueue:
    """Callers that wait for a commit, the thread that leads, and the group that it commits.

    An interrupt may be raised in the main thread between any two steps. Whatever a leader is doing
    then, ``leave`` wakes its whole group and makes the next caller the leader.
    """

    def __init__(self, lock: AbstractContextManager[object] | None = None) -> None:
        self.leader: int | None = None
        """The thread that leads."""
        self.group: list[PendingWrite] = []
        """The writes it commits together; the first is its own."""
        self._lock = lock or Lock()
        self._waiting: deque[PendingWrite] = deque()

    @property
    def waiting(self) -> int:
        """How many callers wait to lead, or for the leader to serve them."""
        return len(self._waiting)

    @property
    def pending(self) -> tuple[PendingWrite, ...]:
        """The writes of those callers, in the order of their arrival."""
        with self._lock:
            return tuple(self._waiting)

    def try_lead(self, thread: int) -> bool:
        """Lead if no thread does; callers that wait always have a leader before them."""
        with self._lock:
            if self.leader is not None:
                return False
            self.leader = thread
            return True

    def wait(self, pending: PendingWrite, max_size: int, timeout: float = -1) -> bool:
        """Wait until this caller leads a group (True), or another leader has served it (False).

        Raises ``TimeoutError`` when neither happened in time, unless its work has begun.
        """
        try:
            # Inside the ``try``: an interrupt after the caller has joined must take it out of the
            # queue again.
            self.join(pending)
            is_awake = pending.wake.acquire(timeout=timeout)
            # Out of time. If the leader has begun with this work, it will be committed, so the
            # answer has to be waited for: "timed out" would be a lie.
            if not is_awake and not self.withdraw(pending):
                is_awake = pending.wake.acquire()  # its work has begun, and is waited for
            if is_awake and pending.is_leading:
                self.gather(max_size)
        except BaseException:
            self.withdraw(pending)
            raise
        if not is_awake:
            raise TimeoutError
        return pending.is_leading

    def join(self, pending: PendingWrite) -> None:
        """Enter the queue; lead at once if no thread leads."""
        with self._lock:
            self._waiting.append(pending)
            if self.leader is None:
                self._promote()

    def begin(self, pending: PendingWrite) -> bool:
        """Mark the work of a caller that may time out as begun; False if it has timed out."""
        with self._lock:
            # Decided under the lock that ``withdraw`` takes: the caller leaves or its work is done,
            # never both.
            pending.is_begun = not pending.is_gone
            return pending.is_begun

    def requeue_followers(self) -> None:
        """Put the rest of the group back into the queue, ahead of callers that came later."""
        with self._lock:
            rest = deque(pending for pending in self.group[1:] if not pending.is_gone)
            rest.extend(self._waiting)
            # One statement: an interrupt between two would lose callers, or serve them twice.
            self.group, self._waiting = self.group[:1], rest

    def wake_served(self) -> None:
        """Wake the callers of the group, served or not."""
        group = self.group
        for pending in group:
            if not pending.is_served:
                pending.error = given_up()
            if not pending.is_leading:
                try:  # noqa: SIM105 - suppress() would take longer than all the rest
                    pending.wake.release()
                except RuntimeError:  # woken before, just ahead of an interrupt
                    pass
        # Before the next leader gathers: an interrupt that leads to a second ``leave`` must not
        # wake this group again.
        group.clear()

    def leave(self) -> None:
        """Stop leading; the first in the queue leads next."""
        leader = self.leader
        try:
            self._pass_on()
        except BaseException:
            if self.leader == leader:  # an interrupt came before another caller was made leader
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        self.wake_served()
        with self._lock:
            if self._waiting:
                self._promote()
            else:
                self.leader = None

    def _promote(self) -> None:
        first = self._waiting[0]
        self.leader = first.thread
        # Set before the wake-up: the thread that wakes reads it at once.
        first.is_leading = True
        first.wake.release()

    def gather(self, max_size: int) -> None:
        """Take the writes that can be committed together off the queue; only the leader may.

        A caller without work wants the connection to itself: a group ends before it.
        """
        with self._lock:
            queue = self._waiting
            behind = (n for n, pending in enumerate(queue) if n and not pending.has_work)
            # ``n`` is tested for truth: the first in the queue is the leader itself, whatever it
            # wants.
            count = min(next(behind, len(queue)), max_size if queue[0].has_work else 1)
            group, rest = list(islice(queue, count)), deque(islice(queue, count, None))
            # One statement: an interrupt between two would lose callers, or serve them twice.
            self.group, self._waiting = group, rest

    def withdraw(self, pending: PendingWrite) -> bool:
        """Take a caller out again, after a timeout or a signal; False if its work has begun.

        It stands in the queue, or in the group of a leader that still waits for the file's lock.
        """
        with self._lock:
            if pending in self._waiting:
                self._waiting.remove(pending)
                # It was promoted between its timeout and this lock. Its turn is passed on, or all
                # callers behind it would wait for ever.
                if pending.is_leading:
                    self.leader = None
                    if self._waiting:
                        self._promote()
                return True
            # In a group already: marked, so that a leader does not put it back into the queue,
            # where its turn to lead would come and no thread would be there to take it.
            pending.is_gone = not pending.is_begun
            return pending.is_gone


T = TypeVar("T")

CHECKPOINT_TIMEOUT = 0.1
"""Seconds that a checkpoint waits for other processes; if that is not enough, it is made later."""


class GroupCommitWriter:
    """Runs work in transactions and returns when they are on disk. Any thread may call it."""

    def __init__(
        self,
        path: Path,
        connect: Connect,
        watch: FileWatch,
        limits: SqliteLimits = DEFAULT_LIMITS,
    ) -> None:
        self.queue = CommitQueue()
        self._path = path
        self._connect = connect
        self._max_group_size = limits.max_group_size
        self._connection = WriteConnection(path, connect, watch)
        self._watch = watch
        self._checkpointing = Lock()  # a checkpoint is under way
        self._beside: tuple[sqlite3.Connection, int] | None = None
        self._checkpointer = Checkpointer(
            path, max_bytes=limits.checkpoint_bytes, interval=limits.checkpoint_interval
        )

    def write(
        self,
        work: Callable[[sqlite3.Connection], T],
        timeout: float,
        *,
        is_synced: bool = True,
        before_waiting: Callable[[], None] | None = None,
    ) -> T:
        """Run ``work`` in a transaction of its own or in one shared with others."""
        queue, me = self.queue, get_ident()
        if queue.leader == me:
            raise nested()
        try:
            if queue.try_lead(me):
                return self._commit_one(work, timeout, before_waiting, is_synced=is_synced)
            if before_waiting is not None:
                before_waiting()
            pending = PendingWrite(work, timeout, is_synced=is_synced)
            if queue.wait(pending, self._max_group_size):
                if len(queue.group) == 1:
                    return self._commit_one(work, timeout, is_synced=is_synced)
                self._commit_group(queue.group)
        finally:
            # Written out in each caller: an interrupt on the way into a helper would come before
            # its ``try``, and nobody would leave.
            try:
                # Asked and not remembered: an interrupt may come between leading and a flag that
                # says so, and a leader that never leaves would block the file for ever.
                if queue.leader == me:
                    queue.leave()
            except BaseException:  # an interrupt at the first step of leaving
                if queue.leader == me:
                    queue.leave()
                raise
        result: T = pending.outcome()  # who led alone has returned above
        return result

    def write_within(
        self, work: Callable[[sqlite3.Connection], T], seconds: float, *, is_synced: bool = True
    ) -> T:
        """Like ``write``, within this many seconds, the wait for its turn included.

        Such a caller may lead a group, but waits for the file's lock only as long as it may. Then
        the rest of its group goes back into the queue, since they may have more time.
        """
        queue, me, until = self.queue, get_ident(), monotonic() + seconds
        if queue.leader == me:
            raise nested()
        try:
            if queue.try_lead(me):
                return self._commit_one(work, seconds, is_synced=is_synced)
            pending = PendingWrite(work, seconds, is_synced=is_synced, may_leave=True)
            if self._leads_in_time(pending, seconds):
                left = max(0.0, until - monotonic())
                if len(queue.group) == 1:
                    return self._commit_one(work, left, is_synced=is_synced)
                self._commit_group(queue.group, within=left)
        finally:
            try:
                if queue.leader == me:
                    queue.leave()
            except BaseException:  # an interrupt at the first step of leaving
                if queue.leader == me:
                    queue.leave()
                raise
        result: T = pending.outcome()
        return result

    def adopt(self, schema: SqliteSchema, timeout: float) -> None:
        """Open the file now and migrate the tables of one more part, so that problems show."""
        with self.exclusive():
            self._connection.adopt(schema, timeout)

    def maintain(self, timeout: float) -> bool:
        """Checkpoint when the log is long enough and no other process does."""
        if self.queue.leader == get_ident():  # a checkpoint may wait for this very thread
            raise nested()
        with self._checkpointing:
            with self.exclusive():
                self._connection.ready(timeout)
            return self._checkpointer.is_long() and self._checkpoint()

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if sys.is_finalizing():
            # Another thread that holds the connection does not run any more; the process lets go.
            with contextlib.suppress(TimeoutError), self.at_rest(0.0):
                self.drop()
            return
        with self.at_rest():
            self.drop()

    def drop(self) -> None:
        """Close the connections; only inside ``at_rest()``."""
        self._connection.drop()
        self._drop_beside()

    @contextlib.contextmanager
    def exclusive(self, timeout: float = -1) -> Iterator[None]:
        """Hold the connection alone: no other caller writes meanwhile."""
        queue, me = self.queue, get_ident()
        if queue.leader == me:
            raise nested()
        try:
            if not queue.try_lead(me):
                queue.wait(PendingWrite(None, 0.0), 1, timeout)
            yield
        finally:
            try:
                if queue.leader == me:
                    queue.leave()
            except BaseException:  # an interrupt at the first step of leaving
                if queue.leader == me:
                    queue.leave()
                raise

    @contextlib.contextmanager
    def at_rest(self, timeout: float = -1) -> Iterator[None]:
        """Hold the connection alone, while no checkpoint is under way either."""
        if self.queue.leader == get_ident():
            raise nested()
        checkpointing = self._checkpointing  # a fork in between gives the child another one
        if not checkpointing.acquire(timeout=timeout):
            raise TimeoutError
        try:
            with self.exclusive(timeout):
                yield
        finally:
            checkpointing.release()

    def forget_threads(self) -> None:
        """Called in a forked child: threads that wait for the connection are only in the parent."""
        self.queue = CommitQueue()
        self._checkpointing = Lock()

    @contextlib.contextmanager
    def idle(self) -> Iterator[sqlite3.Connection]:
        """The writing connection, for a checkpoint: nobody else in this process writes."""
        with self.exclusive():
            connection = self._connection.ready(CHECKPOINT_TIMEOUT)
            try:
                yield connection
            except sqlite3.Error as error:
                raised = self._connection.undo(connection, error)
                if raised is error:
                    raise
                raise raised from error

    @contextlib.contextmanager
    def alone(self) -> Iterator[sqlite3.Connection]:
        """Like ``idle``, in a transaction that is rolled back: no other process writes."""
        with self.exclusive():
            connection = self._connection.begin(CHECKPOINT_TIMEOUT, is_synced=True)
            try:
                self._connection.refuse_moved()
                yield connection
            finally:
                self._connection.undo(connection, given_up())

    @contextlib.contextmanager
    def beside(self) -> Iterator[sqlite3.Connection]:
        """A second connection, which blocks no writer. Opening one takes a while, so it is kept."""
        generation = self._watch.look_sometimes()
        if self._beside is None or self._beside[1] != generation:
            self._drop_beside()
            opened = open_writer(self._path, self._connect, CHECKPOINT_TIMEOUT, may_create=False)
            self._beside = opened, generation
        try:
            yield self._beside[0]
        except BaseException:
            self._drop_beside()
            raise

    def _drop_beside(self) -> None:
        beside, self._beside = self._beside, None
        if beside is not None:
            with contextlib.suppress(sqlite3.Error):
                beside[0].close()

    def _leads_in_time(self, pending: PendingWrite, seconds: float) -> bool:
        try:
            return self.queue.wait(pending, self._max_group_size, seconds)
        except TimeoutError:
            raise StoreUnavailableError(
                f"{self._path} was busy for {seconds:.3g} seconds", remedy="try again"
            ) from None

    def _commit_one(
        self,
        work: Callable[[sqlite3.Connection], T],
        timeout: float,
        before_waiting: Callable[[], None] | None = None,
        *,
        is_synced: bool,
    ) -> T:
        writer = self._connection
        # BEGIN IMMEDIATE: the file's lock is taken before the work reads, so that nothing it
        # decides on can change until the commit.
        connection = writer.begin(timeout, before_waiting, is_synced=is_synced)
        try:
            result = work(connection)
            writer.commit()
        except BaseException as error:
            raised = writer.undo(connection, error)
            self._make_room(raised)
            if raised is error:
                raise
            raise raised from error
        if self._checkpointer.is_due():
            self._begin_checkpoint()
        return result

    def _commit_group(self, group: list[PendingWrite], *, within: float | None = None) -> None:
        """Commit the group. Only an interrupt of this very thread is raised here."""
        try:
            connection = self._begin(group, within)
            self._serve(connection, group)
        except Exception as error:
            self._make_room(error)
            # Not ``group``: a leader that ran out of time has put its followers back by now.
            for pending in self.queue.group:
                pending.error = pending.error or _copy_of(error)
                pending.is_served = True
            return
        self.queue.wake_served()
        if self._checkpointer.is_due():
            self._begin_checkpoint()

    def _begin(self, group: list[PendingWrite], within: float | None) -> sqlite3.Connection:
        """Begin the group's transaction, with its longest timeout, or ``within`` if the leader has
        one.
        """
        # One caller that needs its commit on disk is enough for the whole group to be synced.
        is_synced = any(pending.is_synced for pending in group)
        if within is None:
            timeout = max(pending.timeout for pending in group)
            return self._connection.begin(timeout, is_synced=is_synced)
        try:
            return self._connection.begin(within, is_synced=is_synced)
        except Exception:
            self.queue.requeue_followers()
            raise

    def _serve(self, connection: sqlite3.Connection, group: list[PendingWrite]) -> None:
        is_committing = False
        try:
            for pending in group:
                self._run(connection, pending)
            # From here on an interrupt may come before or after COMMIT took effect; only the
            # connection knows which.
            is_committing = True
            self._connection.commit()
            _mark_served(group)
        except BaseException as error:
            if is_committing and not isinstance(error, Exception):
                # Interrupted during or after the commit: if it was made, the other callers are told
                # that it succeeded.
                _mark_served(group, unless=connection.in_transaction)
            raised = self._connection.undo(connection, error)
            if raised is error:
                raise
            raise raised from error

    def _run(self, connection: sqlite3.Connection, pending: PendingWrite) -> None:
        """Run the work of one caller in a savepoint: when it raises, it alone is undone."""
        if pending.may_leave and not self.queue.begin(pending):
            return
        connection.execute("SAVEPOINT ergon_caller")
        try:
            pending.result = pending.work(connection)
        except Exception as error:
            pending.error = self._own_error(connection, error)
            connection.execute("ROLLBACK TO ergon_caller")
        # Work that commits or rolls back by itself has ended the transaction of the whole group.
        if not connection.in_transaction:
            raise ended_early(self._path)
        connection.execute("RELEASE ergon_caller")

    def _own_error(self, connection: sqlite3.Connection, error: Exception) -> Exception:
        """The error for one caller; raises when the whole transaction is lost."""
        if not isinstance(error, sqlite3.Error):
            return error
        # The connection is unusable, so the savepoint cannot be rolled back either: all of the
        # group is lost, and hears so.
        if is_spent(error):
            raise self._connection.failed(error) from error
        raised = translate(error, self._path)
        if not connection.in_transaction:
            raise raised or ended_early(self._path) from error
        if raised is not None:
            raised.__cause__ = error
        return raised or error

    def _make_room(self, error: BaseException) -> None:
        """On a full disk, let the next commits write to the start of the log.

        The log cannot grow, so no later commit would come to the next look at its length.
        """
        if isinstance(error, StoreFullError):
            self._begin_checkpoint()

    def _begin_checkpoint(self) -> None:
        """Checkpoint in a thread, so that no caller waits for the disk."""
        # While the interpreter ends, no other thread runs: one would be waited for without end.
        if self._checkpointing.locked() or sys.is_finalizing():
            return
        # Not a daemon: a process does not end in the middle of it, and it takes milliseconds.
        # If no thread can be started, the next check of the log's size tries again.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._checkpoint_apart, name=CHECKPOINT_THREAD).start()

    def _checkpoint_apart(self) -> None:
        with self._checkpointing:
            if self._connection.is_open:  # else the file was closed meanwhile
                self._checkpoint()

    def _checkpoint(self) -> bool:
        """Checkpoint; a failure is no error, since what was committed is on disk."""
        try:
            return self._checkpointer.run(self)
        except (StoreError, OSError):
            return False
        except sqlite3.Error as error:  # of the connection beside: a failed sync ends all writing
            with self.exclusive():
                self._connection.failed(error)
            return False


def _mark_served(group: list[PendingWrite], *, unless: bool = False) -> None:
    for pending in group:
        pending.is_served = not unless


def _copy_of(error: Exception) -> Exception:
    """A copy of an error for one more caller: threads that raise the same instance mix up its
    traceback.
    """
    if isinstance(error, StoreError):
        raised = type(error)(error.message, remedy=error.remedy, details=error.details)
        raised.__cause__ = error.__cause__
        return raised
    return given_up()
