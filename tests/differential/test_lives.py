"""Each real store beside the memory model, through random lives: the same answers, always."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest

from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.factstore import AppendOutcome, LedgerEntry, NewFact
from ergon_framework.ports.jobstore import LeaseRenewal
from tests.campaign.parameter_sample import sampled
from tests.differential.engines import STORES, running
from tests.differential.facts import ZONE, FactTwins
from tests.differential.jobs import JobTwins
from tests.differential.lives import live
from tests.differential.twins import DifferedError
from tests.servers.skip_loudly import MissingServerError, missing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
KEPT = ("jobs-sqlite", "jobs-redis", "facts-sqlite")
SHARE = 3_000
ON_SERVERS = 1_200
"""Operations here; ``make campaign`` has 100,000 for each store, on the seeds that follow too."""


@pytest.mark.req("SCALE:differential", "JOBS:store", "BOUNDARY:store")
@pytest.mark.parametrize("store", sampled(STORES, KEPT))
def test_two_stores_one_life(store: str) -> None:
    """Whatever happens, both stores answer, refuse, count and remember alike."""
    try:
        with running(store.partition("-")[2]) as engine:
            share = ON_SERVERS if engine.is_server else SHARE
            assert live(store, engine, count(), share) == share
    except MissingServerError as error:
        missing(error)


class ForgetsToCharge(MemoryJobStore):
    """A store with a bug that takes several steps to show."""

    def renew(self, holds: Sequence[LeaseRenewal], lease: float) -> list[bool]:
        return super().renew([LeaseRenewal(h.key, h.id, h.fence, False) for h in holds], lease)


class ForgetsTheFirst(MemoryFactStore):
    """A store whose ledger does not find facts that came with many others."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        if len(facts) > 3:
            self.forgotten = {*getattr(self, "forgotten", ()), facts[0].message_id}
        return super().append(log, facts, capacity=capacity)

    def find(self, from_zone: str, message_id: str, log: str | None = None) -> LedgerEntry | None:
        is_forgotten = message_id in getattr(self, "forgotten", ())
        return None if is_forgotten else super().find(from_zone, message_id, log)


@pytest.mark.req("SCALE:differential")
def test_a_job_store_that_differs_is_found() -> None:
    """The seed is told, and the same seed differs at the same operation again."""
    told = []
    for _ in range(2):
        pair = JobTwins("jobs-buggy", 3, ForgetsToCharge)
        with pytest.raises(DifferedError, match=r"seed 3, operation \d+") as caught:
            pair.live(2000)
        told.append(str(caught.value))
    assert told[0] == told[1]


@pytest.mark.req("SCALE:differential")
def test_a_fact_store_that_differs_is_found() -> None:
    """The same for facts."""
    pair = FactTwins("facts-buggy", 4, lambda clock: ForgetsTheFirst(ZONE, clock=clock))
    with pytest.raises(DifferedError, match=r"seed 4, operation \d+"):
        pair.live(2000)
