"""What a turn of any broker is: fill it, consume all of it, and say how long that took."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator

from comparison import Contestant, Record, Target, Turn, records

PREFETCH = 100
BARE = Target(ratio=0.7)
FASTSTREAM = Target(ratio=1.5)
BODY = json.dumps({"order": 4711, "lines": [{"sku": "a-1", "qty": 2}, {"sku": "b-2", "qty": 1}]})


class Countdown:
    """What every contestant calls for each message: reads it, and says when all were handled."""

    def __init__(self, count: int) -> None:
        self.left = count

    def handle(self, order: dict[str, object]) -> bool:
        """Use one; answers whether it was the last."""
        if order["order"] != 4711:
            raise ValueError("another order")
        self.left -= 1
        return self.left == 0


def timed(count: int, consume: Callable[[], object]) -> Turn:
    """One turn of a contestant with threads."""
    began, cpu = time.perf_counter(), time.process_time()
    consume()
    return Turn(count, time.perf_counter() - began, cpu_time=time.process_time() - cpu)


def timed_async(count: int, consume: Callable[[], Awaitable[object]]) -> Turn:
    """One turn of a contestant with asyncio."""

    async def run() -> None:
        await consume()

    return timed(count, lambda: asyncio.run(run()))


def told(case: str, ours: Contestant, *peers: tuple[Contestant, Target]) -> Iterator[Record]:
    """The records of a case."""
    yield from records(case, ours, peers)
