"""Stores that went back in time: a peer's, which must be noticed, and one's own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.cli import invoke
from tests.boundary.node.processes import ADMIN, CORE, NodeProcess
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.req("BOUNDARY:zones", "BOUNDARY:operator")]

RETENTION = """
[zones.plant-a.retention]
facts = 0.001
every = 0.05
"""
SETTINGS = """
[zones.plant-b.pull]
wait = 0.5
timeout = 1.5
"""
"""A receiver with another store is another holder: it waits for twice the sum of these."""


class Pair:
    """Zone plant-a with facts, and plant-b that pulls them; either folder may be exchanged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = folder / "ergon.toml"
        settings.write_text(SETTINGS, encoding="utf-8")
        self.a = NodeProcess("plant-a", folder / "a", "--config", str(settings))
        peer = ("--peer", f"plant-a={self.a.url}")
        self.b = NodeProcess("plant-b", folder / "b", *peer, "--config", str(settings))
        self.b.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "all", "log": "inbound:plant-a"})

    def close(self) -> None:
        """End both."""
        self.b.kill()
        self.a.kill()

    def tell(self, *numbers: int, words: str = "order") -> None:
        """Facts that plant-a takes."""
        for number in numbers:
            assert self.a.append(f"{words}:{number}:created", [words, number]).status == 200

    def received(self) -> list[tuple[str, int]]:
        """Ids and the peer's offsets of everything plant-b has, in order."""
        self.b.ask(f"{ADMIN}SeekConsumer", {"consumer_name": "all", "offset": 0})
        asked = {"consumer_name": "all", "limit": 1000}
        page = self.b.ask(f"{CORE}FetchFacts", asked)
        facts = page["facts"]
        taken = [each["offset"] for each in facts] + [gap["first_offset"] for gap in page["gaps"]]
        assert sorted(taken) == list(range(1, page["head_offset"] + 1))
        return [(each["envelope"]["message_id"], each["source_offset"]) for each in facts]

    def ids(self) -> list[str]:
        """The ids alone."""
        return [name for name, _offset in self.received()]

    def arrived(self, count: int) -> list[str]:
        """Wait until plant-b has that many; their ids."""
        until(lambda: len(self.received()) >= count, f"{count} facts at plant-b")
        return self.ids()

    def confirmed(self, offset: int) -> None:
        """Wait until plant-a knows that plant-b has everything up to an offset."""

        def is_so() -> bool:
            found = self.a.ask(f"{ADMIN}ListConsumers", {})["consumers"]
            return any(each["cursor"] == offset for each in found)

        until(is_so, f"plant-a's cursor at {offset}")

    def status(self) -> dict[str, Any]:
        """How plant-b stands."""
        return self.b.ask(f"{ADMIN}GetStatus", {})

    def alerts(self) -> set[str]:
        """The kinds of plant-b's alerts."""
        return {alert["kind"] for alert in self.status()["alerts"]}

    def mode(self) -> str:
        """The gate of plant-b's link."""
        return str(self.status()["links"][0].get("mode"))

    def accept(self) -> None:
        """What the operator does."""
        options = ["--peer", "plant-a", "--accept-epoch", "--url", self.b.url]
        assert invoke(["boundary", "open", *options]) == 0

    def keep(self, node: NodeProcess, name: str) -> Path:
        """A plain copy of a node's folder, which stands still meanwhile."""
        assert node.stop() == 0
        copy = self.folder / name
        shutil.copytree(node.folder, copy)
        node.start()
        return copy

    def back_up(self, node: NodeProcess, name: str) -> Path:
        """A backup as operators make it, while the node runs."""
        copy = self.folder / name
        assert invoke(["boundary", "backup", str(copy), "--data", str(node.folder)]) == 0
        return copy

    def exchange(self, node: NodeProcess, copy: Path) -> None:
        """Kill a node and put another folder in its place."""
        node.kill()
        shutil.rmtree(node.folder)
        shutil.copytree(copy, node.folder)
        node.start()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two zones."""
    pair = Pair(tmp_path)
    try:
        yield pair
    finally:
        pair.close()


def ids(*numbers: int, words: str = "order") -> list[str]:
    """What was told."""
    return [f"{words}:{number}:created" for number in numbers]


def test_a_peer_that_is_an_older_copy_of_itself(pair: Pair) -> None:
    """The link stops with an alert; after the operator's word nothing is doubled or lost."""
    pair.tell(0, 1, 2)
    pair.confirmed(3)
    copy = pair.keep(pair.a, "older")
    pair.tell(3, 4, 5)
    pair.arrived(6)
    pair.exchange(pair.a, copy)
    until(lambda: "epoch" in pair.alerts(), "the alert")
    until(lambda: pair.mode() == "autonomous", "a shut gate")
    assert invoke(["boundary", "status", "--url", pair.b.url]) == 1
    pair.tell(6, words="later")
    assert pair.ids() == ids(0, 1, 2, 3, 4, 5)
    pair.accept()
    assert pair.arrived(7) == [*ids(0, 1, 2, 3, 4, 5), "later:6:created"]
    until(lambda: pair.alerts() == set() and pair.mode() == "normal", "peace")


def test_an_older_copy_that_has_outrun_the_receiver(pair: Pair) -> None:
    """New facts at offsets that stood for others must not be passed over in silence."""
    pair.tell(0, 1, 2)
    pair.confirmed(3)
    copy = pair.keep(pair.a, "older")
    pair.tell(3, 4, 5)
    pair.arrived(6)
    pair.b.kill()
    pair.exchange(pair.a, copy)
    pair.tell(0, 1, 2, 3, words="later")  # offsets 4 to 7; plant-b is at 6
    pair.b.start()
    until(lambda: "epoch" in pair.alerts(), "the alert")
    assert pair.ids() == ids(0, 1, 2, 3, 4, 5)
    pair.accept()
    wanted = [*ids(0, 1, 2, 3, 4, 5), *ids(0, 1, 2, 3, words="later")]
    assert pair.arrived(len(wanted)) == wanted


def test_an_older_copy_whose_head_is_where_it_was(pair: Pair) -> None:
    """The same number of other facts is noticed, too."""
    pair.tell(0, 1, 2)
    pair.confirmed(3)
    copy = pair.keep(pair.a, "older")
    pair.tell(3, 4)
    pair.arrived(5)
    pair.b.kill()
    pair.exchange(pair.a, copy)
    pair.tell(0, 1, words="later")
    pair.b.start()
    until(lambda: "epoch" in pair.alerts(), "the alert")
    pair.accept()
    wanted = [*ids(0, 1, 2, 3, 4), *ids(0, 1, words="later")]
    assert pair.arrived(len(wanted)) == wanted


def test_a_peer_that_was_restored_from_a_backup(pair: Pair) -> None:
    """A backup begins a new epoch, which is refused until an operator accepts it."""
    pair.tell(0, 1, 2)
    pair.confirmed(3)
    copy = pair.back_up(pair.a, "backup")
    pair.tell(3, 4)
    pair.arrived(5)
    before = pair.a.ask(f"{ADMIN}GetStatus", {})["epoch"]
    pair.b.kill()
    pair.exchange(pair.a, copy)
    assert pair.a.ask(f"{ADMIN}GetStatus", {})["epoch"] != before
    pair.tell(*range(5, 15))
    pair.b.start()
    until(lambda: "epoch" in pair.alerts(), "the alert")
    until(lambda: pair.mode() != "normal", "a gate that is not normal")
    assert pair.ids() == ids(0, 1, 2, 3, 4)
    pair.accept()
    assert pair.arrived(15) == ids(0, 1, 2, 3, 4, *range(5, 15))
    # The producer tells again what the backup did not have: it has its place here already.
    pair.tell(3, 4, 15)
    assert pair.arrived(16) == ids(*range(16))


def test_an_id_that_was_given_twice(pair: Pair) -> None:
    """After a restore the producer tells something else under an id: it is set aside, and told."""
    pair.tell(0, 1)
    pair.confirmed(2)
    copy = pair.back_up(pair.a, "backup")
    pair.tell(2)
    pair.arrived(3)
    pair.exchange(pair.a, copy)
    assert pair.a.append("order:2:created", "something else").status == 200
    pair.tell(3)
    until(lambda: "epoch" in pair.alerts(), "the alert")
    pair.accept()
    assert pair.arrived(4) == ids(0, 1, 2, 3)
    (item,) = pair.b.ask(f"{ADMIN}ListQuarantine", {})["items"]
    assert (item["consumer_name"], item["reason"]) == ("pull:plant-a", "conflicting_duplicate")
    assert "quarantine" in pair.alerts()


def test_a_receiver_restored_from_a_backup_asks_back(pair: Pair) -> None:
    """It gets everything that came after the backup once more, without anybody's help."""
    pair.tell(0, 1, 2)
    pair.arrived(3)
    copy = pair.back_up(pair.b, "backup")
    pair.tell(3, 4, 5)
    pair.confirmed(6)
    pair.exchange(pair.b, copy)
    assert pair.arrived(6) == ids(0, 1, 2, 3, 4, 5)
    pair.tell(6)
    assert pair.arrived(7) == ids(0, 1, 2, 3, 4, 5, 6)
    assert [offset for _name, offset in pair.received()] == list(range(1, 8))


def test_a_receiver_that_lost_everything_asks_back(pair: Pair) -> None:
    """An empty folder in place of the old one is filled from the start."""
    pair.tell(0, 1, 2)
    pair.confirmed(3)
    pair.b.kill()
    shutil.rmtree(pair.b.folder)
    pair.b.start()
    pair.b.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "all", "log": "inbound:plant-a"})
    assert pair.arrived(3) == ids(0, 1, 2)


def test_a_receiver_that_asks_back_for_what_is_gone(pair: Pair) -> None:
    """The sender has dropped it: the loss is written down and told, and the link goes on."""
    pair.tell(0, 1, 2)
    pair.arrived(3)
    copy = pair.back_up(pair.b, "backup")
    pair.a.kill()
    settings = pair.folder / "ergon.toml"
    settings.write_text(SETTINGS + RETENTION, encoding="utf-8")
    pair.a.start()
    pair.tell(3, 4, 5)

    def is_gone() -> bool:
        return bool(pair.a.ask(f"{ADMIN}GetStatus", {})["logs"][0]["first_offset"] == 7)

    until(is_gone, "everything pulled and dropped")
    pair.exchange(pair.b, copy)
    until(lambda: "loss" in pair.alerts(), "an alert")
    (gap,) = pair.b.ask(f"{ADMIN}ListGaps", {})["gaps"]
    assert (gap["log"], gap["first_offset"], gap["last_offset"]) == ("inbound:plant-a", 4, 4)
    assert (gap["source_first_offset"], gap["source_last_offset"]) == (4, 6)
    assert pair.ids() == ids(0, 1, 2)
    pair.tell(6)
    assert pair.arrived(4) == ids(0, 1, 2, 6)


def test_both_restart_at_once(pair: Pair) -> None:
    """Both zones are killed in the middle, start again, and nothing is doubled or lost."""
    for start in range(0, 60, 20):
        pair.tell(*range(start, start + 20))
        pair.a.kill()
        pair.b.kill()
        pair.b.start()
        pair.a.start()
    assert pair.arrived(60) == ids(*range(60))
    assert pair.a.stop() == 0
    assert pair.b.stop() == 0
    pair.b.start()
    pair.a.start()
    pair.tell(60)
    assert pair.arrived(61) == ids(*range(61))
    assert {offset for _name, offset in pair.received()} == set(range(1, 62))
