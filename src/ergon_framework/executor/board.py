"""Which requests wait, which are in flight, and whether more will come."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ergon_framework.core.wire import Refusal
from ergon_framework.executor.flight import NEVER, Flight

Item = Flight | Refusal
_LOOK_AGAIN = 0.05
_SLACK = 0.001  # seconds; clocks are read one after the other, so equal deadlines differ a little


class Board:
    """The one place that readers, workers and the supervisor share; its lock is theirs.

    ``on_alarm`` is called when a flight ends sooner than the supervisor expects.
    """

    def __init__(self, limit: int, on_alarm: Callable[[], Any]) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.limit = limit
        self.waiting: deque[Item] = deque()
        self.flying: dict[Flight, None] = {}
        self.is_reading = False  # somebody waits for more
        self.is_ended = False
        self.alarm = NEVER
        self._on_alarm = on_alarm

    @property
    def has_room(self) -> bool:
        """Whether one more may begin."""
        return len(self.flying) < self.limit

    def add(self, items: Iterable[Item]) -> None:
        """What was read. Without a word when nothing is to be read any more: as if unread."""
        if not self.is_ended:
            self.waiting.extend(items)

    def take(self) -> Item | None:
        """The next one that may begin now, which it does. Holds the lock."""
        if not self.waiting or not self.has_room:
            return None
        item = self.waiting.popleft()
        if isinstance(item, Flight):
            self.flying[item] = None
            if item.ends_at < self.alarm - _SLACK:
                self.alarm = item.ends_at
                self._on_alarm()
        return item

    def claim(self, flight: Flight) -> bool:
        """Whether it is the caller who shall answer this flight: only the first who asks."""
        with self.lock:
            is_first = not flight.is_answered
            flight.is_answered = True
        return is_first

    def remove(self, flight: Flight) -> None:
        """It has been answered."""
        with self.lock:
            del self.flying[flight]
            if self.is_drained:
                self.changed.notify_all()

    def end(self) -> bool:
        """Nothing more is read; whether that is news. Holds the lock."""
        is_news = not self.is_ended
        self.is_ended = True
        self.changed.notify_all()
        return is_news

    @property
    def is_drained(self) -> bool:
        """Whether everything is answered and nothing more will come."""
        return self.is_ended and not self.waiting and not self.flying

    def wait_until_drained(self) -> None:
        """Return when there is nothing left to do."""
        with self.lock:
            while not self.is_drained:
                self.changed.wait()

    def overdue(self, now: float) -> list[Flight]:
        """The flights past their end. Holds the lock.

        The alarm moves only when it goes off: requests that come and go wake nobody.
        """
        if now < self.alarm:
            return []
        late, self.alarm = [], NEVER
        for each in self.flying:
            if each.is_answered:
                continue
            if each.ends_at > now:
                self.alarm = min(self.alarm, each.ends_at)
            elif each.is_begun or each.is_async:
                late.append(each)
            else:  # its worker is about to see for itself that it comes too late
                self.alarm = min(self.alarm, now + _LOOK_AGAIN)
        return late

    def prolong(self, flight: Flight, until: float) -> None:
        """A flight that was cancelled has until then to end."""
        with self.lock:
            flight.is_cancelled = True
            flight.ends_at = until
            self.alarm = min(self.alarm, until)
