"""Many threads with slow calls through one circuit: do they wait for each other?"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from comparison import Effort, Entry, Record, Turn, race

from ergon_framework.providers.base import ProviderBase
from provider_parts import peers
from provider_parts.calls import ANSWER, PLENTY, Call, calling
from provider_parts.costs import Goal, entry, records

THREADS = 16
SLOW = 0.05


class Slow(ProviderBase):
    """Answers after a while."""

    provider_name = "slow"
    capability = "send"

    def _execute_impl(self, **_call: Any) -> dict[str, Any]:
        return _slow({})


def threads(effort: Effort) -> Iterator[Record]:
    """Sixteen at once, beside the same without anything around them."""
    each = 1 if effort.is_quick else 4
    filed = Slow(quota=PLENTY, store=f"sqlite:///{effort.folder / 'threads.db'}")
    ours = Entry("Ergon", partial(_together, calling(Slow(quota=PLENTY)), each))
    stored = Entry("Ergon on SQLite", partial(_together, calling(filed), each))
    plain = Entry("plain calls", partial(_together, lambda: _slow({}), each))
    pybreaker = entry("pybreaker", lambda: partial(_together, peers.guarded(_slow), each))
    race([ours, stored, plain, pybreaker], effort.rounds)
    filed.close()
    filed.store.close()
    goal = Goal(most=1.2)
    yield from records("threads", ours, [(plain, goal), (pybreaker, None)], by="wall")
    yield from records("threads-sqlite", stored, [(plain, goal)], by="wall")


def _slow(_payload: dict[str, Any]) -> dict[str, Any]:
    time.sleep(SLOW)
    return ANSWER


def _together(call: Call, each: int) -> Turn:
    """All begin at once; the turn ends with the last."""
    gate = threading.Barrier(THREADS + 1)

    def work() -> None:
        gate.wait()
        for _ in range(each):
            call()

    crowd = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in crowd:
        thread.start()
    gate.wait()
    began = time.perf_counter()
    for thread in crowd:
        thread.join()
    return Turn(THREADS * each, time.perf_counter() - began)
