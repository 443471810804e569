"""Work on other threads: steps off the event loop, and isolated attempts that may be abandoned."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.ports.clock import Clock
from ergon_framework.providers.errors import ProviderDependencyError, ProviderTimeoutError

T = TypeVar("T")
Outcome = tuple[Any, BaseException | None]
"""What a call returned, or what it raised."""

MAX_STORE_THREADS = 16
"""Threads for steps of calls that wait for one store."""

MAX_CALL_THREADS = 64
"""Threads for attempts of one provider that is not async, in calls that are."""


class BoundedThreads:
    """A bounded number of threads, started when they are needed."""

    def __init__(self, name: str, size: int, owner: object = None) -> None:
        self._name = name
        self._size = size
        self.owner = owner
        """The object that the threads work for; they keep it alive."""
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start without threads: at first, and in a forked child."""
        self.pool = ThreadPoolExecutor(self._size, thread_name_prefix=self._name)

    def do(self, work: Callable[[], T]) -> Future[T]:
        """Run ``work`` on one of the threads."""
        return self.pool.submit(work)

    def promise(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run ``work`` on one of the threads; returns a future of the running event loop."""
        # Not asyncio.to_thread: a loop that ends cancels all tasks, and its coroutine would be one.
        context = contextvars.copy_context()
        return asyncio.get_running_loop().run_in_executor(self.pool, context.run, work)


_of_stores: weakref.WeakValueDictionary[int, BoundedThreads] = weakref.WeakValueDictionary()


def offload_threads(store: object) -> BoundedThreads:
    """The threads for steps that wait for a store; all providers on the store share them."""
    known = _of_stores.get(id(store))  # they keep their store, so the number stays its own
    if known is None:
        known = _of_stores[id(store)] = BoundedThreads("ergon-store", MAX_STORE_THREADS, store)
    return known


class NotBegunError(Exception):
    """All threads were busy for as long as the call could wait."""


class _Turn(Generic[T]):
    """Work that waits for a thread, unless it is left before it has begun."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._is_begun = self._is_left = False

    def __call__(self) -> T:
        with self._lock:
            if self._is_left:
                raise NotBegunError  # the caller has left, and does not see it
            self._is_begun = True
        return self._work()

    def is_left(self) -> bool:
        """Whether the call was given up before it began."""
        with self._lock:
            self._is_left = not self._is_begun
            return self._is_left


async def offload(
    work: Callable[[], T],
    threads: BoundedThreads,
    *,
    within: float | None = None,
    late: Callable[[], T] | None = None,
) -> T:
    """Run one step on a thread, and to its end even when the task is cancelled.

    A step that takes a place or a unit must be waited for, or it could not be given back. A step
    that has not begun ``within`` so many seconds, as all threads are busy, is not run: ``late``
    says what follows. A step that has not begun when its task is cancelled is not run either.
    """
    turn = _Turn(work)
    running = threads.promise(turn)
    try:
        if late is not None and within is not None:
            await asyncio.wait({running}, timeout=max(0.0, within))
            if turn.is_left():
                running.cancel()
                return late()
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if late is not None and turn.is_left():
            running.cancel()
        else:
            await _drained(running)
        raise


async def _drained(running: asyncio.Future[Any]) -> None:
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            # Cancelled once more: the step is waited for all the same, or what it takes could not
            # be given back.
            continue
    if not running.cancelled():
        running.exception()  # retrieved, or asyncio would log it as never retrieved


class ThreadAttempt:
    """One call on a thread, which goes on when its caller has stopped waiting.

    ``settle`` takes its outcome then, on that thread: a request that was sent is to be paid for.
    """

    def __init__(self, work: Callable[[], Any], settle: Callable[[Outcome], None]) -> None:
        self._work = work
        self._settle = settle
        self._lock = threading.Lock()
        self._is_begun = False
        self._is_left = False
        self._outcome: Outcome | None = None

    async def run(self, threads: BoundedThreads, within: float | None) -> Any:
        """What the call returns or raises; ``NotBegunError`` if it has not begun in time."""
        running = threads.promise(self._do)
        if within is not None:
            await asyncio.wait({running}, timeout=max(0.0, within))
            if not running.done() and not self.leave_unless_begun():
                raise NotBegunError
        data, error = await asyncio.shield(running)
        if error is not None:
            raise error
        return data

    def leave_unless_begun(self) -> bool:
        """Give the call up if it has not begun; returns whether it has begun."""
        with self._lock:
            self._is_left = not self._is_begun
            return self._is_begun

    def leave(self) -> tuple[bool, Outcome | None]:
        """Stop waiting. Returns whether the call was begun, and its outcome if it has one already;
        an outcome that comes later goes to ``settle``.
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


class IsolatedThreads:
    """Runs calls on daemonic threads. A call that outlasts its time is abandoned, not stopped:
    Python cannot end a thread. At most ``limit`` are left behind; then nothing new is begun.
    """

    def __init__(self, limit: int = 32) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.abandoned = 0
        """Calls that were given up and have not come back."""

    def renew(self) -> None:
        """After a fork, in the child: no thread came along."""
        self._lock = threading.Lock()
        self.abandoned = 0

    def check(self) -> None:
        """Refuse when too many threads hang."""
        if self.abandoned >= self._limit:
            raise ProviderDependencyError(
                f"{self.abandoned} earlier calls never returned; no further one is begun",
                never_sent=True,
                remedy="give the provider's own client a timeout",
            )

    def run(self, clock: Clock, until: float, body: Callable[[], Any]) -> Any:
        """What ``body`` returns or raises, or a timeout when it takes too long."""
        self.check()
        watch = _Watch(clock, self)
        context = contextvars.copy_context()
        clock.join_time()  # before the call takes part in it, or it would pass without us
        try:
            clock.spawn("ergon-provider-call", lambda: watch.work(lambda: context.run(body)))
            return watch.wait(until)
        finally:
            clock.leave_time()

    def left(self, change: int) -> None:
        """Count an abandoned call, or one that came back."""
        with self._lock:
            self.abandoned = max(0, self.abandoned + change)


class _Watch:
    """A call and the thread that waits for it."""

    def __init__(self, clock: Clock, isolation: IsolatedThreads) -> None:
        self._clock = clock
        self._isolation = isolation
        self._lock = threading.Lock()
        self._ended = clock.signal(self._lock)
        self._is_done = False
        self._is_abandoned = False
        self._value: Any = None
        self._error: BaseException | None = None

    def work(self, body: Callable[[], Any]) -> None:
        value, error = None, None
        try:
            value = body()
        except BaseException as raised:
            error = raised
        with self._lock:
            self._value, self._error, self._is_done = value, error, True
            self._ended.notify_all()
            if self._is_abandoned:
                self._isolation.left(-1)

    def wait(self, until: float) -> Any:
        try:
            with self._lock:
                while not self._is_done and self._clock.now() < until:
                    self._ended.wait(until)
        finally:
            with self._lock:
                if not self._is_done:  # too late, or Ctrl-C while waiting
                    self._is_abandoned = True
                    self._isolation.left(1)
        if self._is_abandoned:
            raise ProviderTimeoutError("the call did not return in time and was abandoned")
        if self._error is not None:
            raise self._error
        return self._value
