"""Notifications inside one process, for stores in memory and behind connections that listen."""

from __future__ import annotations

import threading
from collections.abc import Callable


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
        self._bells: dict[str, set[MemoryBell]] = {}

    def listen(self, topic: str) -> MemoryBell:
        """Hang up a bell."""
        bell = MemoryBell(self._forget)
        with self._lock:
            self._bells.setdefault(topic, set()).add(bell)
        return bell

    def ring(self, topic: str) -> None:
        """Ring every bell of a topic."""
        with self._lock:
            bells = list(self._bells.get(topic, ()))
        for bell in bells:
            bell.ring()

    def ring_all(self) -> None:
        """Ring every bell: nobody knows what was missed."""
        with self._lock:
            bells = [bell for each in self._bells.values() for bell in each]
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
