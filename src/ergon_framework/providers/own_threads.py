"""Threads for what must not hold up a caller or an event loop: a few of our own.

An event loop has one pool for everybody, name resolution included; a store that does not answer
must not take it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class OwnThreads:
    """So many threads at most, begun when they are needed."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Also in a forked child: the threads are the parent's."""
        self.pool = ThreadPoolExecutor(self._size, thread_name_prefix=self._name)

    def do(self, work: Callable[[], T]) -> Future[T]:
        """Do it on one of them."""
        return self.pool.submit(work)


STORE = OwnThreads("ergon-store", 16)
"""For steps of calls that wait for a store."""

BEHIND = OwnThreads("ergon-gates", 4)
"""For looks at a store that nobody waits for."""

CALLS = OwnThreads("ergon-call", 64)
"""For attempts of providers that are not async, in calls that are."""
