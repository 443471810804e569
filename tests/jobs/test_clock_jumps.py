"""A store's clock that is set while workers run, or while none does: nothing is lost by it."""

from __future__ import annotations

import pytest

from ergon_framework.app.inline_worker import InlineWorker
from ergon_framework.executor import Registry
from ergon_framework.jobs.maintenance import PRUNE_DELAY_AFTER_JUMP
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import WorkerRecord
from tests.jobs.real_worker import job
from tests.jobs.test_rescue_time import LEASE, Clock, ThreadlessStoreLink

pytestmark = pytest.mark.req("X13")

YEAR = 365 * 86_400.0


class Watched(MemoryJobStore):
    """Counts how often somebody goes through all jobs that wait."""

    def __init__(self, clock: Clock, wall: Clock) -> None:
        super().__init__(clock=lambda: wall.seconds + clock.seconds)
        self.looks = 0

    def shorten_waits(self) -> int:
        self.looks += 1
        return super().shorten_waits()


def passed(hand: ThreadlessStoreLink, seconds: float) -> None:
    """Let a worker run for so long."""
    for _ in range(4):
        hand.clock.seconds += seconds / 4
        hand.store_thread.run_once()


@pytest.mark.parametrize("is_corrected", [True, False])
def test_a_clock_that_was_set_forward_deletes_no_job_for_an_hour(is_corrected: bool) -> None:
    """A year ahead all that is kept looks old. Somebody may have typed the wrong year."""
    clock, wall = Clock(), Clock()
    store, registry = Watched(clock, wall), Registry()
    registry.add(lambda: 1, "one")
    store.add([job("one")])
    with InlineWorker(store, registry) as inline:
        assert inline.drain().completed == 1
    hand = ThreadlessStoreLink("w", store, clock, JobsSettings(lease=LEASE))
    passed(hand, 60.0)
    wall.seconds += YEAR
    passed(hand, PRUNE_DELAY_AFTER_JUMP - 60.0)
    assert store.find("one") is not None
    if is_corrected:
        wall.seconds -= YEAR
    passed(hand, 2 * PRUNE_DELAY_AFTER_JUMP)
    assert (store.find("one") is not None) == is_corrected


def test_waits_are_looked_at_only_where_the_clock_may_have_been_set_back() -> None:
    """That goes through all jobs that wait; a worker that starts knows when others told last."""
    clock, wall = Clock(), Clock()
    store, settings = Watched(clock, wall), JobsSettings(lease=LEASE)
    first = ThreadlessStoreLink("first", store, clock, settings)
    passed(first, 1.0)
    assert store.looks == 1, "nobody has told anything of the clock"
    for name in ("second", "third"):
        passed(ThreadlessStoreLink(name, store, clock, settings), 1.0)
    assert store.looks == 1
    wall.seconds -= 3600.0
    passed(first, 1.0)
    assert store.looks == 2, "it noticed the jump"
    for state in ("running", "ended"):
        store.heartbeat(
            WorkerRecord(id=state, host="h", pid=1, version="1", started_at=0.0, state=state)
        )
        wall.seconds -= 3600.0
        looks = store.looks
        passed(ThreadlessStoreLink(f"after {state}", store, clock, settings), 1.0)
        assert store.looks == looks + 1, "the last that was told is yet to come"
