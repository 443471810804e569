"""Notices and spans go into a journal in the background; the work never waits for it.

Notices become plain values first: names, numbers and short texts. Payloads, results and exceptions
never get here, and an object of any other kind is written as the name of its type. What cannot be
written, because there is too much of it or because the journal is in trouble, is dropped and
counted. Child processes find their parent's journal in an environment variable.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

from opentelemetry.trace import get_current_span

from ergon_framework.core.failure import Failure
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import ErgonError, StoreError, describe, text_of
from ergon_framework.ports.context import Attempt, Call
from ergon_framework.ports.journal import Journal, JournalEntry, SpanRecord
from ergon_framework.ports.notice import CATALOGUE, Notice, NoticeSpec, Routine
from ergon_framework.storage.urls import SQLITE
from ergon_framework.telemetry.journal_tracing import JournalTracerProvider
from ergon_framework.telemetry.notices import Listener, add_listener
from ergon_framework.telemetry.propagation import extract
from ergon_framework.telemetry.tracing import journal_provider, set_journal_provider

logger = logging.getLogger("ergon.journal")


MAX_TEXT = 500
"""Characters of one text."""
_MAX_ITEMS = 32  # elements of one list, and keys of one table
_ID_FIELDS = ("job_id", "transaction_id", "message_id", "call_id")
# "began_at" is read from a clock that counts from anywhere.
# A traceback is in the job's history, which ergon why shows.
_SKIPPED_FIELDS = frozenset({"exception", "result", "began_at", "traceback", *_ID_FIELDS})


def _names(routine: Routine) -> frozenset[str]:
    return frozenset(name for name, known in CATALOGUE.items() if known.routine is routine)


# Sets of their own: each transaction that goes well is asked about several times.
ROUTINE, _WHEN_WELL = _names(Routine.ALWAYS), _names(Routine.WHEN_WELL)


def is_routine(notice: Notice) -> bool:
    """Whether the notice is part of the happy path; False for names that the catalogue does not
    have.
    """
    name = notice.name
    return name in ROUTINE or (name in _WHEN_WELL and _went_well(notice.fields))


def entry_of(notice: Notice, source: str, at: float) -> JournalEntry:
    """The notice as a journal keeps it. ``at`` is the time of day; a notice may have another."""
    given = notice.fields
    run = _run_of(given)
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _SKIPPED_FIELDS and name != "run" and value is not None:
            fields |= _flat(name, value)
    # Here and not in the engine: programs that listen to notices count from 0, as the engine does.
    if notice.name == "retry.scheduled":
        fields["attempt"] += 1  # the engine counts from 0, people from 1
    return JournalEntry(
        at=at,
        name=notice.name,
        source=source,
        unit=_unit_of(given, run),
        trace_id=_trace_of(run),
        fields=fields,
    )


def _went_well(fields: Mapping[str, Any]) -> bool:
    get = fields.get
    is_fine = get("failure") is None and get("error") is None
    return is_fine and get("ending", "succeeded") == "succeeded"


def _run_of(fields: Mapping[str, Any]) -> Any:
    if "run" in fields:
        return fields["run"]
    return getattr(fields.get("attempt"), "run", None)


def _unit_of(fields: Mapping[str, Any], run: Any) -> str:
    if run is not None:
        return str(run.transaction.transaction_id)
    return next((str(fields[name]) for name in _ID_FIELDS if fields.get(name)), "")


def _trace_of(run: Any) -> str:
    # The current span wins: a notice may be emitted inside a hook whose span is a child of the
    # transaction's.
    context = get_current_span().get_span_context()
    if not context.is_valid and run is not None:
        context = extract(run.transaction) or context
    return f"{context.trace_id:032x}" if context.is_valid else ""


def _flat(name: str, value: Any) -> dict[str, Any]:
    """A field of a notice as one or two plain values."""
    if isinstance(value, Call):
        return {"task": value.task, "role": value.role}
    if isinstance(value, Attempt) or hasattr(value, "transaction"):  # a run may be its own attempt
        return {"phase": value.phase, name: value.number + 1}
    return {name: plain(value)}


def plain(value: Any) -> Any:
    """A value that JSON can hold and that says no more than it should."""
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Failure):
        return _failure(value)
    if isinstance(value, BaseException):
        text = text_of(value) if isinstance(value, ErgonError) else describe(value)
        return text[:MAX_TEXT]
    # By its method and not by its class: importing every report here would import every package.
    if hasattr(value, "to_dict"):  # a report
        return plain(value.to_dict())
    if hasattr(value, "__struct_fields__"):
        return plain({field: getattr(value, field) for field in value.__struct_fields__})
    return _simple(value)


def _simple(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)[:MAX_TEXT]
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in list(value.items())[:_MAX_ITEMS]}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in list(value)[:_MAX_ITEMS]]
    # Never ``repr``: an object of the user's may show a payload or a password.
    return type(value).__name__


def _failure(failure: Failure) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": failure.kind.value, "code": failure.code}
    if failure.message:
        fields["message"] = failure.message[:MAX_TEXT]
    if failure.retry_after is not None:
        fields["retry_after"] = failure.retry_after
    return fields


MAX_WAITING = 10_000
"""Entries and spans that wait to be written."""
BATCH_SIZE = 500
"""Entries and spans in one commit."""
FLUSH_INTERVAL = 0.2
"""Seconds for which an entry waits for others, to be written in one commit with them."""
MAX_TROUBLED = 10_000
"""Transactions with trouble in the journal that are remembered, so that their success is
written as well."""
CLOSE_TIMEOUT = 2.0
"""Seconds for which the end of a process waits for entries that are not written yet."""
_UNKNOWN = NoticeSpec("", ())
_RETRY_DELAY = 5.0  # seconds after a failed write in which the journal is not tried again


class JournalWriter:
    """Takes entries and spans from any thread and writes them in one of its own.

    The journal is opened when there is something to write, and again after trouble. In a forked
    child it begins with nothing: what waited is the parent's to write.
    """

    def __init__(
        self,
        open_journal: Callable[[], Journal],
        *,
        max_waiting: int = MAX_WAITING,
        flush_interval: float = FLUSH_INTERVAL,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_journal = open_journal
        self._max_waiting = max_waiting
        self._flush_interval = flush_interval
        self._monotonic = monotonic
        self._journal: Journal | None = None
        self._dropped = 0
        self._is_closed = False  # and stays so in a child, once it is
        self.renew()
        renew_after_fork(self)

    @property
    def dropped(self) -> int:
        """How many entries and spans were not kept."""
        return self._dropped

    def tell(self, entry: JournalEntry) -> None:
        """Queue an entry for the writer thread; never blocks and never fails."""
        self._add(entry)

    def keep(self, span: SpanRecord) -> None:
        """Have a span written soon; never blocks and never fails."""
        self._add(span)

    def flush(self, timeout: float = CLOSE_TIMEOUT) -> bool:
        """Wait until everything queued so far is written or dropped; False when time ran out."""
        with self._changed:
            self._is_urgent = True
            self._changed.notify_all()
            return self._changed.wait_for(self._is_idle, timeout)

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Write what waits, as far as time allows, and let go of the journal."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout)
        if self._dropped:
            logger.warning("the journal is incomplete: %d entries were not kept", self._dropped)

    def renew(self) -> None:
        """Start empty: at first, and in a forked child."""
        self._changed = threading.Condition()
        self._waiting: deque[JournalEntry | SpanRecord] = deque()
        self._thread: threading.Thread | None = None
        self._is_busy = False
        self._is_urgent = False
        self._is_in_trouble = False
        self._retry_at = float("-inf")

    def write_now(self) -> None:
        """Write the queue in this thread. A failure is logged once, and what was queued is
        dropped.
        """
        with self._changed:
            batch = [self._waiting.popleft() for _ in range(min(BATCH_SIZE, len(self._waiting)))]
        if not batch:
            return
        # Dropped instead of kept: a journal that cannot be written for hours must not fill the
        # memory.
        if self._monotonic() < self._retry_at:
            self._dropped += len(batch)
            return
        try:
            if self._journal is None:
                self._journal = self._open_journal()
            self._journal.write(
                [each for each in batch if isinstance(each, JournalEntry)],
                [each for each in batch if isinstance(each, SpanRecord)],
            )
        except Exception as error:
            self._dropped += len(batch)
            self._give_up(error)
        else:
            if self._is_in_trouble:
                self._is_in_trouble = False
                logger.info("the journal is written again; %d entries are missing", self._dropped)

    def _add(self, thing: JournalEntry | SpanRecord) -> None:
        with self._changed:
            # The newest are dropped, not the oldest: the first entries of a burst of errors show
            # how it began.
            if self._is_closed or len(self._waiting) >= self._max_waiting:
                self._dropped += 1
                return
            self._waiting.append(thing)
            if self._thread is None:
                self._start()
            # Only these two change what the writer waits for; to wake it for every entry would cost
            # more than writing them.
            elif len(self._waiting) in (1, BATCH_SIZE):
                self._changed.notify_all()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="ergon-journal", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            self._dropped += len(self._waiting)
            self._waiting.clear()
        else:
            self._thread = thread

    def _run(self) -> None:
        try:
            while self._await_batch():
                self.write_now()
                with self._changed:
                    self._is_busy = False
                    self._changed.notify_all()
        finally:
            self._close_journal()

    def _await_batch(self) -> bool:
        """Wait for something to write, and then a moment for more; False: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            # A moment for more: one commit for a burst of entries instead of one for each.
            self._changed.wait_for(self._is_full, self._flush_interval)
            if not self._waiting:
                return not self._is_closed
            # Under the same lock as the check: ``flush`` must not find the queue empty and no
            # writer at work in between.
            self._is_busy = True
            return True

    def _is_full(self) -> bool:
        return len(self._waiting) >= BATCH_SIZE or self._is_closed or self._is_urgent

    def _is_idle(self) -> bool:
        is_idle = not self._waiting and not self._is_busy
        if is_idle:
            self._is_urgent = False
        return is_idle

    def _give_up(self, error: Exception) -> None:
        self._close_journal()
        # The work goes on meanwhile: a disk that is full must not be asked at every notice.
        self._retry_at = self._monotonic() + _RETRY_DELAY
        if not self._is_in_trouble:
            self._is_in_trouble = True
            text = str(error) if isinstance(error, StoreError) else describe(error)
            logger.warning("the journal cannot be written, and the work goes on: %s", text)

    def _close_journal(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            try:
                journal.close()
            except Exception:
                logger.debug("the journal could not be closed", exc_info=True)


class JournalListener:
    """A listener of notices that has those worth keeping written; see ``add_listener``.

    That a transaction succeeded is routine, unless trouble with it was written before: then its
    good end is written as well, so that the trouble is not the last word about it.
    """

    def __init__(
        self,
        writer: JournalWriter | Any,
        source: str,
        *,
        keeps_all: bool = False,
        clock: Callable[[], float] = time.time,
        max_troubled: int = MAX_TROUBLED,
    ) -> None:
        self._tell: Callable[[JournalEntry], None] = writer.tell
        self._source = source
        self._keeps_all = keeps_all
        self.passes_over = frozenset() if keeps_all else ROUTINE
        self._clock = clock
        self._max_troubled = max_troubled
        # Any thread calls, and each operation on it is atomic: there is no lock to wait for.
        self._troubled: dict[str, None] = {}

    def __call__(self, notice: Notice) -> None:
        """Queue the notice for the journal, unless it is routine."""
        if self._keeps_all:
            self._tell(entry_of(notice, self._source, self._clock()))
        elif not is_routine(notice):
            entry = entry_of(notice, self._source, self._clock())
            self._tell(entry)
            if entry.unit and CATALOGUE.get(notice.name, _UNKNOWN).part == "engine":
                self._remember(entry.unit)
        elif self._troubled and notice.name == "transaction.ended":
            entry = entry_of(notice, self._source, self._clock())
            if entry.unit in self._troubled:
                self._troubled.pop(entry.unit, None)
                self._tell(entry)

    def _remember(self, unit: str) -> None:
        self._troubled[unit] = None
        if len(self._troubled) > self._max_troubled:
            with suppress(RuntimeError, StopIteration):  # another thread is at it
                self._troubled.pop(next(iter(self._troubled)), None)


VARIABLE = "ERGON_JOURNAL"
"""Passes the journal of a parent to a process without settings, such as an executor."""


@contextmanager
def record_spans(keep: Callable[[SpanRecord], None], source: str, path: Path) -> Iterator[None]:
    """Hand the spans of traces to ``keep``; processes started meanwhile learn of the journal."""
    before, named = journal_provider(), os.environ.get(VARIABLE)
    set_journal_provider(JournalTracerProvider(keep, source))
    os.environ[VARIABLE] = f"{SQLITE}{path.absolute()}"
    try:
        yield
    finally:
        set_journal_provider(before)
        if named is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = named


def record_to_parent(
    source: str, *, listen: Callable[[Listener], None] = add_listener
) -> JournalWriter | None:
    """Write the notices and spans of this process into the journal of its parent process.

    Returns None when the parent named no journal.
    """
    named = os.environ.get(VARIABLE, "")
    path = Path(named.removeprefix(SQLITE))
    if not named.startswith(SQLITE) or not path.parent.is_dir():
        return None

    def open_journal() -> Journal:
        from ergon_framework.storage.journal import SqliteJournal

        return SqliteJournal(path)

    writer = JournalWriter(open_journal)
    set_journal_provider(JournalTracerProvider(writer.keep, source))
    listen(JournalListener(writer, source))
    return writer
