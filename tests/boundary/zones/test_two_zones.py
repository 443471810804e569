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

from ergon_framework.boundary.application import NodeApplication
from ergon_framework.boundary.inprocess import InProcessTransport
from ergon_framework.boundary.logs.memory import MemoryFactStore
from ergon_framework.boundary.objects.memory import MemoryObjectStore
from ergon_framework.boundary.policy import Policy
from ergon_framework.boundary.puller import Puller
from ergon_framework.boundary.settings import PullSettings, ZoneSettings
from ergon_framework.boundary.zone import Zone
from ergon_framework.errors import ConflictingDuplicateError, NodeUnavailableError
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
        self.start()

    def clock(self) -> float:
        return self.now

    def start(self) -> None:
        """Both nodes, as after a restart: nothing but the stores is left."""
        self.zone = {
            name: Zone(name, self.stores[name], self.objects[name], SETTINGS, clock=self.clock)
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
        wanted = [each for each in self.order if self.told[each][0] == "b"]
        assert self.inbound() == wanted, "set and order of the forward log are those of the store"
        assert self.stores["a"].consumer("zone:b").lag == 0
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

    # ---- what holds ----

    @invariant()
    def nothing_is_doubled_or_skipped(self) -> None:
        """The forward log is always the beginning of the store log, as this peer sees it."""
        wanted = [each for each in self.order if self.told[each][0] == "b"]
        found = self.inbound()
        assert found == wanted[: len(found)]

    @invariant()
    def nothing_is_confirmed_before_it_is_here(self) -> None:
        """The peer's cursor never lies above what this zone holds."""
        names = [info.name for info in self.stores["a"].consumers()]
        if "zone:b" in names:
            assert self.stores["a"].consumer("zone:b").cursor <= self.stores["b"].link("a").offset

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

    def page(self) -> Any:
        """Everything in b's inbound log."""
        return self.stores["b"].page("inbound:a", 0, 1000, 1 << 30)

    def inbound(self) -> list[str]:
        """The ids in b's inbound log, in its order; its offsets are dense."""
        facts = self.page().facts
        assert [fact.offset for fact in facts] == list(range(1, len(facts) + 1))
        return [fact.message_id for fact in facts]

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


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:zones", "P6", "P12", "P16")
def test_two_zones_and_a_bad_link() -> None:
    """Whatever the link does, the forward log equals the store log in the end."""
    rules = settings(max_examples=60, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(TwoZones, settings=rules)
