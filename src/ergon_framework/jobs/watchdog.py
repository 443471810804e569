"""A small process that kills the process groups of a worker's executors when the worker cannot.

A worker that is killed can end nobody any more. On Linux the system then kills its executors, but
not what they have started themselves, and elsewhere it kills nobody. This process holds the other
end of a pipe whose end it sees when the worker is gone, whatever ended it.

A worker that is stopped (SIGSTOP, a debugger) renews no lease, so another one takes its jobs over
while its executors run on. The worker therefore writes to the pipe about once a second; after a
silence of ``patience`` seconds its executors are killed as well. A thread of its own writes: a
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
"""Seconds that it has to end by itself when the worker leaves."""
MIN_TIMEOUT = 5.0
"""Seconds of silence that a busy machine may cause, however short the lease is."""
HEARTBEAT_INTERVAL = 0.9
"""Seconds between two signs of life."""
_LOADING = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH")
"""What Python itself may need to start; it gets nothing else of the environment."""
_PROGRAM = """
import os, select, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
patience, tick, silence = float(sys.argv[1]), 0.25, 0.0
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
        if silence >= patience:
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
"""A supervisor may signal all processes of a service at once: that is for the worker to decide.

Silence is counted in ticks: where the whole machine is frozen, all of it is one.
"""


class Watchdog:
    """Started with the first executor; a worker closes it when all of them have ended."""

    def __init__(self, lease: float = 0.0) -> None:
        """``lease``: how long a claim holds in the store.

        A claim is renewed every third of that. Half of it after the last sign of life, nobody else
        can have the job yet.
        """
        self.patience = max(MIN_TIMEOUT, lease / 2)
        self._seen_at: float | None = None
        self._lock = threading.Lock()  # of what the two threads share
        self._ending = threading.Event()
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its process, if there is one."""
        return None if self._process is None else self._process.pid

    def watch(self, group: int) -> None:
        """Have this process group killed when this process dies."""
        with self._lock:
            is_first = self._process is None and not self._groups
            self._groups.add(group)
            if not self._tell(f"+{group}\n"):
                self._start()  # it is not there yet, or somebody has ended it
            if is_first:
                self._ending.set()  # of an earlier thread
                self._ending = threading.Event()
                body = partial(self._beat, self._ending)
                threading.Thread(target=body, name="ergon-watchdog", daemon=True).start()

    def was_stopped(self, now: float) -> bool:
        """Whether this was not asked for so long that the groups may have been killed meanwhile."""
        before, self._seen_at = self._seen_at, now
        return before is not None and now - before >= 0.9 * self.patience

    def forget(self, group: int) -> None:
        """The group is gone; to be said before its leader is reaped and its number is free."""
        with self._lock:
            if group not in self._groups:
                return
            self._groups.discard(group)
            if self._process is not None and not self._tell(f"-{group}\n"):
                self._start()  # what the one that does not listen knows is not true any more

    def close(self) -> None:
        """End it; what it still watches is killed."""
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
        """Signs of life, until the end; a watchdog that was killed is replaced."""
        while not ending.wait(HEARTBEAT_INTERVAL):
            with self._lock:
                if self._process is not None and not self._tell("\n"):
                    self._start()

    def _start(self) -> None:
        if self._process is not None:
            self._process.kill()  # before it sees the end of its input: the groups live
            _close_input(self._process)
            self._process.wait()
            self._process = None
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                (sys.executable, "-I", "-S", "-c", _PROGRAM, str(self.patience)),
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
