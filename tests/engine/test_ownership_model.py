"""A fault at every seam of a call, from seeds; ``python -m tests.engine`` plays many more."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.engine.colours import Colour
from tests.engine.ownership_model import SEAMS, live

SEEDS = 150


@pytest.mark.req("R0-I3", "R0-G1", "T3.11", "T3.17", "T3.30")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_every_delivery_has_exactly_one_place(colour: Colour) -> None:
    """Threads that cannot start, cancelled tasks, hooks, connectors or clocks that raise.

    Delivered = outcomes + released + stranded, and nothing is told twice.
    """
    seams = Counter(live(colour, seed) for seed in range(SEEDS))
    assert set(seams) == set(SEAMS[colour])


@pytest.mark.req("R0-I3", "T3.17")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_ctrl_c_while_a_timeout_cuts_off_what_runs() -> None:
    """It strikes between taking a run from its worker and accounting for it, now and then."""
    for _ in range(60):
        live("sync", 7791)
