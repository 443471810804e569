"""A member of a group that hardly ever takes offsets, because others come and go all the time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from ergon_framework.connector.kafka.ledger import OffsetLedger, Order
from ergon_framework.connector.kafka.member import GroupMember, MemberRule
from tests.waiting import until

WHERE = ("orders", 0)


class RestlessConsumer:
    """In the place of the client library's: the group takes offsets only while it says who has
    which partitions.
    """

    def __init__(self, callbacks: dict[str, Any]) -> None:
        self._on_commit: Callable[..., None] = callbacks["on_commit"]
        self._refused = 0
        self._polls = 0
        self._is_at_rest = False
        self._told: list[tuple[Any, list[Any]]] = []
        self.committed: dict[tuple[str, int], int] = {}
        self.is_closed = threading.Event()

    @property
    def polls(self) -> int:
        """How often it was asked for messages."""
        return self._polls

    @property
    def refused(self) -> int:
        """Commits that came while the group rebalanced."""
        return self._refused

    def subscribe(self, _topics: Iterable[str], **callbacks: Any) -> None:
        self._on_assign = callbacks["on_assign"]

    def poll(self, seconds: float) -> Any:
        from confluent_kafka import TopicPartition

        told, self._told = self._told, []
        for error, offsets in told:
            self._on_commit(error, offsets)
        self._polls += 1
        if self._polls % 5 == 1:
            self._is_at_rest = True
            self._on_assign(self, [TopicPartition(*WHERE)] if self._polls == 1 else [])
            self._is_at_rest = False
        threading.Event().wait(min(seconds, 0.01))
        return Message() if self._polls == 2 else None

    def consume(self, _most: int, _seconds: float) -> list[Any]:
        return []

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> None:
        from confluent_kafka import KafkaError, KafkaException

        error = None
        if self._is_at_rest:
            self.committed |= {(each.topic, each.partition): each.offset for each in offsets}
        else:
            self._refused += 1
            error = KafkaError(KafkaError.REBALANCE_IN_PROGRESS)
        if asynchronous:
            self._told.append((error, offsets))
        elif error is not None:
            raise KafkaException(error)

    def pause(self, _partitions: list[Any]) -> None:
        """Nothing comes of them anyway."""

    resume = pause

    def close(self) -> None:
        self.is_closed.set()


class Message:
    """The only one there is."""

    def topic(self) -> str:
        return WHERE[0]

    def partition(self) -> int:
        return WHERE[1]

    def offset(self) -> int:
        return 6

    def key(self) -> None:
        return None

    value = error = headers = key


@pytest.fixture
def made() -> list[RestlessConsumer]:
    """The consumers that were made."""
    return []


@pytest.fixture
def member(made: list[RestlessConsumer]) -> GroupMember:
    """A member that has the partition."""

    def make(callbacks: dict[str, Any]) -> RestlessConsumer:
        made.append(RestlessConsumer(callbacks))
        return made[-1]

    rule = MemberRule(["orders"], commit_interval=0.0, revoke_wait=0.0, close_timeout=10.0)
    ledger = OffsetLedger(Order.NONE, max_count=10, max_bytes=1000, window=10)
    return GroupMember("orders", make, rule, ledger, lambda _message: 0.0)


def settle_one(member: GroupMember) -> None:
    """Take the message, and settle it."""
    member.wait(0.0, threading.Event())
    (entry,) = member.take(1)
    assert member.settle(entry)


def test_offsets_are_committed_between_two_rebalances(
    member: GroupMember, made: list[RestlessConsumer]
) -> None:
    """At once when the group has told who has what, however soon the next rebalance begins."""
    settle_one(member)
    until(lambda: made[0].committed == {WHERE: 7}, "the commit")
    until(lambda: not member.uncommitted(), "the answer")
    member.close()


def test_a_member_with_a_little_room_goes_on_polling(made: list[RestlessConsumer]) -> None:
    """While ready messages wait for somebody who takes them: else it would commit nothing, and hear
    of no rebalance.
    """
    ledger = OffsetLedger(Order.NONE, max_count=8, max_bytes=1000, window=10)
    ledger.assign([WHERE])
    for offset in range(7):
        ledger.deliver(WHERE, offset, None, 1, Message())
    assert not ledger.can_poll

    def make(callbacks: dict[str, Any]) -> RestlessConsumer:
        made.append(RestlessConsumer(callbacks))
        return made[-1]

    rule = MemberRule(["orders"], commit_interval=0.0, revoke_wait=0.0, close_timeout=10.0)
    member = GroupMember("orders", make, rule, ledger, lambda _message: 0.0)
    until(lambda: bool(made) and made[0].polls > 3, "polls")
    member.close()


def test_a_member_that_leaves_commits_between_two_rebalances(
    member: GroupMember, made: list[RestlessConsumer]
) -> None:
    """It waits for that moment, so that nobody repeats what it has settled."""
    settle_one(member)
    member.close()
    assert made[0].is_closed.is_set()
    assert made[0].refused
    assert made[0].committed == {WHERE: 7}
