"""One member of a consumer group: a thread that polls, rebalances and commits.

The thread polls also while handlers run for hours, so the group never takes the member for dead.
What the ledger has no room for stays with the brokers: its partitions are paused. Every decision is
the ledger's, in ``ledger.py``; here are the calls to the client library, and the waiting.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ergon_framework.connector.kafka.errors import KafkaConnectorError, in_words
from ergon_framework.connector.kafka.ledger import Entry, OffsetLedger, Partition
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ConnectorError, describe

logger = logging.getLogger("ergon.connector")

POLL = 0.1
"""Seconds of one poll for messages."""
FULL = 0.5
"""Seconds without room after which partitions are paused. Pausing throws away what the client
library has fetched ahead, so it is not done for a moment."""
MOST = 500
"""How many messages one poll returns."""
QUESTION = 5.0
"""Seconds for one request to the brokers."""


@dataclass(frozen=True, slots=True)
class MemberRule:
    """How a member behaves."""

    topics: Sequence[str]
    commit_interval: float
    revoke_wait: float
    """Seconds that a rebalance waits for what is in hand."""
    close_timeout: float


class GroupMember:
    """Polls into a ledger, and commits what the ledger says. Any thread may call."""

    def __init__(
        self,
        name: str,
        make_consumer: Callable[[dict[str, Any]], Any],
        rule: MemberRule,
        ledger: OffsetLedger,
        delay_of: Callable[[Any], float],
    ) -> None:
        self._name = name
        self._rule = rule
        self._ledger = ledger
        self._delay_of = delay_of
        self._lock = threading.Lock()
        # Two signals, and counts of those who wait: to wake somebody for each settlement would cost
        # more than all else that is done for a message.
        self._changed = SYSTEM_CLOCK.signal(self._lock)
        self._room_made = SYSTEM_CLOCK.signal(self._lock)
        self._waiting = 0
        self._waits_for_room = False
        self._make_consumer = make_consumer
        self._consumer = make_consumer({"error_cb": self._on_error, "on_commit": self._on_commit})
        self._has_partitions = False
        self._refusal: ConnectorError | None = None
        self._trouble = ""
        self._is_closing = False
        self._is_stopping = False
        self._paused: set[Partition] = set()
        self._is_committing = False
        self._commit_at = 0.0
        self._thread = SYSTEM_CLOCK.spawn("ergon-kafka-member", self._run)

    # ---- for whoever fetches and settles ----

    def wait(self, seconds: float, gave_up: threading.Event) -> None:
        """Wait until a message can be taken, or for so many seconds once all partitions are empty.

        While the brokers cannot be reached, or the group has not assigned its partitions, it is
        unknown whether there are messages. Then it waits until a stop is requested.
        """
        until: float | None = None
        with self._lock:
            while not (self._is_closing or self._is_stopping or gave_up.is_set()):
                self._raise_refusal()
                now = SYSTEM_CLOCK.now()
                due = self._ledger.next_due(now)
                if until is None and self._has_partitions and self._ledger.is_at_end:
                    until = now + seconds
                left = math.inf if until is None else until - now
                if due <= 0 or left <= 0:
                    return
                sooner = min(due, left)
                self._wait_for_change(None if sooner == math.inf else now + sooner)
            self._is_stopping = False

    @property
    def has_ready(self) -> bool:
        """Whether something can be taken now, and no stop was asked for."""
        return self._ledger.has_ready and not self._is_stopping

    def take(self, most: int) -> list[Entry]:
        """Up to so many messages, without waiting."""
        with self._lock:
            self._raise_refusal()
            taken = self._ledger.take(most, SYSTEM_CLOCK.now())
            self._tell_of_room()
        return taken

    def has(self, entry: Entry) -> bool:
        """Whether the message is in hand still, or its partition was revoked."""
        with self._lock:
            return self._ledger.has(entry)

    def settle(self, entry: Entry) -> bool:
        """The message has its outcome; False when its partition was revoked."""
        with self._lock:
            is_ours = self._ledger.settle(entry)
            if self._waiting:
                self._changed.notify_all()
            self._tell_of_room()
        return is_ours

    def give_back(self, entry: Entry, seconds: float = 0.0) -> bool:
        """The message is handed out again, in so many seconds."""
        due = SYSTEM_CLOCK.now() + seconds if seconds else 0.0
        with self._lock:
            is_ours = self._ledger.give_back(entry, due)
            self._notify_all()
        return is_ours

    def stop_waiting(self) -> None:
        """Make the fetch under way, or the next one, stop waiting."""
        with self._lock:
            self._is_stopping = True
            self._notify_all()

    def wake(self) -> None:
        """Wake the threads that wait."""
        with self._lock:
            self._changed.notify_all()

    def lag(self) -> int:
        """How many messages of the topics are neither in hand nor settled."""
        # A consumer of its own, which joins nothing: the member's is busy polling, and answers
        # nobody else meanwhile.
        asker = self._make_consumer({})
        try:
            partitions = [
                (topic, number)
                for topic in self._rule.topics
                for number in asker.list_topics(topic, timeout=QUESTION).topics[topic].partitions
            ]
            waiting = sum(self._lag_of(asker, each) for each in partitions)
        finally:
            asker.close()
        with self._lock:
            return max(0, waiting - self._ledger.begun())

    def uncommitted(self) -> dict[Partition, int]:
        """Offsets that may be committed, and that the group does not have yet."""
        with self._lock:
            return self._ledger.uncommitted()

    @property
    def is_refused(self) -> bool:
        """Whether the brokers refuse this member, or it has ended."""
        return self._refusal is not None

    @property
    def trouble(self) -> str:
        """The last error of the brokers, while it lasts."""
        return self._trouble

    def close(self) -> None:
        """Commit what is settled and leave the group; bounded also while the brokers are away."""
        with self._lock:
            self._is_closing = True
            self._notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(self._rule.close_timeout)

    # ---- the thread ----

    def _run(self) -> None:
        try:
            self._consumer.subscribe(
                list(self._rule.topics),
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
            while not self._is_closing:
                self._poll(self._room())
                self._commit()
        except Exception as error:  # whoever fetches is told
            logger.exception("%s: the group member has ended", self._name)
            with self._lock:
                self._refusal = KafkaConnectorError(f"the group member ended: {describe(error)}")
                self._changed.notify_all()
        finally:
            self._leave()

    def _room(self) -> int:
        """How many messages may be polled. It waits a moment for room, and so for settlements."""
        ledger, now = self._ledger, SYSTEM_CLOCK.now()
        with self._lock:
            while not ledger.can_poll and not self._is_closing:
                # With a little room it looks as often as it does without messages: it has to commit
                # and to hear of rebalances.
                until = now + (POLL if ledger.room else FULL)
                if SYSTEM_CLOCK.now() >= until:
                    break
                self._waits_for_room = True
                self._room_made.wait(until)
            self._waits_for_room = False
            return min(MOST, ledger.room)

    def _poll(self, room: int) -> None:
        with self._lock:
            too_full = set(self._ledger.full_partitions() if room else self._ledger.partitions)
        self._pause(too_full - self._paused)
        self._resume(self._paused - too_full)
        first = self._consumer.poll(POLL if room else 0)
        if first is None:
            return
        more = self._consumer.consume(room - 1, 0) if room > 1 else []
        with self._lock:
            self._deliver(first)
            for message in more:
                self._deliver(message)
            self._changed.notify_all()

    def _deliver(self, message: Any) -> None:
        where = (message.topic(), message.partition())
        error = message.error()
        if error is None:
            key = message.key()
            size = len(message.value() or b"") + len(key or b"")
            delay = self._delay_of(message) if message.headers() else 0.0
            due = SYSTEM_CLOCK.now() + delay if delay else 0.0
            self._ledger.deliver(where, message.offset(), key, size, message, due)
            self._trouble = ""
        elif error.code() == _codes()._PARTITION_EOF:  # noqa: SLF001 - the client's own name
            self._ledger.reach_end(where)
            self._trouble = ""
        else:
            self._note_broker_error(error)

    def _pause(self, partitions: set[Partition]) -> None:
        if partitions:
            self._consumer.pause(_named(partitions))
            self._paused |= partitions

    def _resume(self, partitions: set[Partition]) -> None:
        if partitions:
            self._consumer.resume(_named(partitions))
            self._paused -= partitions

    # ---- offsets ----

    def _commit(self) -> None:
        """Commit in the background what may be committed, now and then, one commit at a time."""
        now = SYSTEM_CLOCK.now()
        if self._is_committing or now < self._commit_at:
            return
        with self._lock:
            offsets = self._ledger.uncommitted()
        if offsets:
            self._is_committing = True
            self._commit_at = now + self._rule.commit_interval
            self._consumer.commit(offsets=_at(offsets), asynchronous=True)

    def _on_commit(self, error: Any, partitions: Iterable[Any]) -> None:
        """The client library tells how a commit ended, while it is polled."""
        self._is_committing = False
        if error is not None:
            self._note_broker_error(error)  # the offsets are committed with the next ones
            return
        taken = [
            ((each.topic, each.partition), each.offset) for each in partitions if not each.error
        ]
        with self._lock:
            self._ledger.commit(taken)

    def _commit_now(self, partitions: list[Partition]) -> Exception | None:
        """Commit what may be committed of these; the error when the group did not take it."""
        with self._lock:
            offsets = self._ledger.uncommitted(partitions)
        if not offsets:
            return None
        try:
            self._consumer.commit(offsets=_at(offsets), asynchronous=False)
        except Exception as error:
            return error
        with self._lock:
            self._ledger.commit(offsets.items())
        return None

    def _commit_last(self) -> None:
        """Commit before leaving. While the group rebalances it takes nothing: then try again."""
        self._pause(set(self._ledger.partitions))
        until = SYSTEM_CLOCK.now() + self._rule.close_timeout / 2
        while (error := self._commit_now(self._ledger.partitions)) is not None:
            if SYSTEM_CLOCK.now() >= until or error.args[0].code() not in _rebalancing():
                return
            self._consumer.poll(POLL)

    # ---- rebalances; the client library calls these while it is polled ----

    def _on_assign(self, _consumer: object, partitions: Iterable[Any]) -> None:
        found = [(each.topic, each.partition) for each in partitions]
        with self._lock:
            self._has_partitions, self._trouble, self._refusal = True, "", None
            self._paused -= set(found)
            self._ledger.assign(found)
            self._changed.notify_all()
        # Just now the group takes offsets. It takes none while it rebalances, and where members
        # come and go that is most of the time.
        if self._is_closing:
            self._commit_now(self._ledger.partitions)
        else:
            self._is_committing, self._commit_at = False, 0.0
            self._commit()

    def _on_revoke(self, _consumer: object, partitions: Iterable[Any]) -> None:
        """Give partitions up: wait for what is in hand, then commit what is settled."""
        found = [(each.topic, each.partition) for each in partitions]
        until = SYSTEM_CLOCK.now() + self._rule.revoke_wait
        with self._lock:
            self._ledger.begin_revoking(found)
            while (
                self._ledger.in_hand(found) and SYSTEM_CLOCK.now() < until and not self._is_closing
            ):
                self._wait_for_change(until)
        error = self._commit_now(found)
        if error is not None:  # the next member handles these again
            logger.warning("%s: offsets were not committed: %s", self._name, in_words(error))
        self._forget(found)

    def _on_lost(self, _consumer: object, partitions: Iterable[Any]) -> None:
        """Handle partitions that others have already: nothing can be committed any more.

        Until partitions are assigned again it is unknown whether there are messages.
        """
        logger.warning(
            "%s: the group went on without this member; what was settled since the last commit"
            " is handled again",
            self._name,
        )
        with self._lock:
            self._has_partitions = False
        self._forget([(each.topic, each.partition) for each in partitions])

    def _forget(self, partitions: list[Partition]) -> None:
        with self._lock:
            self._paused -= set(partitions)
            abandoned = self._ledger.revoke(partitions)
            self._changed.notify_all()
        if abandoned and not self._is_closing:
            logger.warning(
                "%s: partitions were revoked with %d messages in hand; another member gets them",
                self._name,
                abandoned,
            )

    def _leave(self) -> None:
        with suppress(Exception):
            self._commit_last()
        with suppress(Exception):
            self._consumer.close()
        with self._lock:
            self._ledger.revoke(self._ledger.partitions)
            self._changed.notify_all()

    # ---- errors ----

    def _on_error(self, error: Any) -> None:
        with self._lock:
            self._note_broker_error(error)
            self._changed.notify_all()

    def _note_broker_error(self, error: Any) -> None:
        """Remember an error of the brokers, and log it when it is new."""
        told = error.str()
        if error.code() in _rebalancing():
            return  # the next commit, or the next member, does it
        if told != self._trouble:
            logger.warning("%s: %s", self._name, told)
        self._trouble = told
        if error.fatal() or error.code() in _refusals():
            self._refusal = KafkaConnectorError(
                f"{self._name}: {told}", remedy="see to user, password, certificates and the rights"
            )

    def _raise_refusal(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    # ---- inside ----

    def _wait_for_change(self, until: float | None) -> None:
        self._waiting += 1
        try:
            self._changed.wait(until)
        finally:
            self._waiting -= 1

    def _tell_of_room(self) -> None:
        if self._waits_for_room and self._ledger.can_poll:
            self._waits_for_room = False  # told once: it may take a while until its thread runs
            self._room_made.notify_all()

    def _notify_all(self) -> None:
        self._changed.notify_all()
        self._room_made.notify_all()

    def _lag_of(self, asker: Any, partition: Partition) -> int:
        (where,) = _named([partition])
        low, high = asker.get_watermark_offsets(where, timeout=QUESTION)
        with self._lock:
            position = self._ledger.position(partition)
        if position is None:
            (found,) = asker.committed([where], timeout=QUESTION)
            position = found.offset
        return int(max(0, high - max(low, position)))


def _codes() -> Any:
    from confluent_kafka import KafkaError

    return KafkaError


def _refusals() -> frozenset[int]:
    """Errors that waiting does not fix."""
    codes = _codes()
    return frozenset(
        {
            codes._AUTHENTICATION,  # noqa: SLF001 - the client's own names
            codes.SASL_AUTHENTICATION_FAILED,
            codes.TOPIC_AUTHORIZATION_FAILED,
            codes.GROUP_AUTHORIZATION_FAILED,
        }
    )


def _rebalancing() -> frozenset[int]:
    """What the group answers to a commit until its members have joined again."""
    codes = _codes()
    return frozenset({codes.REBALANCE_IN_PROGRESS, codes.ILLEGAL_GENERATION})


def _named(partitions: Iterable[Partition]) -> list[Any]:
    from confluent_kafka import TopicPartition

    return [TopicPartition(topic, number) for topic, number in partitions]


def _at(offsets: dict[Partition, int]) -> list[Any]:
    from confluent_kafka import TopicPartition

    return [TopicPartition(topic, number, at) for (topic, number), at in offsets.items()]
