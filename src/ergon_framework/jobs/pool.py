"""The processes of one executor: their command, how many run, and which process gets which job.

The worker calls ``maintain_processes`` after every turn of its loop. It does what is due and
returns when it wants to be called again. Slots are offered to the store thread only for processes
that can take a job now, so no job is claimed that would have to wait for a process.
"""

from __future__ import annotations

import logging
import os
import resource
import shutil
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ergon_framework.core.executor_protocol import (
    HANDLER_NOT_FOUND,
    NOT_THROUGH,
    ProgressReport,
    Reply,
    Status,
    encode_request,
)
from ergon_framework.core.failure import Failure
from ergon_framework.core.job import (
    Failed,
    HandlerMissing,
    JobEvent,
    ProcessDied,
    Released,
)
from ergon_framework.core.process_restart import StartGate
from ergon_framework.core.text import indented
from ergon_framework.errors import ConfigurationError
from ergon_framework.jobs.child_process import ChildProcess, executor_environment
from ergon_framework.jobs.claims import Claim, progress_record
from ergon_framework.jobs.event_loop import EventLoop
from ergon_framework.jobs.executor_process import (
    CONFUSED_AFTER,
    EndReason,
    ExecutorProcess,
    PendingRequest,
    RecycleReason,
    with_reason,
)
from ergon_framework.jobs.settings import MAX_IN_FLIGHT, ExecutorSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.tracing import request_carrier
from ergon_framework.jobs.watchdog import Watchdog
from ergon_framework.ports.dice import roll
from ergon_framework.storage.failpoints import declare, failpoint

logger = logging.getLogger("ergon.jobs")

FILES_PER_PROCESS, SPARE_FILES = 8, 100
"""How many descriptors each executor process takes in its worker, and how many all the
rest needs.
"""


def checked(name: str, settings: ExecutorSettings) -> ExecutorSettings:
    """The settings with the program's full path. Refused if there is no such program."""
    cwd = settings.cwd
    if cwd is not None and not Path(cwd).is_dir():
        raise ConfigurationError(
            f"executors.{name}.cwd: there is no folder {cwd!r}",
            remedy="create it, or correct the setting",
        )
    program, *rest = settings.command
    # The PATH that the executor itself will have: a program found elsewhere would start here and
    # not there.
    path = settings.env.get("PATH", os.environ.get("PATH"))
    base = Path(cwd or os.curdir)
    found = str(base / program) if os.sep in program else _which(program, path)
    # A folder passes ``X_OK``, so that is checked separately.
    if found is None or not os.access(found, os.X_OK) or Path(found).is_dir():
        raise ConfigurationError(
            f"executors.{name}.command: there is no program {program!r} that can be started",
            remedy="install it, give its full path, or correct the setting",
        )
    return settings.model_copy(update={"command": (_absolute(found), *rest)})


def allow_descriptors(processes: int) -> None:
    """Raise this process's limit of open files to what so many executors need, or warn."""
    needed = processes * FILES_PER_PROCESS + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    # Not to the hard limit: some programs close every descriptor up to the soft one when they fork.
    most = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        most = soft
    if most < needed:
        text = "%d executor processes need %d open files, and %d are allowed: raise ulimit -n"
        logger.warning(text, processes, needed, most)


def _which(program: str, path: str | None) -> str | None:
    # A program installed beside this Python counts, even if its environment is not activated.
    beside = os.path.dirname(sys.executable)  # noqa: PTH120 - not resolved: it may be a link
    return shutil.which(program, path=path) or shutil.which(program, path=beside)


def _absolute(path: str) -> str:
    # Not resolved: the Python of a virtual environment is a link whose place is its meaning.
    return os.path.abspath(path)  # noqa: PTH100


ASSUMED_UP_AFTER = 0.25
"""Seconds after which a process that never reports readiness may be given a request."""
EXIT_POLL_INTERVAL = 0.5
"""Seconds between two checks of children on systems that do not report their end."""

MAX_LACKING = 100
"""How many missing handlers are logged, each of them once."""
MAX_NAMED = 5
"""How many handlers one message names."""
_NOT_IMPORTED = (
    "although the program that started the worker has: an import of its file does not define it"
    " (define it at the top level of the file, outside of functions and of"
    ' `if __name__ == "__main__":`)'
)

EXPECTED_ENDS = frozenset(
    {EndReason.STOP, EndReason.RECYCLED, EndReason.LEASE_LOST, EndReason.CANCELLED}
)
"""Reasons for which a process ended because this worker asked it to, not by a fault of the
executor.
"""

declare("worker.before_send", "worker.after_send", "worker.answered")


class PoolOwner(Protocol):
    """What a pool needs of its worker."""

    settler: Settler
    loop: EventLoop
    name: str
    read_elsewhere: frozenset[str]
    watchdog: Watchdog

    def offer(self, executor: str, slots: int) -> int:
        """Offer more slots, or take some back. Returns the change that was made."""

    def finish(
        self, claim: Claim, event: JobEvent, seconds: float | None, result: bytes | None
    ) -> None:
        """Settle a claimed job by what happened to it."""

    def tell(self, name: str, **fields: Any) -> None:
        """Send a notice."""

    def progressed(self) -> None:
        """A job has reported progress, which the store is to be told."""

    def wall(self) -> float:
        """The store's clock, about."""

    @property
    def is_full(self) -> bool:
        """Whether no more jobs are to be taken until outcomes were written."""

    @property
    def is_forced(self) -> bool:
        """Whether somebody asked for an end at once, so that executors are killed on purpose."""

    def dirty(self, pool: ExecutorPool) -> None:
        """Note that the pool must be attended to after this turn."""


class ExecutorPool:
    """All processes of one executor, and the claimed jobs that wait for one of them."""

    def __init__(
        self,
        name: str,
        settings: ExecutorSettings,
        owner: PoolOwner,
        *,
        confused_after: float = CONFUSED_AFTER,
        own_handlers: frozenset[str] = frozenset(),
    ) -> None:
        """``own_handlers``: those that the program of this worker has itself, if its processes are
        to have them, too.
        """
        self.name = name
        self._own_handlers = own_handlers
        self._confused_after = confused_after
        self.settings = settings
        self.processes: list[ExecutorProcess] = []
        self.gate = StartGate()
        self.next_at: float | None = 0.0
        self.is_open = True  # Whether it starts processes and takes jobs.
        self.strays = 0
        self.recycled: Counter[RecycleReason] = Counter()
        """How many processes were replaced because they had reached a limit, by that limit."""
        self.bad_end = ""
        """How a process ended that was asked to exit and did not end well; empty: every one ended
        well.
        """
        self._owner = owner
        self._now: Callable[[], float] = owner.loop.now
        self._waiting: deque[Claim] = deque()
        self._solos: deque[Claim] = deque()
        self._offered = 0
        self.handlers: frozenset[str] | None = None
        """The handlers that every process of the pool reports; None: a process has not reported
        any.
        """
        # Handlers of jobs that were given back; each is reported once.
        self._lacking: set[str] = set()
        self._says_ready = False  # An earlier process of this executor reported readiness.
        self._has_answered = False
        self._has_lasted = False  # A process of it outlived its startup grace.
        self._failed_starts = 0  # in a row, by this pool's own count
        self._stopping = False

    # ---- what the worker asks ----

    @property
    def in_hand(self) -> int:
        """Claimed jobs that have not left."""
        return self._in_flight + len(self._waiting) + len(self._solos)

    @property
    def is_free(self) -> bool:
        """Whether it could take a job now."""
        return self._slots(self._now()) > 0

    @property
    def is_up(self) -> bool:
        """Whether at least one process is up."""
        return any(process.is_up and process.end_reason is None for process in self.processes)

    @property
    def never_started(self) -> bool:
        """Whether no process of it has ever reported readiness, answered, or lasted."""
        return not (self._says_ready or self._has_answered or self._has_lasted)

    @property
    def start_problem(self) -> str:
        """Why there is no process, if the last start failed; empty if there is, or may be, one."""
        now = self._now()
        is_down = not any(self._is_usable(process, now) for process in self.processes)
        return self.gate.reason if self._failed_starts and is_down else ""

    def may_have(self, handler: str) -> bool:
        """Whether it can run a job: it reported the handler, or reports no handlers at all."""
        return self.is_known if self.handlers is None else handler in self.handlers

    @property
    def is_known(self) -> bool:
        """Whether it has reported its handlers, or its time to do so is over."""
        if self._says_ready or self._has_answered:
            return True
        now = self._now()
        return any(now >= process.up_at for process in tuple(self.processes))

    @property
    def is_gone(self) -> bool:
        """Whether no process is left."""
        return not self.processes

    def take(self, slots: int, claims: Sequence[Claim]) -> None:
        """Run these jobs. ``slots`` is how many of the offered slots the claim used.

        It is more than there are jobs when the worker itself has answered for a job that names no
        handler.
        """
        # Subtracted before the jobs are queued: ``_offer_slots`` counts jobs that wait against free
        # slots.
        self._offered -= slots
        for claim in claims:
            if self.handlers is not None and claim.handler not in self.handlers:
                self._leave_to_others(claim)
            else:
                (self._solos if claim.job.is_solo else self._waiting).append(claim)
        # A claim that was under way when the worker began to stop: its jobs go straight back,
        # without a charge.
        if not self.is_open:
            self._give_back()
        self._owner.dirty(self)

    def maintain_processes(self, now: float) -> None:
        """Attend to the processes: start missing ones, send waiting requests, and offer
        free slots.
        """
        for process in tuple(self.processes):
            self._look_at(process, now)
        times: list[float | None] = []
        if self.is_open:
            if len(self.processes) > self.settings.pool_size:
                self._retire_spent_processes(now)
            # Before dispatching: jobs that wait for a process which has just died find its
            # successor in this turn.
            times.append(self._start_missing(now))
            self._dispatch(now)
        self._offer_slots()
        times += [self._next_look(process, now) for process in self.processes]
        self.next_at = min((at for at in times if at is not None), default=None)

    def stop_taking(self) -> None:
        """Release the jobs that no process has taken, and take no more."""
        self.is_open = False
        self._give_back()
        self._owner.dirty(self)

    def drop_lost(self) -> None:
        """Release waiting jobs whose leases were lost, and end the processes that run such jobs.

        Another worker may run them by now, and two handlers must not work on one job.
        """
        for claims in (self._waiting, self._solos):
            for claim in [each for each in claims if each.lost]:
                claims.remove(claim)
                self._owner.finish(claim, Released(), None, None)
        for process in self.processes:
            process.drop_lost()
        self._owner.dirty(self)

    def cancel_marked(self) -> None:
        """Cancel jobs that somebody has asked to cancel.

        A job that waits here is settled at once. A process that runs one is told. If that does not
        help, the process is ended, but not while it has other jobs.
        """
        for claims in (self._waiting, self._solos):
            for claim in [each for each in claims if each.cancel is not None]:
                claims.remove(claim)
                self._owner.finish(claim, Released(), None, None)
        for process in self.processes:
            process.cancel_marked(self._now())
        self._owner.dirty(self)

    def note_memory(self, used: Mapping[int, int]) -> None:
        """Note how many bytes each process uses, with all that it has started, by pid."""
        for process in self.processes:
            process.limits.look_at_memory(process.given, used.get(process.child.pid, 0))
        self._owner.dirty(self)

    def note_killed(self) -> int:
        """Mark processes that the watchdog killed while this worker was suspended. Returns how
        many.

        Their jobs are released without a charge, because their executors did nothing wrong.
        """
        found = [process for process in self.processes if process.was_killed()]
        for process in found:
            process.end_reason = process.end_reason or EndReason.STOP
        self._owner.dirty(self)
        return len(found)

    def close_inputs(self) -> None:
        """Close the input of every process, now that nothing is in flight, so that each exits."""
        self._stopping = True
        for process in self.processes:
            process.close_input()
        self._owner.dirty(self)

    def end(self, *, at_once: bool) -> None:
        """End every process. The jobs of a process are released when it is dead, and not before.

        If they were released earlier, another worker could run a job beside the handler that still
        runs it.
        """
        self._stopping = True
        now = self._now()
        for process in self.processes:
            process.end(EndReason.STOP, now, at_once=at_once)
        self._owner.dirty(self)

    def status(self) -> dict[str, Any]:
        """The state of the pool, for operators."""
        now = self._now()
        wait = max(0.0, self.gate.open_until - now)
        return {
            "processes": len(self.processes),
            "pool_size": self.settings.pool_size,
            "in_flight": self._in_flight,
            "slots": self._slots(now),
            "failed_starts": self.gate.failures,
            "opens_at": self._owner.wall() + wait if wait and self.gate.failures else None,
            "reason": self.gate.reason,
            "handlers": None if self.handlers is None else len(self.handlers),
            "stray_lines": self.strays,
            "recycled": {reason.value: number for reason, number in self.recycled.items()},
        }

    # ---- ProcessListener: called by the processes, inside a turn of the loop ----

    def answered(self, process: ExecutorProcess, request: PendingRequest, reply: Reply) -> None:
        """An executor answered a request."""
        failpoint("worker.answered")
        if self.gate.failures:
            self.gate.answered(process.started_at)
        self._has_answered = True
        owner, claim = self._owner, request.claim
        if reply.error_type == HANDLER_NOT_FOUND and process.lacks(claim.handler):
            # It was given the request before it had reported its handlers.
            self._leave_to_others(claim)
            owner.dirty(self)
            return
        # A success counts however late it is, as long as the lease holds. Any other late answer is
        # reported as the timeout that it is.
        if request.is_overdue and reply.status is not Status.SUCCESS:
            event: JobEvent = process.expired(request)
        elif request.is_silent and reply.status is not Status.SUCCESS:
            event = process.silence(request)
        else:
            event = owner.settler.event_of(reply, claim.job)
        if isinstance(event, Failed) and self.settings.keep_output:
            event = replace(event, output=process.kept_output())
        owner.finish(claim, event, owner.loop.at - claim.written_at, reply.result)
        owner.dirty(self)

    def answer_unreadable(
        self, process: ExecutorProcess, request: PendingRequest, failure: Failure
    ) -> None:
        """An executor's answer cannot be read."""
        seconds = self._owner.loop.at - request.claim.written_at
        self._owner.finish(request.claim, Failed(failure), seconds, None)
        self._owner.dirty(self)

    def strayed(self, process: ExecutorProcess, reason: str) -> None:
        """Count a line that answers no request, and log the 1st, 2nd, 4th, 8th …"""
        self.strays += 1
        if self.strays & (self.strays - 1) == 0:  # a power of two: a flood must not fill the log
            logger.warning(
                "executor %r wrote a line that is no answer to a request: %s (%d so far)",
                self.name,
                reason,
                self.strays,
            )
        self._owner.dirty(self)

    def progressed(self, request: PendingRequest, report: ProgressReport) -> None:
        """A handler reported its progress."""
        claim = request.claim
        claim.progress = progress_record(claim, report, self._owner.wall())
        self._owner.progressed()

    def became_ready(self, process: ExecutorProcess) -> None:
        """A process reported that it is ready."""
        self._says_ready = True
        self._note_handlers()
        self._owner.dirty(self)

    def exited(self, process: ExecutorProcess) -> None:
        """A process has ended, or is about to end."""
        self._owner.dirty(self)

    # ---- inside ----

    def _note_handlers(self) -> None:
        """Note which handlers the processes report, and give back jobs that none of them can run.

        When code was replaced in place, processes report different handlers. The pool then has
        those that all of them have, because a job goes to any process.
        """
        able = [each for each in self.processes if each.has_reported and not each.end_reason]
        said = [each.handlers for each in able]
        known = [each for each in said if each is not None]
        if not said:  # Until the next process is up, the pool is taken to have the same handlers.
            return
        self.handlers = frozenset.intersection(*known) if len(known) == len(said) else None
        handlers = self.handlers
        if handlers is None:
            return
        self._tell_of_own_handlers(handlers)
        for claims in (self._waiting, self._solos):
            for claim in [each for each in claims if each.handler not in handlers]:
                claims.remove(claim)
                self._leave_to_others(claim)

    def _leave_to_others(self, claim: Claim) -> None:
        """Give a job back whose handler no process here has; a worker of another version may have
        it.
        """
        handler, named = claim.handler, claim.job.executor.partition("#")[0]
        text = f"this worker's executor {self.name!r} has no handler {handler!r}"
        if handler in self._own_handlers:
            text += f", {_NOT_IMPORTED}"
        if handler not in self._lacking and len(self._lacking) < MAX_LACKING:
            self._lacking.add(handler)
            logger.warning("%s: its jobs wait for a worker that has it", text)
        self._owner.finish(claim, HandlerMissing(named, handler, text), None, None)

    def _tell_of_own_handlers(self, handlers: frozenset[str]) -> None:
        """Tell which handlers of this program an import of its file does not make.

        Told before a job asks for one: a job that was given back once is not claimed again.
        """
        lacking = sorted(self._own_handlers - handlers - self._lacking)
        if lacking:
            self._lacking.update(lacking)
            names = ", ".join(map(repr, lacking[:MAX_NAMED]))
            more = f" and {len(lacking) - MAX_NAMED} more" if len(lacking) > MAX_NAMED else ""
            logger.warning(
                "this worker's executor %r has no handler %s%s, %s; jobs for it wait",
                self.name,
                names,
                more,
                _NOT_IMPORTED,
            )

    def _give_back(self) -> None:
        for claim in (*self._waiting, *self._solos):
            self._owner.finish(claim, Released(), None, None)
        self._waiting.clear()
        self._solos.clear()

    @property
    def _in_flight(self) -> int:
        return sum(len(process.in_flight) for process in self.processes)

    def _look_at(self, process: ExecutorProcess, now: float) -> None:
        # First of all: the deadlines below would blame the jobs of a dead process for a timeout.
        if process.may_have_exited and process.child.has_exited():
            self._remove_ended(process, now)
            return
        process.look(now)
        if process.suspect_at is not None and now >= process.suspect_at:
            process.suspect_at = None
            process.end(EndReason.CONFUSED, now)
        if process.overdue(now):
            process.end(EndReason.TIMEOUT, now)
        if process.has_only_lost:
            # Killed without a grace: another worker may run the same job already.
            process.end(EndReason.LEASE_LOST, now, at_once=True)
        if process.has_only_cancelled(now):
            process.end(EndReason.CANCELLED, now)
        if self._is_silent(process, now):
            process.end(EndReason.NOT_UP, now)
        # A process that starts more slowly than it ages must not multiply.
        if self._is_usable(process, now):
            process.limits.look(process.given, now)
        if process.is_dismissed and not process.in_flight:
            self._retire(process, now)

    def _next_look(self, process: ExecutorProcess, now: float) -> float | None:
        times = [process.next_look(now)]
        if not self._is_usable(process, now) and process.end_reason is None:
            times.append(
                process.started_at + ASSUMED_UP_AFTER if not self._says_ready else now + 0.1
            )
        if process.child.exit_fd < 0 or process.end_reason is not None or self._stopping:
            times.append(now + EXIT_POLL_INTERVAL)
        return min((at for at in times if at is not None), default=None)

    def _is_usable(self, process: ExecutorProcess, now: float) -> bool:
        if process.end_reason is not None:
            return False
        # An executor in another language may not know the ready descriptor. Once one process of it
        # has used the descriptor, all of them have to.
        waits = not self._says_ready and now >= process.started_at + ASSUMED_UP_AFTER
        return process.is_up or waits

    def _is_silent(self, process: ExecutorProcess, now: float) -> bool:
        """Whether a process that should report readiness has not done so within its grace."""
        return self._says_ready and now >= process.up_at and not process.is_up

    def _retire(self, process: ExecutorProcess, now: float) -> None:
        """Let a process exit that has reached a limit and has no request."""
        reason = process.limits.reason
        if process.end_reason is not None or reason is None:
            return
        text = "executor %r: process %d has reached its %s and is replaced, after %d jobs in %.0f s"
        pid, age = process.child.pid, now - process.started_at
        logger.info(text, self.name, pid, reason.value, process.answers, age)
        self.recycled[reason] += 1
        self._owner.tell("executor.recycled", executor=self.name, pid=pid, reason=reason.value)
        process.retire(now)

    def _retire_spent_processes(self, now: float) -> None:
        """Give no more jobs to processes that have reached a limit and whose successors are up.

        Until then they go on, so that the pool keeps its size. Only ``max_jobs`` is never exceeded
        while a successor starts.
        """
        able = [
            each for each in self.processes if self._is_usable(each, now) and not each.is_dismissed
        ]
        spare = len(able) - self.settings.pool_size
        for process in [each for each in able if each.limits.reason is not None][: max(0, spare)]:
            process.is_relieved = True
            if not process.in_flight:
                self._retire(process, now)

    def _remove_ended(self, process: ExecutorProcess, now: float) -> None:
        self.processes.remove(process)
        ends = self._settle_requests_of(process, now)
        is_asked = process.end_reason in EXPECTED_ENDS or self._stopping
        self._report_end(process, is_asked=is_asked)
        # A process that never came up had no jobs; the start gate handles those.
        if is_asked and process.is_up and self._ended_badly(process, is_idle=not ends):
            self._note_bad_end(process)
        has_lasted = now >= max(process.up_at, process.started_at + ASSUMED_UP_AFTER)
        if process.is_up or has_lasted:
            self._failed_starts = 0
        is_expected = is_asked or process.end_reason is EndReason.TIMEOUT
        if not is_expected and not _is_able_to_start(process, ends):
            self._hold_back_starts(process, now, has_lasted=has_lasted)

    def _settle_requests_of(
        self, process: ExecutorProcess, now: float
    ) -> list[tuple[PendingRequest, JobEvent]]:
        """Settle the requests of a process that has ended, and return them."""
        # The last answers are read before anything is settled: a process may answer and die at
        # once, and then its answer counts.
        ends = process.finish_requests()
        self._note_handlers()
        for request, event in ends:
            claim = request.claim
            self._owner.finish(claim, event, now - claim.written_at, None)
        return ends

    def _report_end(self, process: ExecutorProcess, *, is_asked: bool) -> None:
        name = "executor.stopped" if is_asked else "executor.died"
        how = process.how_it_ended()
        self._owner.tell(name, executor=self.name, pid=process.child.pid, how=how)

    def _note_bad_end(self, process: ExecutorProcess) -> None:
        """Log that a process was asked to exit and ended badly; the worker reports it when it
        stops.
        """
        # Its jobs have their outcomes, but what it had opened may not be closed.
        reason = _end_reason(process)
        text = "executor %r was asked to leave, and did not end well: %s"
        logger.warning(text, self.name, reason)
        if self._stopping:
            self.bad_end = self.bad_end or reason

    def _hold_back_starts(self, process: ExecutorProcess, now: float, *, has_lasted: bool) -> None:
        """After a process has died, let the start gate decide when the next one may start."""
        reason = _end_reason(process)
        if not process.is_up and not has_lasted:
            self._failed_starts += 1
        if has_lasted:
            self._has_lasted = True
            self.gate.answered(process.started_at)
        had_answered = process.answers > 0 or has_lasted
        delay = self.gate.died(
            now, _dice(), reason, had_answered=had_answered, started_at=process.started_at
        )
        last = process.child.stderr_tail
        logger.warning(
            "executor %r: %s%s; the next start waits %.1f s%s",
            self.name,
            process.how_it_ended(),
            "" if had_answered else " before it had answered anything",
            delay,
            f"; its last words:\n{indented(last)}" if last else "",
        )
        if delay:
            self._owner.tell("executor.held_back", executor=self.name, delay=delay, reason=reason)

    def _ended_badly(self, process: ExecutorProcess, *, is_idle: bool) -> bool:
        """Whether a process that was asked to exit failed to, or ended with an error.

        A process that is killed while it runs a job has used up the grace of the worker, and its
        job is released. A process that is killed without a job has ended badly if it reported that
        it was closing what it had opened. Otherwise it may have been waiting for a collector of
        spans that cannot be reached.
        """
        status = process.child.status or 0
        is_left_alone = self._stopping or process.end_reason is EndReason.RECYCLED
        was_closing = NOT_THROUGH in process.child.stderr_tail
        is_killed = status == -signal.SIGKILL and is_idle and is_left_alone and was_closing
        return status > 0 or (is_killed and not self._owner.is_forced)

    @property
    def _missing(self) -> int:
        """How many processes to start; processes that have reached a limit are replaced."""
        lasting = sum(not each.limits.reason for each in self.processes)
        room = self.settings.max_processes - len(self.processes)
        return min(self.settings.pool_size - lasting, room)

    def _start_missing(self, now: float) -> float | None:
        if self._missing <= 0:
            return None
        while self._missing > 0 and self.gate.may_start(now):
            # After a failed start only one process is started at a time; when it comes up, the
            # others follow.
            if self.gate.failures and any(not process.is_up for process in self.processes):
                return now + ASSUMED_UP_AFTER
            self._start(now)
        return self.gate.open_until if self._missing > 0 else now

    def _start(self, now: float) -> None:
        settings = self.settings
        env = executor_environment(os.environ, settings, self._owner.read_elsewhere)
        env["ERGON_MAX_IN_FLIGHT"] = str(settings.max_in_flight)
        # A worker may itself run under an executor and have inherited this variable.
        env.pop("ERGON_MAX_IN_FLIGHT_LIMIT", None)
        if not settings.sets_max_in_flight:
            env["ERGON_MAX_IN_FLIGHT_LIMIT"] = str(MAX_IN_FLIGHT)
        try:
            child = ChildProcess(settings.command, env, settings.cwd, self._owner.watchdog)
        except OSError as error:
            reason = f"cannot start {settings.command[0]!r}: {error.strerror or error}"
            self._failed_starts += 1
            delay = self.gate.died(now, _dice(), reason, had_answered=False)
            logger.warning("executor %r: %s; trying again in %.1f s", self.name, reason, delay)
            self._owner.tell("executor.held_back", executor=self.name, delay=delay, reason=reason)
            return
        process = ExecutorProcess(
            child, settings, self._owner.loop, self, confused_after=self._confused_after
        )
        self.processes.append(process)
        self._owner.tell("executor.started", executor=self.name, pid=child.pid)

    def _dispatch(self, now: float) -> None:
        if not self._waiting and not self._solos:
            return
        usable = [process for process in self.processes if self._is_usable(process, now)]
        # Read once for all requests, because encoding an instant is cached by its value.
        wall = time.time()
        if not usable and not self.processes and not self.gate.may_start(now):
            # The process that they were claimed for is gone, and the start gate lets no other start
            # yet.
            self._give_back()
            return
        # Before the others: a solo job needs a process to itself, and would never find an empty
        # one.
        if self._solos:
            self._dispatch_solos(usable, now, wall)
        # The emptiest first, so that a burst of slow jobs does not queue up behind one process
        # while others idle.
        for process in sorted(usable, key=lambda each: len(each.in_flight)):
            room = process.room
            if room <= 0 or not self._waiting:
                continue
            share = -(-len(self._waiting) // len(usable))  # Spread evenly over the processes.
            for _ in range(min(room, max(share, 1), len(self._waiting))):
                self._send(process, self._waiting.popleft(), now, wall)
            process.flush()
        for process in usable:  # What the even shares left over.
            while self._waiting and process.room > 0:
                self._send(process, self._waiting.popleft(), now, wall)
            process.flush()
        failpoint("worker.after_send")

    def _dispatch_solos(self, usable: Sequence[ExecutorProcess], now: float, wall: float) -> None:
        for process in usable:
            if self._solos and not process.in_flight:
                process.is_reserved, process.is_solo = False, True
                self._send(process, self._solos.popleft(), now, wall)
                process.flush()
        if self._solos and usable and not any(each.is_reserved for each in usable):
            free = [each for each in usable if not each.is_solo]
            if free:
                # One process at a time is emptied for solo jobs; the others go on.
                min(free, key=lambda each: len(each.in_flight)).is_reserved = True

    def _send(self, process: ExecutorProcess, claim: Claim, now: float, wall: float) -> None:
        timeout = self._owner.settler.timeout_of(claim.job)
        # The executor gets the deadline with the request, before it is up, so its startup grace is
        # added.
        starting = 0.0 if process.is_up else max(0.0, process.up_at - now)
        deadline_at = wall + timeout + starting  # by the executor's clock, which is this machine's
        line = request_line(claim, self._owner.settler, self._owner.name, deadline_at)
        failpoint("worker.before_send")
        # In this order, because the store thread charges requests that are written and old enough:
        # it must not see a claim that is marked as written but still has the instant 0.0.
        claim.written_at = now
        claim.is_written = True
        process.give(claim, line, timeout)

    def _slots(self, now: float) -> int:
        rooms = sum(max(0, each.room) for each in self.processes if self._is_usable(each, now))
        if len(self.processes) <= self.settings.pool_size:
            return rooms
        # Processes that are being replaced finish beside their successors; together they run no
        # more jobs than the pool may.
        most = self.settings.pool_size * max(each.max_in_flight for each in self.processes)
        return max(0, min(rooms, most - self._in_flight))

    def _offer_slots(self) -> None:
        free = self._slots(self._now()) - len(self._waiting) - len(self._solos)
        wanted = max(0, free) if self.is_open and not self._owner.is_full else 0
        if wanted != self._offered:
            # Fewer slots may be taken back than asked for: a claim under way is using the others.
            self._offered += self._owner.offer(self.name, wanted - self._offered)


def request_line(claim: Claim, settler: Settler, worker: str, deadline_at: float) -> bytes:
    """The request of a claimed job, as an executor reads it."""
    job = claim.job
    return encode_request(
        job_id=job.id,
        function_name=claim.handler,
        args=job.args,
        kwargs=job.kwargs,
        attempt=job.attempts + 1,
        enqueued_at=job.created_at,
        queue_name=job.queue,
        deadline_at=deadline_at,
        trace_context=request_carrier(claim, settler, worker),
        worker_id=worker,
    )


def _end_reason(process: ExecutorProcess) -> str:
    return with_reason(process.how_it_ended(), process.child.stderr_tail)


def _is_able_to_start(
    process: ExecutorProcess, ends: Sequence[tuple[PendingRequest, JobEvent]]
) -> bool:
    """Whether the end of a process says nothing against starting the next one.

    ``ends`` are the requests that it had in flight.
    """
    # A crash or a broken answer that a job is charged for says nothing about starting.
    is_jobs_fault = process.is_broken or any(
        isinstance(event, ProcessDied) and event.was_read for _, event in ends
    )
    # A program that serves some requests and exits with 0 recycles itself: it is replaced at once.
    has_recycled_itself = process.child.status == 0 and process.answers > 0 and not ends
    return is_jobs_fault or has_recycled_itself


def _dice() -> float:
    return roll()
