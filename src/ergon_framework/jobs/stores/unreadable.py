"""Rows of jobs that cannot be read, and what a store does with one: it sets it aside.

A row may be written by a newer version, by hand, or by a disk that forgot something. A call that
meets one that has not ended sets it aside, so that it blocks no other, and notes what is wrong. The
row itself stays as it is, until an operator has it read again or discards it.
"""

from __future__ import annotations

import logging
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, Protocol

import msgspec

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import DuplicateJobError, ErgonError, UnreadableJobError
from ergon_framework.ports.jobstore import Job, Unreadable

logger = logging.getLogger("ergon.jobs")

UNREADABLE = "unreadable"
"""What stands in the place of a status in a row that was set aside."""

READ_ERRORS = (msgspec.MsgspecError, ValueError, TypeError, KeyError, IndexError, struct.error)
"""What reading a row raises that is not what a store has written."""

_EARLIEST, _END = -62_167_219_200.0, 253_402_300_800.0  # year 0 to year 9999
_NUMBERS = ("priority", "limit", "attempts", "deliveries", "excused", "fence")
_TEXTS = ("id", "handler", "executor", "queue", "why")
_OPTIONAL_TEXTS = ("unique_key", "limit_key", "worker")
_INSTANTS = ("created_at", "run_at")
_OPTIONAL_INSTANTS = (*("expires_at", "claimed_at", "lease_expires_at", "finished_at", "purge_at"),)
_ALL_INSTANTS = (*_INSTANTS, *_OPTIONAL_INSTANTS)
_instants = attrgetter(*_ALL_INSTANTS)
_typed = attrgetter(
    *_NUMBERS, *_TEXTS, *_OPTIONAL_TEXTS, *_ALL_INSTANTS, "args", "kwargs", "result"
)
_known_types: set[tuple[type, ...]] = set()
"""Types of the fields of rows that were found sound; a few hundred at most, as there are types."""
_Items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_Fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class RowError(ValueError):
    """A row cannot be read; the text says what is wrong, and nothing of what stands there."""


class UnreadableRowError(RowError):
    """The same of a row that was met while something else was done, with its key."""

    def __init__(self, key: Any, text: str) -> None:
        super().__init__(text)
        self.key = key


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is noted in the place of ``why`` in a row that is set aside."""

    status: str = ""  # as it was
    problem: str = ""


_note = msgspec.json.Decoder(Note).decode


def note_of(text: object) -> Note:
    """What was noted; whatever stands there."""
    try:
        return _note(text) if isinstance(text, str | bytes) else Note()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Note()


def was_status(note: Note) -> JobStatus:
    """The status of a job that was set aside; pending, where its status cannot be read."""
    try:
        return JobStatus(note.status)
    except ValueError:
        return JobStatus.PENDING


def problem_of(error: BaseException) -> str:
    """What is wrong with a row, without anything of what stands in it."""
    if isinstance(error, RowError | msgspec.MsgspecError):
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start}"
    if isinstance(error, sqlite3.Error):  # of its module: "Could not decode to UTF-8 column 'x'"
        column = str(error).partition("column '")[2].partition("'")[0]
        return f"{column or 'a column'}: not UTF-8"
    return f"a value is missing, or of another type ({type(error).__name__})"


def is_misread(error: BaseException) -> bool:
    """Whether an error may come from a row that cannot be read."""
    if isinstance(error, sqlite3.OperationalError):
        return str(error).startswith("Could not decode to UTF-8")
    return isinstance(error, READ_ERRORS) and not isinstance(error, ErgonError)


def status_of(text: object) -> JobStatus:
    """The status that stands in a row."""
    try:
        return JobStatus(text)  # type: ignore[arg-type]  # whatever it is
    except ValueError:
        raise RowError("status: not one of the states of a job") from None


def check_arguments(args: object, kwargs: object) -> None:
    """Refuse arguments that are no JSON: they go into a line of the protocol as they are."""
    if args == b"[]" and kwargs == b"{}":
        return
    if type(args) is not bytes or type(kwargs) is not bytes:
        raise RowError("args or kwargs: not bytes")
    try:
        _Items(args)
        if kwargs != b"{}":
            _Fields(kwargs)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise RowError("args or kwargs: not a JSON array and object") from None
    except RecursionError:
        raise RowError("args or kwargs: nested too deeply to be read") from None
    if b"\n" in args or b"\n" in kwargs:
        raise RowError("args or kwargs: more than one line")


def argument_problem(job: Job) -> str | None:
    """What is wrong with the arguments of a job; None if it can be run with them."""
    try:
        check_arguments(job.args, job.kwargs)
    except RowError as error:
        return str(error)
    return None


def checked(job: Job) -> Job:
    """The same job, if each of its fields is of the type that it has everywhere else."""
    # Of all rows that are read nearly all have types that were met before, and sound ones.
    types = tuple(map(type, _typed(job)))
    if types not in _known_types:
        _check_types(job)
        _known_types.add(types)
    for name, value in zip(_ALL_INSTANTS, _instants(job), strict=True):
        if value is not None and not _EARLIEST <= value < _END:  # which neither holds for NaN
            check_instant(name, value)
    return job


def _check_types(job: Job) -> None:
    for name in _NUMBERS:
        if type(getattr(job, name)) is not int:
            raise RowError(f"{name}: not a whole number")
    for name in _TEXTS:
        if type(getattr(job, name)) is not str:
            raise RowError(f"{name}: not text")
    for name in _OPTIONAL_TEXTS:
        if not isinstance(getattr(job, name), str | None):
            raise RowError(f"{name}: not text")
    for name in _INSTANTS:
        check_instant(name, getattr(job, name))
    for name in _OPTIONAL_INSTANTS:
        if getattr(job, name) is not None:
            check_instant(name, getattr(job, name))
    if type(job.args) is not bytes or type(job.kwargs) is not bytes:
        raise RowError("args or kwargs: not bytes")
    if not isinstance(job.result, bytes | None):
        raise RowError("result: not bytes")


def check_instant(name: str, value: object) -> None:
    """Refuse what is no point in time."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # The bounds also refuse infinities, and NaN, which no comparison holds for.
    if not is_number or not _EARLIEST <= value < _END:  # type: ignore[operator]
        raise RowError(f"{name}: not a point in time")


def shown(value: object) -> str:
    """What stands where a text should, for the eye."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return str(value)[:200] if isinstance(value, str | int | float) else ""


def unreadable_job(job_id: str, problem: str, options: str = "") -> UnreadableJobError:
    """The error of asking for a job whose row cannot be read; ``options`` name the store."""
    return UnreadableJobError(
        f"the row of job {job_id} cannot be read: {problem}",
        remedy=f"this lists such rows:  ergon jobs unreadable{options}",
    )


def key_is_held(job_id: str) -> DuplicateJobError:
    """The error of restoring a row whose unique key another job took meanwhile."""
    return DuplicateJobError(
        f"another job holds the unique key of {job_id} by now",
        remedy="wait for its end, or cancel it, and restore the row then; or discard the row",
    )


def cannot_move(found: Unreadable) -> UnreadableJobError:
    """The error of a move that met a row which it cannot copy."""
    return UnreadableJobError(
        f"the row of job {found.id} cannot be read, nor moved: {found.problem}",
        remedy="put it right and have it read again, or discard it: see ergon jobs unreadable",
    )


def log_set_aside(found: Unreadable) -> None:
    """Log that a row was set aside: once for each, as no call meets it again."""
    logger.error(
        "the row of job %r was set aside, it cannot be read: %s",
        *(found.id, found.problem),
    )


MAX_LOGGED_ROWS = 1000


class SkippedRows(Protocol):
    """Whoever is told of the rows that a search leaves out."""

    def left_out(self, found: Unreadable) -> None:
        """One that cannot be read."""


class UnreadableLog:
    """Logs each row once that a search left out because it cannot be read."""

    def __init__(self) -> None:
        self._logged: set[Any] = set()

    def left_out(self, found: Unreadable) -> None:
        """Log that it is missing in what was read."""
        # Bounded: a table full of such rows must neither fill the memory nor the log.
        if found.key not in self._logged and len(self._logged) < MAX_LOGGED_ROWS:
            self._logged.add(found.key)
            logger.warning("the row of job %r is left out: %s", found.id, found.problem)


class _FoundRows:
    """Keeps what a search leaves out."""

    def __init__(self) -> None:
        self.found: list[Unreadable] = []

    def left_out(self, found: Unreadable) -> None:
        """Keep it for whoever asked."""
        self.found.append(found)


def left_out_of(
    search: Callable[[SkippedRows], Iterator[Job]], aside: Iterable[Unreadable]
) -> Iterator[Unreadable]:
    """The rows that a search leaves out, but for those that were set ``aside``."""
    known, skipped = {each.key for each in aside}, _FoundRows()
    for _ in search(skipped):
        if skipped.found:
            yield from (each for each in skipped.found if each.key not in known)
            skipped.found.clear()
    # Rows behind the last job that could be read: no further job brings them up.
    yield from (each for each in skipped.found if each.key not in known)
