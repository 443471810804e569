"""One executor process: its environment, its pipes, its process group and its end. It decides
nothing.

The parent keeps the read end of the child's standard input open beside the write end. When the
child dies, the bytes that it has not read are then still there and can be counted. That is the only
way to know which requests it had taken, and so which job may have caused the death.
"""

from __future__ import annotations

import array
import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Self

from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.jobs.watchdog import Watchdog
from ergon_framework.redaction import redacted_text

CHUNK = 1 << 18
"""How many bytes one read asks for."""
STDERR_TAIL_BYTES = 2048
"""How many bytes of the standard error stream are kept to explain a death."""


class ChildProcess:
    """A running executor. All its descriptors are non-blocking and belong to this process."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """If this process dies, ``watchdog`` ends the process group of the child."""
        with _PipeEnds() as pipes:
            # The reading end of the input is kept open here as well: FIONREAD on it tells how much
            # the child has not read yet, which decides whether a request was ever begun.
            self._unread, self.stdin = pipes.kept()
            self.stdout, out = pipes.from_child()
            self.stderr, err = pipes.from_child()
            self.ready, ready = pipes.from_child()
            self.progress, progress = pipes.from_child()
            self.control, control = pipes.to_child()
            begin, start = pipes.to_child()
            bound = bound_to_parent(command, env, cwd, start)
            handed = (ready, control, progress)
            self._process = subprocess.Popen(  # noqa: S603 - the operator's own command
                bound,
                stdin=self._unread,
                stdout=out,
                stderr=err,
                pass_fds=handed if bound is command else (*handed, start),
                env={
                    **env,
                    "ERGON_READY_FD": str(ready),
                    "ERGON_CONTROL_FD": str(control),
                    "ERGON_PROGRESS_FD": str(progress),
                },
                cwd=cwd,
                start_new_session=True,
            )
        inputs = (self.stdout, self.stderr, self.ready, self.progress)
        for end in (self.stdin, self.control, *inputs):
            os.set_blocking(end, False)
        self.pid = self._process.pid
        self._watchdog = watchdog
        self._let_begin(begin)
        self.exit_fd = _pidfd(self.pid)
        self.status: int | None = None
        self.queued = 0  # bytes that were handed to ``send`` so far
        self.written = 0  # bytes of these that went into the pipe
        self._out = bytearray()
        self._tail = bytearray()

    def _let_begin(self, begin: int) -> None:
        """Let a bound command begin, now that the watchdog knows its process group.

        A process that the command started earlier would survive if the worker was killed just then.
        """
        try:
            if self._watchdog is not None:
                # Started with start_new_session, it leads its own process group.
                self._watchdog.watch(self.pid)
            with suppress(BrokenPipeError):  # It was killed in the meantime.
                os.write(begin, b"+")
        finally:
            os.close(begin)

    # ---- writing ----

    def send(self, data: bytes) -> None:
        """Queue bytes for the child; :meth:`flush` writes them."""
        self._out += data
        self.queued += len(data)

    def flush(self) -> bool:
        """Write as much as the pipe takes. Returns whether everything was written."""
        while self._out:
            try:
                n = os.write(self.stdin, self._out)
            except BlockingIOError:
                return False
            except OSError:  # The child has closed its input or died; that is noticed elsewhere.
                self._out.clear()
                return True
            self.written += n
            if n == len(self._out):
                self._out.clear()
            else:
                del self._out[:n]
        return True

    def send_control(self, line: bytes) -> None:
        """Send the child a control message. A child that does not read the control descriptor
        misses it.
        """
        with suppress(OSError):
            os.write(self.control, line)

    def close_input(self) -> None:
        """Close the child's input. Make the event loop forget the descriptor first."""
        # Before the write end, because the child sees no end of its input while a reader is open
        # here.
        self._close("_unread")
        self._close("stdin")

    def taken(self) -> int:
        """How many bytes of its input the child has read."""
        if self._unread < 0:
            return self.written
        count = array.array("i", [0])
        fcntl.ioctl(self._unread, termios.FIONREAD, count)
        return self.written - count[0]

    # ---- reading ----

    def read(self, descriptor: int) -> bytes | None:
        """Read what is there: returns bytes, None for nothing yet, or empty bytes at the end."""
        try:
            return os.read(descriptor, CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def read_stderr(self) -> bytes | None:
        """Read the standard error stream, and keep its end for :attr:`stderr_tail`."""
        data = self.read(self.stderr)
        if data:
            self._tail += data[-STDERR_TAIL_BYTES:]
            del self._tail[:-STDERR_TAIL_BYTES]
        return data

    @property
    def stderr_tail(self) -> str:
        """The end of what the child wrote to its standard error stream, without secrets."""
        return redacted_text(self._tail.decode(errors="replace")).strip()

    # ---- ending ----

    def has_exited(self) -> bool:
        """Whether the process has ended. If so, its whole group is killed and the process is
        reaped.
        """
        if self.status is not None:
            return True
        if not _is_over(self._process):
            return False
        # Kill what the child has started. This comes before reaping, because until then the system
        # cannot give the number of the group to another process.
        self.signal(signal.SIGKILL)
        if self._watchdog is not None:
            self._watchdog.forget(self.pid)
        self.status = self._process.wait()
        return True

    def signal(self, number: int) -> None:
        """Send a signal to the whole process group."""
        if self.status is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def close(self) -> None:
        """Close every descriptor. The process must have ended."""
        ends = ("stdin", "_unread", "stdout", "stderr", "ready", "control", "progress", "exit_fd")
        for name in ends:
            self._close(name)

    def close_ready(self) -> None:
        """The child has said that it is ready, or never will."""
        self._close("ready")

    def _close(self, name: str) -> None:
        descriptor = getattr(self, name)
        if descriptor >= 0:
            setattr(self, name, -1)
            os.close(descriptor)


_BIND_TO_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
start = int(sys.argv[2])
if os.getppid() != int(sys.argv[1]) or start >= 0 and not os.read(start, 1):
    os._exit(1)
if start >= 0:
    os.close(start)
try:
    os.execvp(sys.argv[3], sys.argv[3:])
except OSError as error:
    os.write(2, f"cannot execute {sys.argv[3]}: {error.strerror}\\n".encode(errors="replace"))
    os._exit(126)
"""
"""A Python program that asks the system to kill it when its parent dies, then executes the command.

The request (``prctl``) must be made between fork and exec, which Python cannot do safely in a
process with threads; so a Python of its own makes it. "Parent" means the thread that forked: the
worker's loop, which outlives its children. The parent may have died before the request, so that is
checked after it. It then waits for a byte from the parent, which comes when the watchdog knows of
the new group; the end of that pipe means that the parent has died. Python ignores SIGPIPE and
SIGXFSZ, which the command may rely on.
"""


def bound_to_parent(
    command: Sequence[str], env: Mapping[str, str], cwd: str | None, start: int = -1
) -> Sequence[str]:
    """Wrap a command so that the system kills it when this process dies; only on Linux.

    Wrapped, it begins when a byte can be read from ``start``, and closes that descriptor.
    """
    if sys.platform != "linux" or not _has_ctypes():
        return command
    name = command[0]
    if os.sep in name:
        found = os.access(Path(cwd or "", name), os.X_OK)
    else:
        found = shutil.which(name, path=env.get("PATH", os.defpath)) is not None
    if not found:
        return command  # Unchanged, so that starting the program raises the usual error.
    program = (sys.executable, "-I", "-S", "-c", _BIND_TO_PARENT)
    return (*program, str(os.getpid()), str(start), *command)


@lru_cache(maxsize=1)
def _has_ctypes() -> bool:
    return importlib.util.find_spec("_ctypes") is not None


class _PipeEnds:
    """Pipes between this process and a child that is about to be started.

    When the block ends, the ends that only the child uses are closed here. If the child could not
    be started, ours are closed as well.
    """

    def __init__(self) -> None:
        self._ours: list[int] = []
        self._theirs: list[int] = []

    def from_child(self) -> tuple[int, int]:
        """A pipe that the child writes to: our end, and the child's."""
        read, write = os.pipe()
        self._ours.append(read)
        self._theirs.append(write)
        return read, write

    def to_child(self) -> tuple[int, int]:
        """A pipe that the child reads: our end, and the child's."""
        read, write = os.pipe()
        self._ours.append(write)
        self._theirs.append(read)
        return write, read

    def kept(self) -> tuple[int, int]:
        """A pipe whose two ends both stay open here: the reading and the writing end."""
        ends = os.pipe()
        self._ours += ends
        return ends

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for end in self._theirs if kind is None else (*self._theirs, *self._ours):
            os.close(end)


def _pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the process ends, or -1 on systems without pidfds."""
    opens: Callable[[int], int] | None = getattr(os, "pidfd_open", None)
    if opens is None:
        return -1
    try:
        return opens(pid)
    except OSError:
        return -1


def _is_over(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process has ended, without reaping it where the platform allows."""
    if hasattr(os, "waitid"):
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, process.pid, flags) is not None
        except ChildProcessError:
            return True
    return process.poll() is not None


# ---- the environment -----------------------------------------------------------------------------
#
# Handlers rely on their environment, so it is handed down. The variables of Ergon itself, and those
# that the settings read for other parts, may hold the server's token or the store's password: a
# handler, and what it starts, has no use for them unless somebody says so.

PREFIX = "ERGON_"
WITHHELD = "ERGON_WITHHELD"
"""The variable that tells an executor which variables were withheld, so that it can still read
settings that name them.
"""
HARMLESS = frozenset(
    {
        "ERGON_CONFIG",
        "ERGON_JOURNAL",
        "ERGON_LOG_FORMAT",
        "ERGON_LOG_LEVEL",
        "ERGON_OTLP",
        "ERGON_WORKER_ID",
    }
)
"""The variables of Ergon that executors need and that hold no secret."""
BASICS = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_*", "TZ", "TMPDIR", *sorted(HARMLESS))
"""The variables that an executor gets whatever ``pass_env`` says, because programs do not start
without them or behave oddly.
"""


def executor_environment(
    environ: Mapping[str, str], settings: ExecutorSettings, read_elsewhere: Iterable[str] = ()
) -> dict[str, str]:
    """The environment of an executor. ``read_elsewhere`` has the variables that settings of other
    parts refer to.
    """
    ours = {name for name in environ if name.upper().startswith(PREFIX)} - HARMLESS
    ours |= {*read_elsewhere} & environ.keys()
    kept_back = {name for name in ours if not _is_among(name, settings.pass_secrets)}
    wanted = (*BASICS, *settings.pass_env, *settings.pass_secrets)
    found = {
        name: value
        for name, value in environ.items()
        if name not in kept_back and _is_among(name, wanted)
    }
    if kept_back:
        found[WITHHELD] = ",".join(sorted(kept_back))
    return found | dict(settings.env)


def _is_among(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
