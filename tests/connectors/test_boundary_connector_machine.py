"""Random histories of a consumer: nothing is confirmed that has no outcome, and nothing is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ergon_framework.boundary.client.effects import RETRY_RULE
from ergon_framework.boundary.model import Delivery
from ergon_framework.connector.boundary import BoundaryConnector, BoundaryConnectorError
from ergon_framework.connector.boundary.window import (
    Confirm,
    EntryState,
    SetAside,
    Window,
    WindowEntry,
)
from ergon_framework.errors import BoundaryError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.clock import VirtualClock
from tests.boundary.client.scripted import MemoryNode, envelope, fact, unavailable
from tests.connectors.zone_node import CALLS, die, end_lease

pytestmark = pytest.mark.req("ONE:connector-boundary")

ONCE = replace(RETRY_RULE, attempts=1)
VERBS = st.sampled_from(["ack"] * 5 + ["nack"] * 3 + ["release", "release_after"])
REFUSED = (BoundaryError, BoundaryConnectorError)


def number(transaction: Transaction) -> int:
    """Which fact it is; offsets are the same."""
    n: int = transaction.payload["object_json"]["n"]
    return n


class ConsumerHistory(RuleBasedStateMachine):
    """Facts come, outcomes come in any order, calls fail, processes die, operators release."""

    def __init__(self) -> None:
        super().__init__()
        self.node = MemoryNode(VirtualClock())
        self.appended = 0
        self.handled: set[int] = set()  # acknowledged at least once
        self.released: set[int] = set()  # sent back by an operator, and not acknowledged since
        self.in_hand: list[Transaction] = []
        self.is_usurped = False
        self.connector = self.connect()

    def connect(self) -> BoundaryConnector:
        return BoundaryConnector(
            self.node, consumer="c", log="outbound", retry=ONCE, limit=50, max_deliveries=10_000
        )

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        """More facts."""
        first = self.appended + 1
        self.appended += count
        self.node.append([(envelope(n), fact(n)) for n in range(first, self.appended + 1)])

    @rule(count=st.integers(1, 8))
    def fetch(self, count: int) -> None:
        """Nothing comes twice while it is in hand, and facts come in order."""
        try:
            came = self.connector.fetch_transactions(count)
        except REFUSED:
            return
        assert len(came) <= count
        if self.is_usurped:
            self.in_hand, self.is_usurped = [], False
        held = {number(each) for each in self.in_hand}
        assert not held & {number(each) for each in came}
        fresh = [each for each in came if number(each) > self.cursor()]
        assert [number(each) for each in fresh] == sorted(number(each) for each in fresh)
        self.in_hand += came

    @precondition(lambda self: self.in_hand)
    @rule(choices=st.lists(st.tuples(st.integers(0, 99), VERBS), min_size=1, max_size=8))
    def settle(self, choices: list[tuple[int, str]]) -> None:
        """Outcomes of some facts in hand, in any order."""
        for place, verb in choices[: len(self.in_hand)]:
            self.tell(self.in_hand.pop(place % len(self.in_hand)), verb)

    @rule(verbs=st.lists(VERBS, min_size=1, max_size=8))
    def work(self, verbs: list[str]) -> None:
        """A whole batch, from the first fetch to the last outcome."""
        self.append(len(verbs))
        self.fetch(len(verbs))
        self.settle([(7 * n, verb) for n, verb in enumerate(verbs)])

    def tell(self, transaction: Transaction, verb: str) -> None:
        if verb == "ack":
            self.handled.add(number(transaction))
            self.released.discard(number(transaction))
        more: dict[str, tuple[Any, ...]] = {"nack": (ValueError("no"),), "release_after": (9e9,)}
        try:
            getattr(self.connector, verb)(transaction, *more.get(verb, ()))
        except REFUSED:
            return

    @rule(method=st.sampled_from(CALLS), is_done=st.booleans())
    def stumble(self, method: str, is_done: bool) -> None:
        """The next such call fails, before it did anything or after it did everything."""
        if is_done:
            self.node.lost[method] = 1
        else:
            self.node.faults[method] = [unavailable()]

    @precondition(lambda self: self.node.store.quarantine())
    @rule()
    def send_back(self) -> None:
        """An operator releases all that is in quarantine."""
        for item in self.node.store.quarantine():
            self.node.store.settle(item.id, "released")
            self.released.add(item.offset)

    @precondition(lambda self: self.in_hand)
    @rule()
    def crash(self) -> None:
        """The process dies with everything in its hands; another one begins."""
        self.abandon()
        self.connector, self.in_hand = self.connect(), []

    @precondition(lambda self: self.in_hand)
    @rule(handles=st.booleans())
    def usurp(self, handles: bool) -> None:
        """Another process has the name for a while, and perhaps handles the next fact."""
        self.let_the_lease_end()
        served = self.node.store.serve("c", 1, 1 << 20, holder="other")
        if handles and served.page.facts:
            offset = served.page.facts[0].offset
            self.handled.add(offset)
            self.released.discard(offset)
            self.node.store.confirm("c", offset, holder="other")
        self.node.store.release_lease("c", "other")
        self.is_usurped = True

    @invariant()
    def confirmed_means_handled(self) -> None:
        """All below the cursor was acknowledged, or is in quarantine; what was sent back, too."""
        items = {item.offset: item.state for item in self.node.store.quarantine(state=None)}
        for n in range(1, self.cursor() + 1):
            assert n in self.handled or n in items
            if items.get(n) == "settled":
                assert n not in self.released

    def cursor(self) -> int:
        consumers = {each.name: each.cursor for each in self.node.store.consumers()}
        return consumers.get("c", 0)

    def let_the_lease_end(self) -> None:
        if not self.node.store.consumers():
            self.node.store.create_consumer("c", "outbound")
        end_lease(self.node)

    def abandon(self) -> None:
        if not self.node.store.consumers():
            self.node.store.create_consumer("c", "outbound")
        die(self.connector, self.node)

    def teardown(self) -> None:
        self.node.lost, self.node.faults = {}, {}
        self.abandon()
        with self.connect() as connector:
            while came := connector.fetch_transactions(7):
                for each in came:
                    self.handled.add(number(each))
                    self.released.discard(number(each))
                    connector.ack(each)
            assert self.cursor() == self.appended
            self.confirmed_means_handled()
            assert not self.node.store.quarantine(state="released")


TestConsumerHistory = pytest.mark.slow(ConsumerHistory.TestCase)
TestConsumerHistory.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(
    outcomes=st.lists(st.sampled_from(["ack", "nack", "none"]), min_size=1, max_size=20),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=200, deadline=None)
def test_the_longest_prefix_is_confirmed(outcomes: list[str], order: Any) -> None:
    """Whatever the order of the outcomes, the cursor stands before the first fact without one."""
    window = Window()
    entries = [
        WindowEntry(n, Delivery(offset=n, envelope=envelope(n), fact=fact(n)))
        for n in range(1, len(outcomes) + 1)
    ]
    window.extend(entries, 0)
    assert window.take(100, 0.0) == entries
    told: list[tuple[str, int]] = []
    for place in order.sample(range(len(outcomes)), len(outcomes)):
        states = {"ack": EntryState.DONE, "nack": EntryState.FAILED, "none": EntryState.IN_HAND}
        entries[place].state = states[outcomes[place]]
        while (step := window.next_step()) is not None:
            match step:
                case Confirm(offset):
                    told.append(("confirm", offset))
                case SetAside(entry):
                    told.append(("set aside", entry.offset))
            window.told(step)
    first_without = (outcomes.index("none") if "none" in outcomes else len(outcomes)) + 1
    offsets = [offset for _, offset in told]
    assert offsets == sorted(offsets)
    assert max(offsets, default=0) == first_without - 1
    aside = [offset for what, offset in told if what == "set aside"]
    assert aside == [n for n in range(1, first_without) if outcomes[n - 1] == "nack"]
