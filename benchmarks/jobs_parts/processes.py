"""Child processes: started in a group of their own, ended by their id, and what they use."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

GRACE = 5.0
"""Seconds between asking a process to end and killing its group."""
HERE = Path(__file__).resolve().parent.parent
TAIL = 400


def environment(**more: str) -> dict[str, str]:
    """Ours, with a path on which children find these parts."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(HERE), *(str(Path(each).resolve()) for each in given if each)]
    quiet = {"PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(paths), **more}


class StartedProcess:
    """A process whose output goes to a file, for the case that it has something to complain of."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], log: Path, **more: Any
    ) -> None:
        self.log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(  # noqa: S603 - commands of these parts
                list(command),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                **{"cwd": log.parent, **more},
            )
        self.pid = self._process.pid

    def is_over(self) -> bool:
        """Whether it has ended by itself."""
        return self._process.poll() is not None

    def log_tail(self) -> str:
        """The end of what it wrote."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:])[-TAIL:]

    def stop(self, grace: float = GRACE) -> None:
        """Ask it to end; what is left of its group after the grace is killed."""
        if not self.is_over():
            os.kill(self.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def process_tree(pid: int) -> list[int]:
    """A process and all its descendants, where the system tells (Linux)."""
    found, left = [], [pid]
    while left:
        one = left.pop()
        found.append(one)
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):
                left += map(int, children.read_text().split())
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """Processor time used so far by all threads of these processes."""
    total = 0.0
    for pid in pids:
        for stat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):
                total += int(stat.read_text().split()[0]) / 1e9
    return total


def resident_bytes(pid: int) -> int:
    """The resident set of one process; 0 where the system does not tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def wait_until(true: Any, seconds: float, pause: float = 0.001) -> bool:
    """Look again and again; whether it came true in time."""
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(pause)
    return True
