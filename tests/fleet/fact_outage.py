"""Two zones, their nodes, a producer and consumers of facts whose store is away for a while."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from ergon_framework.boundary.client.consumer import Consumer
from ergon_framework.boundary.client.producer import Producer
from ergon_framework.boundary.facts.ids import message_id
from ergon_framework.boundary.model import Delivery
from ergon_framework.errors import BoundaryError
from ergon_framework.ports.factstore import OUTBOUND, Corruption
from tests.boundary.node.processes import ADMIN, NodeProcess, running
from tests.campaign.outage_retry import pause
from tests.differential.engines import ServerEngine
from tests.differential.places import Place, open_facts
from tests.fleet.fleet import LEAVING, wait_until
from tests.fleet.outages import Doer, away

MORE = 20
"""Facts that are published before the store goes away, and after it is back."""


class Reader:
    """A consumer at work in a thread; one that gives up is started again, and counted."""

    def __init__(self, node: NodeProcess, log: str) -> None:
        self.read: Counter[str] = Counter()
        self.given_up: list[BaseException] = []
        self._consumer = Consumer(node.url, "reader", log=log)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._is_over.set()
        self._consumer.stop()
        self._thread.join(LEAVING)
        self._consumer.close()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                self._consumer.run(self._handle, stop=self._is_over)
            except BoundaryError as error:
                self.given_up.append(error)
                pause(0.2)

    def _handle(self, delivery: Delivery) -> None:
        self.read[delivery.envelope.message_id] += 1


class Sites:
    """A zone that is told facts, and one that pulls them with two nodes; all on one server."""

    def __init__(self, place: Place, folder: Path, held: ExitStack) -> None:
        self.place = place
        sender, taker = f"{place.zone}-from", f"{place.zone}-to"
        self.logs = {sender: OUTBOUND, taker: f"inbound:{sender}"}
        store = ("--store", place.url, "--log-level", "error")
        self.a = held.enter_context(running(sender, folder / "a", *store))
        peer = ("--peer", f"{sender}={self.a.url}")
        self.takers = [
            held.enter_context(running(taker, folder / name, *store, *peer))
            for name in ("b1", "b2")
        ]
        self.nodes = [self.a, *self.takers]
        self.offsets: dict[str, int] = {}
        self.readers = [Reader(self.a, OUTBOUND), Reader(self.takers[0], self.logs[taker])]
        for reader in self.readers:
            held.callback(reader.stop)
        self._producer = held.enter_context(Producer(self.a.url, from_zone=sender, to_zone=taker))

    def publish(self, number: int) -> bool:
        """See that a fact is there; whether it is."""
        fact = {"subject": f"unit:{number}", "predicate": "made", "object_json": {"n": number}}
        try:
            told = self._producer.publish(fact, message_id=name(number))
        except BoundaryError as error:
            if not error.is_retryable:
                raise
            return False
        self.offsets[name(number)] = told.offset
        return True

    def has_read(self, numbers: list[int]) -> bool:
        """Whether every reader has had all of these."""
        return all(name(n) in reader.read for reader in self.readers for n in numbers)

    def is_linked(self) -> bool:
        """Whether every node that pulls says that all is well."""
        return all(link(node).get("mode") == "normal" for node in self.takers)

    def waiting(self, *nodes: NodeProcess) -> list[NodeProcess]:
        """Of these nodes, or of all, those that let another one pull."""
        return [node for node in nodes or self.takers if link(node).get("held_by")]

    def ended(self) -> int:
        """How many nodes are gone."""
        return sum(not Path(f"/proc/{node.pid}/exe").exists() for node in self.nodes)


def link(node: NodeProcess) -> dict[str, Any]:
    """What a node says about its link; nothing, when it cannot say."""
    found = node.ask(f"{ADMIN}GetStatus", {}).get("links") or [{}]
    return dict(found[0])


@contextmanager
def sites(place: Place, folder: Path) -> Iterator[Sites]:
    """The zones, as long as they are wanted."""
    with ExitStack() as held:
        yield Sites(place, folder, held)


def fact_outage(engine: ServerEngine, folder: Path, seconds: float, how: str) -> dict[str, Any]:
    """Let it happen to two zones with the settings that everybody has; what became of it."""
    with sites(engine.place(), folder) as both:
        with Doer(both.publish) as producer:
            wait_until(lambda: len(producer.done) >= MORE, "facts before it")
            wait_until(lambda: both.has_read(producer.done[:1]), "the first fact everywhere")
            with away(engine, how):
                pause(seconds)
            before = len(producer.done)
            wait_until(lambda: len(producer.done) >= before + MORE, "facts after its return")
            producer.stop()
        wait_until(lambda: both.has_read(producer.done), "the last fact everywhere")
        wait_until(both.is_linked, "links that say that all is well")
        gave_up = [error for reader in both.readers for error in reader.given_up]
        told = _judged(both)
        return (
            {"away": seconds, "units": len(producer.done)}
            | told
            | {"refused": producer.failed, "restarted": both.ended() + len(gave_up)}
        )


def _judged(both: Sites) -> dict[str, Any]:
    """What the stores of both zones hold, beside what was acknowledged and read."""
    told: Counter[str] = Counter()
    wanted = both.offsets.keys()
    for zone, log in both.logs.items():
        with closing(open_facts(Place(both.place.url, zone))) as store:
            facts = store.page(log, 0, 1_000_000, 1 << 30).facts
            flaws = [each for each in store.verify(log) if isinstance(each, Corruption)]
        ids = Counter(fact.message_id for fact in facts)
        told["lost"] += len(wanted - ids.keys())
        told["doubled"] += sum(ids.values()) - len(ids) + len(ids.keys() - wanted)
        told["flaws"] += len(flaws)
        if log == OUTBOUND:
            places = {fact.message_id: fact.offset for fact in facts}
            told["moved"] = sum(places.get(each) != at for each, at in both.offsets.items())
    told["unread"] = sum(each not in reader.read for reader in both.readers for each in wanted)
    told["read_again"] = sum(n - 1 for reader in both.readers for n in reader.read.values())
    return {
        each: told[each] for each in ("lost", "doubled", "moved", "flaws", "unread", "read_again")
    }


def name(number: int) -> str:
    """The id of a fact."""
    return message_id("made", "unit", str(number), revision=1)
