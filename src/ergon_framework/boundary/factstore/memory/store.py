"""A fact store for the threads of one process, and the model the others are compared with."""

from __future__ import annotations

import time
from collections.abc import Callable

from ergon_framework.boundary.factstore.memory.archive import MemoryMoving
from ergon_framework.errors import StoreError
from ergon_framework.ports.factstore import Meanwhile


class MemoryFactStore(MemoryMoving):
    """A zone's facts for tests, examples and trials. Every call is one step under one lock."""

    acknowledgement = (
        "An acknowledged fact is in this process's memory: it survives nothing, and is lost when "
        "the process ends."
    )

    is_synced = False

    largest: int | None = None
    """Nobody but the settings limits a fact."""

    def __init__(self, zone: str, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(zone, clock)

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call ``wake()`` after each step that added facts, in the thread that added them."""
        with self._step():
            self._wakes.append(wake)

    def unsubscribe(self, wake: Callable[[], None]) -> None:
        """No longer; one who never subscribed is fine."""
        with self._lock:
            if wake in self._wakes:
                self._wakes.remove(wake)

    def watch_waits(self, seen: Meanwhile) -> None:
        """Nothing is waited for here."""

    def watch_heads(self, seen: Callable[[str, int], None]) -> None:
        """What is in memory cannot go back in time."""

    def watch_commits(self, seen: Callable[[int, float], None]) -> None:
        """There is nothing to wait for, and nothing to tell."""

    def backup(self, folder: str) -> None:
        """Refuse: nothing could ever open the copy."""
        raise StoreError(
            "a memory store cannot be backed up", remedy="keep the facts in a file to back them up"
        )

    def close(self) -> None:
        """Take no more calls. Closing twice is fine."""
        with self._lock:
            self._is_closed = True
            self._wakes.clear()
