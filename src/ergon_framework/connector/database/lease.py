"""The lease by which one process at a time reads rows as a consumer, kept in a row of the same
database.

The process that reads changes a number in that row every few seconds. Another process stands by
until the number has not changed for a while, by its own clock, so that clocks which differ do no
harm. If the reader ran on the same machine, its end is noticed sooner. By that row, a process that
was suspended for longer also learns, before it settles anything, that another one reads.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import SYSTEM_CLOCK

LEASE = 30.0
"""Seconds without a heartbeat after which another process takes over."""
BEAT = 5.0
"""Seconds between two heartbeats."""
LOOK = 1.0
"""Seconds between two checks of a process that stands by."""
FREE = ""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last heartbeat of another reader, and when it was first seen."""

    holder: str
    beat: int
    at: float


class ReaderLease:
    """The right to read as one consumer. Any thread may call."""

    def __init__(
        self,
        engine: sa.Engine,
        table: sa.Table,
        consumer: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._table = table
        self._ours = table.c.consumer == consumer
        self._consumer = consumer
        self._now = now
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the lease in a forked child, which is another process and reads nothing yet."""
        self._holder = str(uuid.uuid4())
        self._mine = self._table.c.holder == self._holder
        self._seen: _Seen | None = None
        self._ended = threading.Event()
        self._beating: threading.Thread | None = None

    def take(self) -> str | None:
        """Try to become the reader. Returns None on success, otherwise who is the reader."""
        columns = (self._table.c.holder, self._table.c.beat, self._table.c.about)
        with self._engine.begin() as connection:
            found = connection.execute(sa.select(*columns).where(self._ours)).first()
            if found is None:
                is_ours = self._insert(connection)
            elif found.holder == self._holder:
                is_ours = True
            elif self._is_over(found.holder, found.beat, found.about):
                is_ours = self._replace(connection, found.holder, found.beat)
            else:
                is_ours = False
        if not is_ours:
            return "another process" if found is None else _named(found.about)
        self._seen = None
        if self._beating is None:
            self._beating = SYSTEM_CLOCK.spawn("ergon-rows-lease", self._beat)
        return None

    def is_held(self, connection: sa.Connection) -> bool:
        """Whether this process is still the reader, as this transaction sees it."""
        question = sa.select(self._table.c.beat).where(self._ours, self._mine)
        return connection.execute(question).first() is not None

    def close(self) -> None:
        """Let another process read at once. Closing twice is fine."""
        self._ended.set()
        if self._beating is None:
            return
        self._beating = None
        with suppress(Exception), self._engine.begin() as connection:
            change = self._table.update().where(self._ours, self._mine)
            connection.execute(change.values(holder=FREE))

    # ---- inside ---------------------------------------------------------------------------------

    def _beat(self) -> None:
        ended = self._ended
        while not ended.wait(BEAT):
            with suppress(Exception), self._engine.begin() as connection:
                change = self._table.update().where(self._ours, self._mine)
                connection.execute(change.values(beat=self._table.c.beat + 1))

    def _is_over(self, holder: str, beat: int, about: str) -> bool:
        if holder == FREE or _has_ended(about):
            return True
        seen = self._seen
        if seen is None or (seen.holder, seen.beat) != (holder, beat):
            self._seen = _Seen(holder, beat, self._now())
            return False
        return self._now() - seen.at >= LEASE

    def _insert(self, connection: sa.Connection) -> bool:
        row = {"consumer": self._consumer, "holder": self._holder, "beat": 0, "about": _about()}
        try:
            with connection.begin_nested():
                connection.execute(self._table.insert().values(row))
        except IntegrityError:  # another process was first
            return False
        return True

    def _replace(self, connection: sa.Connection, holder: str, beat: int) -> bool:
        # As it was seen: of several that stand by, one changes it.
        as_seen = (self._table.c.holder == holder, self._table.c.beat == beat)
        change = self._table.update().where(self._ours, *as_seen)
        new = {"holder": self._holder, "beat": beat + 1, "about": _about()}
        return connection.execute(change.values(new)).rowcount == 1


def _about() -> str:
    """The identity of this process, for people and for other processes of this machine."""
    pid = os.getpid()
    return json.dumps({"pid": pid, "host": socket.gethostname()[:100]} | _machine() | _start(pid))


@cache
def _machine() -> dict[str, str]:
    """What distinguishes this machine and container from others; empty where nothing does."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return {"boot": boot, "pids": os.readlink("/proc/self/ns/pid")}  # noqa: PTH115
    return {}


def _start(pid: int) -> dict[str, str]:
    """When a process began, as the system says it, because process ids are reused."""
    with suppress(OSError, ValueError, IndexError):
        state, *more = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return {} if state in "ZX" else {"start": more[18]}
    return {}


def _has_ended(about: str) -> bool:
    """Whether a process ran on this machine and has ended. False where that cannot be known."""
    found = _read(about)
    machine, start = _machine(), found.get("start")
    if not machine or start is None or any(found.get(each) != machine[each] for each in machine):
        return False
    return bool(_start(int(found["pid"])).get("start") != start)


def _named(about: str) -> str:
    found = _read(about)
    return f"process {found['pid']} on {found['host']}" if found else "another process"


def _read(about: str) -> dict[str, Any]:
    with suppress(ValueError, TypeError, KeyError):
        found = json.loads(about)
        return {**found, "pid": int(found["pid"]), "host": str(found["host"])}
    return {}
