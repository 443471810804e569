"""Threads, event loops and a manual clock for checks."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Protocol

from ergon_framework.testing.suites.framework import fail

Thunk = Callable[[], Any]


class CheckCaller(Protocol):
    """Something that makes calls for a check."""

    def start(self, call: Thunk) -> Future[Any]:
        """Begin a call."""

    def together(self, calls: list[Thunk]) -> list[Future[Any]]:
        """Begin several calls at the same time."""

    def close(self) -> None:
        """Stop. A call that hangs is left behind."""


class ThreadCaller:
    """Makes calls from a thread of its own, and from another one when that one hangs."""

    def __init__(self) -> None:
        self._last: Future[Any] | None = None
        self._calls = _new_worker()

    def start(self, call: Thunk) -> Future[Any]:
        """Begin a call."""
        if self._last is not None and not self._last.done():
            self._calls.put(None)
            self._calls = _new_worker()
        future = self._last = Future[Any]()
        self._calls.put((call, future))
        return future

    def together(self, calls: list[Thunk]) -> list[Future[Any]]:
        """Begin each call in a thread of its own, all at once."""
        gate = threading.Barrier(len(calls))
        futures: list[Future[Any]] = [Future() for _ in calls]

        def run(call: Thunk, future: Future[Any]) -> None:
            gate.wait()
            _fulfil(future, call)

        for pair in zip(calls, futures, strict=True):
            threading.Thread(target=run, args=pair, name="suite", daemon=True).start()
        return futures

    def close(self) -> None:
        """Have the thread end after its call."""
        self._calls.put(None)


class LoopCaller:
    """Makes calls on an event loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        started: Future[asyncio.AbstractEventLoop] = Future()

        async def serve() -> None:
            started.set_result(asyncio.get_running_loop())
            await self._stop.wait()

        threading.Thread(target=asyncio.run, args=(serve(),), name="suite", daemon=True).start()
        self._loop = started.result()

    def start(self, call: Thunk) -> Future[Any]:
        """Begin a call, and await what it returns when that can be awaited."""
        return asyncio.run_coroutine_threadsafe(_awaited(call), self._loop)

    def together(self, calls: list[Thunk]) -> list[Future[Any]]:
        """Begin each call in a task of its own."""
        return [self.start(call) for call in calls]

    def close(self) -> None:
        """Have the event loop end."""
        self._loop.call_soon_threadsafe(self._stop.set)


def outcome(future: Future[Any], patience: float, what: str) -> Any:
    """The result of a call, or a failed check when there is none in time."""
    try:
        return future.result(patience)
    except TimeoutError:
        if future.done():
            raise  # the subject's own
        fail(f"{what} did not return within {patience:g} s")


def _new_worker() -> SimpleQueue[tuple[Thunk, Future[Any]] | None]:
    calls: SimpleQueue[tuple[Thunk, Future[Any]] | None] = SimpleQueue()

    def work() -> None:
        while (item := calls.get()) is not None:
            call, future = item
            _fulfil(future, call)

    threading.Thread(target=work, name="suite", daemon=True).start()
    return calls


async def _awaited(call: Thunk) -> Any:
    result: Any | Awaitable[Any] = call()
    return await result if inspect.isawaitable(result) else result


def _fulfil(future: Future[Any], call: Thunk) -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


START = 1_750_000_000.0
"""The time that the clock shows at first, in seconds since 1970."""


class HandClock:
    """A clock that stands still until a check moves it."""

    def __init__(self, now: float = START) -> None:
        self._now = now
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """The time it shows."""
        return self._now

    def forward(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._now += seconds

    def to(self, at: float) -> None:
        """Set the clock to an instant."""
        with self._lock:
            self._now = at
