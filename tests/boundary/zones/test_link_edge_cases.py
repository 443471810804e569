"""Links: what reviewers found once, and what must not come back."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.client.transport import AsyncObjectStream
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.maintenance import run_maintenance
from ergon_framework.boundary.node.app import NodeApplication
from ergon_framework.boundary.node.inprocess import InProcessTransport
from ergon_framework.boundary.node.policy import Policy
from ergon_framework.boundary.node.replication import Puller
from ergon_framework.boundary.node.status import status
from ergon_framework.boundary.settings import DAY, ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import BoundaryError, NodeUnavailableError, NotPermittedError
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from ergon_framework.testing import VirtualClock
from tests.boundary.zones.links import FaultyLink
from tests.boundary.zones.test_puller import PulledPair, with_pulled_pair

pytestmark = pytest.mark.req("BOUNDARY:zones")


def message(name: str, content: Any = 0, from_zone: str = "a", to_zone: str = "b") -> Any:
    """An envelope and a fact."""
    envelope = {
        "message_id": name,
        "from_zone": from_zone,
        "to_zone": to_zone,
        "produced_at_unix_ms": 1,
    }
    return envelope, {"subject": "order:1", "predicate": "created", "object_json": content}


def delivered(offset: int, content: Any = 0) -> dict[str, Any]:
    """A fact as a page carries it."""
    envelope, fact = message(f"order:{offset}", content)
    return {
        "offset": offset,
        "previous_offset": offset - 1,
        "envelope": envelope,
        "fact": fact,
    }


def page(*facts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What a peer answers to a fetch."""
    last = facts[-1]["offset"] if facts else 0
    told = {"head_offset": last, "through_offset": last, "cursor": 0, "epoch": "x"}
    return {"facts": list(facts), **told, **more}


class Speaker:
    """A peer that answers each fetch with the next page, and no confirmation ever."""

    def __init__(self, *pages: dict[str, Any]) -> None:
        self.pages = list(pages)

    async def call(self, method: str, body: bytes, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        if method.endswith("FetchFacts") and self.pages:
            return json.dumps(self.pages.pop(0)).encode()
        raise NodeUnavailableError("cut", reason="connection_lost")

    async def get_object(self, *_name: str, **_options: Any) -> AsyncObjectStream:
        raise NodeUnavailableError("cut", reason="connection_lost")

    async def put_object(self, *_name: Any, **_options: Any) -> bytes:
        raise NotImplementedError

    head_object = close = put_object


def listening(zone: LocalZone, peer: str, transport: Any) -> Puller:
    """A puller of a zone, which does everything where it stands."""
    sink = NodeApplication(zone, Policy.open, threads=0)
    return Puller(
        zone, peer, transport, in_thread=sink.in_thread, policy=Policy.open, dice=lambda: 0.5
    )


def held(zone: LocalZone, log: str = "inbound:a") -> list[str]:
    """The ids in a log."""
    return [fact.message_id for fact in zone.store.page(log, 0, 99, 1 << 20).facts]


def in_memory(name: str) -> LocalZone:
    """A zone that leaves nothing behind."""
    return LocalZone(name, MemoryFactStore(name), MemoryObjectStore())


# ---- a sender that changed ----


@pytest.mark.parametrize("others", [1, 3, 5])
def test_an_older_copy_whose_cursor_lags_is_noticed(others: int, tmp_path: Path) -> None:
    """Files put back from a copy bear the same epoch: new facts at old offsets are not passed."""
    live, copy = tmp_path / "a", tmp_path / "copy"
    settings = ZoneSettings(data=str(live))

    async def pulled(receiver: LocalZone, *ids: str, turns: int = 3) -> None:
        with LocalZone.open("a", settings) as sender:
            for each in ids:
                sender.append(*message(each))
            source = NodeApplication(sender, Policy.open, threads=0)
            puller = listening(receiver, "a", InProcessTransport(source))
            for _ in range(turns):
                await puller.turn()
            await source.close()

    async def whole() -> None:
        with in_memory("b") as receiver:
            await pulled(receiver, "order:0", "order:1", "order:2")
            shutil.copytree(live, copy)
            await pulled(receiver, "order:3", "order:4", "order:5")
            before = held(receiver)
            shutil.rmtree(live)
            shutil.copytree(copy, live)
            new = [f"other:{number}" for number in range(others)]
            with pytest.raises(BoundaryError, match="went back in time") as caught:
                await pulled(receiver, *new)
            assert caught.value.reason == "epoch_changed"
            assert held(receiver) == before == [f"order:{number}" for number in range(6)]

    VirtualClock().run(whole())


@with_pulled_pair
async def test_a_peer_that_comes_after_retention(pair: PulledPair) -> None:
    """A new peer is told what was dropped before it came, once, and gets all the rest."""
    for number in range(4):
        pair.append(f"order:{number}")
    pair.a.store.create_consumer("audit", "outbound")
    pair.a.store.serve("audit", 9, 1 << 20)
    pair.a.store.confirm("audit", 2)
    assert pair.a.store.truncate("outbound", 2) == 2
    for _ in range(5):
        await pair.puller.turn()
    assert pair.inbound() == ["order:2", "order:3"]
    (gap,) = pair.b.store.gaps("inbound:a")
    assert (gap.first, gap.source_first, gap.source_last) == (1, 1, 2)
    assert gap.reason == "dropped before we came"
    assert "loss" in pair.alerts()
    assert pair.a.store.consumer("zone:b").cursor == 4


@pytest.mark.parametrize("fault", ["drop", "lose_reply"])
def test_a_loss_that_is_written_down_before_the_peer_hears_of_it(fault: str) -> None:
    """The peer's cursor still lies in what is gone: the link goes on, and the loss is told once."""

    async def whole() -> None:
        pair = PulledPair()
        pair.a.store.create_consumer("zone:b", "outbound", to_zone="b", is_required=False)
        for number in range(4):
            pair.append(f"order:{number}")
        pair.a.store.create_consumer("audit", "outbound")
        pair.a.store.serve("audit", 9, 1 << 20)
        pair.a.store.confirm("audit", 2)
        assert pair.a.store.truncate("outbound", 2) == 2
        pair.link.script.extend(["", fault])  # the fetch is answered, and the seek is not
        with pytest.raises(NodeUnavailableError):
            await pair.puller.turn()
        assert pair.b.store.link("a").offset == 2
        pair.puller = pair.made()  # a process that died there and was started again
        for _ in range(3):
            await pair.puller.turn()
        assert pair.inbound() == ["order:2", "order:3"]
        assert [(gap.source_first, gap.source_last) for gap in pair.b.store.gaps()] == [(1, 2)]
        assert pair.a.store.consumer("zone:b").cursor == 4

    VirtualClock().run(whole())


@pytest.mark.parametrize("is_heard", [False, True])
def test_a_gap_is_recorded_once(is_heard: bool, tmp_path: Path) -> None:
    """A peer may tell of the same loss each time, whether or not it hears our confirmations."""
    gaps = [{"first_offset": 1, "last_offset": 5, "reason": "retention"}]
    facts = [delivered(6), delivered(7), delivered(8)]
    speaker = Speaker(
        page(facts[0], gaps=gaps),
        page(*facts[1:2], gaps=gaps, cursor=6 if is_heard else 0),
        page(*facts[2:3], gaps=gaps, cursor=7 if is_heard else 0),
    )

    async def whole() -> None:
        with LocalZone.open("b", ZoneSettings(data=str(tmp_path))) as zone:
            puller = listening(zone, "a", speaker)
            for _ in range(3):
                with pytest.raises(NodeUnavailableError):
                    await puller.turn()
            assert not speaker.pages
            assert [(gap.source_first, gap.source_last) for gap in zone.store.gaps()] == [(1, 5)]

    VirtualClock().run(whole())


@with_pulled_pair
async def test_a_wrongly_named_peer_is_refused(pair: PulledPair) -> None:
    """Without certificates, too, nothing is filed under the name of another zone."""
    pair.append("order:1")
    puller = listening(pair.b, "c", pair.link)
    with pytest.raises(NotPermittedError, match="the peer called c is zone 'a'") as caught:
        await puller.turn()
    assert caught.value.reason == "zone_mismatch"
    assert held(pair.b, "inbound:c") == []
    assert pair.b.store.link("c").epoch is None


@pytest.mark.parametrize("names", [("Plant A", "Plant B"), ("Werk Köln", "大阪 2")])
def test_any_zone_name_can_pull(names: tuple[str, str]) -> None:
    """Spaces and letters of any script are as good as others, also in a consumer's name."""
    sender, receiver = names

    async def whole() -> None:
        with in_memory(sender) as a, in_memory(receiver) as b:
            a.append(*message("order:1", from_zone=sender, to_zone=receiver))
            source = NodeApplication(a, Policy.open, threads=0)
            await listening(b, sender, InProcessTransport(source)).turn()
            assert held(b, f"inbound:{sender}") == ["order:1"]
            assert a.store.consumer(f"zone:{receiver}").cursor == 1

    VirtualClock().run(whole())


# ---- what a peer may answer ----


def deep(depth: int) -> Any:
    """Objects in objects."""
    content: Any = 0
    for _ in range(depth):
        content = {"a": content}
    return content


ODD = {
    "a chain that is no hex": page(delivered(1), through_chain="zz"),
    "a huge head": page(head_offset=1 << 64, through_offset=1 << 64),
    "a huge offset": page({**delivered(1), "offset": 1 << 70}, through_offset=1 << 70),
    "a huge gap": page(
        delivered(1), gaps=[{"first_offset": 1 << 70, "last_offset": 1 << 70, "reason": "x"}]
    ),
    "a lone surrogate": page(delivered(1), epoch="\ud800"),
    "no object": {"facts": 7},
    "a negative offset": page({**delivered(1), "offset": -5}),
}


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_an_odd_answer_does_not_end_the_link(odd: dict[str, Any], tmp_path: Path) -> None:
    """Whatever a peer says once, the link asks again; its good answer is taken."""

    async def whole() -> None:
        with LocalZone.open("b", ZoneSettings(data=str(tmp_path))) as zone:
            speaker = Speaker(odd)
            puller = listening(zone, "a", speaker)
            running = asyncio.create_task(puller.run())
            await asyncio.sleep(60)
            assert not running.done()
            assert not speaker.pages
            zone.store.accept_epoch("a", None)
            speaker.pages = [page(delivered(1), delivered(2), epoch="good")] * 9
            await asyncio.sleep(60)
            assert not running.done()
            assert held(zone)[-1] == "order:2"
            running.cancel()

    VirtualClock().run(whole())


UNUSABLE = {
    "out of order": page(delivered(2), delivered(1), through_offset=2),
    "the same fact twice": page(delivered(1), delivered(1)),
    "a negative offset": page({**delivered(1), "offset": -5}, delivered(2)),
    "no offset of a store": page({**delivered(1), "offset": 1 << 63}),
    "a negative end": page(through_offset=-1),
    "an end before its facts": page(delivered(1), delivered(2), through_offset=1),
    "an end that no store holds": page(head_offset=1 << 63, through_offset=1 << 63),
    "a loss backwards": page(
        head_offset=5,
        through_offset=5,
        gaps=[{"first_offset": 5, "last_offset": -4, "reason": "x"}],
    ),
    "a loss before the log": page(
        delivered(1), gaps=[{"first_offset": -9, "last_offset": 0, "reason": "x"}]
    ),
    "facts that do not join on": page({**delivered(3), "previous_offset": 2}),
}


@pytest.mark.req("BOUNDARY:badinput", "BOUNDARY:operator")
@pytest.mark.parametrize("answer", UNUSABLE.values(), ids=UNUSABLE)
def test_a_page_that_cannot_be_used_is_an_alert(answer: dict[str, Any], tmp_path: Path) -> None:
    """Nothing of it is taken and nothing moves; the operator is told what is wrong with it."""

    async def whole() -> None:
        with LocalZone.open("b", ZoneSettings(data=str(tmp_path))) as zone:
            speaker = Speaker(*[answer] * 1000)
            running = asyncio.create_task(listening(zone, "a", speaker).run())
            await asyncio.sleep(30)
            assert (held(zone), zone.store.gaps(), zone.store.links()) == ([], [], [])
            [alert] = status(zone)["alerts"]
            assert alert["kind"] == "link"
            assert alert["text"].startswith(
                "nothing is pulled from a: a page of a cannot be used: "
            )
            assert len(speaker.pages) > 900  # it waits between two questions
            speaker.pages = [page(delivered(1), delivered(2))]
            await asyncio.sleep(5)
            assert held(zone) == ["order:1", "order:2"]
            running.cancel()

    VirtualClock().run(whole())


@pytest.mark.req("BOUNDARY:badinput")
def test_a_fact_that_is_too_deep_is_set_aside() -> None:
    """Content that no zone takes passes into quarantine, and those behind it arrive."""
    speaker = Speaker(page(delivered(1, deep(500)), delivered(2)))

    async def whole() -> None:
        with in_memory("b") as zone:
            with pytest.raises(NodeUnavailableError):  # the confirmation, which comes last
                await listening(zone, "a", speaker).turn()
            assert held(zone) == ["order:2"]
            assert [item.offset for item in zone.store.quarantine("pull:a")] == [1]

    VirtualClock().run(whole())


# ---- seals and releases ----


@pytest.mark.req("BOUNDARY:badinput")
def test_what_is_no_fact_is_set_aside() -> None:
    """One item of a page cannot be read: it is kept as it came, and those behind it arrive."""
    odd = delivered(1)
    odd["envelope"]["labels"] = {"shift": 3}
    speaker = Speaker(page(odd, delivered(2)))

    async def whole() -> None:
        with in_memory("b") as zone:
            puller = listening(zone, "a", speaker)
            with pytest.raises(NodeUnavailableError):  # the confirmation, which comes last
                await puller.turn()
            assert held(zone) == ["order:2"]
            (item,) = zone.store.quarantine("pull:a")
            assert (item.offset, item.reason) == (1, "malformed")
            assert json.loads(item.fact) == odd
            zone.store.settle(item.id, "released")
            speaker.pages = [page(delivered(3), cursor=2)]
            with pytest.raises(NodeUnavailableError):
                await puller.turn()
            assert held(zone) == ["order:2", "order:3"]
            assert [each.id for each in zone.store.quarantine("pull:a")] == [item.id]

    VirtualClock().run(whole())


@with_pulled_pair
async def test_a_seal_during_a_waiting_fetch_lets_nothing_in(pair: PulledPair) -> None:
    """A fetch that waits at the peer when the link is sealed brings its page for nothing."""
    await pair.puller.turn()  # caught up: the next fetch waits for facts
    turning = asyncio.create_task(pair.puller.turn())
    await asyncio.sleep(0.5)
    pair.b.store.seal("a", "incident")
    pair.append("order:1")
    await turning
    assert pair.link.calls[-1].endswith("FetchFacts")
    assert pair.inbound() == []
    assert pair.a.store.consumer("zone:b").cursor == 0
    pair.b.store.open("a")
    await pair.puller.turn()
    assert pair.inbound() == ["order:1"]


@with_pulled_pair
async def test_an_opening_is_noticed_without_a_wake(pair: PulledPair) -> None:
    """An operator's call that comes between the look and the wait wakes nobody, and still works."""
    pair.b.store.seal("a", "maintenance")
    pair.append("order:1")
    running = asyncio.create_task(pair.puller.run())
    await asyncio.sleep(0.5)
    pair.b.store.open("a")
    await asyncio.sleep(5)
    assert pair.inbound() == ["order:1"]
    running.cancel()


@with_pulled_pair
async def test_a_released_fact_that_still_conflicts_goes_back(pair: PulledPair) -> None:
    """It is not settled as if it had been taken in; an operator sees it again."""
    pair.append("order:1", "first")
    await pair.puller.turn()
    pair.a.store = MemoryFactStore("a", clock=lambda: pair.now)
    pair.link.inner = InProcessTransport(NodeApplication(pair.a, Policy.open, threads=0))
    pair.append("order:1", "second")
    pair.b.store.accept_epoch("a", None)
    await pair.puller.turn()
    (item,) = pair.b.store.quarantine("pull:a")
    pair.b.store.settle(item.id, "released")
    await pair.puller.turn()
    (again,) = pair.b.store.quarantine("pull:a", None)
    assert (again.id, again.state, again.reason) == (item.id, "quarantined", item.reason)
    assert pair.inbound() == ["order:1"]
    assert "quarantine" in pair.alerts()


# ---- garbage ----


class Housekeeper(FaultyLink):
    """A link on which the receiver's house is kept while the artifact ``slow`` is on its way."""

    def __init__(self, inner: InProcessTransport, pair: PulledPair) -> None:
        super().__init__(inner)
        self.pair = pair
        self.is_failing = True
        self.rounds: list[int] = []

    async def get_object(
        self,
        bucket: str,
        key: str,
        *,
        start: int = 0,
        digest: bytes | None = None,
        fact_offset: int | None = None,
    ) -> AsyncObjectStream:
        if key == "slow":
            if self.is_failing:
                raise NodeUnavailableError("cut", reason="connection_lost")
            self.pair.now += 2 * DAY
            self.rounds.append(run_maintenance(self.pair.b, is_thorough=True).objects)
        return await super().get_object(
            bucket, key, start=start, digest=digest, fact_offset=fact_offset
        )


@pytest.mark.req("P15", "BOUNDARY:objects")
@with_pulled_pair
async def test_what_a_pull_has_fetched_is_not_garbage(pair: PulledPair) -> None:
    """One artifact came days before the other: a round in between takes neither of them."""
    named = {key: pair.a.put("files", key, key.encode() * 100) for key in ("quick", "slow")}
    parts = [
        {"bucket": "files", "key": key, "digest": put.digest, "size": put.size}
        for key, put in named.items()
    ]
    pair.append("order:1", {"attachments": parts})
    link = Housekeeper(InProcessTransport(pair.source), pair)
    puller = listening(pair.b, "a", link)
    with pytest.raises(NodeUnavailableError):
        await puller.turn()
    assert pair.b.store.object("files", "quick") is not None
    pair.now += 2 * DAY  # the link is down, and what came is an orphan past its grace
    link.is_failing = False
    await puller.turn()
    assert link.rounds == [0]
    assert pair.inbound() == ["order:1"]
    for put in named.values():
        stored = pair.b.found("files", put.key)
        assert stored.is_referenced
        assert pair.b.objects.stat(stored.digest) is not None
