"""Two zones and a bad link between them, against a small model of what must hold."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.node.app import NodeApplication
from ergon_framework.boundary.node.inprocess import InProcessTransport
from ergon_framework.boundary.node.policy import Policy
from ergon_framework.boundary.node.replication import Puller
from ergon_framework.boundary.settings import PullSettings, ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import ConflictingDuplicateError, NodeUnavailableError
from ergon_framework.ports.factstore import LogPage
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from tests.boundary.zones.links import FAULTS, FaultyLink

SETTINGS = ZoneSettings(pull=PullSettings(page=3, wait=0.001))
IDS = st.integers(0, 30)


class TwoZones(RuleBasedStateMachine):
    """Zone a has facts for b and for c; b pulls its own over a link that misbehaves."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.runner = asyncio.Runner()
        self.stores = {name: MemoryFactStore(name, clock=self.clock) for name in "ab"}
        self.objects = {name: MemoryObjectStore() for name in "ab"}
        self.told: dict[str, tuple[str, int]] = {}  # id: to_zone, content
        self.order: list[str] = []  # ids of a's log
        self.given_up: set[int] = set()  # offsets of a's log that went before b had them
        self.read: list[int | tuple[int, int]] = []  # what b's consumer has confirmed
        self.stores["b"].create_consumer("erp", "inbound:a")
        self.start()

    def clock(self) -> float:
        return self.now

    def start(self) -> None:
        """Both nodes, as after a restart: nothing but the stores is left."""
        self.zone = {
            name: LocalZone(name, self.stores[name], self.objects[name], SETTINGS, clock=self.clock)
            for name in "ab"
        }
        self.runner.run(self._start())

    async def _start(self) -> None:
        applications = {
            name: NodeApplication(zone, Policy.open, threads=0) for name, zone in self.zone.items()
        }
        self.application = applications["a"]
        self.link = FaultyLink(InProcessTransport(applications["a"]))
        self.puller = Puller(
            self.zone["b"],
            "a",
            self.link,
            in_thread=applications["b"].in_thread,
            policy=Policy.open,
            dice=lambda: 0.5,
        )

    def teardown(self) -> None:
        self.link.is_cut = False
        self.link.script.clear()
        for _ in range(3 * len(self.order) + 10):
            self.turn()
        self.nothing_is_doubled_or_skipped()
        assert self.stores["b"].link("a").offset == len(self.order), "all of it is here or lost"
        told = {n for each in self.entries() if isinstance(each, tuple) for n in _range(each)}
        assert told == self.given_up, "what was given up is told, and nothing else"
        assert self.stores["a"].consumer("zone:b").lag == 0
        for _ in range(len(self.order) + 1):
            self.consume(2, True)
        assert self.read == self.entries(), "the consumer has it all, once and in order"
        self.runner.close()

    # ---- what happens ----

    @rule(number=IDS, to_zone=st.sampled_from("bc"), content=st.integers(0, 1), file=st.booleans())
    def append(self, number: int, to_zone: str, content: int, file: bool) -> None:
        """A producer tells something new, again, or something else under the same id."""
        message_id = f"order:{number}:created"
        envelope = {
            "message_id": message_id,
            "from_zone": "a",
            "to_zone": to_zone,
            "produced_at_unix_ms": 1,
        }
        known = self.told.get(message_id)
        if known and (to_zone, content) != known[:2]:
            with pytest.raises(ConflictingDuplicateError):
                self.zone["a"].append(envelope, self.fact(known[0], content, known[2]))  # type: ignore[misc]
            return
        if known:
            file = known[2]  # type: ignore[misc]
        if file:
            data = b"bytes of %d" % content * 50
            self.zone["a"].put("files", f"{content}", data)
        receipt = self.zone["a"].append(envelope, self.fact(to_zone, content, file))
        assert receipt.duplicate is (known is not None)
        if known is None:
            self.told[message_id] = (to_zone, content, file)  # type: ignore[assignment]
            self.order.append(message_id)
        assert self.order[receipt.offset - 1] == message_id

    @rule(faults=st.lists(st.sampled_from(("", *FAULTS)), max_size=5))
    def pull(self, faults: list[str]) -> None:
        """One turn of the puller over the link as it is today."""
        self.link.script.extend(faults)
        self.turn()

    @rule()
    def late(self) -> None:
        """What the link held back arrives after all."""
        self.runner.run(self.link.deliver_late())

    @rule()
    def heal(self) -> None:
        """The link works again."""
        self.link.is_cut = False
        self.link.script.clear()

    @rule()
    def restart(self) -> None:
        """Both nodes die and start again."""
        late = self.link.late
        self.start()
        self.link.late = late

    @rule()
    @precondition(lambda self: self.order)
    def truncate(self) -> None:
        """Retention drops what every required consumer has."""
        self.stores["a"].truncate("outbound", len(self.order))

    @rule(through=st.integers(1, 40))
    def lose(self, through: int) -> None:
        """An operator lets a give up facts, whoever has not got them."""
        through = min(through, len(self.order))
        first = self.stores["a"].logs()[0].first
        here = self.stores["b"].link("a").offset
        self.stores["a"].truncate("outbound", through, loss_reason="retention")
        self.given_up.update(range(max(first, here + 1), through + 1))

    @rule(limit=st.integers(1, 4), is_confirmed=st.booleans())
    def consume(self, limit: int, is_confirmed: bool) -> None:
        """A consumer in b reads a page, and may die before it confirms it."""
        page = self.stores["b"].serve("erp", limit, 1 << 30).page
        if is_confirmed:
            self.read += _in_order(page)
            self.stores["b"].confirm("erp", page.through)

    # ---- what holds ----

    @invariant()
    def nothing_is_doubled_or_skipped(self) -> None:
        """Up to the frontier, the forward log is the store log but for what was given up."""
        entries, frontier = self.entries(), self.stores["b"].link("a").offset
        told = [n for each in entries if isinstance(each, tuple) for n in _range(each)]
        assert len(told) == len(set(told)), "a loss is recorded once"
        assert set(told) <= self.given_up, "what is told as lost was lost"
        here = enumerate(self.order[:frontier], 1)
        wanted = [n for n, each in here if n not in told and self.told[each][0] == "b"]
        assert [each for each in entries if not isinstance(each, tuple)] == wanted
        places = [each[0] if isinstance(each, tuple) else each for each in entries]
        assert places == sorted(places), "losses lie between the facts around them"

    @invariant()
    def nothing_is_confirmed_before_it_is_here(self) -> None:
        """The peer's cursor never lies above what this zone holds, but for what was given up."""
        names = [info.name for info in self.stores["a"].consumers()]
        if "zone:b" in names:
            cursor = self.stores["a"].consumer("zone:b").cursor
            ahead = range(self.stores["b"].link("a").offset + 1, cursor + 1)
            assert self.given_up.issuperset(ahead)

    @invariant()
    def artifacts_come_first(self) -> None:
        """Whatever a visible fact refers to is here."""
        for fact in self.page().facts:
            if b'"bucket"' in fact.fact:
                content = self.told[fact.message_id][1]
                data = b"bytes of %d" % content * 50
                assert self.objects["b"].stat(hashlib.sha256(data).digest()) is not None

    # ---- how it is done ----

    def turn(self) -> None:
        """One turn; trouble is what the link is for."""
        self.now += 1
        try:
            self.runner.run(self.puller.turn())
        except NodeUnavailableError:
            return

    def page(self) -> LogPage:
        """Everything in b's inbound log."""
        return self.stores["b"].page("inbound:a", 0, 1000, 1 << 30)

    def entries(self) -> list[int | tuple[int, int]]:
        """b's inbound log: offsets that facts had in a, and ranges lost there; it is dense."""
        page = self.page()
        places = [*(fact.offset for fact in page.facts), *(gap.first for gap in page.gaps)]
        assert sorted(places) == list(range(1, page.head + 1))
        for fact in page.facts:
            assert fact.message_id == self.order[(fact.source_offset or 0) - 1]
        return _in_order(page)

    @staticmethod
    def fact(to_zone: str, content: int, file: bool) -> dict[str, Any]:
        """What is told."""
        value: Any = {"content": content}
        if file:
            data = b"bytes of %d" % content * 50
            value["file"] = {
                "bucket": "files",
                "key": f"{content}",
                "digest": "sha256:" + hashlib.sha256(data).hexdigest(),
                "size": len(data),
            }
        return {"subject": f"order:{to_zone}", "predicate": "created", "object_json": value}


def _in_order(page: LogPage) -> list[int | tuple[int, int]]:
    """What a page has, in order: offsets that facts had at the peer, and ranges lost there."""
    found: dict[int, Any] = {fact.offset: fact.source_offset for fact in page.facts}
    found |= {gap.first: (gap.source_first, gap.source_last) for gap in page.gaps}
    return [found[offset] for offset in sorted(found)]


def _range(lost: tuple[int, int]) -> range:
    return range(lost[0], lost[1] + 1)


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:zones", "BOUNDARY:consumer", "P6", "P12", "P16")
def test_two_zones_and_a_bad_link() -> None:
    """Whatever the link does, the forward log equals the store log, but for recorded losses."""
    rules = settings(max_examples=60, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(TwoZones, settings=rules)
