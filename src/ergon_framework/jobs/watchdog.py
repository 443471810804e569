"""A small process that kills the process groups of a worker's executors when the worker cannot.

A worker that is killed can end nobody any more. On Linux the system then kills its executors, but
not what they have started themselves, and elsewhere it kills nobody. This process holds the other
end of a pipe whose end it sees when the worker is gone, whatever ended it.

A worker that is stopped (SIGSTOP, a debugger) renews no lease, so another one takes its jobs over
while its executors run on. The worker therefore writes to the pipe about once a second; after a
silence of ``timeout`` seconds its executors are killed as well. A thread of its own writes: a
worker that waits for somebody to read its log, or for its store, is not stopped.

A process that has left the group of its executor (``setsid``, a daemon) is out of its reach, and so
is everything when the watchdog is killed together with its worker.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial

logger = logging.getLogger("ergon.jobs")

EXIT_TIMEOUT = 5.0
"""Seconds that the watchdog has to exit when the worker stops."""
MIN_TIMEOUT = 5.0
"""Seconds of silence that a busy machine may cause, however short the lease is."""
HEARTBEAT_INTERVAL = 0.9
"""Seconds between two heartbeats from the worker to the watchdog."""
TICK = 0.25
"""The unit, in seconds, in which the watchdog counts a silence."""
_LOADING = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH")
"""The variables that Python itself may need to start. The watchdog gets no others."""
_PROGRAM = """
import os, select, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
timeout, tick, silence = float(sys.argv[1]), float(sys.argv[2]), 0.0
groups, rest, poll = set(), b"", select.poll()
poll.register(0, select.POLLIN)

def kill():
    while groups:
        try:
            os.killpg(groups.pop(), signal.SIGKILL)
        except OSError:
            pass

while True:
    if not poll.poll(tick * 1000):
        silence += tick
        if silence >= timeout:
            kill()
        continue
    silence, data = 0.0, os.read(0, 65536)
    if not data:
        break
    *lines, rest = (rest + data).split(b"\\n")
    for line in lines:
        if line:
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
kill()
"""
"""The program of the watchdog.

It ignores the signals that end a service: a supervisor may send them to all processes at once, and
only the worker decides when its executors end. Silence is counted in ticks of its own and not by a
clock, so that a machine that was suspended as a whole counts as one tick.
"""


class Watchdog:
    """The watchdog process of a worker, and the thread that sends its heartbeats.

    Started with the first executor; the worker closes it when all of them have ended.
    """

    def __init__(self, lease: float = 0.0) -> None:
        """``lease``: how long a claim holds in the store.

        A claim is renewed every third of that. Half a lease after the last heartbeat no other
        worker can have the job yet, so executors that are killed then do not run beside another.
        """
        self.timeout = max(MIN_TIMEOUT, lease / 2)
        self._seen_at: float | None = None
        self._lock = threading.Lock()  # the worker's loop and the heartbeat thread use the process
        self._ending = threading.Event()
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The pid of the watchdog process, if it runs."""
        return None if self._process is None else self._process.pid

    def watch(self, group: int) -> None:
        """Have this process group killed when this process dies."""
        with self._lock:
            is_first = self._process is None and not self._groups
            self._groups.add(group)
            if not self._tell(f"+{group}\n"):
                self._start()  # The watchdog is not running yet, or was killed.
            if is_first:
                self._ending.set()  # ends the thread of an earlier run
                self._ending = threading.Event()
                body = partial(self._beat, self._ending)
                threading.Thread(target=body, name="ergon-watchdog", daemon=True).start()

    def was_stopped(self, now: float) -> bool:
        """Whether the worker was suspended for so long that executors may have been killed.

        Asked once per turn of the worker's loop, which measures the time between two turns.
        """
        before, self._seen_at = self._seen_at, now
        # The silence that the watchdog counts began with the last heartbeat before the stop.
        shortest = self.timeout - HEARTBEAT_INTERVAL - 2 * TICK
        return before is not None and now - before >= shortest

    def forget(self, group: int) -> None:
        """Stop watching a group. Call this before its leader is reaped.

        After that the system may give the number to a new process, which would be killed instead.
        """
        with self._lock:
            if group not in self._groups:
                return
            self._groups.discard(group)
            if self._process is not None and not self._tell(f"-{group}\n"):
                self._start()  # A watchdog that does not read would kill the group's successor.

    def close(self) -> None:
        """End the watchdog. Groups that it still watches are killed."""
        self._ending.set()
        with self._lock:
            process, self._process = self._process, None
            self._groups.clear()
        if process is None:
            return
        _close_input(process)
        try:
            process.wait(EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _beat(self, ending: threading.Event) -> None:
        """Send heartbeats until the end, and replace a watchdog that was killed."""
        while not ending.wait(HEARTBEAT_INTERVAL):
            with self._lock:
                if self._process is not None and not self._tell("\n"):
                    self._start()

    def _start(self) -> None:
        if self._process is not None:
            # Killed before its input is closed: at the end of its input it would kill the groups.
            self._process.kill()
            _close_input(self._process)
            self._process.wait()
            self._process = None
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                (sys.executable, "-I", "-S", "-c", _PROGRAM, str(self.timeout), str(TICK)),
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
        except OSError:  # It has ended, or does not read.
            return False


def _close_input(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
