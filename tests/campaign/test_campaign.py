"""A hundredth of the kill campaign: nothing is lost, nothing is done twice."""

from __future__ import annotations

import pytest

from tests.campaign.__main__ import campaign, faults
from tests.campaign.parameter_sample import sampled
from tests.differential.engines import STORES
from tests.servers.skip_loudly import MissingServerError, missing

KILLS = 8
KEPT = ("jobs-redis", "facts-sqlite")
"""Each kind of work embedded and on a server; ``make campaign`` has the other stores as well."""
LONGEST = 300.0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.req("SCALE:campaign", "JOBS:campaign", "X11", "X12", "X13")
@pytest.mark.parametrize("store", sampled(STORES, KEPT))
def test_nothing_is_lost_and_nothing_is_done_twice(store: str) -> None:
    """Producers, workers, executors, readers and servers die, and every unit has one outcome."""
    try:
        told = campaign(store, KILLS, seconds=LONGEST)
    except MissingServerError as error:
        missing(error)
    assert faults(told) == {}, told
    assert told["kills"] >= KILLS, told
    assert told["units"] > KILLS
