"""The worker threads. One of them reads; what it read it runs itself, and another reads on.

So a single worker hands nothing over, and the requests of one read are run in a row unless one of
them takes its time: before a handler is called, one colleague is woken to see to the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ergon_framework.executor.board import Board, Item
from ergon_framework.executor.flight import Flight


class Crew:
    """Workers, hired when they are needed, as many as requests may be in flight.

    ``wait`` waits for input and ``read`` reads it; one worker at a time does so. ``run`` runs an
    item and says whether the worker still has its place. The first worker calls ``before`` and
    then works if the answer is true; the last to leave calls ``after``.
    """

    def __init__(
        self,
        board: Board,
        *,
        wait: Callable[[], Any],
        read: Callable[[], tuple[list[Item], bool]],
        before: Callable[[], bool],
        run: Callable[[Item], bool],
        after: Callable[[], Any],
        failed: Callable[[BaseException], Any],
    ) -> None:
        self._board = board
        self._wait = wait
        self._take_in = read
        self._before = before
        self._run = run
        self._after = after
        self._failed = failed
        self._count = self._idle = 0
        self._is_calling = False  # a worker was woken and has not come yet

    def start(self) -> None:
        """Hire the first worker."""
        with self._board.lock:
            self._hire(is_first=True)

    def replace_one(self) -> None:
        """A worker does not come back from its handler; another takes its place."""
        with self._board.lock:
            self._count -= 1
            self._hire()

    def _hire(self, *, is_first: bool = False) -> None:
        self._count += 1
        worker = threading.Thread(
            target=self._serve, args=(is_first,), name="ergon-worker", daemon=True
        )
        try:
            worker.start()
        except RuntimeError:  # no more threads: those that are there do the work
            self._count -= 1
            if not self._count:
                raise

    def _serve(self, is_first: bool) -> None:
        try:
            is_needed = not is_first or self._before()
            if not is_needed:
                self._board.wait_until_drained()
            while is_needed and (item := self._next()) is not None:
                if not self._run(item):
                    return
            with self._board.lock:
                self._count -= 1
                is_last = not self._count
            if is_last:
                self._after()
        except BaseException as error:
            self._failed(error)

    def _next(self) -> Item | None:
        """The next item to run; None when there will be no more."""
        while True:
            with self._board.lock:
                item = self._wait_for_work()
                if item is not None or self._board.is_ended:
                    return item
                self._board.is_reading = True
            self._read()

    def _wait_for_work(self) -> Item | None:
        """Wait for an item, or until somebody must read, or until the end. Holds the lock."""
        board = self._board
        while True:
            item = board.take()
            if item is not None:
                if not isinstance(item, Flight) or not item.is_async:
                    self._call_for_help()
                return item
            is_needed = not board.is_ended or not board.flying
            if is_needed and not board.waiting and not board.is_reading:
                return None
            self._idle += 1
            board.changed.wait()
            self._idle -= 1
            self._is_calling = False

    def call_for_help(self) -> None:
        """There may be room for one more; a worker shall see to it."""
        with self._board.lock:
            self._call_for_help()

    def _call_for_help(self) -> None:
        """Before a handler runs, another worker shall see to what is left. Holds the lock."""
        board = self._board
        if self._is_calling or not board.has_room:
            return
        if board.waiting or not (board.is_reading or board.is_ended):
            if self._idle:
                self._is_calling = True
                board.changed.notify()
            elif self._count < board.limit:
                self._hire()

    def _read(self) -> None:
        """Wait for requests, as the only one who does."""
        self._wait()
        board = self._board
        items, is_end = ([], True) if board.is_ended else self._take_in()
        with board.lock:
            board.is_reading = False
            board.add(items)
            if is_end or board.is_ended:  # whoever waits to leave has waited for the reader too
                board.end()
