"""A server that goes away or hangs for longer than a lease; the campaign does so for a minute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.boundary.node.processes import ADMIN
from tests.campaign.parameter_sample import campaign
from tests.differential.engines import ServerEngine, running
from tests.fleet.__main__ import faults
from tests.fleet.fact_outage import MORE, fact_outage, link, sites
from tests.fleet.fleet import LEASE, wait_until
from tests.fleet.job_outage import BACKLOG, job_outage
from tests.fleet.outages import FROZEN, STOPPED
from tests.servers.skip_loudly import MissingServerError, missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.req("SCALE:fleet-outage"),
]

AWAY = 2.5 * LEASE


@pytest.fixture(scope="module")
def fact_engine(request: pytest.FixtureRequest) -> Iterator[ServerEngine]:
    """A server that keeps the facts it acknowledged."""
    try:
        with running(request.param, is_durable=True) as engine:
            assert isinstance(engine, ServerEngine)
            yield engine
    except MissingServerError as error:
        missing(error)


@pytest.mark.parametrize("engine", [campaign("postgres"), "redis"], indirect=True)
def test_jobs_while_the_store_hangs(engine: ServerEngine, tmp_path: Path) -> None:
    """Each is done once, and nobody takes from another what that one still holds."""
    told = job_outage(engine, tmp_path, AWAY, FROZEN, LEASE)
    assert faults(told) == {}, told
    assert told["units"] > BACKLOG


@pytest.mark.req("SCALE:boundary-postgres", "SCALE:boundary-nats")
@pytest.mark.parametrize(
    ("fact_engine", "how"),
    [
        ("postgres", FROZEN),
        campaign("postgres", STOPPED),
        ("nats", STOPPED),
        campaign("nats", FROZEN),
    ],
    indirect=["fact_engine"],
)
def test_facts_while_the_store_is_away(fact_engine: ServerEngine, tmp_path: Path, how: str) -> None:
    """What was acknowledged arrives once and in its place, by nodes that went on by themselves."""
    told = fact_outage(fact_engine, tmp_path, AWAY, how)
    assert faults(told) == {}, told
    assert told["units"] >= 2 * MORE


@pytest.mark.req("BOUNDARY:zones")
@pytest.mark.parametrize("fact_engine", ["postgres", campaign("nats")], indirect=True)
def test_a_node_that_pulled_is_killed(fact_engine: ServerEngine, tmp_path: Path) -> None:
    """The other node of its zone, which waited its turn, goes on when the lease has ended."""
    with sites(fact_engine.place(), tmp_path) as both:
        assert both.publish(1)
        wait_until(lambda: both.has_read([1]), "the first fact everywhere")
        wait_until(lambda: len(both.waiting()) == 1, "one that waits")
        [second] = both.waiting()
        assert second.ask(f"{ADMIN}GetStatus", {})["alerts"] == []
        [first] = [node for node in both.takers if node is not second]
        first.kill()
        assert both.publish(2)
        wait_until(lambda: link(second).get("source_offset") == 2, "the fact that came afterwards")
        assert both.waiting(second) == []
