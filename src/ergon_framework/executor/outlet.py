"""The one owner of the pipe that outcomes go to: whole lines, in few writes.

With one request in flight, whoever has an outcome writes it. With several, a thread writes: while
it waits for its turn to run, outcomes gather, and they leave in one piece.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Any

MOST_WAITING = 1024 * 1024
"""Bytes that may wait for a slow reader; whoever has more waits with them."""


class Outlet:
    """Writes lines until its reader is gone; then it tells ``on_broken``, once, and drops them."""

    def __init__(self, descriptor: int, *, gathers: bool, on_broken: Callable[[], Any]) -> None:
        self._descriptor = descriptor
        self._on_broken = on_broken
        self._is_broken = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._lines: list[bytes] = []
        self._size = 0
        self._is_idle = False
        self._is_closed = False
        self._thread: threading.Thread | None = None
        if gathers:
            self._thread = threading.Thread(target=self._serve, name="ergon-outlet", daemon=True)
            self._thread.start()

    def put(self, line: bytes) -> None:
        """Write one line, now or very soon."""
        with self._lock:
            if self._thread is None:
                self._write(line)
                return
            while self._size > MOST_WAITING and not self._is_broken:
                self._room.wait()
            self._lines.append(line)
            self._size += len(line)
            if self._is_idle:
                self._is_idle = False
                self._changed.notify()

    def close(self) -> None:
        """Return when everything is written."""
        with self._lock:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        while True:
            with self._lock:
                while not self._lines:
                    if self._is_closed:
                        return
                    self._is_idle = True
                    self._changed.wait()
                lines, self._lines, self._size = self._lines, [], 0
                self._room.notify_all()
            self._write(b"".join(lines))

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self._is_broken:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # whoever made the pipe did not want it to block
                ready = select.poll()
                ready.register(self._descriptor, select.POLLOUT)
                ready.poll()
            except OSError:
                self._is_broken = True
                self._on_broken()
