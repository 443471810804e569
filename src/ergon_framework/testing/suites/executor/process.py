"""A process of the command under test: bytes move both ways, and nothing waits for ever.

One thread does it all. Every pipe is non-blocking and moved by ``pump``, so an executor that reads
slowly, floods its standard error or never answers cannot block whoever is watching it.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import selectors
import shutil
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

from ergon_framework.errors import WiringError

CHUNK = 65536
MOST_OUTPUT = 64 * 1024 * 1024  # bytes of standard output one process may write
KEPT_LOG = 2000  # of standard error, for the reasons
BEAT = 0.02  # seconds between two looks at whether the process still lives
LAST_WORDS = 0.2  # seconds to read on when it is gone; a grandchild may hold the pipe open


@dataclass(frozen=True, slots=True)
class Program:
    """What to start, and how."""

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None

    def check(self) -> None:
        """Raise unless there is such a command."""
        if not self.command or not self.command[0]:
            raise WiringError("there is no command to start", remedy="name it after --")
        if self.cwd is not None and not self.cwd.is_dir():
            raise WiringError(
                f"there is no directory {str(self.cwd)!r}", remedy="correct the working directory"
            )
        name = self.command[0]
        path = {**os.environ, **self.env}.get("PATH")
        here = str((self.cwd or Path()) / name) if os.sep in name else name
        if shutil.which(here, path=path) is None:
            raise WiringError(
                f"there is no command {name!r} that can be started",
                remedy="give its path, and make the file executable",
            )


class Process:
    """One running executor; close it, and it is gone with everything it started."""

    def __init__(
        self,
        program: Program,
        *,
        env: Mapping[str, str] | None = None,
        pass_fds: Iterable[int] = (),
    ) -> None:
        try:
            self._child = subprocess.Popen(  # noqa: S603 - running it is the point
                list(program.command),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=program.cwd,
                env=_environment(program.env, env or {}),
                pass_fds=tuple(pass_fds),
                start_new_session=True,  # its grandchildren can be ended with it
            )
        except (OSError, ValueError) as error:
            raise WiringError(
                f"the command {program.command[0]!r} could not be started: {error}",
                remedy="give a program, or a script with its interpreter in the first line",
            ) from error
        self.output = bytearray()
        self.log = bytearray()
        self.is_refusing = False  # it closed its standard input
        self.is_flooding = False  # it wrote more than anybody should read
        self._waiting = bytearray()
        self._is_closing = False
        self._selector = selectors.DefaultSelector()
        self._watch(self._child.stdout, self._read_output)
        self._watch(self._child.stderr, self._read_log)
        os.set_blocking(_fileno(self._child.stdin), False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what goes in ---------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Hand bytes over; they are written while somebody pumps."""
        if self.is_refusing or self._is_closing:
            return
        self._waiting += data
        self._offer()

    def end_input(self) -> None:
        """Close its standard input, once everything sent has been written."""
        self._is_closing = True
        self._offer()

    def is_read(self) -> bool:
        """Whether it has taken everything out of the pipe, as far as one can see."""
        stdin = self._child.stdin
        if self._waiting or stdin is None or stdin.closed:
            return not self._waiting
        unread = array.array("i", [0])
        try:
            fcntl.ioctl(stdin.fileno(), termios.FIONREAD, unread)
        except OSError:  # pragma: no cover - a system that does not tell
            return True
        return unread[0] == 0

    def _offer(self) -> None:
        stdin = self._child.stdin
        if stdin is None or stdin.closed:
            return
        if self._waiting:
            with contextlib.suppress(KeyError):
                self._selector.register(stdin, selectors.EVENT_WRITE, self._write)
            return
        with contextlib.suppress(KeyError):
            self._selector.unregister(stdin)
        if self._is_closing:
            stdin.close()

    def _write(self) -> None:
        try:
            written = os.write(_fileno(self._child.stdin), self._waiting[:CHUNK])
        except BlockingIOError:  # pragma: no cover - the selector said otherwise
            return
        except OSError:
            self.is_refusing, self._is_closing, written = True, True, len(self._waiting)
        del self._waiting[:written]
        self._offer()

    # ---- what comes out -------------------------------------------------------------------------

    def wait(self, condition: Callable[[], object], seconds: float) -> bool:
        """Pump until the condition holds; False when time is up or the process is gone."""
        end = time.monotonic() + seconds
        while not condition():
            left = end - time.monotonic()
            if left <= 0 or self.is_over():
                return bool(condition())
            self.pump(min(left, BEAT))
        return True

    def pump(self, seconds: float) -> None:
        """Move what can be moved; returns when something was, or after ``seconds``."""
        for key, _ in self._selector.select(seconds):
            key.data()

    def rest(self, seconds: float) -> None:
        """Pump for so long, whatever happens."""
        self.wait(lambda: False, seconds)

    def stop_flood(self) -> None:
        """Read no more: this is too much."""
        self.is_flooding = True
        self.close_output()

    def close_output(self) -> None:
        """Read its standard output no more, as an orchestrator that has died."""
        self._drop(self._child.stdout)

    def _watch(self, stream: IO[bytes] | None, read: Callable[[], None]) -> None:
        os.set_blocking(_fileno(stream), False)
        self._selector.register(stream or 0, selectors.EVENT_READ, read)

    def _read_output(self) -> None:
        self.output += self._read(self._child.stdout)
        if len(self.output) > MOST_OUTPUT:
            self.stop_flood()

    def _read_log(self) -> None:
        self.log += self._read(self._child.stderr)
        del self.log[:-KEPT_LOG]

    def _read(self, stream: IO[bytes] | None) -> bytes:
        try:
            data = os.read(_fileno(stream), CHUNK)
        except BlockingIOError:  # pragma: no cover - the selector said otherwise
            return b""
        if not data:
            self._drop(stream)
        return data

    def _drop(self, stream: IO[bytes] | None) -> None:
        if stream is not None and not stream.closed:
            self._selector.unregister(stream)
            stream.close()

    # ---- how it is ------------------------------------------------------------------------------

    def has_closed_output(self) -> bool:
        """Whether its standard output has ended."""
        return self._child.stdout is None or self._child.stdout.closed

    def is_over(self) -> bool:
        """Whether it is gone and everything it said was read."""
        if self._child.poll() is None:
            return False
        end = time.monotonic() + LAST_WORDS
        while not self.has_closed_output() and time.monotonic() < end:
            self.pump(BEAT)
        self.close_output()
        return True

    def exit_code(self, seconds: float) -> int | None:
        """Its exit code; None when it still runs after so many seconds."""
        self.wait(lambda: False, seconds)
        return self._child.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._child.send_signal(number)

    def close(self) -> None:
        """End it and all of its process group."""
        # The group outlives its leader, and macOS answers EPERM for one that is all zombies.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.kill()
        self._child.wait()
        self._selector.close()
        for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _environment(*more: Mapping[str, str]) -> dict[str, str]:
    """Ours without what an orchestrator tells its executors, unless it is given."""
    told = ("ERGON_MAX_IN_FLIGHT", "ERGON_READY_FD")
    merged = {name: value for name, value in os.environ.items() if name not in told}
    for each in more:
        merged.update(each)
    return merged


def _fileno(stream: IO[bytes] | None) -> int:
    assert stream is not None  # noqa: S101 - all three are pipes
    return stream.fileno()
