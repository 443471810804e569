"""What a zone lets go of, what it never lets go of, and how a loss is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary import Consumer
from ergon_framework.boundary.maintenance import run_maintenance
from ergon_framework.boundary.model import Delivery, Loss
from ergon_framework.boundary.node.metrics import metrics
from ergon_framework.boundary.settings import RetentionSettings, ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import BoundaryError, ConflictingDuplicateError
from tests.boundary.node.processes import ADMIN, CORE, NodeProcess, fact, running
from tests.waiting import until

DAY = 86_400.0
START = 1_800_000_000.0


class Clock:
    """A clock that goes where the test wants it."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The zone's time."""
    return Clock()


OpenZone = Callable[..., LocalZone]


@pytest.fixture
def open_zone(tmp_path: Path, clock: Clock) -> Iterator[OpenZone]:
    """Opens the zone of the test with a retention; what is opened is closed."""
    opened: list[LocalZone] = []

    def make(**retention: Any) -> LocalZone:
        for zone in opened:
            zone.close()
        settings = ZoneSettings(
            data=str(tmp_path / "data"), retention=RetentionSettings(**retention)
        )
        opened.append(LocalZone.open("plant-a", settings, clock=clock))
        return opened[-1]

    yield make
    for zone in opened:
        zone.close()


def append(zone: LocalZone, name: str, content: Any = 1) -> int:
    """One fact; its offset."""
    body = fact(f"{name}:created", content)
    return zone.append(body["envelope"], body["fact"]).offset


def read(zone: LocalZone, name: str, through: int) -> None:
    """A consumer reads, and confirms up to an offset."""
    zone.serve(name, 1000, None, None, None)
    zone.store.confirm(name, through)


def offsets(zone: LocalZone, name: str) -> list[int]:
    """What a consumer is given."""
    return [each.offset for each in zone.serve(name, 1000, None, None, None).page.facts]


@pytest.mark.req("BOUNDARY:store")
def test_nothing_goes_by_default(open_zone: OpenZone, clock: Clock) -> None:
    """Without a rule every fact stays for ever."""
    zone = open_zone()
    zone.store.create_consumer("c", "outbound")
    for number in range(3):
        append(zone, f"order:{number}")
    read(zone, "c", 3)
    clock.now += 4000 * DAY
    assert run_maintenance(zone).facts == 0
    zone.store.seek("c", 0, reason="all again")
    assert offsets(zone, "c") == [1, 2, 3]


@pytest.mark.req("BOUNDARY:store")
def test_nothing_above_a_required_cursor_goes(open_zone: OpenZone, clock: Clock) -> None:
    """The slowest required consumer decides, an optional one does not, and nobody means nothing."""
    zone = open_zone(facts=DAY)
    for number in range(10):
        append(zone, f"order:{number}")
    clock.now += 2 * DAY
    assert run_maintenance(zone).facts == 0, "nobody has read anything"
    zone.store.create_consumer("slow", "outbound")
    zone.store.create_consumer("fast", "outbound")
    zone.store.create_consumer("idle", "outbound", is_required=False)
    read(zone, "fast", 9)
    assert run_maintenance(zone).facts == 0
    read(zone, "slow", 4)
    assert run_maintenance(zone)[:2] == (4, 0)
    assert offsets(zone, "slow") == [5, 6, 7, 8, 9, 10]
    assert offsets(zone, "fast") == [10]
    with pytest.raises(BoundaryError) as caught:
        offsets(zone, "idle")
    assert (caught.value.code, caught.value.details["last_lost"]) == ("out_of_range", 4)
    assert zone.store.gaps() == []
    zone.store.delete_consumer("slow")
    assert run_maintenance(zone).facts == 5


@pytest.mark.req("BOUNDARY:store")
def test_young_facts_stay(open_zone: OpenZone, clock: Clock) -> None:
    """Confirmed and young stays as well."""
    zone = open_zone(facts=DAY)
    zone.store.create_consumer("c", "outbound")
    append(zone, "order:1")
    clock.now += 0.6 * DAY
    append(zone, "order:2")
    read(zone, "c", 2)
    clock.now += 0.6 * DAY
    assert run_maintenance(zone).facts == 1
    clock.now += 0.6 * DAY
    assert run_maintenance(zone).facts == 1


@pytest.mark.parametrize("loss", ["never", "oldest"])
@pytest.mark.parametrize("is_required", [True, False])
@pytest.mark.req("C10", "BOUNDARY:store")
def test_what_is_in_quarantine_stays(
    open_zone: OpenZone, clock: Clock, loss: str, is_required: bool
) -> None:
    """A fact that was set aside may still be released, so its payload is kept, whoever it was set
    aside for and whatever else may be lost.
    """
    zone = open_zone(facts=DAY, loss=loss)
    zone.store.create_consumer("other", "outbound")
    zone.store.create_consumer("c", "outbound", is_required=is_required)
    for number in range(4):
        append(zone, f"order:{number}")
    read(zone, "c", 1)
    item = zone.store.set_aside("c", 2, reason="handler_failed", message="", attempts=5)
    read(zone, "c", 4)
    read(zone, "other", 4)
    clock.now += 2 * DAY
    assert run_maintenance(zone)[:2] == (1, 0)
    zone.store.settle(item.id, "released")
    assert run_maintenance(zone).facts == 0
    assert offsets(zone, "c") == [2]
    zone.store.confirm("c", 2)
    assert run_maintenance(zone)[:2] == (3, 0)


@pytest.mark.req("P7", "BSFG:RetrySafety", "BOUNDARY:store")
def test_the_ledger_outlives_the_payload(open_zone: OpenZone, clock: Clock) -> None:
    """Years later, after a restart, an old id has its old offset, other content is a conflict."""
    zone = open_zone(facts=DAY)
    zone.store.create_consumer("c", "outbound")
    for number in range(50):
        append(zone, f"order:{number}", {"n": number})
    read(zone, "c", 50)
    clock.now += 3000 * DAY
    assert run_maintenance(zone).facts == 50
    for _ in range(2):
        for number in (0, 17, 49):
            assert append(zone, f"order:{number}", {"n": number}) == number + 1
            with pytest.raises(ConflictingDuplicateError):
                append(zone, f"order:{number}", {"n": -1})
            found = zone.lookup("plant-a", f"order:{number}:created")
            assert (found["offset"], found["state"]) == (number + 1, "truncated")
        zone = open_zone(facts=DAY)
    assert append(zone, "order:50") == 51
    assert offsets(zone, "c") == [51]
    assert [each for each in zone.store.verify("outbound") if not isinstance(each, int)] == []


@pytest.mark.req("BOUNDARY:store", "C2")
def test_a_permitted_loss_is_a_gap(open_zone: OpenZone, clock: Clock) -> None:
    """With ``loss = "oldest"`` the gap is written down, delivered, counted, and nothing else."""
    zone = open_zone(facts=DAY, loss="oldest")
    zone.store.create_consumer("behind", "outbound")
    zone.store.create_consumer("ahead", "outbound")
    for number in range(6):
        append(zone, f"order:{number}")
    read(zone, "ahead", 6)
    read(zone, "behind", 2)
    assert "bsfg_lost_facts_total 0" in metrics(zone).splitlines()
    clock.now += 2 * DAY
    append(zone, "order:6")
    kept = run_maintenance(zone)
    assert (kept.facts, kept.lost) == (6, 4)
    (gap,) = zone.store.gaps("outbound")
    assert (gap.first, gap.last, gap.reason) == (3, 6, "retention")
    assert "bsfg_lost_facts_total 4" in metrics(zone).splitlines()
    page = zone.serve("behind", 100, None, None, None).page
    assert [(each.first, each.last) for each in page.gaps] == [(3, 6)]
    assert [each.offset for each in page.facts] == [7]
    assert zone.serve("ahead", 100, None, None, None).page.gaps == []
    assert zone.store.confirm("behind", 7) == 7
    assert append(zone, "order:4") == 5, "the ledger knows what was given up"


@pytest.mark.req("P15", "BOUNDARY:objects")
def test_orphans_go_after_their_grace(open_zone: OpenZone, clock: Clock) -> None:
    """An object that no fact refers to goes; one with the same bytes and a reference stays."""
    zone = open_zone(facts=DAY, orphans=DAY)
    zone.store.create_consumer("c", "outbound")
    kept = zone.put("files", "kept", b"the same bytes")
    zone.put("files", "twin", b"the same bytes")
    zone.put("files", "orphan", b"an orphan")
    told = {"bucket": "files", "key": "kept", "digest": kept.digest, "size": kept.size}
    append(zone, "order:1", {"deep": [{"down": told}]})
    read(zone, "c", 1)
    assert run_maintenance(zone, is_thorough=True).objects == 0
    clock.now += 2 * DAY
    done = run_maintenance(zone, is_thorough=True)
    assert (done.facts, done.objects) == (1, 2)
    left = [stored.key for stored in zone.store.objects()]
    assert left == ["kept"], "its fact's payload went, and the reference counts for ever"
    assert zone.objects.verify(zone.found("files", "kept").digest, kept.size) is None
    assert len(list(zone.objects.digests())) == 1


@pytest.mark.req("P15", "P2", "BOUNDARY:objects")
def test_a_put_that_is_repeated_has_its_grace_anew(open_zone: OpenZone, clock: Clock) -> None:
    """A producer that puts again what it put days ago has time to append its fact."""
    zone = open_zone(orphans=DAY)
    zone.put("files", "late", b"bytes")
    clock.now += 0.99 * DAY
    again = zone.put("files", "late", b"bytes")
    clock.now += 0.5 * DAY
    assert run_maintenance(zone).objects == 0
    told = {"bucket": "files", "key": "late", "digest": again.digest, "size": again.size}
    assert append(zone, "order:1", told) == 1


# ---- the node does it by itself ----

SETTINGS = """
[zones.plant-a.retention]
facts = 0.001
orphans = 0.001
every = 0.05
"""


def first_kept(node: NodeProcess) -> int:
    """The lowest offset whose payload is there."""
    return int(node.ask(f"{ADMIN}GetStatus", {})["logs"][0]["first_offset"])


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A file with a short retention for plant-a."""
    path = tmp_path / "ergon.toml"
    path.write_text(SETTINGS, encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:zones", "BOUNDARY:store")
def test_a_peer_that_comes_late(settings: Path, tmp_path: Path) -> None:
    """A zone that pulls for the first time after truncation gets what is kept, and goes on."""
    with running("plant-a", tmp_path / "a", "--config", str(settings)) as node:
        node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "c"})
        for number in range(5):
            node.append(f"order:{number}:created")
        node.ask(f"{CORE}FetchFacts", {"consumer_name": "c"})
        node.ask(f"{CORE}ConfirmReceipt", {"consumer_name": "c", "offset": 3})
        until(lambda: first_kept(node) == 4, "three facts gone")
        with running("plant-b", tmp_path / "b", "--peer", f"plant-a={node.url}") as peer:
            asked = {"consumer_name": "all", "log": "inbound:plant-a"}
            peer.ask(f"{ADMIN}CreateConsumer", asked)

            def arrived() -> list[int]:
                page = peer.ask(f"{CORE}FetchFacts", {"consumer_name": "all"})
                return [each["source_offset"] for each in page["facts"]]

            until(lambda: arrived() == [4, 5], "what is kept")
            node.append("order:5:created")
            until(lambda: arrived() == [4, 5, 6], "and what comes")


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:zones", "BOUNDARY:store")
def test_retention_waits_for_a_peer(settings: Path, tmp_path: Path) -> None:
    """What a zone has not pulled stays, however long it is away; then it goes."""
    with running("plant-a", tmp_path / "a", "--config", str(settings)) as node:
        options = ("--peer", f"plant-a={node.url}")
        node.append("order:0:created")
        with running("plant-b", tmp_path / "b", *options) as peer:
            until(lambda: first_kept(node) == 2, "the first one pulled and gone")
            peer.kill()
            for number in range(1, 6):
                node.append(f"order:{number}:created")
            for name in ("first", "second"):  # the round that takes the second began after all this
                node.request("PUT", f"/v1/objects/files/{name}", b"an orphan")
                until(
                    lambda name=name: node.request("GET", f"/v1/objects/files/{name}")[0] == 404,  # type: ignore[misc]
                    "a round of housekeeping",
                )
            assert first_kept(node) == 2
            peer.start()
            until(lambda: first_kept(node) == 7, "all pulled and gone")
            peer.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "all", "log": "inbound:plant-a"})
            page = peer.ask(f"{CORE}FetchFacts", {"consumer_name": "all"})
            assert [each["source_offset"] for each in page["facts"]] == [1, 2, 3, 4, 5, 6]
            again = node.append("order:3:created")
            assert (again["offset"], again["duplicate"]) == (4, True)


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:consumer", "BOUNDARY:store")
def test_consumers_are_told_of_a_loss(settings: Path, tmp_path: Path) -> None:
    """The SDK hands gaps to ``on_gap`` in their place, and the run goes on behind them."""
    settings.write_text(f'{SETTINGS}loss = "oldest"\n', encoding="utf-8")
    with running("plant-a", tmp_path / "a", "--config", str(settings)) as node:
        node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "erp"})
        for number in range(5):
            node.append(f"order:{number}:created")
        until(lambda: first_kept(node) == 6, "all given up")
        told: list[Loss] = []
        seen: list[Delivery] = []
        with Consumer(node.url, "erp", on_gap=told.append) as erp:
            report = erp.run(seen.append, until_empty=True)
        assert [(each.first_offset, each.last_offset) for each in told] in (
            [[(1, 5)]] + [[(1, n), (n + 1, 5)] for n in range(1, 5)]
        )
        assert (report.lost, report.cursor, seen) == (5, 5, [])
        gaps = node.ask(f"{ADMIN}ListGaps", {})["gaps"]
        assert sum(gap["last_offset"] - gap["first_offset"] + 1 for gap in gaps) == 5
        text = node.request("GET", "/metrics")[2].decode()
        assert "bsfg_lost_facts_total 5" in text.splitlines()
        status = node.ask(f"{ADMIN}GetStatus", {})
        assert "loss" in {alert["kind"] for alert in status["alerts"]}


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:zones", "BOUNDARY:store")
def test_a_peer_is_told_of_a_loss(settings: Path, tmp_path: Path) -> None:
    """A receiver that was away too long goes on behind the gap, and its consumers are told."""
    settings.write_text(f'{SETTINGS}loss = "oldest"\n', encoding="utf-8")
    with running("plant-a", tmp_path / "a", "--config", str(settings)) as node:
        options = ("--peer", f"plant-a={node.url}")
        with running("plant-b", tmp_path / "b", *options) as peer:

            def has_pulled(offset: int) -> bool:
                found = peer.ask(f"{ADMIN}GetStatus", {})["links"]
                return any(link.get("source_offset") == offset for link in found)

            node.append("order:0:created")
            until(lambda: has_pulled(1), "the first fact")
            peer.kill()
            for number in range(1, 6):
                node.append(f"order:{number}:created")
            until(lambda: first_kept(node) == 7, "five facts given up")
            peer.start()
            until(lambda: has_pulled(6), "the link behind the gap")
            gaps = peer.ask(f"{ADMIN}ListGaps", {})["gaps"]
            lost = [(gap["source_first_offset"], gap["source_last_offset"]) for gap in gaps]
            gone = [n for first, last in lost for n in range(first, last + 1)]
            assert gone in ([2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])  # the first may go so soon, too
            status = peer.ask(f"{ADMIN}GetStatus", {})
            assert status["lost_facts"] == len(gone)
            assert "loss" in {alert["kind"] for alert in status["alerts"]}
            told: list[Loss] = []
            seen: list[Delivery] = []
            peer.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "erp", "log": "inbound:plant-a"})
            peer.kill()
            peer.start()
            with Consumer(peer.url, "erp", on_gap=told.append) as erp:
                report = erp.run(seen.append, until_empty=True)
                again = erp.run(seen.append, until_empty=True)
            assert [(each.source_first_offset, each.source_last_offset) for each in told] == lost
            assert [each.source_offset for each in seen] == [n for n in [1] if n not in gone]
            assert (report.lost, report.cursor) == (len(gone), len(seen) + len(lost))
            assert again.lost == 0


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:objects", "P15")
def test_a_collection_that_dies_half_way(tmp_path: Path) -> None:
    """Killed between name and bytes, the next thorough round removes what is left."""
    settings = tmp_path / "ergon.toml"
    settings.write_text(
        "[zones.plant-a.retention]\norphans = 0.001\nevery = 0.05\n", encoding="utf-8"
    )
    options = ("--config", str(settings))
    with running(
        "plant-a", tmp_path / "a", *options, failpoints="boundary.object.delete.before=kill"
    ) as node:
        with closing(HTTPConnection("127.0.0.1", node.port, timeout=30)) as connection:
            connection.request("PUT", "/v1/objects/files/a", b"orphan")
            with suppress(OSError):  # it may die before it has answered
                connection.getresponse().read()
        assert node.wait() == -9
        folder = node.folder / "objects" / "sha256"
        assert [path for path in folder.rglob("*") if path.is_file()]
        node.start()
        until(lambda: not [p for p in folder.rglob("*") if p.is_file()], "a clean folder")
        assert node.request("GET", "/v1/objects/files/a")[0] == 404
