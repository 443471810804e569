"""Doing something again and again in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Self

from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import describe
from ergon_framework.ports.clock import Clock

logger = logging.getLogger("ergon.app")


class Ticker:
    """Calls ``act`` every so many seconds in a daemonic thread, from ``with`` to its end.

    What ``act`` raises is logged once, under the name ``what``; the next tick comes all the same.
    """

    def __init__(
        self, what: str, every: float, act: Callable[[], None], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._what = what
        self._every = every
        self._act = act
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = clock.signal(self._lock)
        self._is_over = False
        self._has_failed = False

    def __enter__(self) -> Self:
        self._clock.spawn("ergon-ticker", self._run)
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._is_over = True
            self._wake.notify_all()

    def _run(self) -> None:
        while self._sleep():
            try:
                self._act()
            except Exception as error:
                if not self._has_failed:
                    logger.warning("%s failed; said once: %s", self._what, describe(error))
                self._has_failed = True

    def _sleep(self) -> bool:
        until = self._clock.now() + self._every
        with self._lock:
            while not self._is_over and self._clock.now() < until:
                self._wake.wait(until)
            return not self._is_over
