"""Many threads with slow calls through one circuit: do they wait for each other?"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from comparison import Contestant, Record, RunOptions, Turn, race

from ergon_framework.providers.base import ProviderBase
from provider_parts import peers
from provider_parts.calls import ANSWER, PLENTY, Call, sync_call
from provider_parts.costs import CostTarget, contestant, records

THREADS = 16
SLOW = 0.05


class Slow(ProviderBase):
    """Answers after a while."""

    provider_name = "slow"
    capability = "send"

    def _execute_impl(self, **_call: Any) -> dict[str, Any]:
        return _slow({})


def threads(options: RunOptions) -> Iterator[Record]:
    """Sixteen at once, beside the same without anything around them."""
    each = 1 if options.is_quick else 4
    filed = Slow(quota=PLENTY, store=f"sqlite:///{options.folder / 'threads.db'}")
    ours = Contestant("Ergon", partial(_together, sync_call(Slow(quota=PLENTY)), each))
    stored = Contestant("Ergon on SQLite", partial(_together, sync_call(filed), each))
    plain = Contestant("plain calls", partial(_together, lambda: _slow({}), each))
    pybreaker = contestant("pybreaker", lambda: partial(_together, peers.breaker_only(_slow), each))
    race([ours, stored, plain, pybreaker], options.rounds)
    filed.close()
    filed.store.close()
    target = CostTarget(most=1.2)
    yield from records("threads", ours, [(plain, target), (pybreaker, None)], by="wall")
    yield from records("threads-sqlite", stored, [(plain, target)], by="wall")


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

    running = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in running:
        thread.start()
    gate.wait()
    began = time.perf_counter()
    for thread in running:
        thread.join()
    return Turn(THREADS * each, time.perf_counter() - began)
