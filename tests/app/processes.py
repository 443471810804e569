"""Commands as real processes. What they print is waited for; it sleeps only between signals."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Self

import ergon_framework
from ergon_framework.app.signals import REPEAT_WINDOW
from tests import fork_server

SAMPLES = Path(__file__).parent / "samples"
SOURCE = Path(ergon_framework.__file__).parents[1]
PATIENCE = 90.0


class Output:
    """A stream of a process, read line by line."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        self._fd = stream.fileno()
        self._buffer = b""
        self._told: list[str] = []

    def line(self) -> str:
        """The next line; empty at the end."""
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._fd], [], [], PATIENCE)
            assert ready, f"nothing was printed in time after {self._told}, but {self._buffer!r}"
            more = os.read(self._fd, 65536)
            if not more:
                rest, self._buffer = self._buffer, b""
                return rest.decode()
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        self._told.append(line.decode())
        return line.decode() or " "

    def until(self, text: str) -> str:
        """Skip to the next line that begins so."""
        seen = []
        while line := self.line():
            if line.startswith(text):
                return line
            seen.append(line)
        raise AssertionError(f"{text!r} was not printed, but {seen}")

    def rest(self) -> list[str]:
        """Everything that is printed until all who could print are gone."""
        lines = []
        while line := self.line():
            lines.append(line)
        return lines


class Ergon:
    """One ``ergon`` command, started in the directory of the samples."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        self.process = fork_server.start(
            [sys.executable, "-m", "ergon_framework.cli", *arguments],
            cwd=SAMPLES,
            env=_environment(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            forks_children=True,
        )
        self._signalled_at = -REPEAT_WINDOW
        self.out = Output(self.process.stdout)
        self.err = Output(self.process.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate()

    def signal(self, number: signal.Signals) -> None:
        """Give it a signal, as a wish of its own: not within the time of the one before."""
        time.sleep(max(0.0, self._signalled_at + REPEAT_WINDOW + 0.1 - time.monotonic()))
        self.process.send_signal(number)
        self._signalled_at = time.monotonic()

    def errors(self) -> str:
        """All it wrote to the standard error stream, once it is over."""
        return "\n".join(self.err.rest())

    def code(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE)


def open_gate(gate: Path) -> None:
    """Let whoever waits at the named pipe pass."""
    with gate.open("w"):
        return


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ERGON_")}
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH", "")]))
    return {**kept, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **more}
