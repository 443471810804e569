"""Processes that die with facts in hand, parked facts beside them, and closing."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.connector.boundary import BoundaryConnector
from ergon_framework.errors import ConfigurationError, ConsumerHeldError, NodeUnavailableError
from ergon_framework.testing.clock import VirtualClock
from tests.boundary.client.scripted import AsyncOver, MemoryNode, envelope, fact, unavailable
from tests.connectors.test_boundary_connector_machine import ONCE
from tests.connectors.zone_node import die, end_lease, http_node, numbers, taking_part, told

pytestmark = pytest.mark.req("ONE:connector-boundary")


@pytest.fixture
def node() -> MemoryNode:
    """A node without a wire, with forty facts."""
    made = MemoryNode(VirtualClock())
    made.fill(40)
    return made


def connect(node: MemoryNode, **options: Any) -> BoundaryConnector:
    """A process that reads under the name ``c``."""
    return BoundaryConnector(node, consumer="c", log="outbound", **options)


def set_aside(node: MemoryNode) -> list[tuple[int, str]]:
    """What is in quarantine."""
    return [(item.offset, item.reason) for item in node.store.quarantine()]


# ---- who is to blame ----


def test_a_parked_fact_is_not_blamed_for_others(node: MemoryNode) -> None:
    """A fact that came back alive has no part in the deaths of those behind it."""
    for _ in range(12):
        dying = connect(node, max_deliveries=3)
        (first,) = dying.fetch_transactions(1)
        dying.release_after(first, 3600.0)  # nothing was attempted …
        assert numbers([first]) == [1]
        assert numbers(dying.fetch_transactions(1)) == [2]  # … and this is the death of it
        die(dying, node)
    assert set_aside(node) == []


def test_what_kills_behind_a_parked_fact_is_blamed_in_its_turn(node: MemoryNode) -> None:
    """When the parked one has its outcome, the next one is counted, alone."""
    for _ in range(6):
        dying = connect(node, max_deliveries=3)
        (first,) = dying.fetch_transactions(1)
        dying.release_after(first, 3600.0)
        assert numbers(dying.fetch_transactions(1)) == [2]
        die(dying, node)
    with connect(node, max_deliveries=3) as living:
        (first,) = living.fetch_transactions(1)
        living.ack(first)
    for _ in range(3):
        dying = connect(node, max_deliveries=3)
        assert numbers(dying.fetch_transactions(1)) == [2]
        die(dying, node)
    with connect(node, max_deliveries=3) as living:
        assert numbers(living.fetch_transactions(1)) == [3]
    assert set_aside(node) == [(2, "crash_loop")]


def test_one_death_with_many_in_hand_is_nobodys_fault(node: MemoryNode) -> None:
    """Even when a single death is to be enough: the first fact may not have begun at all."""
    dying = connect(node, max_deliveries=1)
    first, *_ = dying.fetch_transactions(5)
    dying.release_after(first, 3600.0)
    die(dying, node)
    with connect(node, max_deliveries=1) as living:
        assert numbers(living.fetch_transactions(5)) == [1]
    assert set_aside(node) == []


def test_a_fetch_goes_on_behind_what_it_sets_aside(node: MemoryNode) -> None:
    """Who asks once must not be told that there is nothing while thirty-nine wait."""
    for _ in range(2):
        dying = connect(node, max_deliveries=2)
        assert numbers(dying.fetch_transactions(1)) == [1]
        die(dying, node)
    with connect(node, max_deliveries=2) as living:
        assert numbers(living.fetch_transactions(1)) == [2]
    assert set_aside(node) == [(1, "crash_loop")]


# ---- for how long one is careful ----


def test_a_parked_fact_slows_nobody_down_after_a_crash(node: MemoryNode) -> None:
    """One by one goes only what the dead process may have had, whatever is parked before it."""
    dying = connect(node)
    dying.fetch_transactions(4)
    die(dying, node)
    with connect(node) as living:
        (first,) = living.fetch_transactions(4)
        living.release_after(first, 3600.0)
        sizes = []
        while came := living.fetch_transactions(4):
            sizes.append(len(came))
            for each in came:
                living.ack(each)
    assert sizes == [1] * 3 + [4] * 9


def test_the_name_is_ours_again_before_anything_is_handed_out(node: MemoryNode) -> None:
    """The count begins anew by letting go of the name: should it be lost then, nothing goes out."""
    dying = connect(node)
    dying.fetch_transactions(3)
    die(dying, node)
    with connect(node, retry=ONCE) as living:
        (first,) = living.fetch_transactions(3)
        living.release_after(first, 3600.0)
        node.faults["FetchFacts"] = [unavailable()]
        with pytest.raises(NodeUnavailableError):
            living.fetch_transactions(3)
        assert node.store.consumer("c").holder is None
        node.store.serve("c", 1, 1 << 20, holder="other")
        with pytest.raises(ConsumerHeldError):
            living.fetch_transactions(3)
        node.store.release_lease("c", "other")
        assert numbers(living.fetch_transactions(1)) == [1]


def test_a_node_that_does_not_let_go_is_no_obstacle(
    node: MemoryNode, caplog: pytest.LogCaptureFixture
) -> None:
    """The count goes on then, and so does the work."""
    dying = connect(node)
    dying.fetch_transactions(2)
    die(dying, node)
    with connect(node, retry=ONCE) as living:
        (first,) = living.fetch_transactions(2)
        node.faults["ReleaseLease"] = [unavailable()]
        living.release_after(first, 3600.0)
        assert numbers(living.fetch_transactions(2)) == [2]
    assert "could not let go" in caplog.text


# ---- waiting beside parked facts ----


def test_a_fetch_waits_beside_a_parked_fact(node: MemoryNode) -> None:
    """The node has something at once, but nothing new: it is asked now and then."""
    clock = node.clock
    with taking_part(clock), connect(node) as connector:
        first, *others = connector.fetch_transactions(40)
        connector.release_after(first, 60.0)
        for each in others:
            connector.ack(each)
        began, before = clock.now(), node.count("FetchFacts")
        assert connector.fetch_transactions(5, wait=20.0) == []
        assert clock.now() - began == pytest.approx(20.0)
        assert node.count("FetchFacts") - before < 20
        assert numbers(connector.fetch_transactions(5, wait=600.0)) == [1]
        assert clock.now() - began == pytest.approx(60.0, abs=0.5)


def test_a_fetch_waits_at_a_full_window(node: MemoryNode) -> None:
    """Nothing more may be read, so what is parked is waited for."""
    clock = node.clock
    with taking_part(clock), connect(node, limit=3) as connector:
        first, *others = connector.fetch_transactions(3)
        connector.release_after(first, 60.0)
        for each in others:
            connector.ack(each)
        began, before = clock.now(), node.count("FetchFacts")
        assert connector.fetch_transactions(5, wait=20.0) == []
        assert clock.now() - began == pytest.approx(20.0)
        assert node.count("FetchFacts") == before
        assert numbers(connector.fetch_transactions(5, wait=600.0)) == [1]


def test_what_arrives_beside_a_parked_fact_is_found(node: MemoryNode) -> None:
    """A fetch that waits looks for new facts, too."""
    clock = node.clock

    def tell_later() -> None:
        clock.sleep(5.0)
        node.append([(envelope(41), fact(41))])

    with taking_part(clock), connect(node) as connector:
        first, *others = connector.fetch_transactions(40)
        connector.release_after(first, 3600.0)
        for each in others:
            connector.ack(each)
        clock.spawn("later", tell_later)
        assert numbers(connector.fetch_transactions(1, wait=60.0)) == [41]


# ---- closing ----


def test_close_ends_the_keeper_of_an_event_loop(node: MemoryNode) -> None:
    """Nobody renews a lease for a connector that is closed, whatever thread has closed it."""

    async def scenario(is_elsewhere: bool) -> None:
        connector = BoundaryConnector(AsyncOver(node), consumer="c", log="outbound")
        await connector.fetch_transactions_async(1)
        [renewer] = [each for each in asyncio.all_tasks() if each.get_name() == "ergon-lease-c"]
        if is_elsewhere:
            await asyncio.to_thread(connector.close)
        else:
            connector.close()
        connector.close()
        await asyncio.wait([renewer], timeout=30)
        assert renewer.done()
        end_lease(node)

    asyncio.run(scenario(False))
    asyncio.run(scenario(True))


def test_close_after_the_loop_is_no_error(node: MemoryNode) -> None:
    """The task has gone with its loop."""
    connector = BoundaryConnector(AsyncOver(node), consumer="c", log="outbound")
    asyncio.run(connector.fetch_transactions_async(1))
    connector.close()


@pytest.mark.slow
def test_close_drains_the_outbox(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was dispatched is at the node when a connector is closed, if the node answers."""
    options: dict[str, Any] = {"from_zone": "a", "to_zone": "b", "outbox": tmp_path / "out.db"}
    with http_node() as node:
        with BoundaryConnector(node.url, **options, drain=60.0) as connector:
            connector.dispatch_transactions([told(n) for n in range(1, 301)])
        assert node.zone.store.logs()[0].head == 300
        assert "left in the outbox" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("drain", [0.0, 600.0])
def test_close_tells_what_is_left(
    drain: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that is away is not waited for; what is left is counted, and stays on disk."""
    options: dict[str, Any] = {"from_zone": "a", "to_zone": "b", "outbox": tmp_path / "out.db"}
    with http_node() as node:
        node.stop()
        with (
            caplog.at_level(logging.WARNING),
            BoundaryConnector(node.url, **options, drain=drain) as connector,
        ):
            connector.dispatch_transactions([told(1), told(2)])
        assert "2 facts are left in the outbox" in caplog.text
        node.start()
        with BoundaryConnector(node.url, **options, drain=60.0) as connector:
            connector.dispatch_transactions([told(3)])
        assert node.zone.store.logs()[0].head == 3


def test_a_bad_drain_is_refused() -> None:
    """Before anything is opened."""
    with pytest.raises(ConfigurationError, match=r"drain must be .* not -1"):
        BoundaryConnector("http://127.0.0.1:1", from_zone="a", drain=-1)
