"""Counts what the engines tell, and puts the interesting part into words.

A listener is called by worker threads and event loops in the middle of their work. So it only takes
notes; whoever draws the screen reads them when it suits.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from ergon_framework.ports.notice import Notice

Tell = Callable[[str], None]


class Tally:
    """What happened so far in each task, by the name of its class."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}

    def of(self, task: str) -> Counter[str]:
        """A copy of one task's counts: ``succeeded``, ``failed``, ``timed_out``, ``retries``, …"""
        with self._lock:
            return Counter(self._counts.get(task, {}))

    def listen(self, notice: Notice) -> None:
        """Take note; this is what ``add_listener`` is given."""
        task = notice["call"].task
        with self._lock:
            counts = self._counts.setdefault(task, Counter())
            for name in _counted(notice):
                counts[name] += 1
        sentence = _sentence(notice)
        if sentence:
            self._tell(f"{task}: {sentence}")


def _counted(notice: Notice) -> tuple[str, ...]:
    if notice.name == "transaction.ended":
        return (notice["ending"],)
    if notice.name == "retry.scheduled":
        return ("retries",)
    if notice.name == "attempt.abandoned":
        return ("abandoned",)
    return ()


def _sentence(notice: Notice) -> str | None:
    if notice.name == "retry.scheduled":
        text = notice["failure"].message
        return f"{_id(notice)} gets another try in {notice['delay']:.1f} s ({text})"
    if notice.name == "attempt.abandoned":
        key = notice["attempt"].transaction.transaction_id
        return f"{key} is in a thread that cannot be stopped: abandoned, its result is dropped"
    if notice.name == "transaction.ended" and notice["handler_failure"] is not None:
        return f"{_id(notice)} {_how(notice)}, and its handler failed as well"
    if notice.name == "transaction.ended" and notice["failure"] is not None:
        return f"{_id(notice)} {_how(notice)} ({notice['failure'].message})"
    return None


def _id(notice: Notice) -> str:
    key: Any = notice["run"].transaction.transaction_id
    return str(key)


def _how(notice: Notice) -> str:
    return str(notice["ending"]).replace("_", " ")
