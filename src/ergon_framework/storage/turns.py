"""Taking turns at the writing connection: one thread leads, those who come meanwhile wait in line.

The leader works alone or serves everyone at the front of the line with one commit. When it leaves,
the first in line leads. There is no background thread, and a caller that finds nobody there pays
two short locks.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable
from itertools import islice
from threading import Lock, get_ident
from typing import Any

from ergon_framework.errors import StoreError, StoreUnavailableError

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
