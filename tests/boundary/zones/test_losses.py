"""What a peer lost, as the consumers of the zone that pulls from it hear of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.client.transport import encode
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.model import Batch, Loss
from ergon_framework.boundary.node import replication_plan
from ergon_framework.boundary.node.app import NodeApplication
from ergon_framework.boundary.node.inprocess import InProcessTransport
from ergon_framework.boundary.node.policy import Policy
from ergon_framework.boundary.node.wire import gap_view
from ergon_framework.boundary.settings import LimitSettings, ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.cli.boundary_facts import show_page
from ergon_framework.errors import BoundaryError, NodeUnavailableError
from ergon_framework.ports.factstore import Gap, Link, LogPage, NewFact
from ergon_framework.testing import VirtualClock
from tests.boundary.client.scripted import Colour, MemoryNode, envelope, fact
from tests.boundary.client.test_consumer import BOTH, Handler, confirms, read_all
from tests.boundary.suite.stores import damage_memory
from tests.boundary.zones.links import FaultyLink
from tests.boundary.zones.test_link_edge_cases import (
    Speaker,
    delivered,
    in_memory,
    listening,
    message,
    page,
)
from tests.boundary.zones.test_puller import PulledPair, with_pulled_pair

pytestmark = pytest.mark.req("BOUNDARY:zones", "BOUNDARY:consumer")
LIMITS = LimitSettings()


def told(given: LogPage) -> list[Any]:
    """What a page has, in order: offsets that facts had at the peer, and ranges lost there."""
    found: dict[int, Any] = {each.offset: each.source_offset for each in given.facts}
    found |= {gap.first: (gap.source_first, gap.source_last, gap.reason) for gap in given.gaps}
    return [found[offset] for offset in sorted(found)]


def planned(link: Link, **batch: Any) -> list[tuple[int, int]]:
    """What a page tells of losses, as it is written down."""
    made = replication_plan.plan(link, Batch(**batch), LIMITS, 5.0, lambda _zone: True)
    return [(gap.first, gap.last) for gap in made.gaps]


def loss(first: int, last: int, at: int | None = 7000) -> Loss:
    """What a peer says about facts that it gave up."""
    return Loss(first_offset=first, last_offset=last, reason="age", recorded_at_unix_ms=at)


# ---- on the way ----


@with_pulled_pair
async def test_consumers_hear_of_a_loss_between_the_facts_around_it(pair: PulledPair) -> None:
    """In order, once, and also when nothing has come behind it yet."""
    store = pair.b.store
    store.create_consumer("erp", "inbound:a")
    pair.append("order:1")
    await pair.puller.turn()
    for number in range(2, 5):
        pair.append(f"order:{number}")
    pair.a.store.truncate("outbound", 4, loss_reason="retention")
    await pair.puller.turn()
    given = store.serve("erp", 9, 1 << 20).page
    assert told(given) == [1, (2, 4, "retention")]
    store.confirm("erp", given.through)
    pair.append("order:5")
    pair.puller = pair.made()
    await pair.puller.turn()
    assert told(store.serve("erp", 9, 1 << 20).page) == [5]
    assert pair.a.store.consumer("zone:b").cursor == 5


@with_pulled_pair
async def test_a_loss_that_goes_on_is_told_in_parts(pair: PulledPair) -> None:
    """The peer widens its gap; what is new of it is told, and nothing twice."""
    await pair.puller.turn()
    for number in range(1, 5):
        pair.append(f"order:{number}")
    pair.a.store.truncate("outbound", 2, loss_reason="retention")
    pair.link.script.extend(["", "lose_reply"])  # b has it, and a does not know
    with pytest.raises(NodeUnavailableError):
        await pair.puller.turn()
    pair.append("order:5")
    pair.append("order:6")
    pair.a.store.truncate("outbound", 6, loss_reason="retention")
    for _ in range(4):
        await pair.puller.turn()
    pair.append("order:7")
    await pair.puller.turn()
    given = pair.b.store.page("inbound:a", 0, 99, 1 << 20)
    assert told(given) == [(1, 2, "retention"), 3, 4, (5, 6, "retention"), 7]
    assert [gap.at for gap in given.gaps] == [pair.now, pair.now]


@with_pulled_pair
async def test_a_damaged_fact_behind_a_loss(pair: PulledPair) -> None:
    """Both are told, whichever made the other go unnoticed once."""
    store = pair.a.store
    assert isinstance(store, MemoryFactStore)
    await pair.puller.turn()
    for number in range(1, 6):
        pair.append(f"order:{number}")
    store.truncate("outbound", 2, loss_reason="retention")
    damage_memory(store, "outbound", 3)
    for _ in range(4):
        await pair.puller.turn()
    given = pair.b.store.page("inbound:a", 0, 99, 1 << 20)
    assert told(given) == [(1, 2, "retention"), (3, 3, "corrupted"), 4, 5]


@with_pulled_pair
async def test_a_loss_before_a_fact_whose_artifact_is_missing(pair: PulledPair) -> None:
    """The link waits for the artifact behind the loss, which is told already, and once."""
    await pair.puller.turn()
    for number in range(1, 3):
        pair.append(f"order:{number}")
    pair.attach("order:3")
    pair.a.store.truncate("outbound", 2, loss_reason="retention")
    pair.link.script.extend(["", "drop"])
    with pytest.raises(NodeUnavailableError):
        await pair.puller.turn()
    assert told(pair.b.store.page("inbound:a", 0, 99, 1 << 20)) == [(1, 2, "retention")]
    assert pair.b.store.link("a").offset == 2
    for _ in range(2):
        await pair.puller.turn()
    assert told(pair.b.store.page("inbound:a", 0, 99, 1 << 20)) == [(1, 2, "retention"), 3]


def test_an_accepted_epoch_tells_no_loss_twice() -> None:
    """What is pulled once more from the start is known, losses and facts; another loss is not."""
    lost = {"first_offset": 1, "last_offset": 3, "reason": "retention"}
    pages = [
        page(delivered(4), gaps=[{**lost, "recorded_at_unix_ms": 1000 * at}], epoch=epoch)
        for epoch, at in (("x", 7), ("y", 7), ("z", 9))
    ]

    async def whole() -> None:
        with in_memory("b") as zone:
            puller = listening(zone, "a", Speaker(*pages))
            for _ in pages:
                zone.store.accept_epoch("a", None)
                with pytest.raises(NodeUnavailableError):  # the confirmation, which comes last
                    await puller.turn()
            given = zone.store.page("inbound:a", 0, 99, 1 << 20)
            assert told(given) == [(1, 3, "retention"), 4, (1, 3, "retention")]
            assert [gap.at for gap in given.gaps] == [7.0, 9.0]

    VirtualClock().run(whole())


def test_a_restart_of_both_zones(tmp_path: Path) -> None:
    """On disk: a loss is told by the next process, in order, and not again once confirmed."""

    async def turns(source: LocalZone, sink: LocalZone, count: int) -> None:
        node = NodeApplication(source, Policy.open, threads=0)
        puller = listening(sink, "a", InProcessTransport(node))
        for _ in range(count):
            await puller.turn()
        await node.close()

    def opened(name: str) -> LocalZone:
        return LocalZone.open(name, ZoneSettings(data=str(tmp_path / name)))

    async def whole() -> None:
        with opened("a") as a, opened("b") as b:
            b.store.create_consumer("erp", "inbound:a")
            a.append(*message("order:1"))
            await turns(a, b, 1)
            for number in range(2, 6):
                a.append(*message(f"order:{number}"))
            a.store.truncate("outbound", 4, loss_reason="retention")
        with opened("a") as a, opened("b") as b:
            await turns(a, b, 2)
        with opened("b") as b:
            given = b.store.serve("erp", 9, 1 << 20).page
            assert told(given) == [1, (2, 4, "retention"), 5]
            b.store.confirm("erp", 2)
        with opened("b") as b:
            assert told(b.store.serve("erp", 9, 1 << 20).page) == [5]
            assert [each for each in b.store.verify("inbound:a") if not isinstance(each, int)] == []

    VirtualClock().run(whole())


@with_pulled_pair
async def test_a_peer_that_does_not_say_what_it_dropped(pair: PulledPair) -> None:
    """The link fails, and is tried again later: nothing is passed that nobody names."""

    class Silent(FaultyLink):
        async def call(self, method: str, body: bytes, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
            raise BoundaryError("gone", code="out_of_range", reason="truncated")

    pair.link = Silent(InProcessTransport(pair.source))
    with pytest.raises(BoundaryError, match="gone"):
        await pair.made().turn()
    assert pair.b.store.gaps() == []


# ---- what is made of a page ----


def test_losses_are_written_down_from_the_frontier_on() -> None:
    """What is known is left out, overlaps count once, and what lies beyond is asked for again."""
    link = Link("a", "e", 4)
    assert planned(link, gaps=(loss(1, 6),), through_offset=9) == [(5, 6)]
    assert planned(link, gaps=(loss(1, 4),), through_offset=9) == []
    assert planned(link, gaps=(loss(6, 8), loss(5, 7)), through_offset=9) == [(5, 7), (8, 8)]
    assert planned(link, gaps=(loss(5, 20),), through_offset=9) == [(5, 9)]
    assert planned(link, gaps=(loss(20, 5),), through_offset=9) == []


def test_the_instant_of_a_loss_is_the_peers() -> None:
    """A peer that does not say when it was gets the instant of the pull."""
    batch = Batch(gaps=(loss(1, 1), loss(2, 2, at=None)), through_offset=2)
    made = replication_plan.plan(Link("a"), batch, LIMITS, 5.0, lambda _zone: True)
    assert [gap.at for gap in made.gaps] == [7.0, 5.0]


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize(
    "odd",
    [
        {"first_offset": 1, "last_offset": 1, "reason": "\0", "recorded_at_unix_ms": -1},
        {"first_offset": 1, "last_offset": 1, "reason": "x" * 10_000},
    ],
)
def test_odd_losses_do_not_stop_the_link(odd: dict[str, Any], tmp_path: Path) -> None:
    """Whatever a peer says of why and when it lost something, its facts arrive."""

    async def whole() -> None:
        speaker = Speaker(page({**delivered(2), "previous_offset": 0}, gaps=[odd]))
        with LocalZone.open("b", ZoneSettings(data=str(tmp_path))) as zone:
            with pytest.raises(NodeUnavailableError):  # the confirmation, which comes last
                await listening(zone, "a", speaker).turn()
            given = zone.store.page("inbound:a", 0, 99, 1 << 20)
            assert [each.source_offset for each in given.facts] == [2]
            assert all(gap.source_first == 1 for gap in given.gaps)

    VirtualClock().run(whole())


def test_a_loss_warns(caplog: pytest.LogCaptureFixture) -> None:
    """Who reads the node's log learns which of the peer's facts are gone, and why."""

    async def whole() -> None:
        gap = {"first_offset": 1, "last_offset": 3, "reason": "retention"}
        with in_memory("b") as zone, pytest.raises(NodeUnavailableError):
            await listening(zone, "a", Speaker(page(delivered(4), gaps=[gap]))).turn()

    VirtualClock().run(whole())
    assert "a gave up its facts 1 to 3: retention" in caplog.text


# ---- the consumer ----


def reading(gaps: list[Gap], *numbers: int) -> tuple[MemoryNode, Handler]:
    """A node that pulled facts and losses, a consumer of them, and a handler."""
    node = MemoryNode(VirtualClock())
    facts = [
        NewFact("a", f"id-{n}", "b", bytes([n]) * 32, encode(envelope(n)), encode(fact(n)), (), n)
        for n in numbers
    ]
    node.store.receive("a", facts, Link("a", "e1", 9), (), gaps)
    node.store.create_consumer("c", "inbound:a")
    return node, Handler(node)


@BOTH
def test_losses_of_a_peer_are_told_in_their_place(colour: Colour) -> None:
    """The SDK hands them to ``on_gap`` between the facts around them, and once."""
    gaps = [Gap("outbound", 1, 3, "retention", 1.0), Gap("outbound", 6, 6, "corrupted", 1.0)]
    node, handler = reading(gaps, 4, 5, 7)
    heard: list[Any] = []

    def on_gap(lost: Loss) -> None:
        heard.append((lost.source_first_offset, lost.source_last_offset, list(handler.seen)))

    report = read_all(colour, node, handler, on_gap=on_gap, limit=2)
    assert heard == [(1, 3, []), (6, 6, [2, 3])]
    assert handler.seen == [2, 3, 5]
    assert (report.lost, report.cursor) == (4, 5)
    assert read_all(colour, node, handler, on_gap=on_gap).lost == 0


@BOTH
def test_a_told_loss_is_confirmed_before_a_fact_that_fails(colour: Colour) -> None:
    """Whoever stops at the fact behind it does not hear of the loss again."""
    node, handler = reading([Gap("outbound", 1, 3, "retention", 1.0)], 4)
    handler.fails = {2: [ValueError("no")] * 9}
    heard: list[Loss] = []
    report = read_all(colour, node, handler, on_gap=heard.append, max_attempts=2)
    assert [each.count for each in heard] == [3]
    assert (report.quarantined, report.cursor) == (1, 2)
    assert confirms(node)[0] == 1


def test_losses_of_a_peer_are_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    """Without a function of one's own the warning names the offsets of the peer."""
    node, handler = reading([Gap("outbound", 4, 8, "retention", 1.0)])
    report = read_all("threads", node, handler)
    assert "facts 4 to 8 of the peer were given up" in caplog.text
    assert (handler.seen, report.lost, report.cursor) == ([], 5, 1)


def test_the_command_line_shows_both_offsets(capsys: pytest.CaptureFixture[str]) -> None:
    """A page on a terminal says where a loss lies here, and what it was at the peer."""
    peers = Gap("inbound:a", 3, 3, "retention", 1.0, 7, 9)
    ours = Gap("inbound:a", 4, 5, "disk", 1.0)
    shown = {"facts": [], "gaps": [gap_view(gap) for gap in (peers, ours)]}
    show_page(shown, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["lost: 3, at the peer 7 to 9 (retention)", "lost: 4 to 5 (disk)"]
