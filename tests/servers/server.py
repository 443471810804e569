"""What all servers of the tests have in common: a folder, a port, a start, an end, a restart."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from tests.servers.skip_loudly import STARTUP, MissingServerError, missing

_RESERVATIONS = Path(tempfile.gettempdir(), f"ergon-test-ports-{os.getuid()}")
_reserved: dict[int, set[int]] = {}
"""What this process has reserved, by its file: a lock is no bar to the process that has it."""


def free_port() -> int:
    """A port that nobody listens on, that no connection is given by chance, and no other test.

    A server that is ended and started again wants to find its port free, and so does a Redis
    cluster the port ten thousand above, on which its servers talk: both are below those that
    systems give to connections. Tests in other processes choose as well, while a server needs
    seconds to start: a port is reserved, by a lock on one byte of a file, until its process ends.
    """
    if not _reserved:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        _reserved[os.open(_RESERVATIONS, flags, 0o600)] = set()
        # A lock does not pass to a forked child, and would end with the file that it closes.
        os.register_at_fork(after_in_child=_reserved.clear)
    ((file, ours),) = _reserved.items()
    while True:
        port = random.randrange(10_000, 22_000)  # noqa: S311 - no secret
        with socket.socket() as found, socket.socket() as other, suppress(OSError):
            found.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            if port not in ours:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                ours.add(port)
                return port


class Server(ABC):
    """One server in a folder of its own; it can be ended and started again."""

    NAME: ClassVar[str]
    STOP: ClassVar[signal.Signals] = signal.SIGTERM
    KILL: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self, folder: Path | None = None) -> None:
        # Short, as a socket in it may have a name of about a hundred letters.
        self.folder = folder or Path(tempfile.mkdtemp(prefix="ergon-"))
        self._log = self.folder / "log"
        self._began = 0
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _words(self) -> list[str]:
        """The command that starts it."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it can be asked something by now."""

    def _options(self) -> dict[str, Any]:
        """As whom and where the process runs."""
        return {}

    def start(self) -> None:
        """Start it and wait until it answers."""
        with self._log.open("ab") as log:
            self._began = log.tell()
            self._process = subprocess.Popen(  # noqa: S603 - a server of the tests
                self._words(), stdout=log, stderr=log, **self._options()
            )
        deadline = time.monotonic() + STARTUP
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise MissingServerError(f"{self.NAME} did not start: {self._said()[-500:]}")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.02)

    def _said(self) -> str:
        """What it wrote down since its last start."""
        return self._log.read_bytes()[self._began :].decode(errors="replace")

    def stop(self) -> None:
        """End it as an operator would."""
        self._end(self.STOP)

    def kill(self) -> None:
        """End it as a crash would; all of it is gone afterwards."""
        self._end(self.KILL)

    def freeze(self) -> None:
        """Let it neither answer nor end, from now on: a thread of it may run on for a moment."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def reload(self) -> None:
        """Have it read its settings again; when it has done so, only some servers say."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(STARTUP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def remove(self) -> None:
        """End it as it stands and delete what it held."""
        try:
            self.kill()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


class Removable(Protocol):
    """A server, or several that belong together."""

    def start(self) -> None:
        """Start it and wait until it answers."""

    def remove(self) -> None:
        """End it and delete what it held."""


S = TypeVar("S", bound=Removable)


@contextmanager
def made(make: Callable[[], S]) -> Iterator[S]:
    """A server that is not started yet; without one the test is skipped."""
    try:
        server = make()
    except MissingServerError as error:
        missing(error)
    try:
        yield server
    finally:
        server.remove()


@contextmanager
def started(make: Callable[[], S]) -> Iterator[S]:
    """A server that answers; without one the test is skipped."""
    with made(make) as server:
        try:
            server.start()
        except MissingServerError as error:
            missing(error)
        yield server
