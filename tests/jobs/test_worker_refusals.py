"""A store that works, and will not keep one outcome: that one holds back no other."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import Search, Settlement
from tests.jobs.real_worker import at_work, get, job, quick, wait_until, worker

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:orchestrator")]


class Picky(MemoryJobStore):
    """A store that refuses what one delivery of one job brought, and goes away while it is asked
    for the others one by one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[int] = []  # how many were to be settled at once
        self.is_away_next = True

    def settle_and_claim(self, settlements: Any, ask: Any) -> Any:
        if any(map(self._is_bad, settlements)):
            self.refused.append(len(settlements))
            raise StoreError("a value cannot be kept", details={"is_refused": True})
        if self.refused and settlements and self.is_away_next:
            self.is_away_next = False
            raise StoreUnavailableError("away for a moment")
        return super().settle_and_claim(settlements, ask)

    def _is_bad(self, settlement: Settlement) -> bool:
        is_end = settlement.transition.status is JobStatus.COMPLETED
        return is_end and settlement.id == "bad" and get(self, "bad").deliveries == 1


def test_an_outcome_that_is_refused_holds_back_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """The others are settled, once; the job itself is rescued, and runs again."""
    store = Picky()
    others = [f"good-{n}" for n in range(20)]
    store.add([job("echo", id=each) for each in ("bad", *others)])
    subject = worker(store, settings=quick(lease=1.0))
    with at_work(subject):
        wait_until(lambda: store.count(Search(statuses=(JobStatus.COMPLETED,))) == 21)
    assert store.refused[-1] == 1
    assert get(store, "bad").deliveries == 2
    assert {get(store, each).deliveries for each in others} == {1}
    assert "the store refuses its outcome" in caplog.text
    assert subject.record().counters["refused"] == 1
    assert subject.record().counters["late"] == 0


@pytest.mark.parametrize("settles", [False, True])
@pytest.mark.parametrize("is_refused", [False, True])
def test_nothing_else_is_given_up(
    caplog: pytest.LogCaptureFixture, settles: bool, is_refused: bool
) -> None:
    """A refused claim, or an error that says nothing about an outcome, is an outage."""
    store = MemoryJobStore()
    store.add([job("echo")])
    exchange, calls = store.settle_and_claim, []

    def refusing(settlements: Any, request: Any) -> Any:
        if bool(settlements) is settles:
            calls.append(request)
            if len(calls) == 1:
                raise StoreError("odd", details={"is_refused": is_refused and not settles})
        return exchange(settlements, request)

    store.settle_and_claim = refusing  # type: ignore[method-assign]
    with at_work(worker(store)) as subject:
        wait_until(lambda: get(store, "echo").status is JobStatus.COMPLETED)
    assert get(store, "echo").deliveries == 1
    assert subject.record().counters["refused"] == 0
    assert "is asked again" in caplog.text
