"""What many watchers ask for, asked of a store once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")

FRESH = 1.0
"""Seconds for which an answer is handed to others."""
SHARE, LONGEST = 10.0, 15.0
"""An answer that took long is kept so many times as long, up to a bound, in seconds: looking takes
about a tenth of the time.
"""


class SharedLook(Generic[T]):
    """An answer that is shared, also while it is being looked for; one of a failure is not kept.

    Counting what a store holds takes longer the more it holds. With this, a page costs the store no
    more when it is watched by many, or when somebody reloads it all the time.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[T]],
        clock: Callable[[], float] = monotonic,
        longest: float = LONGEST,
    ) -> None:
        self._look = look
        self._longest = longest
        self._clock = clock
        self._task: asyncio.Task[T] | None = None
        self._until = 0.0

    async def get(self) -> T:
        """The answer, not older than it may be."""
        task = self._task
        is_ours = task is not None and task.get_loop() is asyncio.get_running_loop()
        if task is None or not is_ours or (task.done() and self._is_over(task)):
            task = self._task = asyncio.ensure_future(self._timed())
        # Shielded: others wait for the same answer when one of them leaves.
        return await asyncio.shield(task)

    def _is_over(self, task: asyncio.Task[T]) -> bool:
        return task.cancelled() or task.exception() is not None or self._clock() >= self._until

    async def _timed(self) -> T:
        begun = self._clock()
        found = await self._look()
        now = self._clock()
        self._until = now + min(self._longest, max(FRESH, SHARE * (now - begun)))
        return found


MOST_KEPT = 100
"""Answers of which each is for another question."""


class SharedAnswers(Generic[T]):
    """The same for many questions: each is answered once in a second, however many ask it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._looks: OrderedDict[Hashable, SharedLook[T]] = OrderedDict()

    async def get(self, question: Hashable, look: Callable[[], Awaitable[T]]) -> T:
        """The answer; ``look`` is called where there is none, or an old one."""
        found = self._looks.get(question)
        if found is None:
            found = self._looks[question] = SharedLook(look, self._clock, FRESH)
            while len(self._looks) > MOST_KEPT:
                self._looks.popitem(last=False)
        return await found.get()
