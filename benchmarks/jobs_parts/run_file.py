"""What handlers leave behind in a shared file: that a job ran, or the instant at which it began.

The same for every contestant, and cheaper than any of them: a write to mapped memory. One byte per
job counts its runs, so a job that was lost or run twice shows, whatever the queue says of itself.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

PATH = "JOBS_BENCH_RUN_FILE"
"""The variable that names the file."""
TIMESTAMPS = "JOBS_BENCH_TIMESTAMPS"
"""Set when instants are wanted."""
_INSTANT = struct.Struct("q")


def create(path: Path, jobs: int) -> None:
    """An empty file with room for that many jobs, counted or stamped."""
    path.write_bytes(bytes(jobs * _INSTANT.size))


def handler() -> Callable[[int], int]:
    """The no-op that all contestants run; it returns the number of its job."""
    path = os.environ.get(PATH)
    if path is None:  # in a client, which runs nothing
        return lambda number: number
    mapped = _mapped(Path(path))

    def count_run(number: int) -> int:
        mapped[number] += 1
        return number

    def record_start(number: int) -> int:
        _INSTANT.pack_into(mapped, number * _INSTANT.size, time.monotonic_ns())
        return number

    return record_start if os.environ.get(TIMESTAMPS) else count_run


class RunFileReader:
    """Looks at what the handlers left."""

    def __init__(self, path: Path, jobs: int) -> None:
        self._mapped = _mapped(path)
        self._jobs = jobs

    def ran(self) -> int:
        """How many of the jobs ran at least once."""
        return self._jobs - self._mapped[: self._jobs].count(0)

    def mismatch(self) -> str | None:
        """None when every job ran exactly once."""
        seen = self._mapped[: self._jobs]
        never, once = seen.count(0), seen.count(1)
        if once == self._jobs:
            return None
        return f"of {self._jobs} jobs {never} never ran and {self._jobs - never - once} ran again"

    def repeated(self) -> int:
        """How many jobs ran more than once."""
        seen = self._mapped[: self._jobs]
        return self._jobs - seen.count(0) - seen.count(1)

    def instant(self, number: int) -> int:
        """Nanoseconds of the system's monotonic clock at which a job began, or 0."""
        return int(_INSTANT.unpack_from(self._mapped, number * _INSTANT.size)[0])


def _mapped(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)
