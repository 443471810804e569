"""A part of ours and its libraries: how both are timed, and what is said of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import repeat

from provider_parts.calls import turns
from provider_parts.costs import Goal, entry, records
from comparison import Effort, Entry, Record, Turn, race

OURS = "Ergon"
WORTH_IT = Goal(most=round(1 / 1.2, 2))
"""What a part written by hand must reach: the library takes at least 20 % more processor time."""

Call = Callable[[], object]
Make = Callable[[], Call]
"""Makes a call; raises ImportError where the library is missing."""
AsyncCall = Callable[[], Awaitable[object]]
Session = Callable[[], AbstractAsyncContextManager[AsyncCall]]


def beside(
    case: str, effort: Effort, ours: Make, libraries: Mapping[str, Make]
) -> Iterator[Record]:
    """Compare one call of ours with the same call of each library."""
    made = {
        name: entry(name, partial(_timed, make, effort.seconds))
        for name, make in {OURS: ours, **libraries}.items()
    }
    yield from raced(case, effort, made)


def _timed(make: Make, seconds: float) -> Callable[[], Turn]:
    return turns(make(), seconds)


def raced(case: str, effort: Effort, made: dict[str, Entry]) -> Iterator[Record]:
    """Let all of them have their turns; ours is the first one."""
    ours, *others = made.values()
    race([ours, *others], effort.rounds)
    yield from records(case, ours, [(other, WORTH_IT) for other in others])


def session_turns(session: Session, seconds: float) -> Callable[[], Turn]:
    """A turn in an event loop of its own: whoever has connections opens them before it begins."""

    async def loop(count: int) -> Turn:
        async with session() as call:
            await call()
            burnt, began = time.process_time(), time.perf_counter()
            for _ in repeat(None, count):
                await call()
            return Turn(count, time.perf_counter() - began, burnt=time.process_time() - burnt)

    trial = asyncio.run(loop(50))
    count = max(50, int(seconds * trial.rate))
    return lambda: asyncio.run(loop(count))
