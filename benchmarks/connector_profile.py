"""Where the processor time of consuming goes:  connector_profile.py CASE [CONTESTANT] [COUNT].

Runs one turn of a contestant of ``connectors.py`` under cProfile and adds up the processor time of
each thread by part: the client library, the connector, the engine, the event loop, calls of the
system. It says which shares are large; a profiled message takes two to four times as long as one
that is not. A thread that was there before the turn is not seen.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from comparison import Turn
from connector_parts import kafka, mqtt, nats, postgres, rabbitmq, redis_streams, sqs, turns
from connector_parts.brokers import broker

Found = tuple[str, int, str]
"""File, line and name of a function, as cProfile has them."""
MODULES: dict[str, tuple[Any, str]] = {
    "redis-streams": (redis_streams, "redis"),
    "postgres": (postgres, "postgres"),
    "nats": (nats, "nats"),
    "rabbitmq": (rabbitmq, "rabbitmq"),
    "kafka": (kafka, "kafka"),
    "sqs": (sqs, "sqs"),
    "mqtt": (mqtt, "mosquitto"),
}
WHOLE = {"kafka", "sqs"}
"""Whose contestants are given the server, not its address."""
PARTS = (
    ("ergon_framework/connector/", "connector"),
    ("ergon_framework/storage/", "connector"),
    ("ergon_framework/ports/", "connector"),
    ("ergon_framework/", "engine"),
    ("benchmarks/", "handler"),
    ("/asyncio/", "event loop"),
    ("/selectors.py", "event loop"),
    ("/threading.py", "threads"),
    ("/concurrent/", "threads"),
    ("site-packages/", "client library"),
)
SYSTEM = ("socket", "select.", "lock", "SimpleQueue", "start_new_thread")
WIDEST = 15


class Profiles:
    """A profile of the thread that consumes, and one of each thread that it starts."""

    def __init__(self) -> None:
        self._all: list[cProfile.Profile] = []
        self._is_on = False

    def begin(self) -> None:
        """From now on, in this thread and in those that are started."""
        self._is_on = True
        plain = threading.Thread.run
        made = self

        def run(self: threading.Thread) -> None:
            if not made._is_on:
                plain(self)
                return
            profile = cProfile.Profile(time.thread_time)
            profile.runcall(plain, self)
            made._all.append(profile)

        threading.Thread.run = run  # type: ignore[method-assign]
        self._here = cProfile.Profile(time.thread_time)
        self._all.append(self._here)
        self._here.enable()

    def end(self) -> list[cProfile.Profile]:
        """All of threads that have ended; the processor time of another cannot be asked for."""
        self._is_on = False
        self._here.disable()
        time.sleep(1.0)  # for threads that are about to end
        return self._all


def main(case: str, who: str, count: int) -> None:
    """Profile one turn, after one that loads the libraries."""
    module, kind = MODULES[case]
    with broker(kind) as server:
        address = server if case in WHOLE else _address(kind, server)
        heats = module.heats(address)
        entrants = {each.name: each for heat in heats for each in (heat.ours, *heat.peers)}
        entrants[who].consume(turns.PREFETCH)
        plain = entrants[who].consume(count)
        found = profiled(lambda: entrants[who].consume(count))
    show(found, count, plain)


def _address(kind: str, server: Any) -> Any:
    if not callable(server.url):
        return server.url
    return server.url("") if kind == "mosquitto" else server.url()


def profiled(consume: Any) -> list[cProfile.Profile]:
    """The profiles of a turn, from when its messages are there."""
    profiles, timed = Profiles(), turns.Countdown.timed

    def begin(countdown: turns.Countdown, work: Any) -> Turn:
        profiles.begin()
        return timed(countdown, work)

    turns.Countdown.timed = begin  # type: ignore[method-assign]
    consume()
    return profiles.end()


def part_of(function: Found) -> str:
    """Which part of a turn a function belongs to."""
    file, _, name = function
    if file == "~":
        return "system calls" if any(each in name for each in SYSTEM) else "other built-ins"
    return next((part for word, part in PARTS if word in file.replace(os.sep, "/")), "other")


def show(found: Iterable[cProfile.Profile], count: int, plain: Turn) -> None:
    """Shares by part, then the functions that take most."""
    times: Counter[Found] = Counter()
    for each in found:
        for function, row in pstats.Stats(each).stats.items():
            times[function] += row[2]
    whole, parts = sum(times.values()), Counter[str]()
    for function, seconds in times.items():
        parts[part_of(function)] += seconds
    print(f"{plain.cpu_time / plain.count * 1e6:,.0f} us of processor time a message unprofiled")
    for part, seconds in parts.most_common():
        print(f"{seconds / whole:6.1%}  {part}")
    print()
    for function, seconds in times.most_common(WIDEST):
        place = f"{Path(function[0]).name}:{function[1]} " if function[0] != "~" else ""
        print(f"{seconds / whole:6.1%}  {place}{function[2]}")


if __name__ == "__main__":
    words = [*sys.argv[1:], *("ergon", "2000")[len(sys.argv) - 2 :]]
    main(words[0], words[1], int(words[2]))
