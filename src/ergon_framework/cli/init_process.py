"""Process 1 of a container: an init, so that the program itself need not be one.

The kernel drops what is sent to process 1 and has no handler there yet, and makes it the parent of
every process whose own is gone. So the program goes on in a child, where a signal that comes while
it loads ends it as anywhere else. Process 1 forwards signals and reaps processes that end: the
child's own children stay the child's, and so do their exit codes.

There is no shell that could continue a stopped program. So the program ignores the signals by which
a terminal stops programs, and a request to end also continues it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress

_OF_ITS_OWN_DOING = {
    number
    for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")
    if (number := getattr(signal, name, None)) is not None
}
"""What a process brings upon itself; never passed on."""

_FROM_THE_TERMINAL = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
"""What stops a program that others can continue."""

_TO_END = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Signals that end a program. A stopped process gets them only when it is continued."""


def step_aside() -> None:
    """As process 1, fork and return in the child only; the parent forwards signals and reaps.
    Otherwise do nothing.
    """
    if os.getpid() == 1:
        go_on_in_a_child()


def go_on_in_a_child() -> None:
    """Return in a child; this process passes signals on to it and ends as it does."""
    # Ignored, as a parent may leave it, it would never be delivered, and exit codes would be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Held back rather than handled: nothing is lost before there is a child to pass it on to.
    passed = signal.valid_signals() - _OF_ITS_OWN_DOING
    before = signal.pthread_sigmask(signal.SIG_BLOCK, passed)
    child = os.fork()
    if child:
        # Not sys.exit: what is in Python's buffers was copied by the fork, and is the child's to
        # write.
        os._exit(_look_after(child, passed))
    _take_terminal()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take_terminal() -> None:
    """Ctrl-C is for the foreground group, and must not come a second time from process 1.

    Ctrl-Z never stopped process 1 nor its children: the kernel does not stop orphaned process
    groups. This group is not orphaned.
    """
    with suppress(OSError):  # there is no terminal
        if os.isatty(0):
            for number in _FROM_THE_TERMINAL:
                signal.signal(number, signal.SIG_IGN)
            os.setpgid(0, 0)
            os.tcsetpgrp(0, os.getpid())


def _look_after(child: int, passed: Iterable[int]) -> int:
    """Until the child ends; returns its exit code, 128 and the number if a signal ended it."""
    while True:
        number = signal.sigwait(passed)
        if number != signal.SIGCHLD:
            os.kill(child, number)  # not reaped yet, so it is there
            if number in _TO_END:
                os.kill(child, signal.SIGCONT)
            continue
        code = _reap(child)
        if code is not None:
            return code


def _reap(child: int) -> int | None:
    """Reap ended processes; returns the child's exit code once it has ended."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if pid == 0:
            return None
