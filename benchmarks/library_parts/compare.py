"""A part of ours and its libraries: how both are timed, and what is said of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import repeat

from comparison import Contestant, Record, RunOptions, Turn, race
from provider_parts.calls import timed_turns
from provider_parts.costs import CostTarget, contestant, records

OURS = "Ergon"
TARGET = CostTarget(most=round(1 / 1.2, 2))
"""What a part written by hand must reach: the library takes at least 20 % more processor time."""

Call = Callable[[], object]
Make = Callable[[], Call]
"""Makes a call; raises ImportError where the library is missing."""
AsyncCall = Callable[[], Awaitable[object]]
Session = Callable[[], AbstractAsyncContextManager[AsyncCall]]


def compare(
    case: str, options: RunOptions, ours: Make, libraries: Mapping[str, Make]
) -> Iterator[Record]:
    """Compare one call of ours with the same call of each library."""
    made = {
        name: contestant(name, partial(_timed, make, options.seconds))
        for name, make in {OURS: ours, **libraries}.items()
    }
    yield from compare_contestants(case, options, made)


def _timed(make: Make, seconds: float) -> Callable[[], Turn]:
    return timed_turns(make(), seconds)


def compare_contestants(
    case: str, options: RunOptions, made: dict[str, Contestant]
) -> Iterator[Record]:
    """Let all of them have their turns; ours is the first one."""
    ours, *others = made.values()
    race([ours, *others], options.rounds)
    yield from records(case, ours, [(other, TARGET) for other in others])


def session_turns(session: Session, seconds: float) -> Callable[[], Turn]:
    """A turn in an event loop of its own: whoever has connections opens them before it begins."""

    async def loop(count: int) -> Turn:
        async with session() as call:
            await call()
            cpu_time, began = time.process_time(), time.perf_counter()
            for _ in repeat(None, count):
                await call()
            return Turn(count, time.perf_counter() - began, cpu_time=time.process_time() - cpu_time)

    trial = asyncio.run(loop(50))
    count = max(50, int(seconds * trial.rate))
    return lambda: asyncio.run(loop(count))
