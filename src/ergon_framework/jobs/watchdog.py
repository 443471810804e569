"""A small process that kills the process groups of a worker's executors when the worker dies.

A worker that is killed can end nobody any more. On Linux the system then kills its executors, but
not what they have started themselves, and elsewhere it kills nobody. This process holds the other
end of a pipe whose end it sees when the worker is gone, whatever ended it.

A process that has left the group of its executor (``setsid``, a daemon) is out of its reach, and so
is everything when the watchdog is killed together with its worker.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import suppress

logger = logging.getLogger(__name__)

LAST_WORDS = 5.0
"""Seconds that it has to end by itself when the worker leaves."""
_LOADING = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH")
"""What Python itself may need to start; it gets nothing else of the environment."""
_PROGRAM = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
groups, rest = set(), b""
while data := os.read(0, 65536):
    *lines, rest = (rest + data).split(b"\\n")
    for line in lines:
        (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""
"""A supervisor may signal all processes of a service at once: that is for the worker to decide."""


class Watchdog:
    """Started with the first executor; a worker closes it when all of them have ended."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its process, if there is one."""
        return None if self._process is None else self._process.pid

    def watch(self, group: int) -> None:
        """Have this process group killed when this process dies."""
        self._groups.add(group)
        if not self._tell(f"+{group}\n"):
            self._start()  # it is not there yet, or somebody has ended it

    def forget(self, group: int) -> None:
        """The group is gone; to be said before its leader is reaped and its number is free."""
        if group in self._groups:
            self._groups.discard(group)
            if self._process is not None and not self._tell(f"-{group}\n"):
                self._start()  # what the one that does not listen knows is not true any more

    def close(self) -> None:
        """End it; what it still watches is killed."""
        process, self._process = self._process, None
        self._groups.clear()
        if process is None:
            return
        _close_input(process)
        try:
            process.wait(LAST_WORDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        if self._process is not None:
            self._process.kill()  # before it sees the end of its input: the groups live
            _close_input(self._process)
            self._process.wait()
            self._process = None
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                (sys.executable, "-I", "-S", "-c", _PROGRAM),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _LOADING if name in os.environ},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            text = "no watchdog: what executors start may outlive a worker that is killed: %s"
            logger.warning(text, error.strerror or error)
            return
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)
        self._tell("".join(f"+{group}\n" for group in sorted(self._groups)))

    def _tell(self, text: str) -> bool:
        if self._process is None or self._process.stdin is None:
            return False
        try:
            data = text.encode()
            return os.write(self._process.stdin.fileno(), data) == len(data)
        except OSError:  # it has ended, or does not read
            return False


def _close_input(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
