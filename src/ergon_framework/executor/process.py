"""An executor process from its first line to its exit code."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import msgspec

from ergon_framework.core.executor_protocol import PROTOCOL_VERSION, cancelled_job
from ergon_framework.errors import ErgonError, MissingExtraError, SettingsError, describe
from ergon_framework.executor.loading import AppError, load
from ergon_framework.executor.progress import report_to
from ergon_framework.executor.registry import Registry
from ergon_framework.executor.runtime import Runtime
from ergon_framework.executor.stdio import Pipes, claim_stdio, stderr_line

MAX_IN_FLIGHT = "ERGON_MAX_IN_FLIGHT"
MAX_IN_FLIGHT_LIMIT = "ERGON_MAX_IN_FLIGHT_LIMIT"
"""The most requests in flight that a process may report for itself, where no number is set."""
READY_FD = "ERGON_READY_FD"
CONTROL_FD = "ERGON_CONTROL_FD"
PROGRESS_FD = "ERGON_PROGRESS_FD"
LOG_LEVEL = "ERGON_LOG_LEVEL"
OTLP = "ERGON_OTLP"
IN_FLIGHT_LIMIT = 1024
EXIT_TIMEOUT = 5.0
"""Seconds for the interpreter to end once all requests are answered: threads of the user may be
busy.
"""
ORPHAN_GRACE = 1.0
"""Seconds that handlers have after the orchestrator's death."""

_FAILED = 1
_WRONG = 2
_TERMINATED = 128 + signal.SIGTERM


def serve(
    app: str,
    *,
    is_debug: bool = False,
    is_process: bool = True,
    exit_timeout: float = EXIT_TIMEOUT,
) -> int:
    """Serve as an executor on this process's standard streams until their end; returns the exit
    code. With ``is_process``, the process ends at most ``exit_timeout`` seconds later, even if
    threads are still busy.
    """
    # Before anything else: a print of the user's modules would be read as an outcome.
    pipes = claim_stdio()
    # Early: loading the user's modules may take long, and the parent may die meanwhile.
    if is_process:
        _end_when_orphaned(pipes)
    ready_fd, control_fd = _descriptor(READY_FD), _descriptor(CONTROL_FD)
    progress_fd = _descriptor(PROGRESS_FD)
    if progress_fd is not None:
        report_to(progress_fd)
    try:
        _limit(0)  # refused before anything of the user's is imported
        registry = load(app)
        limit = _limit(registry.largest_batch)
        registry.prepare()
        _set_up_logging()
        registry.open_early()
        code = _run(registry, pipes, limit, ready_fd, control_fd)
    except (AppError, SettingsError) as error:
        code = _report_error(error, _WRONG, is_debug=is_debug)
    except BaseException as error:
        code = _report_error(error, _FAILED, is_debug=is_debug)
    # While the process is still whole: exporters need threads to write.
    finish_telemetry()
    if is_process:
        _leave_soon(code, exit_timeout)
    return code


def _run(
    registry: Registry, pipes: Pipes, limit: int, ready_fd: int | None, control_fd: int | None
) -> int:
    def begin() -> None:
        if not registry.names:  # start-up hooks may have added handlers
            stderr_line(
                "the registry is empty: every request will be answered with handler_not_found"
            )
        _export()  # only now: start-up hooks may have set up an SDK of the user's
        _report_ready(ready_fd, registry, limit, hears_cancels=control_fd is not None)

    runtime = Runtime(registry, pipes, limit=limit, on_ready=begin)
    _install_signal_handlers(runtime.stop, is_by_hand=os.isatty(pipes.source))
    # Python runs handlers between two lines of code only; without this, a supervisor asleep in
    # ``poll`` would not hear a signal.
    signal.set_wakeup_fd(runtime.wake_fd, warn_on_full_buffer=False)
    if control_fd is not None:
        name, values = "ergon-control", (control_fd, runtime.cancel)
        threading.Thread(target=_read_control, args=values, name=name, daemon=True).start()
    runtime.run()
    return 0


def _limit(largest_batch: int) -> int:
    """The most requests in flight: as configured, or as many as batches need."""
    asked = _number(MAX_IN_FLIGHT)
    allowed = IN_FLIGHT_LIMIT if asked is None else _number(MAX_IN_FLIGHT_LIMIT)
    return max(asked or 1, min(largest_batch, allowed or 0))


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= IN_FLIGHT_LIMIT:
        raise SettingsError(
            f"{variable} is {text[:20]!r}", remedy=f"use a number from 1 to {IN_FLIGHT_LIMIT}"
        )
    return int(text)


# -- readiness -----------------------------------------------------------------------------------


def _descriptor(variable: str) -> int | None:
    """A descriptor that the parent passed on. It is made non-inheritable for programs that we
    start.
    """
    text = os.environ.pop(variable, "")
    if not text:
        return None
    try:
        descriptor = int(text) if int(text) > 2 else -1  # the first three are the streams
        os.set_inheritable(descriptor, False)
    except (ValueError, OverflowError, OSError):
        stderr_line(f"{variable} is {text[:20]!r}, which is no open descriptor; it is not used")
        return None
    return descriptor


def _report_ready(
    descriptor: int | None, registry: Registry, limit: int, *, hears_cancels: bool
) -> None:
    if descriptor is None:
        return
    report: dict[str, object] = {
        "ready": True,
        "handlers": registry.names,
        "protocol_version": PROTOCOL_VERSION,
        "max_in_flight": limit,
        "pid": os.getpid(),
        "cancels": hears_cancels,
    }
    if registry.heartbeats:
        report["heartbeats"] = registry.heartbeats
    rest = memoryview(msgspec.json.encode(report) + b"\n")
    with suppress(OSError):  # the parent has lost interest
        while rest:
            # A pipe may take less than all of a long report.
            rest = rest[os.write(descriptor, rest) :]
    with suppress(OSError):
        os.close(descriptor)


def _read_control(descriptor: int, cancel: Callable[[str], None]) -> None:
    """Read the lines of the control descriptor until its end, in a thread of its own."""
    with suppress(OSError), open(descriptor, "rb") as lines:
        for line in lines:
            job_id = cancelled_job(line)
            if job_id is not None:
                cancel(job_id)


# -- signals, logs and the end -------------------------------------------------------------------


def _install_signal_handlers(stop: Callable[[], None], *, is_by_hand: bool) -> None:
    """Install signal handlers: SIGTERM ends gracefully, a second one at once. SIGINT is left to the
    parent, if there is one.
    """
    count = 0

    def terminate(_number: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 1:
            os._exit(_TERMINATED)
        stop()

    def leave_it_to_the_parent(_number: int, _frame: FrameType | None) -> None:
        """Ignore SIGINT. SIG_IGN would be inherited by programs that we start."""

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, terminate if is_by_hand else leave_it_to_the_parent)
    os.register_at_fork(
        before=_hold_signals, after_in_parent=_deliver_signals, after_in_child=_forget_signals
    )


_masks = threading.local()


def _hold_signals() -> None:
    """Block signals around a fork: a child that gets SIGTERM before it has reset our handlers would
    ignore it.
    """
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})


def _deliver_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _forget_signals() -> None:
    """Called in a forked child, such as one of a pool: SIGTERM must end the child, and only it."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _deliver_signals()


def _set_up_logging() -> None:
    """Send what the user's code logs to the standard error, if the operator asks for a level.

    Otherwise the user's code decides, in a start-up hook for example.
    """
    level = os.environ.get(LOG_LEVEL, "").strip().upper()
    if not level:
        return
    import logging

    try:
        logging.basicConfig(
            level=level,
            stream=sys.stderr,
            format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        )
    except ValueError as error:
        raise SettingsError(f"{LOG_LEVEL} is {level!r}", remedy="use a level's name") from error


def _report_error(error: BaseException, code: int, *, is_debug: bool) -> int:
    if is_debug:
        from ergon_framework.redaction import redacted_text

        text = "".join(traceback.format_exception(error))
        sys.stderr.write(redacted_text(text))
    stderr_line(str(error) if isinstance(error, ErgonError) else describe(error))
    return code


def _export() -> None:
    """Send spans and metrics where the parent does. Without what that takes, the work goes on."""
    collector = os.environ.get(OTLP)
    if not collector:
        return  # and nothing of OpenTelemetry is imported
    from ergon_framework.telemetry.exporters import export

    try:
        export(f"executor {os.getpid()}", collector=collector)
    except MissingExtraError as error:
        stderr_line(str(error))


def finish_telemetry() -> None:
    """Write the spans and metrics that are left, before the interpreter ends."""
    _finish("ergon_framework.executor.tracing")
    if os.environ.get(OTLP):  # otherwise the exporters belong to the user's own code
        _finish("ergon_framework.telemetry.exporters")


def _finish(module: str) -> None:
    """Call ``finish`` of a module if it was imported: otherwise it has nothing to write."""
    finish = getattr(sys.modules.get(module), "finish", None)
    if finish is not None:
        finish()


def _leave_soon(code: int, exit_timeout: float) -> None:
    """Exit after a while even if threads of the user still run: the interpreter waits for
    non-daemon threads.
    """

    def wait_and_leave() -> None:
        threading.Event().wait(exit_timeout)
        stderr_line("threads are still busy; the process ends without them")
        os._exit(code)

    threading.Thread(target=wait_and_leave, name="ergon-leave", daemon=True).start()


# -- an orchestrator that has died -----------------------------------------------------------------


def _end_when_orphaned(pipes: Pipes) -> None:
    """End this process when its orchestrator has died, whatever handlers are doing.

    The end of the input alone says only that no request follows: what was taken is finished then.
    When the output has lost its reader as well, no process is left that could read the outcome, and
    the worker that takes the job over would run it beside this process. Does nothing for files and
    terminals.
    """
    if all(stat.S_ISFIFO(os.fstat(each).st_mode) for each in (pipes.source, pipes.target)):
        name = "ergon-orphaned"
        threading.Thread(target=_watch_pipes, args=(pipes,), name=name, daemon=True).start()


def _watch_pipes(pipes: Pipes) -> None:
    for descriptor, event in ((pipes.source, select.POLLHUP), (pipes.target, select.POLLERR)):
        poll = select.poll()
        poll.register(descriptor, 0)  # POLLHUP and POLLERR are always reported
        while not any(found & (event | select.POLLNVAL) for _, found in poll.poll()):
            pass
    stderr_line(f"whoever started this process is gone; it ends in {ORPHAN_GRACE:g} s")
    threading.Event().wait(ORPHAN_GRACE)
    # Only our own group: that of a shell would end the terminal's other programs.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # what handlers started, too
    os._exit(_FAILED)
