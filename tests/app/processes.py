"""Commands as real processes. What they print is waited for; nothing here sleeps."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import ergon_framework

SAMPLES = Path(__file__).parent / "samples"
SOURCE = Path(ergon_framework.__file__).parents[1]
PATIENCE = 30.0


class Ergon:
    """One ``ergon`` command, started in the directory of the samples."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ergon_framework.cli", *arguments],
            cwd=SAMPLES,
            env=_environment(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self._out = self.process.stdout.fileno()
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def line(self) -> str:
        """The next line it prints; empty at the end."""
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._out], [], [], PATIENCE)
            assert ready, "nothing was printed in time"
            more = os.read(self._out, 65536)
            if not more:
                rest, self._buffer = self._buffer, b""
                return rest.decode()
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def until(self, text: str) -> str:
        """Skip to the next line that begins so."""
        seen = []
        while line := self.line():
            if line.startswith(text):
                return line
            seen.append(line)
        raise AssertionError(f"{text!r} was not printed, but {seen}; {self.errors()}")

    def rest(self) -> list[str]:
        """Everything it and its children print from now on, until all of them are gone."""
        lines = []
        while line := self.line():
            lines.append(line)
        return lines

    def errors(self) -> str:
        """What it wrote to the standard error stream, once it is over."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def signal(self, number: signal.Signals) -> None:
        """Give it a signal."""
        self.process.send_signal(number)

    def code(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE)


def open_gate(gate: Path) -> None:
    """Let whoever waits at the named pipe pass."""
    with gate.open("w"):
        return


def is_running(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ERGON_")}
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH", "")]))
    return {**kept, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **more}
