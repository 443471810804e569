"""Flows under kills: no step is lost, none is started twice, and no flow is stored by half.

``make campaign`` does both at length. The seed of a campaign is in its report, and can be given::

    python -m tests.campaign --store flows-redis --kills 1000 --seed 7
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psycopg
import pytest

from tests import fork_server
from tests.campaign.__main__ import campaign, faults
from tests.campaign.parameter_sample import sampled
from tests.servers.skip_loudly import MissingServerError, missing

PROGRAM = Path(__file__).parent / "programs" / "flow_kills.py"


def deadlocks_in(url: str) -> int:
    """How many the server has seen in a database: transactions that waited for each other."""
    asked = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    with psycopg.connect(url) as connection:
        [[number]] = connection.execute(asked).fetchall()
    return int(number)


@pytest.mark.slow
@pytest.mark.req("JOBS:store")
@pytest.mark.parametrize(
    ("engine", "kills", "steps", "siblings"),
    [
        ("sqlite", 15, 2_000, 200),
        ("redis", 15, 2_000, 500),
        ("postgres", 10, 2_000, 1_000),
        pytest.param("sqlite", 350, 40_000, 10_000, marks=pytest.mark.campaign),
        pytest.param("redis", 350, 40_000, 10_000, marks=pytest.mark.campaign),
        pytest.param("postgres", 350, 40_000, 10_000, marks=pytest.mark.campaign),
    ],
)
def test_killed_workers_lose_no_step(
    engine: str,
    kills: int,
    steps: int,
    siblings: int,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Four workers end siblings at the same moments, a client adds; one after another is killed."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    if engine != "sqlite":
        url = request.getfixturevalue(f"{engine}_url")
    numbers = [str(each) for each in (kills, steps, siblings)]
    done = fork_server.run(
        [sys.executable, str(PROGRAM), url, *numbers], capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout)
    assert report.pop("rescued") > 0
    wanted = {"kills": kills, "flows": steps // siblings}
    assert report == wanted | {"lost": 0, "twice": 0, "early": 0, "half": 0}
    if engine == "postgres":
        assert deadlocks_in(url) == 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.req("JOBS:store", "JOBS:campaign")
@pytest.mark.parametrize(
    ("engine", "kills"), sampled([("sqlite", 6), ("redis", 2), ("postgres", 2)], [("sqlite", 6)])
)
def test_flows_of_every_form_end_as_they_were_written(engine: str, kills: int) -> None:
    """Chains, groups, policies, signals and decisions: every step has one outcome, in its turn.

    Real workers with executors run them. They, those who add flows, and those who decide are killed
    and frozen at random moments and at failpoints; so is the server.
    """
    try:
        told = campaign(f"flows-{engine}", kills, seconds=300.0)
    except MissingServerError as error:
        missing(error)
    assert faults(told) == {}, told
    assert told["kills"] >= kills, told
    assert told["units"] >= 100 * kills, told
