"""Notifications inside one process: for stores in memory, and behind a connection that listens."""

from __future__ import annotations

import threading
from collections.abc import Callable


class LocalSubscription:
    """One waiter on a topic. Any number of notifications before a wait count as one."""

    def __init__(self, forget: Callable[[LocalSubscription], None]) -> None:
        self._forget = forget
        self._changed = threading.Condition()
        self._is_notified = False
        self._is_closed = False

    def wait(self, seconds: float | None) -> bool:
        """Block until notified, closed, or out of time; whether it was notified."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_notified or self._is_closed, seconds)
            is_notified, self._is_notified = self._is_notified, False
            return is_notified

    def wake(self) -> None:
        """Wake the waiter of this subscription."""
        with self._changed:
            self._is_notified = True
            self._changed.notify_all()

    def close(self) -> None:
        """Unsubscribe, and wake the threads that wait."""
        self._forget(self)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class LocalNotifier:
    """The subscriptions of one store, by topic. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: dict[str, set[LocalSubscription]] = {}

    def subscribe(self, topic: str) -> LocalSubscription:
        """A new subscription to a topic."""
        subscription = LocalSubscription(self._forget)
        with self._lock:
            self._subscriptions.setdefault(topic, set()).add(subscription)
        return subscription

    def notify(self, topic: str) -> None:
        """Wake every subscriber of a topic."""
        with self._lock:
            subscriptions = list(self._subscriptions.get(topic, ()))
        for subscription in subscriptions:
            subscription.wake()

    def close(self) -> None:
        """Close every subscription."""
        with self._lock:
            subscriptions = [each for some in self._subscriptions.values() for each in some]
        for subscription in subscriptions:
            subscription.close()

    def _forget(self, subscription: LocalSubscription) -> None:
        with self._lock:
            for subscriptions in self._subscriptions.values():
                subscriptions.discard(subscription)
