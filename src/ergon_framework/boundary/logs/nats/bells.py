"""Who waits for facts, and how one process tells another that there are some."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ergon_framework.storage.nats import Line
from ergon_framework.storage.notifier import Belfry

logger = logging.getLogger("ergon_framework.boundary")


class Bells:
    """Wakes who waits here, and rings where others wait."""

    def __init__(self, line: Line, topic: str) -> None:
        self._line = line
        self._topic = topic
        self._wakes: list[Callable[[], None]] = []
        self._waking = threading.Lock()
        self._belfry = Belfry()
        self._ringer: threading.Thread | None = None

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call ``wake()``, from any thread, after each commit of anybody that added facts."""
        with self._waking:
            self._wakes = [*self._wakes, wake]
            if self._ringer is None:
                self._ringer = threading.Thread(
                    target=self._ring, name="ergon-nats-bell", daemon=True
                )
                self._ringer.start()
                self._line.listen(self._topic, lambda: self._belfry.ring(self._topic))

    def unsubscribe(self, wake: Callable[[], None]) -> None:
        """No longer; one who never subscribed is fine."""
        with self._waking:
            left = list(self._wakes)
            if wake in left:
                left.remove(wake)
            self._wakes = left

    def close(self) -> None:
        """Let go of everything. Closing twice is fine."""
        with self._waking:
            ringer, self._ringer = self._ringer, None
        self._line.close()
        self._belfry.close()
        if ringer is not None and ringer is not threading.current_thread():
            ringer.join()

    def _ring_all(self) -> None:
        """Tell everybody that there are facts."""
        self._wake()
        self._line.tell(self._topic)

    def _ring(self) -> None:
        """Wake who waits here when another process has added facts."""
        bell = self._belfry.listen(self._topic)
        while bell.wait(None):
            self._wake()

    def _wake(self) -> None:
        for wake in self._wakes:
            try:
                wake()
            except Exception:
                logger.exception("a callback that waits for facts failed")
