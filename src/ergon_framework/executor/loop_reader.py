"""Reads on the event loop itself, where all handlers are async: nothing is handed to a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ergon_framework.executor.board import Board, Item
from ergon_framework.executor.flight import Flight
from ergon_framework.executor.intake import Intake
from ergon_framework.executor.loop_thread import LoopThread


class LoopReader:
    """Begins requests as they come. Between ``start`` and ``stop`` it lives on the loop."""

    def __init__(
        self,
        thread: LoopThread,
        board: Board,
        intake: Intake,
        *,
        read: Callable[[], tuple[list[Item], bool]],
        run: Callable[[Item], Any],
    ) -> None:
        self._thread = thread
        self._loop = thread.loop
        self._board = board
        self._intake = intake
        self._take_in = read
        self._run = run
        self._is_reading = False

    def start(self) -> None:
        """Begin to read."""
        self._thread.after_each = self._go_on
        self._board.is_reading = True
        self._loop.call_soon_threadsafe(self._go_on)

    def stop(self) -> None:
        """Read no more."""
        self._loop.call_soon_threadsafe(self._pause)

    def _go_on(self) -> None:
        """Begin what may begin; read only when nothing waits for its turn."""
        while True:
            with self._board.lock:
                item = self._board.take()
                is_full = bool(self._board.waiting) or self._board.is_ended
            if item is None:
                break
            if isinstance(item, Flight) and item.is_async:
                self._thread.begin(item)
            else:
                self._run(item)  # there is nothing to call: no such handler, or no request at all
        if is_full:
            self._pause()
        elif not self._is_reading:
            self._is_reading = True
            self._loop.add_reader(self._intake.source, self._read)

    def _pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._intake.source)

    def _read(self) -> None:
        if not self._intake.has_come():
            return  # a loop that was interrupted calls twice for one readiness
        items, is_end = self._take_in()
        with self._board.lock:
            self._board.add(items)
            if is_end:
                self._board.end()
        self._go_on()
