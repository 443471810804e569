"""What a turn of any broker is: fill it, consume all of it, and say how long that took.

Everybody asks for as many messages at once, reads each body as JSON, handles one at a time and
acknowledges each by itself once it was handled. The clock runs from the first message that is
handled to the last; ``cpu`` is the processor time of this process, all threads together.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from comparison import Contestant, ContestantError, Record, Target, Turn, race, records

from ergon_framework import AsyncConsumerTask, ConsumerTask, Transaction

PREFETCH = 100
BARE = Target(ratio=0.7)
FASTSTREAM = Target(ratio=1.5)
BODY = json.dumps({"order": 4711, "lines": [{"sku": "a-1", "qty": 2}, {"sku": "b-2", "qty": 1}]})
LONGEST = 600.0
"""Seconds after which a contestant is taken for stuck."""


class Countdown:
    """What every contestant calls for each message: reads it, and says when all were handled.

    It notes when the first came and when the last did: what lies between is measured.
    """

    def __init__(self, count: int) -> None:
        self.count = self.left = count
        self._began = self._ended = (0.0, 0.0)

    def handle(self, order: dict[str, object]) -> bool:
        """Use one; answers whether it was the last."""
        if order["order"] != 4711:
            raise ValueError("another order")
        if self.left == self.count:
            self._began = (time.perf_counter(), time.process_time())
        self.left -= 1
        if self.left == 0:
            self._ended = (time.perf_counter(), time.process_time())
        return self.left == 0

    def timed(self, consume: Callable[[], object]) -> Turn:
        """One turn of a contestant with threads."""
        consume()
        if self.left:
            raise ContestantError(f"{self.left} messages were not handled")
        seconds, cpu_time = (
            end - start for start, end in zip(self._began, self._ended, strict=True)
        )
        return Turn(self.count - 1, seconds, cpu_time=cpu_time)

    def timed_async(self, consume: Callable[[], Awaitable[object]]) -> Turn:
        """One turn of a contestant with asyncio."""

        async def run() -> None:
            await consume()

        return self.timed(lambda: asyncio.run(run()))


@dataclass(frozen=True)
class Entrant:
    """Somebody who can consume so many messages, which are put there before the clock runs."""

    name: str
    consume: Callable[[int], Turn]
    target: Target | None = None
    """What we are to reach beside them."""


@dataclass(frozen=True)
class Heat:
    """One case: us, and those beside us."""

    case: str
    ours: Entrant
    peers: Sequence[Entrant]


def run_heats(heats: Sequence[Heat], rounds: int, count: int) -> Iterator[Record]:
    """The heats of one broker, interleaved: in each round everybody has a turn.

    Who stands in two heats has one turn for both.
    """
    entrants = {each.name: each for heat in heats for each in (heat.ours, *heat.peers)}
    contestants = {name: _contestant(each, count) for name, each in entrants.items()}
    race(list(contestants.values()), rounds)
    for heat in heats:
        ours = contestants[heat.ours.name]
        peers = [(contestants[each.name], each.target) for each in heat.peers]
        first, *others = records(heat.case, ours, peers)
        yield first
        for made, (peer, target) in zip(others, peers, strict=True):
            yield made | _by_cpu(ours, peer, target)


def _contestant(entrant: Entrant, count: int) -> Contestant:
    """Has had a short turn that is not counted: it loads the libraries."""
    made = Contestant(entrant.name, lambda: entrant.consume(count))
    try:
        entrant.consume(min(count, PREFETCH))
    except (ContestantError, OSError) as error:
        made.skipped = f"{type(error).__name__}: {error}"[:300]
    return made


def _by_cpu(ours: Contestant, peer: Contestant, target: Target | None) -> Record:
    """Their processor time of a message divided by ours in the same round."""
    if ours.skipped or peer.skipped:
        return {}
    pairs = zip(ours.turns, peer.turns, strict=True)
    quotients = [their.cpu_time / our.cpu_time for our, their in pairs]
    made: Record = {
        "cpu_ratio": round(statistics.median(quotients), 3),
        "cpu_ratio_spread": [round(min(quotients), 3), round(max(quotients), 3)],
    }
    if target is not None and target.ratio is not None:
        made["cpu_met"] = made["cpu_ratio"] >= target.ratio
    return made


def ours(count: int, make: Callable[[], Any]) -> Turn:
    """Our consumer in a thread; ``make`` opens the connector."""
    countdown = Countdown(count)

    class Orders(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            countdown.handle(transaction.payload)

    def consume() -> None:
        with make() as source:
            Orders({"in": source}).consume_transactions(_loop(count))

    return countdown.timed(consume)


def ours_async(count: int, make: Callable[[], Any], at_once: int = 1) -> Turn:
    """Our consumer in an event loop."""
    countdown = Countdown(count)

    class Orders(AsyncConsumerTask):
        async def process_transaction(self, transaction: Transaction) -> None:
            countdown.handle(transaction.payload)

    async def consume() -> None:
        source = make()
        await Orders({"in": source}).consume_transactions(_loop(count, at_once))
        await source.aclose()

    return countdown.timed_async(consume)


def _loop(count: int, at_once: int = 1) -> dict[str, Any]:
    """An end after so many."""
    about = {"batch": {"size": PREFETCH}, "concurrency": {"value": at_once}, "limit": count}
    return {"loop": about}


def faststream(
    count: int, declare: Callable[[Callable[[dict[str, Any]], bool], Callable[[], None]], Any]
) -> Turn:
    """FastStream's consumer: ``declare`` makes the broker with its one subscriber.

    It is given what handles a message, and what is to be called after the last one.
    """
    countdown = Countdown(count)

    async def consume() -> None:
        done = asyncio.Event()
        broker = declare(countdown.handle, done.set)
        await broker.start()
        try:
            await asyncio.wait_for(done.wait(), LONGEST)
        except TimeoutError as error:
            raise ContestantError(f"{countdown.left} messages did not come") from error
        finally:
            await broker.stop()

    return countdown.timed_async(consume)


def imported(name: str) -> Any:
    """A module of a peer."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ContestantError(f"{name} is not installed: {error}") from error
