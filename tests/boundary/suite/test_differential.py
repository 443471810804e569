"""Random histories, told to the memory store and to another one: they must answer alike."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from ergon_framework.ports.factstore import FactStore
from tests.boundary.suite import planted
from tests.boundary.suite import planted_losses as losses
from tests.boundary.suite import planted_readers as readers
from tests.boundary.suite.stores import Clock, Memory, Sqlite
from tests.boundary.suite.twins import Twins

PATIENT = pytest.mark.timeout(600)  # a history that fails is made shorter, which takes its time


class MemoryTwins(Twins):
    """The machine itself: two memory stores never differ."""

    kind = Memory


class SqliteTwins(Twins):
    """The SQLite store, which is opened anew now and then, beside the model."""

    kind = Sqlite


TestMemory = MemoryTwins.TestCase
TestMemory.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)
TestMemory.pytestmark = [pytest.mark.slow, PATIENT]  # type: ignore[attr-defined]

TestSqlite = SqliteTwins.TestCase
TestSqlite.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestSqlite.pytestmark = [  # type: ignore[attr-defined]
    pytest.mark.slow,
    PATIENT,
    pytest.mark.req("BOUNDARY:store", "P6", "P7", "P9", "P15", "C1", "C2", "C9"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    [
        planted.PreviousOfTheLog,
        readers.DropsTheQuarantined,
        readers.PullBreaksTheSeal,
        readers.DeliveriesForEver,
        pytest.param(losses.WidensWhatAPeerLost, marks=pytest.mark.campaign),
        losses.LossIsNext,
    ],
    ids=lambda bug: bug.__name__,
)
def test_a_store_that_differs_is_found(bug: type[planted.Honest]) -> None:
    """The machine notices a store with a bug that takes several steps to show."""

    @dataclass
    class Buggy(Memory):
        def make(self, clock: Clock) -> FactStore:
            return bug(clock)

    class BuggyTwins(Twins):
        kind = Buggy

    quick = settings(
        max_examples=200,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(BuggyTwins, settings=quick)
