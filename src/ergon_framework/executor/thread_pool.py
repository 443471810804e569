"""Requests that wait or run, and the threads that run plain handlers.

One of the threads reads. It runs what it has read itself, while another thread reads on: a single
thread hands nothing over, and the requests of one read run in a row. Before a handler is called,
one more thread is woken to take the requests that are left, in case the handler takes long.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ergon_framework.core.executor_protocol import Refusal
from ergon_framework.executor.invocation import NEVER, Invocation

Item = Invocation | Refusal
_POLL_INTERVAL = 0.05
_SLACK = 0.001  # seconds; clocks are read one after the other, so equal deadlines differ a little


class RequestQueue:
    """Requests that wait and requests in flight, shared by readers, workers and the supervisor.

    All of them use its ``lock``, also for their own state. ``on_alarm`` is called when an
    invocation has an earlier deadline than the one the supervisor sleeps for.
    """

    def __init__(self, limit: int, on_alarm: Callable[[], Any]) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.limit = limit
        self.waiting: deque[Item] = deque()
        self.in_flight: dict[Invocation, None] = {}
        self.is_reading = False  # a thread, or the event loop, waits for input
        self.is_ended = False
        self.alarm = NEVER
        self._on_alarm = on_alarm

    @property
    def has_room(self) -> bool:
        """Whether one more may begin."""
        return len(self.in_flight) < self.limit

    def add(self, items: Iterable[Item]) -> None:
        """Add what was read. Ignored after the end, as if it had not been read."""
        if not self.is_ended:
            self.waiting.extend(items)

    def take(self) -> Item | None:
        """Take the next request, if one may begin now. The caller holds the lock."""
        if not self.waiting or not self.has_room:
            return None
        item = self.waiting.popleft()
        if isinstance(item, Invocation):
            self.in_flight[item] = None
            if item.ends_at < self.alarm - _SLACK:
                self.alarm = item.ends_at
                self._on_alarm()
        return item

    def claim(self, invocation: Invocation) -> bool:
        """Whether the caller shall answer this invocation: only the first that asks."""
        # The handler's thread and the supervisor may both want to answer at the deadline; the
        # protocol allows one answer.
        with self.lock:
            is_first = not invocation.is_answered
            invocation.is_answered = True
        return is_first

    def remove(self, invocation: Invocation) -> None:
        """Forget an invocation that has been answered."""
        with self.lock:
            del self.in_flight[invocation]
            if self.is_drained:
                self.changed.notify_all()

    def end(self) -> bool:
        """Note the end of the input; returns whether that is new. The caller holds the lock."""
        is_news = not self.is_ended
        self.is_ended = True
        self.changed.notify_all()
        return is_news

    @property
    def is_drained(self) -> bool:
        """Whether everything is answered and nothing more will come."""
        return self.is_ended and not self.waiting and not self.in_flight

    def wait_until_drained(self) -> None:
        """Wait until no request is queued or running."""
        with self.lock:
            while not self.is_drained:
                self.changed.wait()

    def overdue(self, now: float) -> list[Invocation]:
        """The invocations past their deadline. The caller holds the lock.

        The alarm is computed anew only when it goes off: requests that are answered before their
        deadlines do not wake the supervisor.
        """
        if now < self.alarm:
            return []
        # Found anew below, from the invocations that are still in flight.
        late, self.alarm = [], NEVER
        for each in self.in_flight:
            if each.is_answered:
                continue
            if each.ends_at > now:
                self.alarm = min(self.alarm, each.ends_at)
            # A handler that has not begun in a thread needs no watching: its thread looks at the
            # deadline first.
            elif each.is_begun or each.is_async:
                late.append(each)
            else:  # taken and not begun: its worker will find that the deadline has passed
                self.alarm = min(self.alarm, now + _POLL_INTERVAL)
        return late

    def prolong(self, invocation: Invocation, until: float) -> None:
        """An invocation that was cancelled has until then to end."""
        with self.lock:
            invocation.is_cancelled = True
            invocation.ends_at = until
            self.alarm = min(self.alarm, until)


class HandlerThreads:
    """Threads that run handlers, started when needed, as many as requests may be in flight.

    ``wait`` waits for input and ``read`` reads it; one worker at a time does so. ``run`` runs an
    item and says whether the worker still has its place. The first worker calls ``before`` and
    then works if the answer is true; the last to leave calls ``after``.
    """

    def __init__(
        self,
        queue: RequestQueue,
        *,
        wait: Callable[[], Any],
        read: Callable[[], tuple[list[Item], bool]],
        before: Callable[[], bool],
        run: Callable[[Item], bool],
        after: Callable[[], Any],
        failed: Callable[[BaseException], Any],
    ) -> None:
        self._queue = queue
        self._wait = wait
        self._read_items = read
        self._before = before
        self._run = run
        self._after = after
        self._failed = failed
        self._count = self._idle = 0
        self._is_waking = False  # a worker was woken and has not come yet

    def start(self) -> None:
        """Start the first worker."""
        with self._queue.lock:
            self._start_one(is_first=True)

    def replace_one(self) -> None:
        """Start another worker in place of one whose handler does not return."""
        with self._queue.lock:
            # The thread that hangs keeps running and is not counted: without this, as many hanging
            # handlers as there are threads would end the process's work.
            self._count -= 1
            self._start_one()

    def _start_one(self, *, is_first: bool = False) -> None:
        self._count += 1
        worker = threading.Thread(
            target=self._serve, args=(is_first,), name="ergon-worker", daemon=True
        )
        try:
            worker.start()
        except RuntimeError:  # the system has no more threads: the others do the work
            self._count -= 1
            # It is an error only when no thread is left.
            if not self._count:
                raise

    def _serve(self, is_first: bool) -> None:
        try:
            # Lifespans and imports run in the first worker, not in the main thread: that one has to
            # stay free for signals.
            is_needed = not is_first or self._before()
            if not is_needed:
                self._queue.wait_until_drained()
            while is_needed and (item := self._next()) is not None:
                if not self._run(item):
                    return
            with self._queue.lock:
                self._count -= 1
                is_last = not self._count
            if is_last:
                # By the last one: what handlers use must not be closed under one that still runs.
                self._after()
        except BaseException as error:
            self._failed(error)

    def _next(self) -> Item | None:
        """The next item to run; None when there will be no more."""
        while True:
            with self._queue.lock:
                item = self._wait_for_work()
                if item is not None or self._queue.is_ended:
                    return item
                # Marked under the lock and read without it: one thread waits for input, and the
                # others stay free to run handlers.
                self._queue.is_reading = True
            self._read()

    def _wait_for_work(self) -> Item | None:
        """Wait for an item, a need to read, or the end. The caller holds the lock."""
        queue = self._queue
        while True:
            item = queue.take()
            if item is not None:
                # An async invocation is handed to the event loop at once, so this thread is free
                # again by itself.
                if not isinstance(item, Invocation) or not item.is_async:
                    self._wake_another()
                return item
            is_needed = not queue.is_ended or not queue.in_flight
            if is_needed and not queue.waiting and not queue.is_reading:
                return None
            self._idle += 1
            # Released with the lock: any change of the queue, its end included, notifies.
            queue.changed.wait()
            self._idle -= 1
            self._is_waking = False

    def wake_another(self) -> None:
        """Wake another thread: there may be room for one more request."""
        with self._queue.lock:
            self._wake_another()

    def _wake_another(self) -> None:
        """Before a handler runs, wake another worker for the rest. The caller holds the lock."""
        queue = self._queue
        if self._is_waking or not queue.has_room:
            return
        if queue.waiting or not (queue.is_reading or queue.is_ended):
            if self._idle:
                self._is_waking = True
                queue.changed.notify()
            elif self._count < queue.limit:
                self._start_one()

    def _read(self) -> None:
        """Wait for requests; one thread at a time does."""
        self._wait()
        queue = self._queue
        items, is_end = ([], True) if queue.is_ended else self._read_items()
        with queue.lock:
            queue.is_reading = False
            queue.add(items)
            if is_end or queue.is_ended:  # again if it had ended: workers waited for the reader
                queue.end()
