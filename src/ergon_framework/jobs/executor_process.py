"""One executor process: sends requests, reads answers, and watches deadlines.

A process knows its own requests and nothing of queues or stores. It reports what happens to its
:class:`ProcessListener`, and the pool tells it what to do next.
"""

from __future__ import annotations

import json
import logging
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Protocol

from ergon_framework.core.executor_protocol import (
    OrchestratorSession,
    ProgressReport,
    Reply,
    Stray,
    encode_cancel,
    reported_progress,
)
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import Failed, JobEvent, ProcessDied, Released, Unread
from ergon_framework.core.text import one_line, one_sentence, several_lines
from ergon_framework.jobs.child_process import ChildProcess
from ergon_framework.jobs.claims import Claim, silence_of
from ergon_framework.jobs.event_loop import READ, WRITE, EventLoop
from ergon_framework.jobs.settings import MAX_IN_FLIGHT, ExecutorSettings
from ergon_framework.ports.dice import roll
from ergon_framework.redaction import redacted_text

spoken = logging.getLogger("ergon.executors")
"""The logger for what executors write to their standard error streams: level INFO,
secrets removed.
"""

DEADLINE_SLACK = 0.5
"""Seconds beyond its timeout that an executor has to answer ``timeout`` before it is killed."""
CONFUSED_AFTER = 5.0
"""Seconds after an answer that fits no request until the process counts as confused."""
MAX_STRAYS = 100_000
"""Lines that are no outcome, in a row, until the process counts as confused."""
EXIT_TIMEOUT = 1.0
"""Seconds between the end of a process's output and its own end, at most."""
MAX_READS, FULL_READ = 16, 1 << 16
"""How often one stream is read in one turn, and the size of a read after which more is likely."""
MAX_READY_BYTES = 1 << 20
"""How long the line on the ready descriptor may be; a longer one counts as it was read so far."""
MAX_LINE_BYTES = 1 << 14
"""Bytes of one line of a standard error stream; a longer line is logged as several."""
MAX_LOGGED_BYTES = 1 << 16
"""How many bytes of one read of a standard error stream are logged, so that a flood does not fill
the log.
"""


class EndReason(StrEnum):
    """Why this worker ended a process."""

    TIMEOUT = "timeout"
    STOP = "stop"
    CONFUSED = "confused"
    NOT_UP = "not_up"
    RECYCLED = "recycled"
    LEASE_LOST = "lease_lost"
    CANCELLED = "cancelled"


class OutputLines:
    """Splits a stream that is read in pieces into lines.

    A line is logged when it is complete. Pieces of the lines of two processes would mix, and a
    secret or a character that is split over two pieces would not be recognised.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._skips_feed = False  # the last line ended with CR; an LF that follows belongs to it

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete by now."""
        if self._skips_feed and data.startswith(b"\n"):
            data = data[1:]
        self._skips_feed = data.endswith(b"\r")
        lines = (self._rest + data).splitlines(keepends=True)
        is_whole = data.endswith((b"\n", b"\r"))
        self._rest = b"" if is_whole or not lines else lines.pop()
        found = [piece for line in lines for piece in _pieces(line.rstrip(b"\r\n"))]
        while len(self._rest) > MAX_LINE_BYTES:
            found.append(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]
        return found

    def end(self) -> list[bytes]:
        """The last line, if it did not end; no more bytes will come."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


def _pieces(line: bytes) -> list[bytes]:
    if len(line) <= MAX_LINE_BYTES:
        return [line]
    return [line[at : at + MAX_LINE_BYTES] for at in range(0, len(line), MAX_LINE_BYTES)]


class RecycleReason(StrEnum):
    """Which limit of an executor a process has reached; each is named as its setting."""

    MAX_JOBS = "max_jobs"
    MAX_MEMORY = "max_memory"
    MAX_AGE = "max_age"


NEVER = float("inf")
RECYCLE_SPREAD = 0.1
"""The part of ``max_jobs`` and ``max_age`` by which a process may be replaced earlier: processes
that were started together shall not be replaced together."""


class ProcessLimits:
    """Decides when a process is to be replaced: after so many jobs, at such a size, or at such an
    age.
    """

    def __init__(self, settings: ExecutorSettings, started_at: float) -> None:
        self.reason: RecycleReason | None = None
        """Why the process is to be replaced; None: it is not."""
        self.max_jobs: float = settings.max_jobs or NEVER
        """It may not be given more."""
        self.retires_at = NEVER
        self._max_memory: float = settings.max_memory or NEVER
        early = RECYCLE_SPREAD * roll()
        # The successor starts while the process may still be given some jobs.
        self._almost_all = self.max_jobs - int(settings.max_jobs * early)
        if settings.max_age:
            self.retires_at = started_at + settings.max_age * (1.0 - early)

    def look(self, jobs: int, now: float) -> None:
        """Note when a process that was given so many jobs has reached a limit."""
        if self.reason is not None:
            return
        if jobs >= self._almost_all:
            self.reason = RecycleReason.MAX_JOBS
        elif now >= self.retires_at:
            self.reason = RecycleReason.MAX_AGE

    def look_at_memory(self, jobs: int, used: int) -> None:
        """Note that the process has grown too large. If it is new, every process of the executor is
        so large, and nothing is replaced.
        """
        if self.reason is None and jobs and used >= self._max_memory:
            self.reason = RecycleReason.MAX_MEMORY


class PendingRequest:
    """One request that was written and is not answered."""

    __slots__ = (
        *("begins", "cancelled_at", "claim", "deadline_at", "heartbeat", "is_overdue"),
        *("is_silent", "is_unread", "silent_at", "timeout"),
    )

    def __init__(self, claim: Claim, begins: int, timeout: float) -> None:
        self.claim = claim
        self.begins = begins  # where in the child's input the request starts
        self.timeout = timeout
        self.deadline_at: float | None = None  # None: its time has not begun.
        self.is_overdue = False
        self.is_unread = False  # … and was not read before that
        self.cancelled_at: float | None = None  # when the process was told that it is cancelled
        # the interval in seconds at which its handler must report
        self.heartbeat: float | None = None
        self.silent_at = NEVER  # when it has been silent for too long …
        self.is_silent = False  # … and was cancelled for it

    def heard(self, now: float) -> None:
        """Note that its handler has reported or has just begun."""
        if self.heartbeat is not None:
            self.silent_at = now + self.heartbeat


class ProcessListener(Protocol):
    """Told by a process what happens to it. The pool is one."""

    def answered(self, process: ExecutorProcess, request: PendingRequest, reply: Reply) -> None:
        """An executor answered a request of ours."""

    def answer_unreadable(
        self, process: ExecutorProcess, request: PendingRequest, failure: Failure
    ) -> None:
        """The executor's answer to a request of ours cannot be read."""

    def strayed(self, process: ExecutorProcess, reason: str) -> None:
        """The executor wrote a line that fits no request."""

    def progressed(self, request: PendingRequest, report: ProgressReport) -> None:
        """A handler reported its progress."""

    def became_ready(self, process: ExecutorProcess) -> None:
        """The process reported that it is ready."""

    def exited(self, process: ExecutorProcess) -> None:
        """The process has ended, or closed its output."""


class ExecutorProcess:
    """A child process, the protocol spoken with it, and the requests it has."""

    def __init__(
        self,
        child: ChildProcess,
        settings: ExecutorSettings,
        loop: EventLoop,
        listener: ProcessListener,
        *,
        confused_after: float = CONFUSED_AFTER,
    ) -> None:
        self.child = child
        self._confused_after = confused_after
        self.settings = settings
        self.in_flight: dict[str, PendingRequest] = {}
        self.max_in_flight = settings.max_in_flight
        self.started_at = loop.now()
        self.is_up = False  # it said so, took a request, or answered one
        self.has_reported = False  # that it is ready
        self.handlers: frozenset[str] | None = None
        """Which handlers it reported; None: it reported none, and is given every job."""
        self.is_reserved = False  # takes no more requests until a solo job can run in it
        self.is_solo = False  # runs a solo job, and nothing beside it
        self.answers = 0
        self.given = 0  # requests given to it so far
        self.limits = ProcessLimits(settings, self.started_at)
        self.is_relieved = False  # its successor has started: it gets no other request
        self.is_broken = False  # an answer could not be used: it gets no other request
        self.end_reason: EndReason | None = None
        self.term_at: float | None = None
        self.kill_at: float | None = None
        self.suspect_at: float | None = None
        self._has_lost = False  # the lease of a job it runs was lost: it gets no other request
        self._heartbeats: Mapping[str, float] = {}  # which handlers must report, and how often
        self._reports = OutputLines()
        self._reads_cancellations = False  # it said that it reads the control descriptor
        self._has_cancelled = False  # it may have a job that is to be cancelled …
        self._is_leaving = False  # … which does not end: it gets no other request
        self._is_exit_reported = False  # the system has reported its end
        self._is_mute = False  # it has closed its output
        self._is_closing = False
        self._deadline_at = NEVER  # no request in flight has an earlier deadline
        self._strays = 0
        # Enough to recognise a late second answer; without a bound it would grow with every job.
        self._answered: deque[str] = deque(maxlen=64)
        self._session = OrchestratorSession(settings.response_limit)
        self._ready_text = bytearray()
        self._is_ready_awaited = True
        self._output = OutputLines()
        self._loop = loop
        self._listener = listener
        loop.watch(child.stdout, READ, self._read_stdout)
        loop.watch(child.stderr, READ, self._read_stderr)
        loop.watch(child.ready, READ, self._read_ready)
        loop.watch(child.progress, READ, self._read_progress)
        # A pidfd, where the system has one. Elsewhere the end shows at the end of its output, or is
        # polled for.
        if child.exit_fd >= 0:
            loop.watch(child.exit_fd, READ, self._exited)

    # ---- what the pool asks ----

    @property
    def may_have_exited(self) -> bool:
        """Whether it is worth a system call to ask if the process has ended."""
        return self._is_exit_reported or self.child.exit_fd < 0 or self.end_reason is not None

    @property
    def up_at(self) -> float:
        """The end of its startup grace; from then on the time of its requests runs."""
        return self.started_at + self.settings.startup_grace

    @property
    def is_dismissed(self) -> bool:
        """Whether it gets no more requests because it has reached a limit."""
        return self.is_relieved or self.given >= self.limits.max_jobs

    @property
    def room(self) -> int:
        """How many more requests it may be given now."""
        if self.end_reason is not None or self.is_solo or self.is_reserved:
            return 0
        # Each of these means that the process is about to be replaced: a request given now would go
        # down with it.
        if self._is_mute or self._has_lost or self.is_broken or self._is_leaving:
            return 0
        if self.is_dismissed:
            return 0
        return self.max_in_flight - len(self.in_flight)

    def give(self, claim: Claim, line: bytes, timeout: float) -> None:
        """Queue a request, which :meth:`flush` sends."""
        # Taken before ``send``, which moves ``queued``: it is where this request starts.
        request = PendingRequest(claim, self.child.queued, timeout)
        # A process that is still starting may take its startup grace first; ``came_up`` sets the
        # deadline then.
        if self.is_up:
            request.deadline_at = deadline_at = self._loop.now() + timeout + DEADLINE_SLACK
            self._deadline_at = min(self._deadline_at, deadline_at)
            if self._heartbeats:
                self._bind(request)
        # ``begins`` is compared with what the child has read, to tell which requests it had begun.
        self.in_flight[claim.job.id] = request
        self.given += 1
        self.child.send(line)

    def flush(self) -> None:
        """Write the queued requests; the loop continues with what the pipe did not take."""
        if not self.child.flush():
            self._loop.watch(self.child.stdin, WRITE, self._write_more)

    def look(self, now: float) -> None:
        """Start the deadlines of requests once the process is up, and continue an end that was
        asked for.
        """
        if not self.is_up and self.in_flight:
            first = next(iter(self.in_flight.values()))
            # A process that says nothing of being ready is up when it reads its input: handlers in
            # any language need not know the ready descriptor.
            if now >= max(self.up_at, first.claim.written_at) or self.child.taken() > first.begins:
                self.came_up(now)  # It reads its input, or its grace is over.
        if self._heartbeats:
            self._cancel_silent(now)
        if self.is_broken and self.in_flight and not (self._is_mute or self._session.is_skipping):
            self.suspect_at = None  # The overlong line has ended: its other requests may finish.
        if self.term_at is not None and now >= self.term_at:
            self.term_at = None
            self.child.signal(signal.SIGTERM)
            # Counted from the signal, not from when the end was asked for: the grace belongs to the
            # process.
            self.kill_at = now + self.settings.kill_grace
        if self.kill_at is not None and now >= self.kill_at:
            self.child.signal(signal.SIGKILL)
            self.kill_at = now + 1.0  # again: a stopped or traced process may miss the first

    def next_look(self, now: float) -> float | None:
        """The latest instant at which :meth:`look` must be called again."""
        if self.kill_at is not None or self.term_at is not None:
            return self.kill_at if self.term_at is None else self.term_at
        # Requests that were answered took their deadlines with them, so this one may be too early.
        # ``overdue`` finds the next one when it has come, instead of after every turn.
        times = [self._deadline_at] if self.in_flight and self._deadline_at < NEVER else []
        if self.in_flight and not self.is_up:
            # Nothing wakes the loop when a child reads its pipe, so the system is asked now and
            # then.
            times.append(now + 0.05)
        if self.suspect_at is not None:
            times.append(self.suspect_at)
        if self._heartbeats:
            times += [each.silent_at for each in self.in_flight.values() if not each.is_silent]
        if self.limits.retires_at < NEVER and self.limits.reason is None:
            times.append(self.limits.retires_at)
        if self._has_cancelled and not self._is_leaving:
            times += [self._cancel_until(each) for each in self._cancelled()]
        return min(times, default=None)

    def came_up(self, now: float) -> None:
        """Note that the process is up: the deadlines of its requests start now."""
        if self.is_up:
            return
        self.is_up = True
        for request in self.in_flight.values():
            request.deadline_at = now + request.timeout + DEADLINE_SLACK
        self._find_deadline()

    def overdue(self, now: float) -> list[PendingRequest]:
        """Requests whose deadline has passed and that were not returned before."""
        if now < self._deadline_at:
            return []
        found = [
            request
            for request in self.in_flight.values()
            if request.deadline_at is not None and request.deadline_at <= now
            if not request.is_overdue
        ]
        # Asked of the system only when something is overdue: this runs after every turn.
        taken = self.child.taken() if found else 0
        for request in found:
            request.is_overdue = True
            request.is_unread = request.begins >= taken
            request.deadline_at = None
        self._find_deadline()
        return found

    def _find_deadline(self) -> None:
        times = (each.deadline_at for each in self.in_flight.values())
        self._deadline_at = min((at for at in times if at is not None), default=NEVER)

    def end(self, end_reason: EndReason, now: float, *, at_once: bool = False) -> None:
        """Send SIGTERM to the process group and SIGKILL after ``kill_grace``; or kill at once."""
        if self.end_reason is None or at_once:
            self.end_reason = self.end_reason or end_reason
            # To the whole process group: a handler may have started processes of its own.
            self.child.signal(signal.SIGKILL if at_once else signal.SIGTERM)
            self.kill_at = now + (1.0 if at_once else self.settings.kill_grace)

    def was_killed(self) -> bool:
        """Whether the process was ended by SIGKILL; asked of the system, whoever sent it."""
        return self.child.has_exited() and self.child.status == -signal.SIGKILL

    def close_input(self) -> None:
        """Send no more requests: the process finishes what it has and exits."""
        self._is_closing = True
        if self.child.flush():
            self._forget(self.child.stdin)
            self.child.close_input()
        else:
            self._loop.watch(self.child.stdin, WRITE, self._write_more)

    def drop_lost(self) -> None:
        """Send no more requests to a process that runs a job whose lease was lost."""
        self._has_lost = self._has_lost or any(each.claim.lost for each in self.in_flight.values())

    @property
    def has_only_lost(self) -> bool:
        """Whether every job in it has lost its lease. Until that is so, the other jobs
        may finish.
        """
        return self._has_lost and all(each.claim.lost for each in self.in_flight.values())

    def cancel_marked(self, now: float) -> None:
        """Send the process a cancellation for each of its jobs that is to be cancelled."""
        for job_id, request in self.in_flight.items():
            if request.claim.cancel is not None and request.cancelled_at is None:
                request.cancelled_at = now
                self._has_cancelled = True
                if self._reads_cancellations:
                    self.child.send_control(encode_cancel(job_id))

    def _bind(self, request: PendingRequest) -> None:
        """Start the time within which a handler that must report has to report."""
        request.heartbeat = self._heartbeats.get(request.claim.handler)
        request.heard(self._loop.now())

    def _cancel_silent(self, now: float) -> None:
        """Send cancellations for jobs whose handlers must report and have been silent
        for too long.
        """
        for job_id, request in self.in_flight.items():
            if request.is_silent or request.silent_at > now:
                continue
            if request.begins >= self.child.taken():
                request.heard(now)  # Its time has not begun.
                continue
            request.is_silent = True
            request.silent_at = NEVER
            if request.cancelled_at is None:
                request.cancelled_at = now
                self._has_cancelled = True
                if self._reads_cancellations:
                    self.child.send_control(encode_cancel(job_id))

    @staticmethod
    def silence(request: PendingRequest) -> Failed:
        """The event of a request whose handler had to report and did not."""
        return silence_of(request.heartbeat or 0.0)

    def has_only_cancelled(self, now: float) -> bool:
        """Whether it has only cancelled jobs, one of which does not end.

        While it has other jobs these may finish, but it gets no new ones.
        """
        if not self._has_cancelled:
            return False
        cancelled = self._cancelled()
        self._has_cancelled = bool(cancelled)
        self._is_leaving = any(now >= self._cancel_until(each) for each in cancelled)
        return self._is_leaving and len(cancelled) == len(self.in_flight)

    def _cancelled(self) -> list[PendingRequest]:
        return [each for each in self.in_flight.values() if each.cancelled_at is not None]

    def _cancel_until(self, request: PendingRequest) -> float:
        """How long a cancelled job may take to end; no time in a process that cannot be told."""
        grace = self.settings.kill_grace if self._reads_cancellations else 0.0
        return (request.cancelled_at or 0.0) + grace

    def retire(self, now: float) -> None:
        """Close the input of a process that has reached a limit, and end it if it does not exit."""
        if self.end_reason is None:
            self.end_reason = EndReason.RECYCLED
            self.close_input()
            self.term_at = now + self.settings.leaves_within

    def finish_requests(self) -> list[tuple[PendingRequest, JobEvent]]:
        """After the process has ended: read what it wrote last, and decide about each request in
        flight.
        """
        # The order matters: answers first, then the rest of standard error, and only then is it
        # decided what the unanswered requests died of.
        self.suspect_at = None  # Answers that it wrote before its end count, however it ended.
        self._read_stdout(READ)
        for frame in self._session.end():
            self._take(frame)
        self._read_stderr(READ)
        _log_lines(self._output.end())
        taken = self.child.taken()
        held = list(self.in_flight.values())
        self.in_flight.clear()
        for end in (self.child.stdin, self.child.stdout, self.child.stderr):
            self._forget(end)
        self._forget(self.child.ready)
        self._forget(self.child.progress)
        self._forget(self.child.exit_fd)
        # Only a request that the child has read can have killed it. If exactly one was read, that
        # job is to blame and is charged.
        is_alone = sum(request.begins < taken for request in held) == 1
        output = self.kept_output()
        event = [self._event(request, taken, is_alone) for request in held]
        ends = [
            (
                request,
                replace(each, output=output) if isinstance(each, ProcessDied | Failed) else each,
            )
            for request, each in zip(held, event, strict=True)
        ]
        self.child.close()
        return ends

    def _event(self, request: PendingRequest, taken: int, is_alone: bool) -> JobEvent:
        if request.is_silent and self.end_reason is not None:
            return self.silence(request)
        if request.cancelled_at is not None and self.end_reason is EndReason.CANCELLED:
            text = "its cancellation was requested, and its process was ended"
            return Failed(Failure(Kind.CANCELLED, "cancelled", text))
        # Before the reasons below: a job whose time was over is charged for that, even if the
        # process was ended for another reason since.
        if request.is_overdue:
            return self.expired(request)
        is_read = request.begins < taken
        if self.end_reason is EndReason.CONFUSED and self.is_broken:
            return Released()  # the job whose answer was broken has been charged already
        if self.end_reason is EndReason.CONFUSED and is_alone and is_read:
            text = "the executor's output fits no request, or was closed"
            return Failed(Failure(Kind.DEFECT, "protocol_violation", text))
        if self.end_reason in (
            EndReason.STOP,
            EndReason.TIMEOUT,
            EndReason.RECYCLED,
            EndReason.LEASE_LOST,
            EndReason.CANCELLED,
        ):
            # The process was ended because of another request, or by this worker.
            return Released()
        how = self.how_it_ended()
        # A request that the child never read was not begun, so the job is not charged an attempt.
        if is_read and self.end_reason is not EndReason.NOT_UP:
            return ProcessDied(was_alone=is_alone, detail=how)
        reason = with_reason(how, self.child.stderr_tail)
        return ProcessDied(was_read=False, was_alone=is_alone, detail=how, message=reason)

    @staticmethod
    def expired(request: PendingRequest) -> Failed | Unread:
        """The event for a request past its deadline; unread requests are not charged."""
        if request.is_unread:
            return Unread(request.timeout)
        text = f"ran longer than its {request.timeout:g} s and was ended"
        return Failed(Failure(Kind.TIMEOUT, "timeout", text))

    def kept_output(self) -> str | None:
        """The last lines of its standard error, if ``keep_output`` asks for them.

        Only of a process that was given one request: otherwise they may be about another job.
        """
        most = self.settings.keep_output
        if not most or self.given != 1:
            return None
        self._read_stderr(READ)
        return several_lines("\n".join(self.child.stderr_tail.split("\n")[-most:])) or None

    def how_it_ended(self) -> str:
        """How the process ended, as a phrase for logs and histories."""
        status = self.child.status
        if status is None:
            return "the executor's process is ending"
        if status < 0:
            try:
                name = signal.Signals(-status).name
            except ValueError:
                name = str(-status)
            return f"the executor's process was ended by {name}"
        return f"the executor's process exited with status {status}"

    # ---- handlers of the event loop ----

    def _exited(self, _events: int) -> None:
        self._is_exit_reported = True
        self._listener.exited(self)

    def _read_stdout(self, _events: int) -> None:
        # A flood of output must not keep the loop from its other children.
        for _ in range(MAX_READS):
            data = self.child.read(self.child.stdout)
            if data is None:
                return
            if not data:
                self._fell_silent()
                return
            for frame in self._session.feed(data):
                self._take(frame)
            # A short read means that the pipe is empty; reading again would cost a system call for
            # every answer.
            if len(data) < FULL_READ or self.suspect_at is not None:
                return

    def _fell_silent(self) -> None:
        """Handle the end of its output. Usually the process has ended, too; if not, end it."""
        self._forget(self.child.stdout)
        self._is_mute = True
        self.suspect_at = self._loop.now() + EXIT_TIMEOUT
        self._exited(READ)

    def _take(self, frame: Reply | Stray) -> None:
        if isinstance(frame, Stray):
            self._take_stray(frame)
            return
        request = self.in_flight.pop(frame.job_id, None)
        if request is None:
            self._stray("it answers a request that is not in flight")
            # A second answer to an earlier request is harmless. An unknown id may be a misspelt
            # answer to a request in flight, which would then never be answered.
            is_known = frame.job_id in self._answered
            if not is_known and self.in_flight and self.suspect_at is None:
                self.suspect_at = self._loop.now() + self._confused_after
            return
        self._done(frame.job_id)
        self._listener.answered(self, request, frame)

    def _take_stray(self, stray: Stray) -> None:
        self._stray(stray.reason)
        name = stray.job_id
        is_long = stray.size > self.settings.response_limit
        if name is None and is_long:
            # A line that is too long to be read has no id. If the child had begun one request only,
            # the line is its answer.
            taken = self.child.taken()
            read = [key for key, each in self.in_flight.items() if each.begins < taken]
            name = read[0] if len(read) == 1 else None
        request = None if name is None else self.in_flight.pop(name, None)
        if request is not None and name is not None:
            # Where its lines begin and end is not certain any more. The other requests may finish,
            # and it gets no new ones.
            self.is_broken = True
            self._done(name)
            if is_long and self.in_flight:  # Unless the line ends before that.
                self.suspect_at = self._loop.now() + self._confused_after
            code = "response_too_large" if is_long else "protocol_violation"
            text = f"the executor's answer cannot be used: {stray.reason}"
            self._listener.answer_unreadable(self, request, Failure(Kind.DEFECT, code, text))
        elif is_long or self._strays > MAX_STRAYS:
            self.suspect_at = self._loop.now()

    def _done(self, job_id: str) -> None:
        self._strays = 0
        if self.is_broken and not self.in_flight:
            self.suspect_at = self._loop.now()
        elif not self._is_mute:
            self.suspect_at = None
        self.answers += 1
        self.is_up = True
        self._answered.append(job_id)
        if not self.in_flight:
            self.is_solo = self.is_reserved = False

    def _stray(self, reason: str) -> None:
        self._strays += 1
        self._listener.strayed(self, reason)

    def _read_stderr(self, _events: int) -> None:
        for _ in range(MAX_READS):
            data = self.child.read_stderr()
            if data is None:
                return
            if not data:
                self._forget(self.child.stderr)
                _log_lines(self._output.end())
                return
            if spoken.isEnabledFor(logging.INFO):
                _log_lines(self._output.feed(data))

    def _read_progress(self, _events: int) -> None:
        for _ in range(MAX_READS):
            data = self.child.read(self.child.progress)
            if data is None:
                return
            if not data:
                self._forget(self.child.progress)
                return
            for line in self._reports.feed(data):
                report = reported_progress(line)
                request = None if report is None else self.in_flight.get(report.job_id)
                # Otherwise it was answered in the meantime.
                if request is not None and report is not None:
                    request.heard(self._loop.at)
                    self._listener.progressed(request, report)

    def lacks(self, handler: str) -> bool:
        """Whether the process reported its handlers, and this one is not among them.

        What it reported since the last turn is read first: it may have answered a request that it
        was given before it was up.
        """
        if self.handlers is None and self._is_ready_awaited:
            self._read_ready(READ)
        return self.handlers is not None and handler not in self.handlers

    def _read_ready(self, _events: int) -> None:
        data = self.child.read(self.child.ready)
        if data is None:
            return
        self._ready_text += data
        if data and b"\n" not in data and len(self._ready_text) < MAX_READY_BYTES:
            return
        self._forget(self.child.ready)
        self.child.close_ready()
        self._is_ready_awaited = False
        is_ready = _says_ready(bytes(self._ready_text))
        if is_ready:
            self.has_reported, self.handlers = True, _handlers(bytes(self._ready_text))
            self._reads_cancellations = _reads_cancellations(bytes(self._ready_text))
            self._heartbeats = _heartbeats(bytes(self._ready_text))
            for request in self.in_flight.values():
                self._bind(request)
            # A number in the settings takes precedence over what the executor reports, because an
            # operator may want less.
            if not self.settings.sets_max_in_flight:
                self.max_in_flight = max(
                    self.max_in_flight, _wanted_in_flight(bytes(self._ready_text))
                )
            self.came_up(self._loop.now())
            self._listener.became_ready(self)
        elif is_ready is not None:
            # It said that it is not ready, which is the only way to fail at the start without
            # dying.
            self.end(EndReason.NOT_UP, self._loop.now())
            self._listener.exited(self)

    def _write_more(self, _events: int) -> None:
        if self.child.flush():
            self._forget(self.child.stdin)
            if self._is_closing:
                self.child.close_input()

    def _forget(self, descriptor: int) -> None:
        if descriptor >= 0:
            self._loop.forget(descriptor)


def with_reason(how: str, stderr_tail: str) -> str:
    """How a process ended, with the last line that it wrote, which usually says why."""
    line = one_sentence(one_line(stderr_tail.rpartition("\n")[2]))
    return f"{how}: {line}" if line else how


def _log_lines(lines: Sequence[bytes]) -> None:
    """Log what a process has written, line by line; of a flood as much as there is room for."""
    room = MAX_LOGGED_BYTES
    for number, line in enumerate(lines):
        room -= len(line) + 1
        if room < 0:
            spoken.info("… %d lines more", len(lines) - number)
            return
        said = redacted_text(line.decode(errors="replace"))
        spoken.info("%s", one_line(said.expandtabs(8)))


def _says_ready(text: bytes) -> bool | None:
    """Whether the line reports readiness. Every line does, unless it is JSON that says otherwise;
    None without a line.
    """
    line = text.strip()
    try:
        said = json.loads(line)
    except ValueError:
        return bool(line) or None
    return not (isinstance(said, dict) and said.get("ready") is False)


def _reads_cancellations(text: bytes) -> bool:
    """Whether a process reports that it reads cancellations from the control descriptor."""
    return _report(text).get("cancels") is True


def _handlers(text: bytes) -> frozenset[str] | None:
    """Which handlers a process reports; None if it reports none."""
    said = _report(text).get("handlers")
    if not isinstance(said, list) or not all(isinstance(name, str) for name in said):
        return None
    return frozenset(said)


def _heartbeats(text: bytes) -> dict[str, float]:
    """Which handlers of a process must report progress, and how often."""
    said = _report(text).get("heartbeats")
    found = said.items() if isinstance(said, dict) else ()
    return {
        name: float(seconds)
        for name, seconds in found
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0
    }


def _report(text: bytes) -> dict[str, Any]:
    """What a process reports of itself when it is ready; empty if that is no JSON object."""
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _wanted_in_flight(text: bytes) -> int:
    """How many requests a process wants at once; 0 if it does not say."""
    wanted = _report(text).get("max_in_flight")
    if isinstance(wanted, bool) or not isinstance(wanted, int):
        return 0
    return min(wanted, MAX_IN_FLIGHT)
