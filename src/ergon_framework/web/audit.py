"""The audit log: who did what to which job, queue, schedule, flow or fact.

It is a file of the server, and outlives what the entries are about.

An entry is on disk before anything is done, and gets its outcome afterwards. If the process dies in
between, the entry stays ``begun``: whether the action was done is unknown then; the history of
the job, or the journal of the zone, shows it. An action whose entry cannot be written is not done.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ergon_framework.core.text import counted
from ergon_framework.errors import (
    ErgonError,
    NodeUnavailableError,
    StoreError,
    StoreReadOnlyError,
)
from ergon_framework.jobs.views import moment
from ergon_framework.storage.secure_files import prepare_database

if TYPE_CHECKING:
    from ergon_framework.app.settings.sections import Settings

NOT_CONNECTED = "connect_failed"
"""The reason of a ``NodeUnavailableError`` when nothing was sent."""
_NOT_DONE = {NOT_CONNECTED, "starting", "stopping", "closed", "connections_busy"}
"""The reasons with which a node has done nothing: it was not asked, or it has refused to begin."""
logger = logging.getLogger("ergon.web.audit")
# Written whatever the level of other loggers: the audit log must be complete.
logger.setLevel(logging.INFO)

FILE = "ergon-audit.db"
"""The name of the file, beside settings that name none."""
MOST = 200_000
"""How many entries are kept: the latest."""
LOOK_AGAIN = 600.0
"""Seconds in which the same look by the same person is recorded once."""
MOST_LOOKS = 10_000
"""How many looks are remembered. A look that was forgotten is recorded again."""
BUSY_TIMEOUT = 5.0
LOOK = "look"
"""The action of looking at arguments, results or payloads."""
EDIT = "edit"
"""The action of sending a job back with other arguments."""
PAUSE, RESUME, FIRE = "pause-queue", "resume-queue", "fire-schedule"
"""The actions on queues and schedules."""
RETRY_FLOW, SKIP_FLOW, CANCEL_FLOW = "retry-flow", "skip-flow", "cancel-flow"
PURGE_FLOW, SIGNAL_FLOW = "purge-flow", "signal-flow"
PAUSE_SCHEDULE, RESUME_SCHEDULE = "pause-schedule", "resume-schedule"
DELETE_SCHEDULE = "delete-schedule"
RELEASE_FACT, DISCARD_FACT = "release-fact", "discard-fact"
OF_FACTS = (RELEASE_FACT, DISCARD_FACT)
"""The actions on facts that were set aside. Their target is ``ZONE/ID``."""
OF_FLOWS = (RETRY_FLOW, SKIP_FLOW, CANCEL_FLOW, PURGE_FLOW, SIGNAL_FLOW)
"""The actions on flows. Their target is the id of the flow."""
AUDITED = (
    *("requeue", "retry", "cancel", "delete", EDIT, LOOK),
    *(PAUSE, RESUME, FIRE, PAUSE_SCHEDULE, RESUME_SCHEDULE, DELETE_SCHEDULE),
    *OF_FLOWS,
    *OF_FACTS,
)
"""Every action that the log records, in the order of the choice that the page offers."""
_COLUMNS = "id, at, actor, action, target, outcome, number, detail"
_TABLE = """
CREATE TABLE IF NOT EXISTS audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, actor TEXT NOT NULL,
    action TEXT NOT NULL, target TEXT NOT NULL, outcome TEXT NOT NULL, number INTEGER,
    detail TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS audit_by_actor ON audit (actor, id);
CREATE INDEX IF NOT EXISTS audit_by_action ON audit (action, id);
CREATE INDEX IF NOT EXISTS audit_by_target ON audit (target, id);
"""
T = TypeVar("T")


class AuditError(ErgonError):
    """The audit log cannot be written or read."""

    code = "audit_unavailable"


class AuditOutcome(StrEnum):
    """The outcome of an action."""

    BEGUN = "begun"
    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"  # The store did not answer, so the action may have been done.


class AuditEntry(msgspec.Struct, frozen=True):
    """One recorded action."""

    id: int
    at: float
    actor: str
    action: str
    target: str  # the id of a job or a flow, or a fact as ZONE/ID; empty for many jobs
    outcome: str
    number: int | None  # how many jobs were changed
    detail: str  # how the jobs were chosen, the reason, or the code of a refusal


class AuditSearch(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of entries; every field that is set must match."""

    actor: str | None = None
    action: str | None = None
    actions: tuple[str, ...] = ()  # one of these actions; empty: any
    target: str | None = None
    since: float | None = None
    below: int | None = None


class AuditLog:
    """The entries of a file. Without a file, they are kept in the memory of this process and
    logged.
    """

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._looks: OrderedDict[tuple[str, str, str, str], float] = OrderedDict()
        self._memory: sqlite3.Connection | None = None
        if path is None:
            self._memory = sqlite3.connect(":memory:", check_same_thread=False)
            self._memory.executescript(_TABLE)

    def record(self, actor: str, action: str, target: str, detail: str, do: Callable[[], T]) -> T:
        """Call a function, with an entry written before and its outcome written after.

        If the function returns a number, the entry records it as the number of jobs.
        """
        entry = self.begin(actor, action, target, detail)
        try:
            done = do()
        except ErgonError as error:
            outcome = AuditOutcome.UNKNOWN if may_be_done(error) else AuditOutcome.REFUSED
            self._end(entry, outcome, None, error.code)
            raise
        number = done if isinstance(done, int) and not isinstance(done, bool) else None
        self._end(entry, AuditOutcome.DONE, number, None)
        jobs = counted(number or 0, "job")
        if number is None:
            jobs = f"the {kind_of(action)} {target!r}" if target else detail
        logger.info("%s: %s %s", actor, action, jobs)
        return done

    def begin(self, actor: str, action: str, target: str = "", detail: str = "") -> int:
        """Record that somebody is about to do something. Returns the number of the entry."""
        values = (self._clock(), actor, action, target, AuditOutcome.BEGUN, detail)
        statement = (
            "INSERT INTO audit (at, actor, action, target, outcome, detail)"
            " VALUES (?, ?, ?, ?, ?, ?)"
        )
        with self._writing() as connection:
            number = connection.execute(statement, values).lastrowid or 0
            connection.execute("DELETE FROM audit WHERE id <= ?", (number - MOST,))
        return number

    def seen(self, actor: str, action: str, target: str = "", detail: str = "") -> None:
        """Record that somebody looks at hidden data, before it is shown.

        The same look is recorded once for a while: a live page asks every second, and such entries
        must not push out those of changes.
        """
        look = (actor, action, target, detail)
        now = self._clock()
        with self._lock:
            if 0 <= now - self._looks.get(look, -LOOK_AGAIN) < LOOK_AGAIN:
                return
        self._end(self.begin(actor, action, target, detail), AuditOutcome.DONE, None, None)
        with self._lock:
            self._looks.pop(look, None)
            self._looks[look] = now
            while len(self._looks) > MOST_LOOKS:
                self._looks.popitem(last=False)
        what = f"the arguments of the job {target!r}" if target else detail
        logger.info("%s looked at %s", actor, what)

    def find(self, search: AuditSearch, limit: int) -> list[AuditEntry]:
        """Entries that match, the newest first."""
        if self._memory is None:
            path = self.path or Path(FILE)
            try:
                return read_entries(path, search, limit)
            except (sqlite3.Error, OSError) as error:
                logger.error("the audit log %s: %s", path, error)  # noqa: TRY400 - one line
                raise AuditError(
                    "the audit log cannot be read", remedy="the log of the server says why"
                ) from error
        with self._lock:
            return _found(self._memory, search, limit)

    def _end(self, entry: int, outcome: AuditOutcome, number: int | None, why: str | None) -> None:
        statement = (
            "UPDATE audit SET outcome = ?1, number = ?2,"
            " detail = CASE WHEN ?3 IS NULL THEN detail WHEN detail = '' THEN ?3"
            " ELSE detail || ' (' || ?3 || ')' END WHERE id = ?4"
        )
        try:
            with self._writing() as connection:
                connection.execute(statement, (outcome, number, why, entry))
        except AuditError as error:
            # It is done and cannot be undone: the entry stays begun, and a log line says so.
            logger.error("the outcome %s of entry %d: %s", outcome, entry, error)  # noqa: TRY400

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, which is on disk when it ends."""
        try:
            with self._lock:
                if self._memory is not None:
                    with self._memory:
                        yield self._memory
                    return
                with closing(self._opened()) as connection, connection:
                    yield connection
        except (sqlite3.Error, OSError) as error:
            logger.error("the audit log %s: %s", self.path, error)  # noqa: TRY400 - one line
            raise AuditError(
                "the audit log cannot be written: nothing was done",
                remedy="the log of the server says why; [server] audit names another file",
            ) from error

    def _opened(self) -> sqlite3.Connection:
        # Opened for each entry, because people act seldom and the file may be moved meanwhile.
        path = self.path or Path(FILE)
        prepare_database(path, may_create=True)
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT)
        connection.executescript(_TABLE)
        return connection


def may_be_done(error: ErgonError) -> bool:
    """Whether an action that failed with this error may have been done all the same."""
    if isinstance(error, NodeUnavailableError):
        return error.reason not in _NOT_DONE
    # A store that did not answer may have done it; one that refuses writes has not.
    return isinstance(error, StoreError) and not isinstance(error, StoreReadOnlyError)


def kind_of(action: str) -> str:
    """The kind of thing that the target of an action is."""
    if action in OF_FACTS:
        return "fact"
    return "flow" if action in OF_FLOWS else "job"


def read_entries(path: Path, search: AuditSearch, limit: int) -> list[AuditEntry]:
    """Entries of a file that match, the newest first. Raises the errors of SQLite and of the disk.

    Reading makes no file, and needs no right to write unless a server was killed while it wrote.
    Without a file, nothing was recorded yet.
    """
    if not path.exists() or not path.stat().st_size:
        return []
    try:
        return _read(path, "ro", search, limit)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise
    # What a killed server has written of an entry has to be rolled back before anybody can read.
    return _read(path, "rw", search, limit)


def _read(path: Path, mode: str, search: AuditSearch, limit: int) -> list[AuditEntry]:
    place = f"{path.absolute().as_uri()}?mode={mode}"
    with closing(sqlite3.connect(place, timeout=BUSY_TIMEOUT, uri=True)) as connection:
        return _found(connection, search, limit)


def _found(connection: sqlite3.Connection, search: AuditSearch, limit: int) -> list[AuditEntry]:
    filters = {
        f"{name} = ?": value
        for name in ("actor", "action", "target")
        if (value := getattr(search, name)) is not None
    }
    more: list[str] = []
    if search.actions:
        more.append(f"action IN ({', '.join('?' * len(search.actions))})")
    if search.since is not None:
        filters["at >= ?"] = search.since
    if search.below is not None:
        filters["id < ?"] = search.below
    conditions = [*filters, *more]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    statement = f"SELECT {_COLUMNS} FROM audit{where} ORDER BY id DESC LIMIT ?"  # noqa: S608 - names of ours
    values = (*filters.values(), *search.actions, limit)
    rows = connection.execute(statement, values).fetchall()
    return [AuditEntry(*row) for row in rows]


def entry_view(entry: AuditEntry) -> dict[str, Any]:
    """An entry in the form that programs get."""
    return {**msgspec.structs.asdict(entry), "at": moment(entry.at)}


def audit_file(settings: Settings) -> Path | None:
    """The file of the log: beside the settings, unless they name another one. None for a log in
    memory.
    """
    named = settings.server.audit
    if named == "none" or (named is None and settings.file is None):
        return None
    base = Path() if settings.file is None else settings.file.absolute().parent
    return base / (named or FILE)


def audit_of(settings: Settings) -> AuditLog:
    """The audit log of a server with these settings."""
    return AuditLog(audit_file(settings))
