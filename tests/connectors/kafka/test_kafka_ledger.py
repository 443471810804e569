"""The record of offsets of a Kafka consumer: whatever happens, nothing is passed over."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ergon_framework.connector.kafka.ledger import Entry, OffsetLedger, Order, Partition

FIRST: Partition = ("orders", 0)
SECOND: Partition = ("orders", 1)


def _ledger(
    order: Order = Order.KEY, *, count: int = 100, size: int = 1000, window: int = 100
) -> OffsetLedger:
    ledger = OffsetLedger(order, max_count=count, max_bytes=size, window=window)
    ledger.assign([FIRST, SECOND])
    return ledger


def _polled(ledger: OffsetLedger, *offsets: int, key: bytes | None = None) -> None:
    for offset in offsets:
        assert ledger.deliver(FIRST, offset, key, 1, f"m{offset}")


def _offsets(entries: list[Entry]) -> list[int]:
    return [each.offset for each in entries]


def test_the_offset_moves_over_the_longest_settled_run() -> None:
    """Outcomes that come out of order are noted, and committed when the ones below have theirs."""
    ledger = _ledger()
    _polled(ledger, 0, 1, 2)
    first, second, third = ledger.take(3, 0.0)
    assert ledger.settle(third)
    assert ledger.settle(second)
    assert ledger.uncommitted() == {}
    assert ledger.settle(first)
    assert ledger.uncommitted() == {FIRST: 3}
    ledger.commit([(FIRST, 3)])
    assert ledger.uncommitted() == {}


def test_gaps_between_offsets_are_no_missing_messages() -> None:
    """A compacted topic, or one with transactions, has offsets that nobody is ever given."""
    ledger = _ledger()
    _polled(ledger, 4, 9)
    for entry in ledger.take(2, 0.0):
        ledger.settle(entry)
    assert ledger.uncommitted() == {FIRST: 10}


def test_messages_of_one_key_are_handled_one_after_another() -> None:
    """The second of a key waits for the first one; another key, and none, do not."""
    ledger = _ledger()
    ledger.deliver(FIRST, 0, b"a", 1, None)
    ledger.deliver(FIRST, 1, b"a", 1, None)
    ledger.deliver(FIRST, 2, b"b", 1, None)
    ledger.deliver(FIRST, 3, None, 1, None)
    ledger.deliver(FIRST, 4, None, 1, None)
    first, *others = ledger.take(9, 0.0)
    assert _offsets([first, *others]) == [0, 2, 3, 4]
    assert ledger.take(9, 0.0) == []
    ledger.settle(first)
    assert _offsets(ledger.take(9, 0.0)) == [1]


def test_messages_of_a_partition_may_be_handled_one_after_another() -> None:
    """With the order of partitions there is one at a time in each."""
    ledger = _ledger(Order.PARTITION)
    _polled(ledger, 0, 1)
    ledger.deliver(SECOND, 0, b"x", 1, None)
    assert len(taken := ledger.take(9, 0.0)) == 2
    assert {each.log.partition for each in taken} == {FIRST, SECOND}


def test_what_is_given_back_comes_first_again() -> None:
    """A message that was not worked to an end gets its old place, and one of its key waits on."""
    ledger = _ledger()
    _polled(ledger, 0, 1, 2)
    taken = ledger.take(2, 0.0)
    for entry in reversed(taken):
        ledger.give_back(entry)
    assert _offsets(ledger.take(9, 0.0)) == [0, 1, 2]


def test_a_parked_message_holds_the_offset_and_its_key_only() -> None:
    """Others are handed out; what has the same key waits for the parked one."""
    ledger = _ledger()
    for offset, key in enumerate((b"a", b"a", b"b")):
        ledger.deliver(FIRST, offset, key, 1, None)
    parked, other = ledger.take(9, 0.0)
    ledger.give_back(parked, 5.0)
    ledger.settle(other)
    assert (ledger.next_due(1.0), ledger.take(9, 4.9), ledger.uncommitted()) == (4.0, [], {})
    assert _offsets(ledger.take(9, 5.0)) == [0]


def test_a_message_that_is_not_due_yet_waits_behind_its_key_as_well() -> None:
    """One from a retry topic keeps its own time when its turn in the key comes."""
    ledger = _ledger()
    ledger.deliver(FIRST, 0, b"a", 1, None)
    ledger.deliver(FIRST, 1, b"a", 1, None, due=9.0)
    (first,) = ledger.take(9, 1.0)
    ledger.settle(first)
    assert ledger.take(9, 1.0) == []
    assert _offsets(ledger.take(9, 9.0)) == [1]


def test_more_is_polled_for_several_messages_at_once() -> None:
    """Not for each one that was settled, as long as others are ready to be handed out."""
    ledger = _ledger(count=8)
    assert ledger.can_poll
    _polled(ledger, *range(8))
    first, second = ledger.take(2, 0.0)
    ledger.settle(first)
    assert (ledger.room, ledger.can_poll) == (1, False)
    ledger.settle(second)
    assert (ledger.room, ledger.can_poll) == (2, True)


def test_more_is_polled_as_soon_as_nothing_is_ready() -> None:
    """However little room there is: else whoever fetches would wait for those in hand."""
    ledger = _ledger(count=8)
    _polled(ledger, *range(7))
    assert not ledger.can_poll
    ledger.take(7, 0.0)
    assert (ledger.room, ledger.can_poll) == (1, True)
    assert ledger.deliver(FIRST, 7, None, 1000, "large")
    assert (ledger.room, ledger.can_poll) == (0, False)


def test_what_comes_again_keeps_its_place_among_what_is_new() -> None:
    """A message given back, and one whose key was taken, are handed out before later ones."""
    ledger = _ledger()
    ledger.deliver(FIRST, 0, b"a", 1, None)
    ledger.deliver(FIRST, 1, b"a", 1, None)
    ledger.deliver(FIRST, 2, b"b", 1, None)
    ledger.deliver(FIRST, 3, b"c", 1, None)
    first, other = ledger.take(2, 0.0)
    ledger.settle(first)
    ledger.give_back(other)
    assert _offsets(ledger.take(9, 0.0)) == [1, 2, 3]


def test_a_revoke_hands_out_nothing_more_and_keeps_what_is_in_hand() -> None:
    """What was in hand may still be settled until the partition is gone, and is committed."""
    ledger = _ledger()
    _polled(ledger, 0, 1, 2)
    first, second = ledger.take(2, 0.0)
    ledger.begin_revoking([FIRST])
    assert ledger.take(9, 0.0) == []
    assert not ledger.deliver(FIRST, 3, None, 1, None)
    assert ledger.in_hand([FIRST]) == 2
    assert ledger.settle(first)
    assert ledger.give_back(second)
    assert (ledger.in_hand([FIRST]), ledger.uncommitted([FIRST])) == (0, {FIRST: 1})
    assert ledger.revoke([FIRST]) == 0
    assert (ledger.held, ledger.held_bytes) == (0, 0)


def test_a_settlement_after_the_revoke_changes_nothing_and_is_counted() -> None:
    """Also when the partition has come back: what was delivered before is of another generation."""
    ledger = _ledger()
    _polled(ledger, 0)
    (early,) = ledger.take(1, 0.0)
    assert ledger.revoke([FIRST]) == 1
    ledger.assign([FIRST])
    _polled(ledger, 0)
    assert not ledger.settle(early)
    assert not ledger.give_back(early)
    assert (ledger.uncommitted(), ledger.late) == ({}, 2)
    (again,) = ledger.take(1, 0.0)
    assert ledger.settle(again)
    assert ledger.uncommitted() == {FIRST: 1}


def test_a_message_that_is_polled_again_is_not_delivered_again() -> None:
    """A client that goes back to an offset finds it taken."""
    ledger = _ledger()
    _polled(ledger, 0, 1)
    assert not ledger.deliver(FIRST, 1, None, 1, None)


def test_what_may_be_polled_is_bounded() -> None:
    """By the number and the bytes of what is held, and by partition behind an open message."""
    ledger = _ledger(count=3, size=10, window=2)
    _polled(ledger, 0, 1)
    assert (ledger.room, ledger.full_partitions()) == (1, {FIRST})
    ledger.deliver(SECOND, 0, None, 8, None)
    assert ledger.room == 0
    first, second, third = ledger.take(3, 0.0)
    ledger.settle(third)
    ledger.settle(second)
    assert (ledger.room, ledger.full_partitions()) == (2, {FIRST})
    ledger.settle(first)
    assert (ledger.room, ledger.full_partitions()) == (3, set())


def test_the_end_is_reached_when_every_partition_says_so() -> None:
    """A message that comes later takes it back."""
    ledger = _ledger()
    seen = [ledger.is_at_end]
    ledger.reach_end(FIRST)
    seen.append(ledger.is_at_end)
    ledger.reach_end(SECOND)
    seen.append(ledger.is_at_end)
    _polled(ledger, 0)
    seen.append(ledger.is_at_end)
    assert seen == [False, False, True, False]
    assert ledger.next_due(0.0) == 0.0
    ledger.take(1, 0.0)
    assert ledger.next_due(0.0) == math.inf


class LedgerMachine(RuleBasedStateMachine):
    """Any sequence of polls, takes, outcomes, parkings, commits and rebalances."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = OffsetLedger(Order.KEY, max_count=20, max_bytes=20, window=8)
        self.ours: set[Partition] = set()
        self.log: dict[Partition, int] = {FIRST: 0, SECOND: 0}  # messages that the broker has
        self.committed: dict[Partition, int] = {FIRST: 0, SECOND: 0}
        self.polled: dict[Partition, int] = {}
        self.settled: set[tuple[Partition, int]] = set()  # whose outcome counted
        self.in_hand: list[Entry] = []
        self.lost: list[Entry] = []
        self.now = 1.0

    @rule(which=st.sampled_from([FIRST, SECOND]), count=st.integers(1, 4))
    def send(self, which: Partition, count: int) -> None:
        self.log[which] += count

    @rule(which=st.sampled_from([FIRST, SECOND]))
    def assign(self, which: Partition) -> None:
        if which not in self.ours:
            self.ledger.assign([which])
            self.ours.add(which)
            self.polled[which] = self.committed[which]

    @rule(which=st.sampled_from([FIRST, SECOND]), waits=st.booleans())
    def revoke(self, which: Partition, *, waits: bool) -> None:
        if which not in self.ours:
            return
        if waits:
            self.ledger.begin_revoking([which])
            for entry in [each for each in self.in_hand if each.log.partition == which]:
                self._settle(entry)
            assert self.ledger.in_hand([which]) == 0
            self._commit(which)
        gone = [each for each in self.in_hand if each.log.partition == which]
        assert self.ledger.revoke([which]) == len(gone)
        self.in_hand = [each for each in self.in_hand if each not in gone]
        self.lost += gone
        self.ours.discard(which)

    @rule(which=st.sampled_from([FIRST, SECOND]), key=st.sampled_from([None, b"a", b"b"]))
    def poll(self, which: Partition, key: bytes | None) -> None:
        is_open = (
            which in self.ours and which not in self.ledger.full_partitions() and self.ledger.room
        )
        if is_open and self.polled[which] < self.log[which]:
            assert self.ledger.deliver(which, self.polled[which], key, 1, object())
            self.polled[which] += 1

    @rule(most=st.integers(1, 5))
    def take(self, most: int) -> None:
        self.in_hand += self.ledger.take(most, self.now)
        lanes = [(each.log.partition, each.lane) for each in self.in_hand if each.lane is not None]
        assert len(lanes) == len(set(lanes)), "two of one key are in hand"
        places = [(each.log.partition, each.offset) for each in self.in_hand]
        assert len(places) == len(set(places)), "one message is in hand twice"

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        self._settle(data.draw(st.sampled_from(self.in_hand)))

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data(), seconds=st.sampled_from([0.0, 0.5, 3.0]))
    def give_back(self, data: st.DataObject, seconds: float) -> None:
        entry = data.draw(st.sampled_from(self.in_hand))
        assert self.ledger.give_back(entry, self.now + seconds if seconds else 0.0)
        self.in_hand.remove(entry)

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def settle_late(self, data: st.DataObject) -> None:
        before = (self.ledger.uncommitted(), self.ledger.held, self.ledger.late)
        assert not self.ledger.settle(data.draw(st.sampled_from(self.lost)))
        assert (self.ledger.uncommitted(), self.ledger.held, self.ledger.late - 1) == before

    @rule(which=st.sampled_from([FIRST, SECOND]))
    def commit(self, which: Partition) -> None:
        self._commit(which)

    @rule()
    def tick(self) -> None:
        self.now += 1.0

    @invariant()
    def nothing_is_passed_over(self) -> None:
        """Every message below a committed offset has an outcome that counted."""
        for which, offset in self.committed.items():
            assert all((which, each) in self.settled for each in range(offset))

    @invariant()
    def what_is_held_is_bounded(self) -> None:
        assert 0 <= self.ledger.held <= 20
        assert self.ledger.held == self.ledger.held_bytes

    def teardown(self) -> None:
        """However it went: in the end every message is handed out, settled and committed."""
        for which in (FIRST, SECOND):
            self.assign(which)
        for _ in range(1 + sum(self.log.values())):
            for which in (FIRST, SECOND):
                while (
                    self.polled[which] < self.log[which]
                    and which not in self.ledger.full_partitions()
                ):
                    if not self.ledger.room:
                        break
                    self.poll(which, None)
            self.take(5)
            self.now += 10.0
            for entry in list(self.in_hand):
                self._settle(entry)
        for which, end in self.log.items():
            self._commit(which)
            assert self.committed[which] == end
        assert self.ledger.held == 0

    def _settle(self, entry: Entry) -> None:
        assert self.ledger.settle(entry)
        self.in_hand.remove(entry)
        self.settled.add((entry.log.partition, entry.offset))

    def _commit(self, which: Partition) -> None:
        for partition, offset in self.ledger.uncommitted([which]).items():
            assert offset > self.committed[partition], "an offset went back"
            self.committed[partition] = offset
            self.ledger.commit([(partition, offset)])


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedgerMachine = pytest.mark.slow(LedgerMachine.TestCase)
