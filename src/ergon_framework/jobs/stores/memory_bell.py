"""Bells inside one process."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ergon_framework.ports.jobstore import Topic


class MemoryBell:
    """Somebody who waits; many rings before a wait are one."""

    def __init__(self, forget: Callable[[MemoryBell], None]) -> None:
        self._forget = forget
        self._changed = threading.Condition()
        self._is_rung = False
        self._is_closed = False

    def wait(self, seconds: float | None) -> bool:
        """Sleep until rung, or until that much time has passed, or until closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_rung or self._is_closed, seconds)
            is_rung, self._is_rung = self._is_rung, False
            return is_rung

    def ring(self) -> None:
        """Wake this waiter."""
        with self._changed:
            self._is_rung = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop listening, and let whoever waits go."""
        self._forget(self)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class Belfry:
    """The bells of one store, by topic."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bells: dict[Topic, set[MemoryBell]] = {topic: set() for topic in Topic}

    def listen(self, topic: Topic) -> MemoryBell:
        """Hang up a bell."""
        bell = MemoryBell(self._forget)
        with self._lock:
            self._bells[topic].add(bell)
        return bell

    def ring(self, topic: Topic) -> None:
        """Ring every bell of a topic."""
        with self._lock:
            bells = list(self._bells[topic])
        for bell in bells:
            bell.ring()

    def close(self) -> None:
        """Take all bells down."""
        with self._lock:
            bells = [bell for each in self._bells.values() for bell in each]
        for bell in bells:
            bell.close()

    def _forget(self, bell: MemoryBell) -> None:
        with self._lock:
            for bells in self._bells.values():
                bells.discard(bell)
