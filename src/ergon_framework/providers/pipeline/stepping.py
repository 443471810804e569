"""Work that an event loop hands to a thread, and what becomes of it when its task is cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ergon_framework.providers.own_threads import CALLS, STORE, OwnThreads

T = TypeVar("T")
Outcome = tuple[Any, BaseException | None]
"""What a call returned, or what it raised."""


async def step(work: Callable[[], T], *, is_quick: bool) -> T:
    """Run one step: here, or on a thread, and then to its end even when the task is cancelled.

    A step that took a place or a unit must be heard out, or nobody could give it back.
    """
    if is_quick:
        return work()
    running = _on_pool(work, STORE)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            try:
                await asyncio.wait({running})
            except asyncio.CancelledError:
                continue
        if not running.cancelled():
            running.exception()  # heard, or it would be complained about
        raise


def _on_pool(work: Callable[[], T], threads: OwnThreads) -> asyncio.Future[T]:
    # Not asyncio.to_thread: a loop that ends cancels all tasks, and its coroutine would be one.
    context = contextvars.copy_context()
    return asyncio.get_running_loop().run_in_executor(threads.pool, context.run, work)


class Errand:
    """One call on a thread, which goes on when nobody waits for it any more.

    ``settle`` takes its outcome then, on that thread: a request that was sent is to be paid for.
    """

    def __init__(self, work: Callable[[], Any], settle: Callable[[Outcome], None]) -> None:
        self._work = work
        self._settle = settle
        self._lock = threading.Lock()
        self._is_begun = False
        self._is_left = False
        self._outcome: Outcome | None = None

    async def run(self) -> Any:
        """What the call returns or raises."""
        data, error = await asyncio.shield(_on_pool(self._do, CALLS))
        if error is not None:
            raise error
        return data

    def leave(self) -> tuple[bool, Outcome | None]:
        """Wait no longer. Whether the call was begun, and its outcome if that is there already;
        an outcome that is still to come goes to ``settle``.
        """
        with self._lock:
            self._is_left = True
            return self._is_begun, self._outcome

    def _do(self) -> Outcome:
        with self._lock:
            if self._is_left:
                return None, None
            self._is_begun = True
        outcome = _outcome(self._work)
        if not self._is_awaited(outcome):
            self._settle(outcome)
        return outcome

    def _is_awaited(self, outcome: Outcome) -> bool:
        with self._lock:
            self._outcome = outcome
            return not self._is_left


def _outcome(work: Callable[[], Any]) -> Outcome:
    # A future does not take every exception: with StopIteration it would never be done.
    try:
        return work(), None
    except BaseException as error:
        return None, error
