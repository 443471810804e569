"""Processes that work on a store, die, and are replaced."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests import fork_server

ROOT = Path(__file__).parent.parent.parent
LEAVING = 30.0
FUSE = 2.5
"""Seconds that one who is armed has to reach its failpoint."""


class Actor:
    """One process of one of the programs; it may be armed to kill itself at a failpoint.

    It says so on its standard output when it is at work.
    """

    def __init__(self, program: str, arguments: Sequence[str], errors: Path, arm: str = "") -> None:
        self.program = program
        self.arm = arm
        env = {**os.environ, "ERGON_FAILPOINTS": arm}
        with errors.open("ab") as log:
            self._process = fork_server.start(
                [sys.executable, "-m", f"tests.campaign.programs.{program}", *arguments],
                cwd=ROOT,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._began = time.monotonic()
        self._has_said = False

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """How it ended; None while it lives."""
        return self._process.poll()

    @property
    def is_at_work(self) -> bool:
        """Whether it has said so."""
        assert self._process.stdout is not None
        if not self._has_said and select.select([self._process.stdout], [], [], 0)[0]:
            self._has_said = bool(os.read(self._process.stdout.fileno(), 1024))
            self._began = time.monotonic()
        return self._has_said

    @property
    def is_due(self) -> bool:
        """Whether it may be struck: it is at work, and had its time to reach its failpoint."""
        return self.is_at_work and (not self.arm or time.monotonic() - self._began > FUSE)

    def allow(self, tokens: int) -> None:
        """Let it do so many more pieces of work; one that is dead does not hear it."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            os.write(self._process.stdin.fileno(), b"\n" * tokens)

    def children(self) -> list[int]:
        """The processes it has started."""
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        with suppress(OSError):
            return [int(pid) for pid in listed.read_text(encoding="ascii").split()]
        return []

    def signal(self, number: int) -> None:
        """Send it a signal, if it lives."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, now."""
        self._process.kill()
        self._gone()

    def leave(self) -> int:
        """Ask it to leave; how it ended."""
        self._process.send_signal(signal.SIGTERM)
        return self._gone()

    def _gone(self) -> int:
        try:
            return self._process.wait(LEAVING)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()

    def buried(self) -> None:
        """It has ended by itself: let go of its pipes."""
        self._gone()
