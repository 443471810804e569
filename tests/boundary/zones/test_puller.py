"""One link, turn by turn: what the puller does with each thing a peer can say."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import Any

import pytest

from ergon_framework.boundary.facts.schema import parsed
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.node.app import NodeApplication
from ergon_framework.boundary.node.inprocess import InProcessTransport
from ergon_framework.boundary.node.policy import Policy
from ergon_framework.boundary.node.replication import Puller
from ergon_framework.boundary.node.status import status
from ergon_framework.boundary.settings import (
    GateSettings,
    LimitSettings,
    PullSettings,
    ZoneSettings,
)
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.core.zone_link import Mode
from ergon_framework.errors import (
    BoundaryError,
    NodeUnavailableError,
    NotPermittedError,
    StoreError,
)
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from ergon_framework.testing import VirtualClock
from tests.boundary.suite.stores import damage_memory
from tests.boundary.zones.links import FaultyLink

pytestmark = pytest.mark.req("BOUNDARY:zones")

SETTINGS = ZoneSettings(
    pull=PullSettings(page=3, wait=1, artifact_attempts=2),
    gate=GateSettings(failures=2, lag=1, settle=5),
)
DATA = b"the bytes of an artifact" * 10


class PulledPair:
    """Zone a, a link, and zone b whose puller is turned by hand."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.now = 1_000_000.0
        self.a = self.zone("a")
        self.b = self.zone("b")
        self.policy = policy or Policy.open()
        self.source = NodeApplication(self.a, Policy.open, threads=0)
        self.sink = NodeApplication(self.b, Policy.open, threads=0)
        self.link = FaultyLink(InProcessTransport(self.source))
        self.puller = self.made()

    def zone(self, name: str) -> LocalZone:
        """A zone in memory."""
        store = MemoryFactStore(name, clock=lambda: self.now)
        return LocalZone(name, store, MemoryObjectStore(), SETTINGS, clock=lambda: self.now)

    def made(self) -> Puller:
        """A fresh puller, as after a restart of b."""
        return Puller(
            self.b,
            "a",
            self.link,
            in_thread=self.sink.in_thread,
            policy=lambda: self.policy,
            dice=lambda: 0.5,
        )

    def append(self, name: str, content: Any = 0, to_zone: str = "b", from_zone: str = "a") -> int:
        """A fact in a's log."""
        envelope = {
            "message_id": name,
            "from_zone": from_zone,
            "to_zone": to_zone,
            "produced_at_unix_ms": 1,
        }
        fact = {"subject": "order:1", "predicate": "created", "object_json": content}
        return self.a.append(envelope, fact).offset

    def attach(self, name: str) -> dict[str, Any]:
        """An artifact in a, and a fact that refers to it."""
        receipt = self.a.put("files", "one", DATA)
        told = {"bucket": "files", "key": "one", "digest": receipt.digest, "size": receipt.size}
        self.append(name, told)
        return told

    def inbound(self) -> list[str]:
        """The ids in b's inbound log."""
        return [each.message_id for each in self.b.store.page("inbound:a", 0, 99, 1 << 20).facts]

    def mode(self) -> str:
        """How b's operator sees the link."""
        return str(self.b.gates["a"]["mode"])

    def alerts(self) -> list[str]:
        """What b's operator is told."""
        return [alert["kind"] for alert in status(self.b)["alerts"]]


def with_pulled_pair(test: Any) -> Any:
    """Run a coroutine test on a virtual event loop, with a bench made in it."""

    def run() -> None:
        async def whole() -> None:
            await test(PulledPair())

        VirtualClock().run(whole())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@with_pulled_pair
async def test_pages_arrive_in_order_and_are_confirmed(pair: PulledPair) -> None:
    """Facts to this zone arrive; those to others do not; the peer's cursor follows."""
    for number in range(8):
        pair.append(f"order:{number}", to_zone="b" if number % 2 else "c")
    for _ in range(3):
        await pair.puller.turn()
    assert pair.inbound() == ["order:1", "order:3", "order:5", "order:7"]
    info = pair.a.store.consumer("zone:b")
    assert (info.cursor, info.lag, info.to_zone) == (8, 0, "b")
    assert pair.b.store.link("a").offset == 8


@with_pulled_pair
async def test_the_gate_has_hysteresis(pair: PulledPair) -> None:
    """Two failures shut it; it is normal again only after it was caught up for a while."""
    pair.link.is_cut = True
    running = asyncio.create_task(pair.puller.run())
    await asyncio.sleep(3)
    assert pair.mode() == Mode.AUTONOMOUS
    assert "link" in pair.alerts()
    for number in range(9):
        pair.append(f"order:{number}")
    pair.link.is_cut = False
    await asyncio.sleep(2)
    assert len(pair.inbound()) == 9
    assert pair.mode() == Mode.RECONCILING
    await asyncio.sleep(20)
    assert pair.mode() == Mode.NORMAL
    assert pair.alerts() == ["unsynced"]  # it is in memory
    pair.puller.stop()
    running.cancel()


@with_pulled_pair
async def test_a_sign_of_life_cuts_the_wait_short(pair: PulledPair) -> None:
    """A peer that asks us for facts lives: the next pull follows at once."""
    pair.link.is_cut = True
    slow = PullSettings(base=1000, cap=1000, wait=1)
    pair.b.settings = SETTINGS.model_copy(update={"pull": slow})
    pair.puller = pair.made()
    running = asyncio.create_task(pair.puller.run())
    await asyncio.sleep(1)
    pair.link.is_cut = False
    pair.append("order:1")
    await asyncio.sleep(1)
    assert pair.inbound() == []
    pair.puller.wake()
    await asyncio.sleep(0)
    await asyncio.sleep(0.1)
    assert pair.inbound() == ["order:1"]
    pair.puller.stop()
    running.cancel()


@with_pulled_pair
async def test_a_seal_holds_until_it_is_opened(pair: PulledPair) -> None:
    """A sealed link asks the peer nothing, and what has piled up comes after the opening."""
    pair.b.store.seal("a", "maintenance")
    running = asyncio.create_task(pair.puller.run())
    pair.append("order:1")
    await asyncio.sleep(60)
    assert (pair.link.calls, pair.inbound()) == ([], [])
    assert "sealed" in pair.alerts()
    pair.b.store.open("a")
    pair.puller.wake()
    await asyncio.sleep(1)
    assert pair.inbound() == ["order:1"]
    pair.puller.stop()
    running.cancel()


@with_pulled_pair
async def test_a_sealed_source_serves_no_peer(pair: PulledPair) -> None:
    """A zone that is sealed keeps its facts from its peers, and takes new ones all the same."""
    await pair.puller.turn()
    pair.a.store.seal("", "audit")
    assert pair.append("order:1") == 1
    with pytest.raises(NodeUnavailableError, match="sealed"):
        await pair.puller.turn()
    pair.a.store.open("")
    await pair.puller.turn()
    assert pair.inbound() == ["order:1"]


@with_pulled_pair
async def test_a_peer_that_went_back_in_time_is_refused(pair: PulledPair) -> None:
    """A peer with another store is not believed until an operator says so; nothing doubles."""
    for number in range(3):
        pair.append(f"order:{number}")
    await pair.puller.turn()
    pair.a.store = MemoryFactStore("a", clock=lambda: pair.now)
    pair.link.inner = InProcessTransport(NodeApplication(pair.a, Policy.open, threads=0))
    for number in range(2, 6):
        pair.append(f"order:{number}")
    with pytest.raises(BoundaryError, match="another one than before"):
        await pair.puller.turn()
    assert pair.inbound() == ["order:0", "order:1", "order:2"]
    pair.b.store.accept_epoch("a", None)
    for _ in range(4):
        await pair.puller.turn()
    assert pair.inbound() == [f"order:{number}" for number in range(6)]


@with_pulled_pair
async def test_a_receiver_that_went_back_asks_again(pair: PulledPair) -> None:
    """A receiver whose log ends earlier than the peer believes gets what it lost."""
    for number in range(3):
        pair.append(f"order:{number}")
    await pair.puller.turn()
    pair.b = pair.zone("b")
    pair.sink = NodeApplication(pair.b, Policy.open, threads=0)
    pair.puller = pair.made()
    pair.now += 60  # the lease of the one it was before
    for _ in range(3):
        await pair.puller.turn()
    assert pair.inbound() == ["order:0", "order:1", "order:2"]
    assert any(action == "seek" for _at, action, _text in pair.a.store.journal())


@with_pulled_pair
async def test_an_artifact_comes_before_its_fact(pair: PulledPair) -> None:
    """The fact waits while its artifact cannot be had, and the facts before it do not."""
    pair.append("order:1")
    told = pair.attach("order:2")
    pair.append("order:3")
    pair.link.script.extend(["", "", "drop"])
    with pytest.raises(BoundaryError):
        await pair.puller.turn()
    if pair.inbound() == []:  # the first call made the consumer
        pair.link.script.extend(["", "drop"])
        with pytest.raises(BoundaryError):
            await pair.puller.turn()
    assert pair.inbound() == ["order:1"]
    await pair.puller.turn()
    await pair.puller.turn()
    assert pair.inbound() == ["order:1", "order:2", "order:3"]
    stored = pair.b.store.object("files", "one")
    assert stored is not None
    assert stored.is_referenced
    assert stored.digest == hashlib.sha256(DATA).digest()
    assert told["size"] == stored.size


@with_pulled_pair
async def test_a_fact_without_its_artifact_is_set_aside(pair: PulledPair) -> None:
    """The peer lost the bytes: after a few attempts the link goes on, and an operator decides."""
    pair.attach("order:1")
    pair.append("order:2")
    digest = hashlib.sha256(DATA).digest()
    pair.a.objects.delete(digest)
    with pytest.raises(BoundaryError, match="cut off or changed"):
        await pair.puller.turn()
    for _ in range(3):
        await pair.puller.turn()
    assert pair.inbound() == ["order:2"]
    (item,) = pair.b.store.quarantine("pull:a")
    assert (item.reason, item.offset) == ("artifact_missing", 1)
    pair.a.put("files", "one", DATA)
    pair.b.store.settle(item.id, "released")
    await pair.puller.turn()
    assert pair.inbound() == ["order:2", "order:1"]
    assert pair.b.store.quarantine("pull:a", None)[0].state == "settled"


@with_pulled_pair
async def test_a_name_taken_here_does_not_stop_an_artifact(pair: PulledPair) -> None:
    """Both zones use one name for different bytes: each can be had by its digest."""
    pair.b.put("files", "one", b"ours")
    pair.attach("order:1")
    await pair.puller.turn()
    await pair.puller.turn()
    assert pair.inbound() == ["order:1"]
    digest = hashlib.sha256(DATA).digest()
    assert pair.b.found("files", "one", digest).digest == digest
    assert pair.b.found("files", "one").size == len(b"ours")


@with_pulled_pair
async def test_a_conflicting_fact_is_set_aside(pair: PulledPair) -> None:
    """A peer that tells other content under an id we have does not stop the link."""
    pair.append("order:1", 1)
    await pair.puller.turn()
    pair.a.store = MemoryFactStore("a", clock=lambda: pair.now)
    pair.link.inner = InProcessTransport(NodeApplication(pair.a, Policy.open, threads=0))
    pair.append("order:1", 2)
    pair.append("order:2")
    pair.b.store.accept_epoch("a", None)
    for _ in range(3):
        await pair.puller.turn()
    assert pair.inbound() == ["order:1", "order:2"]
    assert [item.reason for item in pair.b.store.quarantine("pull:a")] == ["conflicting_duplicate"]


@with_pulled_pair
async def test_a_peer_may_not_speak_for_others(pair: PulledPair) -> None:
    """A fact of a zone that the peer may not assert is set aside; its own facts pass."""
    pair.policy = Policy.default("b", ["a"])
    pair.append("order:1", from_zone="enterprise")
    pair.append("order:2")
    await pair.puller.turn()
    await pair.puller.turn()
    assert pair.inbound() == ["order:2"]
    assert [item.reason for item in pair.b.store.quarantine("pull:a")] == ["zone_not_allowed"]


@with_pulled_pair
async def test_a_policy_that_forgets_the_peer_loses_nothing(pair: PulledPair) -> None:
    """A mistake in the policy stops the link instead of setting everything aside."""
    pair.policy = Policy.default("b", [])
    pair.append("order:1")
    with pytest.raises(NotPermittedError, match="policy"):
        await pair.puller.turn()
    pair.policy = Policy.default("b", ["a"])
    await pair.puller.turn()
    assert pair.inbound() == ["order:1"]


@with_pulled_pair
async def test_a_loss_at_the_source_is_told(pair: PulledPair) -> None:
    """Facts that the peer gave up are recorded here, and the link goes on behind them."""
    await pair.puller.turn()
    for number in range(4):
        pair.append(f"order:{number}")
    pair.a.store.truncate("outbound", 2, loss_reason="retention")
    for _ in range(3):
        await pair.puller.turn()
    assert pair.inbound() == ["order:2", "order:3"]
    (gap,) = pair.b.store.gaps("inbound:a")
    assert (gap.first, gap.source_first, gap.source_last, gap.reason) == (1, 1, 2, "retention")
    assert pair.b.store.quarantine("pull:a") == []
    assert "loss" in pair.alerts()


@with_pulled_pair
async def test_a_damaged_fact_at_the_source_does_not_stop_the_link(pair: PulledPair) -> None:
    """A row that was spoilt at the source is recorded here as a gap; what follows arrives."""
    await pair.puller.turn()
    for number in range(6):
        pair.append(f"order:{number}", to_zone="c" if number == 0 else "b")
    store = pair.a.store
    assert isinstance(store, MemoryFactStore)
    damage_memory(store, "outbound", 2)
    for _ in range(5):
        await pair.puller.turn()
    assert pair.inbound() == ["order:2", "order:3", "order:4", "order:5"]
    (gap,) = pair.b.store.gaps("inbound:a")
    assert (gap.first, gap.source_first, gap.source_last, gap.reason) == (1, 2, 2, "corrupted")
    assert [item.reason for item in pair.a.store.quarantine("zone:b")] == ["corrupted"]
    assert not any(action == "seek" for _at, action, _text in store.journal())


# ---- what can never be taken in ----


class Refusing(FaultyLink):
    """A link on which every artifact is answered with one error."""

    def __init__(self, inner: InProcessTransport, error: BoundaryError) -> None:
        super().__init__(inner)
        self.error = error

    async def get_object(self, *_name: Any, **_options: Any) -> Any:
        raise self.error


async def turned(pair: PulledPair, times: int) -> None:
    """Some turns, as the link takes them: trouble is met again in the next one."""
    for _ in range(times):
        with contextlib.suppress(BoundaryError):
            await pair.puller.turn()


@with_pulled_pair
async def test_a_conflicting_artifact_is_set_aside(pair: PulledPair) -> None:
    """Both names it could have here are taken: the link goes on, and an operator decides."""
    pair.b.put("files", "one", b"ours")
    other = pair.b.put("files", "other", b"an older one of the peer")
    pair.b.store.bind("files@a", "one", parsed(other.digest, "digest"), other.size)
    pair.attach("order:1")
    pair.append("order:2")
    await turned(pair, 3)
    assert pair.inbound() == ["order:2"]
    assert pair.b.store.link("a").offset == 2
    (item,) = pair.b.store.quarantine("pull:a")
    assert (item.reason, item.offset, item.attempts) == ("object_conflict", 1, 1)
    assert "files/one" in item.message
    assert pair.alerts() == ["unsynced", "quarantine"]
    pair.b.store.settle(item.id, "released")
    await turned(pair, 1)
    (again,) = pair.b.store.quarantine("pull:a")
    assert (again.id, again.state) == (item.id, "quarantined")
    pair.b.store.unbind("files@a", "one")
    pair.b.store.settle(item.id, "released")
    await turned(pair, 1)
    assert pair.inbound() == ["order:2", "order:1"]


@pytest.mark.parametrize(
    ("code", "reason", "is_for_good"),
    [
        ("not_found", "", True),
        ("data_loss", "object_damaged", True),
        ("invalid_argument", "pattern", True),
        ("permission_denied", "not_allowed", True),
        ("failed_precondition", "object_too_large", True),
        ("out_of_range", "range", True),
        ("unimplemented", "", True),
        ("internal", "", True),
        ("permission_denied", "unknown_identity", False),
        ("unauthenticated", "tls", False),
        ("unavailable", "connection_lost", False),
        ("deadline_exceeded", "timeout", False),
        ("resource_exhausted", "", False),
    ],
)
def test_every_error_that_stays_ends_in_quarantine(
    code: str, reason: str, is_for_good: bool
) -> None:
    """What a peer answers about one artifact stops the link only as long as it may pass."""

    @with_pulled_pair
    async def test(pair: PulledPair) -> None:
        error = BoundaryError("no", code=code, reason=reason)
        pair.link = Refusing(pair.link.inner, error)
        pair.puller = pair.made()
        pair.attach("order:1")
        pair.append("order:2")
        await turned(pair, 5)
        assert pair.inbound() == (["order:2"] if is_for_good else [])
        assert len(pair.b.store.quarantine("pull:a")) == int(is_for_good)

    test()


@with_pulled_pair
async def test_an_artifact_above_the_limit_is_set_aside(pair: PulledPair) -> None:
    """A peer cannot fill this zone's disk with what its own producers may not put."""
    limits = LimitSettings(object_bytes=len(DATA) - 1)
    pair.b.settings = SETTINGS.model_copy(update={"limits": limits})
    pair.attach("order:1")
    pair.append("order:2")
    await turned(pair, 3)
    assert pair.inbound() == ["order:2"]
    assert [item.reason for item in pair.b.store.quarantine("pull:a")] == ["object_too_large"]
    assert pair.b.objects.stat(hashlib.sha256(DATA).digest()) is None


@with_pulled_pair
async def test_a_fact_too_large_for_the_store_is_set_aside(pair: PulledPair) -> None:
    """A server of this zone takes less than that of the peer."""
    pair.b.store.largest = 400  # type: ignore[misc]
    pair.append("order:1", "x" * 400)
    pair.append("order:2")
    await turned(pair, 3)
    assert pair.inbound() == ["order:2"]
    (item,) = pair.b.store.quarantine("pull:a")
    assert "bytes" in item.message


@with_pulled_pair
async def test_a_released_fact_whose_artifact_stays_refused_goes_back(pair: PulledPair) -> None:
    """It is not asked for again with every page: an operator decides again, and sees why."""
    pair.attach("order:1")
    pair.a.objects.delete(hashlib.sha256(DATA).digest())
    await turned(pair, 4)
    (item,) = pair.b.store.quarantine("pull:a")
    pair.b.store.settle(item.id, "released")
    await turned(pair, 1)
    assert pair.b.store.quarantine("pull:a", "released") == []
    pair.b.store.settle(item.id, "released")
    pair.link.script.extend(["drop"])  # a line that breaks decides nothing
    await turned(pair, 1)
    assert [each.id for each in pair.b.store.quarantine("pull:a", "released")] == [item.id]


@with_pulled_pair
async def test_the_alert_of_a_link_tells_what_is_the_matter(pair: PulledPair) -> None:
    """Only a peer that does not answer is said not to answer."""

    async def told(error: Exception) -> str:
        pair.link.is_cut = False
        pair.puller = pair.made()

        async def call(*_asked: Any, **_options: Any) -> bytes:
            raise error

        pair.link.call = call  # type: ignore[method-assign]
        running = asyncio.create_task(pair.puller.run())
        await asyncio.sleep(30)
        running.cancel()
        (alert,) = [each for each in status(pair.b)["alerts"] if each["kind"] == "link"]
        return str(alert["text"])

    away = NodeUnavailableError("cannot connect", reason="connect_failed")
    assert await told(away) == "a does not answer: cannot connect"
    refused = NotPermittedError("b is not known here", reason="unknown_identity")
    assert await told(refused) == "nothing is pulled from a: b is not known here"
    full = StoreError("no space left on device")
    assert await told(full) == "what a sends cannot be kept here: no space left on device"


@with_pulled_pair
async def test_a_peer_that_dropped_facts_without_a_record(pair: PulledPair) -> None:
    """Its retention did not wait for this zone: the loss is written down here, and on it goes."""
    pair.a.store.create_consumer("zone:b", "outbound", to_zone="b", is_required=False)
    pair.a.store.create_consumer("erp", "outbound")
    for number in range(4):
        pair.append(f"order:{number}")
    pair.a.store.serve("erp", 9, 1 << 20)
    pair.a.store.confirm("erp", 2)
    assert pair.a.store.truncate("outbound", 2) == 2
    await turned(pair, 4)
    assert pair.inbound() == ["order:2", "order:3"]
    (gap,) = pair.b.store.gaps("inbound:a")
    assert (gap.source_first, gap.source_last) == (1, 2)
