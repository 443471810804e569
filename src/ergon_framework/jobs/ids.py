"""Ids for jobs: UUIDs of version 7, each above the one before it in this process.

The 60 bits in front are milliseconds and a counter of 4,096; when more ids are made within one
millisecond, the counter runs on into the next. The 62 bits behind are drawn once in each process,
for a random number per id would cost more than all the rest of enqueuing a job.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_MILLISECOND = 1_000_000
_COUNTER_BITS = 12


class IdMaker:
    """Makes ids; safe to share between threads."""

    def __init__(self, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._now_ns = now_ns
        self._tick = 0
        self.reset()

    def reset(self) -> None:
        """Draw another random part: a forked process must not go on with its parent's."""
        self._lock = threading.Lock()  # the parent's may have been held while it forked
        drawn = int.from_bytes(os.urandom(8)) & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000
        text = f"{drawn:016x}"
        self._tail = f"{text[:4]}-{text[4:]}"

    def __call__(self) -> str:
        """The next id."""
        with self._lock:
            first = self._now_ns() // _MILLISECOND << _COUNTER_BITS
            # A clock that was set back, or a millisecond that is full, leaves the counter going.
            tick = self._tick = first if first > self._tick else self._tick + 1
        text = f"{tick:015x}"
        return f"{text[:8]}-{text[8:12]}-7{text[12:]}-{self._tail}"


new_id = IdMaker()
os.register_at_fork(after_in_child=new_id.reset)
