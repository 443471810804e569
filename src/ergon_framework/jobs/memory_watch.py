"""Measures how much memory executor processes use, with all the processes that they have started.

A thread of its own measures, for executors with ``max_memory``: on systems without ``/proc`` a
program has to be run, and the worker's loop must not wait for that. Resident memory is added up
over a process and its descendants. Shared pages count for each process.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ergon_framework.engine.clocks import SYSTEM_CLOCK

logger = logging.getLogger("ergon.jobs")

MEASURE_INTERVAL = 0.5
"""Seconds between two measurements."""
PS_TIMEOUT = 10.0
"""How many seconds ``ps`` may take."""
MAX_DESCENDANTS = 10_000
"""How many processes are added up for one executor process."""


class MemoryWatch:
    """Measures processes again and again, and reports their memory by pid."""

    def __init__(
        self,
        pids: Callable[[], Sequence[int]],
        tell: Callable[[Mapping[int, int]], None],
        measure: Callable[[Sequence[int]], dict[int, int]] | None = None,
    ) -> None:
        """``pids``, ``tell`` and ``measure`` are called in the thread of this watch."""
        self._pids = pids
        self._tell = tell
        self._measure = measure or resident_memory
        self._ending = threading.Event()
        self._is_broken = False

    def start(self) -> None:
        """Start measuring."""
        SYSTEM_CLOCK.spawn("ergon-memory", self._watch)

    def close(self) -> None:
        """Stop measuring."""
        self._ending.set()

    def _watch(self) -> None:
        # An event instead of a sleep: the thread ends at once with the worker.
        while not self._ending.wait(MEASURE_INTERVAL):
            pids = self._pids()
            try:
                found = self._measure(pids) if pids else {}
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                # Logged once for each reason, because measurements are made twice a second.
                if not self._is_broken:
                    text = (
                        "the memory of executors cannot be measured, so max_memory is not kept: %s"
                    )
                    logger.warning(text, error)
                self._is_broken = True
                continue
            self._is_broken = False
            # The worker may have ended while this was measured.
            if found and not self._ending.is_set():
                self._tell(found)


def resident_memory(pids: Sequence[int]) -> dict[int, int]:
    """The resident bytes of each process with its descendants; no entry for a process that has
    ended.
    """
    if Path("/proc/self/statm").exists():
        found = {pid: _of_tree(pid) for pid in pids}
        return {pid: used for pid, used in found.items() if used}
    command = ("ps", "-A", "-o", "pid=,ppid=,rss=")
    done = subprocess.run(  # noqa: S603 - no input of anybody's
        command, capture_output=True, timeout=PS_TIMEOUT, check=True
    )
    return of_trees(done.stdout.decode().splitlines(), pids)


def of_trees(lines: Iterable[str], pids: Iterable[int]) -> dict[int, int]:
    """Bytes of each process and its descendants, from lines of ``pid ppid kibibytes``."""
    sizes: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for line in lines:
        pid, parent, size = map(int, line.split())
        sizes[pid] = size * 1024
        children.setdefault(parent, []).append(pid)
    return {
        pid: sum(sizes[each] for each in _descent(pid, lambda one: children.get(one, ())))
        for pid in pids
        if pid in sizes
    }


def _descent(pid: int, children: Callable[[int], Iterable[int]]) -> dict[int, None]:
    """A process and its descendants."""
    found = {pid: None}
    waiting = [pid]
    # Bounded: a process that forks without end must not keep this thread busy for ever.
    while waiting and len(found) < MAX_DESCENDANTS:
        fresh = [each for each in children(waiting.pop()) if each not in found]
        found |= dict.fromkeys(fresh)
        waiting += fresh
    return found


# ---- Linux ---------------------------------------------------------------------------------------

_PAGE = os.sysconf("SC_PAGE_SIZE")


def _of_tree(pid: int) -> int:
    return sum(_of_process(each) for each in _descent(pid, _children))


def _of_process(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
    except (OSError, IndexError):  # The process has ended meanwhile.
        return 0


def _children(pid: int) -> list[int]:
    """The children of a process. Each of its threads has a list of its own."""
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_bytes().split())
    except OSError:  # The process has ended, or the system does not say.
        pass
    return found
