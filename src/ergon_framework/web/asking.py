"""Questions to stores and nodes, asked off the event loop: so many at once, each for so long."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import StoreUnavailableError

T = TypeVar("T")

THREADS = 4
"""Questions that one part answers at the same time; others wait for their turn."""


class Part:
    """One store or one zone. While it hangs, its own threads hang, and no other part's."""

    def __init__(self, name: str, seconds: float, threads: int = THREADS) -> None:
        self.name = name
        self.seconds = seconds
        self._threads = threads
        self._running = 0
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._lock = threading.Lock()

    async def ask(self, question: Callable[[], T], seconds: float | None = None) -> T:
        """What the question answers or raises; ``StoreUnavailableError`` when that takes too long.

        A question that nobody waits for any more is dropped, unless it has been begun.
        """
        answer: Future[T] = Future()
        with self._lock:
            self._waiting.append((answer, question))
            is_needed = self._running < self._threads
            self._running += is_needed
        if is_needed:
            SYSTEM_CLOCK.spawn(f"ergon-web-{self.name}", self._work)
        patience = self.seconds if seconds is None else seconds
        try:
            async with asyncio.timeout(patience):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise StoreUnavailableError(f"no answer within {patience:g} s") from None

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                answer, question = self._waiting.popleft()
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(question())
                except BaseException as error:  # carried over to whoever asked
                    answer.set_exception(error)
