"""The short form of a zone: facts go in and come out, and nobody has to start a node."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.client.artifacts import Artifact
from ergon_framework.boundary.data_folder import (
    ADDRESS,
    DataFolder,
    FolderInUseError,
    listening_node,
)
from ergon_framework.boundary.http.client import HttpTransport
from ergon_framework.boundary.model import Delivery, Receipt
from ergon_framework.boundary.node.local_node import LocalNode, LocalTransport
from ergon_framework.boundary.node.node import run_node
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.connector.boundary.zone import FactItem, Zone, fact_id, settings_of
from ergon_framework.errors import (
    BoundaryError,
    BoundaryNotFoundError,
    ConfigurationError,
    ConflictingDuplicateError,
    FactInvalidError,
    NonRetryableException,
    NotPermittedError,
)
from ergon_framework.task.ready import ConsumerTask
from tests import fork_server
from tests.servers.server import free_port
from tests.waiting import until

PATIENCE = 30.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the zone lives."""
    return tmp_path / "plant"


@pytest.fixture
def plant(folder: Path) -> Iterator[Zone]:
    """A zone that nobody serves."""
    with Zone("plant", folder) as zone:
        yield zone


def counted(zone: Zone, n: int, **more: Any) -> Receipt:
    """Publish the n-th fact."""
    return zone.publish("order:1", "counted", {"n": n}, to="hq", id=("counted", n), **more)


def numbers(zone: Zone, consumer: str = "all") -> list[int]:
    """What a consumer has not confirmed yet."""
    return [each.payload["object_json"]["n"] for each in zone.read(consumer)]


# ---- publishing ---------------------------------------------------------------------------------


def test_a_fact_is_published_once_however_often_it_is_told(plant: Zone, folder: Path) -> None:
    """The same again is harmless, in this process and the next; other content is refused."""
    first = counted(plant, 1)
    assert (first.offset, first.duplicate) == (1, False)
    again = counted(plant, 1)
    assert (again.offset, again.duplicate) == (1, True)
    with pytest.raises(ConflictingDuplicateError, match="'counted:1' of zone 'plant' stands for"):
        plant.publish("order:1", "counted", {"n": 2}, to="hq", id=("counted", 1))
    plant.close()
    assert counted(plant, 1).duplicate  # it is opened again, as an App would be
    plant.close()
    with Zone("plant", folder) as later:
        assert counted(later, 1).duplicate
        found = later.find(("counted", 1))
        assert found is not None
        assert (found.offset, later.find("never")) == (1, None)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (("released", "WO-1", 1), "released:WO-1:1"),
        ("as it is", "as it is"),
        (("a:b", "c"), "a%3Ab:c"),
        (("a", "b:c"), "a:b%3Ac"),
        (("50%3A", 1), "50%253A:1"),
    ],
)
def test_ids_are_made_of_the_event(given: Any, made: str) -> None:
    """They can be read, and no two events have the same one."""
    assert fact_id(given) == made


@pytest.mark.parametrize("given", [(), ("",), ("a", 1.5), ("a", None), (True,), ("x" * 256,)])
def test_what_makes_no_id_is_refused(given: Any) -> None:
    """Nothing is stored under an id that nobody could repeat."""
    with pytest.raises(FactInvalidError, match="the id of a fact has"):
        fact_id(given)


@pytest.mark.parametrize("given", [None, 7, b"a", {"a": 1}, {"a", "b"}])
def test_an_id_of_another_type_is_refused(plant: Zone, given: Any) -> None:
    """Also one whose parts have no order."""
    with pytest.raises(FactInvalidError, match="the id of a fact is of type"):
        plant.publish("order:1", "counted", to="hq", id=given)


@pytest.mark.parametrize("given", ["x.txt", b"x", Path("x.txt"), Artifact("x.txt"), None])
def test_files_are_given_as_a_list(plant: Zone, given: Any) -> None:
    """One file alone would be taken for the list of its letters."""
    with pytest.raises(ConfigurationError, match=r"give a list, for example files=\["):
        plant.publish("order:1", "counted", to="hq", id="x", files=given)


@pytest.mark.parametrize("name", [None, 7, b"plant", "", "a\n"])
def test_what_is_no_name_of_a_zone_is_refused(name: Any, folder: Path) -> None:
    """Before anything is opened."""
    with pytest.raises(ConfigurationError, match="is no name for a zone"):
        Zone(name, folder)


def test_many_facts_are_published_at_once(plant: Zone) -> None:
    """One that is refused holds up no other, and says why."""
    told = plant.publish_many(
        [
            {"subject": "order:1", "predicate": "counted", "object": {"n": 1}, "id": ("c", 1)},
            {"subject": "no subject", "predicate": "counted", "id": ("c", 2)},
            {"subject": "order:1", "predicate": "counted", "id": ("c", 3), "to": "lab"},
        ],
        to="hq",
    )
    assert [each.offset for each in told if isinstance(each, Receipt)] == [1, 2]
    assert isinstance(told[1], BoundaryError)
    wrong: list[Any] = [
        {"subject": "o:1", "predicate": "p", "id": "x", "files": []},
        {"subject": "o:1", "predicate": "p", "id": "y"},
        {"subject": "o:1", "id": ("z", 1.5)},
        "o:1",
        {"subject": "o:1", "predicate": "p", "id": ("z", 1.5)},
    ]
    answers = plant.publish_many(wrong, to="hq")
    assert isinstance(answers[1], Receipt)
    refused = [each.message for each in answers if isinstance(each, FactInvalidError)]
    assert refused == [
        "fact 0 of publish_many is not published: publish_many knows no 'files'",
        "fact 2 of publish_many is not published: it has no predicate",
        "fact 3 of publish_many is not published: it is of type str",
        "fact 4 of publish_many is not published: the id of a fact has a part of type float",
    ]
    assert [each.payload["object_json"] for each in plant.read("lab", to="lab")] == [None]


def test_event_loops_publish_too(plant: Zone) -> None:
    """Their calls go on side by side, and the loop is not held up."""

    async def publish() -> list[int]:
        calls = (
            plant.apublish("order:1", "counted", {"n": n}, to="hq", id=("counted", n))
            for n in range(20)
        )
        return sorted(each.offset for each in await asyncio.gather(*calls))

    assert asyncio.run(publish()) == list(range(1, 21))
    told = asyncio.run(
        plant.apublish_many([{"subject": "o:1", "predicate": "p", "id": "x"}], to="hq")
    )
    assert isinstance(told[0], Receipt)


def test_files_go_along(plant: Zone, tmp_path: Path) -> None:
    """They are stored before the fact, which refers to them."""
    paper = tmp_path / "order.pdf"
    paper.write_bytes(b"paper")
    plant.publish("order:1", "filed", to="hq", id="filed", files=[paper])
    source = plant.facts("hq")
    [fact] = source.fetch_transactions(1)
    assert source.get_object(fact.payload["object_json"]) == b"paper"
    source.ack(fact)
    with pytest.raises(ConfigurationError, match="cannot read"):
        plant.publish("order:2", "filed", to="hq", id="lost", files=[tmp_path / "missing.pdf"])
    os.mkfifo(tmp_path / "pipe.pdf")  # into which nobody may ever write
    with pytest.raises(ConfigurationError, match="is a named pipe"):
        plant.publish("order:2", "filed", to="hq", id="lost", files=[tmp_path / "pipe.pdf"])
    assert plant.find("lost") is None


@pytest.mark.parametrize(
    ("place", "files", "told"),
    [
        ("postgresql://db/x", {}, "is no place for a zone"),
        ("", {}, "is no place for a zone"),
        ("here", {"cert": "c"}, "cert belong to the address of a node"),
        ("http://plant.example.org:9443", {}, "unencrypted"),
    ],
)
def test_a_wrong_place_is_told_at_once(place: str, files: Any, told: str) -> None:
    """Before anything is opened."""
    with pytest.raises(ConfigurationError, match=told):
        Zone("plant", place, **files)


# ---- consuming ----------------------------------------------------------------------------------


def test_what_was_read_is_not_read_again(plant: Zone) -> None:
    """A fact is confirmed when the next one is asked for; leaving early leaves the last one."""
    for n in range(3):
        counted(plant, n)
    for fact in plant.read("all"):
        if fact.payload["object_json"]["n"] == 1:
            break
    assert numbers(plant) == [1, 2]
    assert numbers(plant) == []


def test_a_handler_that_fails_has_its_fact_set_aside(plant: Zone) -> None:
    """The others are handled, in order, and confirmed."""
    handled = []

    def handle(delivery: Delivery) -> None:
        if delivery.fact.object_json["n"] == 1:
            raise NonRetryableException("no")
        handled.append(delivery.fact.object_json["n"])

    for n in range(3):
        counted(plant, n)
    report = plant.consume("all", handle, until_empty=True)
    assert (handled, report.handled, report.quarantined) == ([0, 2], 2, 1)


def test_facts_are_a_connector_for_tasks(plant: Zone) -> None:
    """A consumer's task reads them under a durable name."""
    seen = []

    class Billing(ConsumerTask):
        def process_transaction(self, transaction: Any) -> None:
            seen.append((transaction.transaction_id, transaction.source))

    counted(plant, 1)
    source = plant.facts("billing")
    assert Billing(connectors={"plant": source}).consume_transactions({}).succeeded == 1
    source.close()
    assert seen == [("counted:1", "billing")]
    assert numbers(plant, "billing") == []


# ---- several processes --------------------------------------------------------------------------


def many_facts(count: int) -> list[FactItem]:
    """As the child publishes them."""
    return [
        {"subject": "order:1", "predicate": "counted", "object": {"n": n}, "id": ("counted", n)}
        for n in range(1, count + 1)
    ]


class Child:
    """A process that uses the same zone."""

    def __init__(self, folder: Path, failpoints: str = "") -> None:
        program = str(Path(__file__).with_name("zone_child.py"))
        self._process = fork_server.start(
            [sys.executable, program, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"ERGON_FAILPOINTS": failpoints},
        )

    def ask(self, line: object) -> str:
        """What it answers to a line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def end(self, *, is_killed: bool = False) -> None:
        """Let it end, or kill it."""
        if is_killed:
            self._process.kill()
        self._process.communicate(timeout=PATIENCE)


@pytest.fixture
def child(folder: Path) -> Iterator[Child]:
    """Another process."""
    made = Child(folder)
    yield made
    made.end(is_killed=True)


@pytest.mark.slow
def test_processes_share_a_zone_and_survive_each_other(
    plant: Zone, folder: Path, child: Child
) -> None:
    """One has the folder and the others ask it; when it is killed, the next one takes over."""
    assert child.ask(1) == "1"
    announced = listening_node(folder, "plant")
    assert announced is not None
    assert announced.is_guest
    assert counted(plant, 1).duplicate  # the child knows it: it is asked
    assert counted(plant, 2).offset == 2
    with pytest.raises(ConflictingDuplicateError):
        plant.publish("order:1", "counted", {"n": 5}, to="hq", id=("counted", 1))
    child.end(is_killed=True)  # acknowledged facts are on disk
    assert [counted(plant, n).offset for n in (1, 2, 3)] == [1, 2, 3]
    other = Child(folder)
    assert other.ask(3) == "3"  # now the child asks this process
    assert other.ask(4) == "4"
    node = other.ask("serve")  # and this guest makes way for a node that stays
    assert node.startswith("serves 127.0.0.1:")
    assert counted(plant, 5).offset == 5
    other.end()
    assert numbers(plant) == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_many_facts_are_there_once_though_a_process_is_killed_in_the_middle(
    plant: Zone, folder: Path
) -> None:
    """The one that serves the zone, between two commits; and the one that publishes."""
    serving = Child(folder, "boundary.append.after=kill@3")
    assert serving.ask(0) == "1"
    told = plant.publish_many(many_facts(1200), to="hq")  # the second commit is not answered
    serving.end()
    assert [each.offset for each in told if isinstance(each, Receipt)] == list(range(2, 1202))
    plant.close()
    publishing = Child(folder, "boundary.append.before=kill@2")
    assert publishing.ask("many 2400") == ""
    publishing.end()
    again = plant.publish_many(many_facts(2400), to="hq")
    assert [each.offset for each in again if isinstance(each, Receipt)] == list(range(2, 2402))


@pytest.mark.slow
def test_a_consumer_goes_on_when_the_process_that_serves_it_ends(
    plant: Zone, folder: Path, child: Child
) -> None:
    """It waits for facts at another process; that one ends, as programs do, and is replaced."""
    handled: list[int] = []
    stop = threading.Event()
    assert child.ask(1) == "1"
    consuming = threading.Thread(
        target=lambda: plant.consume(
            "all", lambda each: handled.append(each.fact.object_json["n"]), stop=stop
        )
    )
    consuming.start()
    until(lambda: handled == [1], "the first one is missing")
    child.end()
    with Zone("plant", folder) as other:
        assert counted(other, 2).offset == 2
        until(lambda: handled == [1, 2], "the consumer has given up")
    assert counted(plant, 3).offset == 3
    until(lambda: handled == [1, 2, 3], "the consumer has given up")
    stop.set()
    consuming.join(PATIENCE)
    assert not consuming.is_alive()


def test_a_forked_process_asks_its_parent(plant: Zone) -> None:
    """The folder stays the parent's; what the child publishes is in the same log."""
    counted(plant, 1)
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if counted(plant, 2).offset == 2 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert numbers(plant) == [1, 2]


def test_only_this_user_is_served(plant: Zone, folder: Path) -> None:
    """Whoever finds the port has nothing of it without the token, which is in a private file."""
    counted(plant, 1)
    found = listening_node(folder, "plant")
    assert found is not None
    assert found.token
    assert stat.S_IMODE((folder / ADDRESS).stat().st_mode) == 0o600
    with HttpTransport(found.url) as stranger:
        with pytest.raises(NotPermittedError, match="its own user"):
            stranger.call("bsfg.v1.Boundary/FetchFacts", b"{}")
        with pytest.raises(BoundaryError):
            stranger.put_object("b", "k", [b"x"], size=1)
    plant.close()
    assert listening_node(folder, "plant") is None


def test_a_guest_leaves_when_nobody_asks(folder: Path) -> None:
    """Nobody has to stop an idle program before a node can have the zone."""
    guest = LocalNode("plant", settings_of(folder), is_guest=True, idle_time=0.0)
    guest.start()
    until(lambda: guest.is_over, "the guest stays")
    with pytest.raises(FolderInUseError):
        refused_beside(folder)


def refused_beside(folder: Path) -> None:
    """Start a guest while another one has the folder."""
    first = LocalNode("plant", settings_of(folder), is_guest=True)
    first.start()
    try:
        LocalNode("plant", settings_of(folder), is_guest=True).start()
    finally:
        first.stop()


def test_of_two_programs_that_serve_a_zone_one_stands_by(plant: Zone) -> None:
    """It takes over when the other one stops; callers notice nothing."""
    counted(plant, 1)
    one, two = plant.node(), plant.node()
    assert one is not None
    assert two is not None
    one.start()
    two.start()
    two.start()  # twice is fine
    assert one.address is not None
    assert two.address is None
    assert counted(plant, 2).offset == 2
    assert one.stop(PATIENCE)
    assert counted(plant, 3).offset == 3
    until(lambda: two.address is not None, "nobody took over")
    assert two.stop(PATIENCE)
    assert counted(plant, 4).offset == 4


def test_a_node_waits_for_a_program_that_has_the_zone_in_passing(plant: Zone, folder: Path) -> None:
    """``ergon boundary serve`` need not be started before everything else; a zone has one node."""
    counted(plant, 1)
    settings = ZoneSettings(data=str(folder), listen=f"127.0.0.1:{free_port()}", insecure=True)

    async def serve() -> None:
        stop = asyncio.Event()
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(
            run_node("plant", settings, ready=ready.set_result, stop=stop)
        )
        assert await asyncio.wait_for(ready, PATIENCE) == settings.listen
        assert (await plant.apublish("o:1", "p", to="hq", id="second")).offset == 2
        with pytest.raises(FolderInUseError, match="in use by another node"):
            await run_node("plant", settings, ready=print, stop=stop)
        stop.set()
        await running

    asyncio.run(serve())


def test_another_name_is_refused_while_the_zone_is_served(plant: Zone, folder: Path) -> None:
    """As it is when nobody serves it: otherwise one log would have facts of two zones."""
    counted(plant, 1)
    told = f"{folder} belongs to the zone 'plant', not to 'site'"
    settings = ZoneSettings(data=str(folder), listen=f"127.0.0.1:{free_port()}", insecure=True)
    with Zone("site", folder) as site:
        connector = site.facts("all")
        for use in (
            lambda: connector.fetch_transactions(1),  # and closing the zone later raises nothing
            lambda: counted(site, 1),
            lambda: site.publish_many([{"subject": "o:1", "predicate": "p", "id": "x"}], to="hq"),
            lambda: site.find(("counted", 1)),
            lambda: numbers(site),
            lambda: site.consume("all", print, until_empty=True),
            lambda: LocalNode("site", settings).start(),
            lambda: asyncio.run(
                run_node("site", settings, ready=print, stop=asyncio.Event()),
            ),
        ):
            with pytest.raises(ConfigurationError) as refused:
                use()
            assert told in str(refused.value)
    plant.close()
    with Zone("site", folder) as site, pytest.raises(ConfigurationError, match="not to 'site'"):
        counted(site, 1)
    assert numbers(plant) == [1]


def test_a_zone_may_be_known_by_the_address_of_its_node(plant: Zone, folder: Path) -> None:
    """The short form works with a node of somebody else, which this process cannot serve."""
    address = f"127.0.0.1:{free_port()}"
    node = LocalNode("plant", ZoneSettings(data=str(folder), listen=address, insecure=True))
    node.start()
    with Zone("plant", f"http://{address}") as far:
        assert counted(far, 1).offset == 1
        assert far.node() is None
    with Zone("lab", f"http://{address}") as wrong:  # no certificate proves it, and it is asked
        for use in (lambda: counted(wrong, 2), lambda: numbers(wrong)):
            with pytest.raises(NotPermittedError, match="is zone 'plant', not 'lab'"):
                use()
    assert counted(plant, 1).duplicate
    assert numbers(plant) == [1]
    node.stop()


def test_a_node_that_cannot_listen_says_so(plant: Zone, folder: Path) -> None:
    """The error is raised where the node is started, and the zone is free again."""
    node = LocalNode("plant", ZoneSettings(data=str(folder)))
    with pytest.raises(ConfigurationError, match="there are no certificates"):
        node.start()
    assert counted(plant, 1).offset == 1


@pytest.mark.slow
def test_a_node_stands_by_while_the_folder_is_worked_on(plant: Zone, folder: Path) -> None:
    """A move or a restore has the lock and serves nobody; a program starts all the same."""
    node = plant.node()
    assert node is not None
    with closing(DataFolder.lock(folder)):
        node.start()
        assert node.address is None
    until(lambda: node.address is not None, "nobody took over")
    assert counted(plant, 1).offset == 1
    assert node.stop(PATIENCE)
    node.wait()


def test_a_consumer_lets_go_though_the_node_of_its_program_stops(plant: Zone, folder: Path) -> None:
    """A program stops everything at once; its next run need not wait for a lease to expire."""
    node = plant.node()
    assert node is not None
    node.start()
    counted(plant, 1)
    source = plant.facts("billing")
    [fact] = source.fetch_transactions(1)
    stopping = threading.Thread(target=node.stop)
    stopping.start()
    source.ack(fact)
    source.close()
    stopping.join(PATIENCE)
    with Zone("plant", folder) as later:
        counted(later, 2)
        assert numbers(later, "billing") == [2]


class Hasty(LocalNode):
    """A guest that lets go of its folder before whoever started it can ask where it listens."""

    def start(self) -> None:
        """Begin, and have left when this returns."""
        super().start()
        self.wait()


def test_a_guest_that_leaves_at_once_is_followed_by_the_next_node(folder: Path) -> None:
    """Another node may ask for the folder just then: the caller waits, and is asked nothing."""
    begun: list[LocalNode] = []

    def guest(name: str, settings: ZoneSettings) -> LocalNode:
        kind = LocalNode if begun else Hasty
        begun.append(kind(name, settings, is_guest=True, idle_time=0.0 if not begun else 30.0))
        return begun[-1]

    transport = LocalTransport("plant", settings_of(folder), guest=guest)
    with closing(transport), pytest.raises(BoundaryNotFoundError):
        transport.head_object("drawings", "none")
    assert len(begun) == 2
