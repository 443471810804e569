"""The shop floor: it packs shipments at its own pace, and writes down each one."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Self

from .shipments import Shipment

FILE = "shipments.jsonl"


class Floor:
    """A thread that appends a line per shipment, as far as the shift goes."""

    def __init__(self, folder: Path, count: int, pace: float) -> None:
        self._folder = folder
        self.count = count
        self._pace = pace
        self._goal = 0
        self._is_over = False
        self._turn = threading.Condition()
        self._thread = threading.Thread(target=self._work, daemon=True)
        folder.mkdir(exist_ok=True)
        self._thread.start()

    def work_until(self, number: int) -> None:
        """Let it pack up to this shipment, and then rest; it takes its time."""
        with self._turn:
            self._goal = max(self._goal, number)
            self._turn.notify_all()

    def close(self) -> None:
        """Everybody goes home."""
        with self._turn:
            self._is_over = True
            # Not notify(): a Ctrl-C inside of an earlier one leaves a waiter behind that takes it.
            self._turn.notify_all()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _work(self) -> None:
        with open(self._folder / FILE, "a", encoding="utf-8") as file:
            for number in range(1, self.count + 1):
                if not self._may_pack(number):
                    return
                file.write(Shipment(number).line())
                file.flush()
                os.fsync(file.fileno())  # from here on it must not get lost

    def _may_pack(self, number: int) -> bool:
        """Take the time it takes, and rest while the shift goes no further; False: go home."""
        with self._turn:
            self._turn.wait_for(lambda: self._is_over, timeout=self._pace)
            self._turn.wait_for(lambda: self._is_over or number <= self._goal)
            return not self._is_over
