"""Threads of a connector's own, for what blocks and must not hold up an event loop.

An event loop has one small pool for everybody. Hooks that hang in it, each in a call of
``asyncio.to_thread`` that was given up long ago, would leave no thread to tell the source of them.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.engine.forking import renew_after_fork

T = TypeVar("T")

MOST = 32
"""Threads of one connector: settlements of as many transactions at once."""
IDLE = 10.0
"""Seconds after which a thread ends that has nothing to do."""

_Item = tuple["Future[Any]", Callable[[], Any]]


class OwnThreads(Executor):
    """So many daemonic threads at most, begun when they are needed, ended when they are not.

    One that hangs keeps neither the others nor the end of the process waiting.
    """

    def __init__(self, name: str = "ergon-connector", most: int = MOST) -> None:
        self._name = name
        self._most = most
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Also in a forked child: the threads are the parent's."""
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._left = 0  # items that no thread has taken
        self._idle = 0
        self._threads = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call it in one of the threads."""
        future: Future[T] = Future()
        with self._lock:
            if self._left >= self._idle and self._threads < self._most:
                self._add_thread()
            self._left += 1
            self._waiting.put((future, functools.partial(fn, *args, **kwargs)))
        return future

    async def run(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """The same for an event loop, as :func:`asyncio.to_thread` does it."""
        context = contextvars.copy_context()
        call = functools.partial(context.run, fn, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self, call)

    def _serve(self) -> None:
        while (item := self._next()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                _call(future, call)
            del future, call, item  # what was returned or raised is not held on to

    def _add_thread(self) -> None:
        try:
            SYSTEM_CLOCK.spawn(self._name, self._serve)
        except RuntimeError:  # no thread can be started: those there must do
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _next(self) -> _Item | None:
        with self._lock:
            self._idle += 1
        while True:
            item = self._wait()
            with self._lock:
                if item is None and self._left:
                    continue  # somebody counted on this thread a moment ago
                self._idle -= 1
                if item is None:
                    self._threads -= 1
                else:
                    self._left -= 1
                return item

    def _wait(self) -> _Item | None:
        try:
            return self._waiting.get(timeout=IDLE)
        except queue.Empty:
            return None


def _call(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
