"""``benchmarks/connectors.py``: each contestant consumes a few messages, and ratios are told."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib import util
from typing import Any

import pytest

from tests.campaign.parameter_sample import sampled
from tests.docs.pages import ROOT

PLACES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "redis_streams": ("redis_server", lambda server: server.url),
    "postgres": ("postgres_url", lambda url: url),
    "nats": ("nats_server", lambda server: server.url()),
    "rabbitmq": ("rabbit_server", lambda server: server.url()),
    "kafka": ("kafka", lambda cluster: cluster),
    "sqs": ("sqs", lambda server: server),
    "mqtt": ("mosquitto", lambda server: server.url("")),
}
"""For each module of the benchmark: the server it runs on, and what its contestants are told."""
FEW = 3


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Loads a module of the benchmark as the script does."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(PLACES, ["redis_streams"]))
def test_every_contestant_handles_all_messages(
    kind: str, part: Callable[[str], Any], request: pytest.FixtureRequest
) -> None:
    """A turn fails when a message is missing; without FastStream its turns are left out."""
    fixture, place = PLACES[kind]
    server = place(request.getfixturevalue(fixture))
    has_faststream = util.find_spec("faststream") is not None
    entrants = {
        each.name: each
        for heat in part(f"connector_parts.{kind}").heats(server)
        for each in (heat.ours, *heat.peers)
        if has_faststream or not each.name.startswith("faststream")
    }
    for entrant in entrants.values():
        turn = entrant.consume(FEW)
        assert turn.count == FEW - 1  # from the first to the last
        assert turn.cpu_time > 0


def test_a_peer_that_takes_twice_our_processor_time_has_a_ratio_of_two(
    part: Callable[[str], Any],
) -> None:
    """Rates are ours divided by theirs, processor times theirs divided by ours."""
    turns, turn = part("connector_parts.turns"), part("comparison").Turn
    ours = turns.Entrant("ergon", lambda count: turn(count, 2.0, cpu_time=0.5))
    peer = turns.Entrant("peer", lambda count: turn(count, 1.0, cpu_time=1.0), turns.BARE)
    _, record = turns.run_heats([turns.Heat("case", ours, [peer])], 3, 10)
    assert (record["ratio"], record["met"]) == (0.5, False)
    assert (record["cpu_ratio"], record["cpu_met"]) == (2.0, True)


def test_a_contestant_that_leaves_messages_is_told_as_skipped(part: Callable[[str], Any]) -> None:
    """It has no figures that could be taken for a result."""
    turns, turn = part("connector_parts.turns"), part("comparison").Turn
    ours = turns.Entrant("ergon", lambda count: turn(count, 2.0, cpu_time=0.5))
    lazy = turns.Entrant("lazy", lambda count: turns.Countdown(count).timed(lambda: None))
    _, record = turns.run_heats([turns.Heat("case", ours, [lazy])], 1, 10)
    assert "10 messages were not handled" in record["skipped"]
