"""Which messages of a partition are waiting, in hand or settled, and which offset may be committed.

A group commits one offset per partition, which means "everything below is done". Outcomes come in
any order, so each is recorded, and the offset moves over the longest run of messages that have
theirs. This module is pure: it reads no clock and does no I/O. Callers that share a ledger hold a
lock.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Any, TypeAlias

Partition: TypeAlias = tuple[str, int]


class Order(StrEnum):
    """What is handled one after another."""

    KEY = "key"
    """Messages of one partition that have the same key. Those without a key wait for nobody."""
    PARTITION = "partition"
    NONE = "none"


class Stage(Enum):
    """Where a message stands."""

    WAITING = auto()
    IN_HAND = auto()
    SETTLED = auto()
    REVOKED = auto()  # the partition is another member's, which reads the message again


# Reading a member off its enum class is slow before Python 3.12, and every message is four times.
_WAITING, _IN_HAND, _SETTLED = Stage.WAITING, Stage.IN_HAND, Stage.SETTLED


@dataclass(slots=True, eq=False)
class Entry:
    """One message, from being polled until the offset has moved over it."""

    log: PartitionLog
    offset: int
    lane: bytes | None
    size: int
    message: Any
    place: int
    due: float = 0.0
    """The instant before which it is not handed out."""
    stage: Stage = _WAITING


@dataclass(slots=True, eq=False)
class PartitionLog:
    """What was polled of a partition since it was assigned, and is not committed over."""

    partition: Partition
    name: str
    """Topic and number; with its offset behind it, it is the id of a message that has none."""
    generation: int
    entries: deque[Entry] = field(default_factory=deque)
    lanes: dict[bytes, deque[Entry]] = field(default_factory=dict)
    """Lanes with a message that waits first in line or is in hand, and those behind it."""
    last_polled: int = -1
    position: int | None = None
    """The first offset that is not settled; None until the first message is."""
    committed: int | None = None
    in_hand: int = 0
    is_at_end: bool = False
    is_revoking: bool = False


class OffsetLedger:
    """The partitions of one group member.

    ``max_count`` and ``max_bytes`` bound the messages that wait or are in hand, ``window`` the
    messages of one partition from the oldest without an outcome to the newest.
    """

    def __init__(self, order: Order, *, max_count: int, max_bytes: int, window: int) -> None:
        self._is_by_key, self._is_by_partition = order is Order.KEY, order is Order.PARTITION
        self._max_count, self._max_bytes, self._window = max_count, max_bytes, window
        self._low_count = max_count - max(1, max_count // 4)
        self._low_bytes = max_bytes * 3 // 4
        self._logs: dict[Partition, PartitionLog] = {}
        self._fresh: deque[Entry] = deque()  # never handed out, in the order of their places
        self._again: list[tuple[int, Entry]] = []  # a heap by place: what waited for something
        self._parked: list[tuple[float, int, Entry]] = []  # a heap by the instant of being due
        self._places = itertools.count()
        self._generations = itertools.count(1)
        self.held = 0
        self.held_bytes = 0
        self.late = 0
        """Settlements that changed nothing, because their partition had been revoked."""

    # ---- partitions come and go ----

    @property
    def partitions(self) -> list[Partition]:
        """Those that are assigned."""
        return list(self._logs)

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Take partitions over, in a new generation: nothing of an earlier one counts."""
        for partition in partitions:
            self.revoke([partition])
            self._logs[partition] = PartitionLog(
                partition, f"{partition[0]}:{partition[1]}-", next(self._generations)
            )

    def begin_revoking(self, partitions: Iterable[Partition]) -> None:
        """Hand out nothing more of these partitions, because another member gets them soon."""
        for log in self._known(partitions):
            log.is_revoking = True
            for entry in log.entries:
                if entry.stage is _WAITING:
                    self._revoke(entry)
        self._forget_revoked()

    def revoke(self, partitions: Iterable[Partition]) -> int:
        """Give partitions up to another member. Returns how many messages were still in hand."""
        in_hand = 0
        for log in self._known(partitions):
            in_hand += log.in_hand
            for entry in log.entries:
                if entry.stage in (_WAITING, _IN_HAND):
                    self._revoke(entry)
            del self._logs[log.partition]
        self._forget_revoked()
        return in_hand

    def in_hand(self, partitions: Collection[Partition]) -> int:
        """How many messages of these partitions are handed out and have no outcome."""
        return sum(log.in_hand for log in self._known(partitions))

    # ---- messages come in ----

    def deliver(
        self,
        partition: Partition,
        offset: int,
        key: bytes | None,
        size: int,
        message: Any,
        due: float = 0.0,
    ) -> bool:
        """Add a polled message. False if its partition is not this member's or is being revoked,
        or if the message was polled before.
        """
        log = self._logs.get(partition)
        if log is None or log.is_revoking or offset <= log.last_polled:
            return False
        log.last_polled, log.is_at_end = offset, False
        lane = key if self._is_by_key else b"" if self._is_by_partition else None
        entry = Entry(log, offset, lane, size, message, next(self._places), due)
        log.entries.append(entry)
        self.held += 1
        self.held_bytes += size
        if lane is not None:
            if lane in log.lanes:
                log.lanes[lane].append(entry)
                return True
            log.lanes[lane] = deque()
        if due > 0:
            self._line_up(entry)
        else:
            self._fresh.append(entry)
        return True

    def reach_end(self, partition: Partition) -> None:
        """Note that a partition has no more messages for now."""
        for log in self._known([partition]):
            log.is_at_end = True

    @property
    def is_at_end(self) -> bool:
        """Whether everything that the partitions hold was polled."""
        return all(log.is_at_end for log in self._logs.values())

    @property
    def room(self) -> int:
        """How many more messages may be polled."""
        return max(0, self._max_count - self.held) if self.held_bytes < self._max_bytes else 0

    @property
    def can_poll(self) -> bool:
        """Whether polling is worth while: a quarter is free, or nothing is left to hand out.

        Asked at every settlement, it would otherwise be done for each message by itself.
        """
        if not (self._fresh or self._again):
            return self.room > 0
        return self.held <= self._low_count and self.held_bytes <= self._low_bytes

    @property
    def has_ready(self) -> bool:
        """Whether a message may be handed out now."""
        return bool(self._fresh or self._again)

    def full_partitions(self) -> set[Partition]:
        """Partitions that must not be polled: too much was polled behind an unsettled message."""
        return {key for key, log in self._logs.items() if len(log.entries) >= self._window}

    # ---- messages go out, and are settled ----

    def next_due(self, now: float) -> float:
        """Seconds until a message may be handed out: 0 when one may be now, infinity when none
        waits.
        """
        if self._fresh or self._again:
            return 0.0
        return max(0.0, self._parked[0][0] - now) if self._parked else math.inf

    def take(self, most: int, now: float) -> list[Entry]:
        """Hand out up to so many, the oldest first."""
        while self._parked and self._parked[0][0] <= now:
            entry = heapq.heappop(self._parked)[2]
            heapq.heappush(self._again, (entry.place, entry))
        fresh, again = self._fresh, self._again
        taken: list[Entry] = []
        while len(taken) < most and (fresh or again):
            if again and not (fresh and fresh[0].place < again[0][0]):
                entry = heapq.heappop(again)[1]
            else:
                entry = fresh.popleft()
            entry.stage = _IN_HAND
            entry.log.in_hand += 1
            taken.append(entry)
        return taken

    def settle(self, entry: Entry) -> bool:
        """Settle a message. False, without a change, if its partition was revoked."""
        if entry.stage is not _IN_HAND:
            return self._is_ours(entry)
        log = entry.log
        entry.stage, entry.message = _SETTLED, None
        log.in_hand -= 1
        self.held -= 1
        self.held_bytes -= entry.size
        if entry.lane is not None:
            self._free_lane(log, entry.lane)
        entries = log.entries
        if entries[0] is entry:  # else one below it has no outcome, and the offset stays
            while entries and entries[0].stage is _SETTLED:
                log.position = entries.popleft().offset + 1
        return True

    def has(self, entry: Entry) -> bool:
        """Whether the message is in hand still; late ones are counted."""
        return self._is_ours(entry)

    def give_back(self, entry: Entry, due: float = 0.0) -> bool:
        """Hand a message out again, not before ``due``."""
        if not self._is_ours(entry):
            return False
        if entry.log.is_revoking:
            self._revoke(entry)  # the next member reads it
            return True
        entry.stage, entry.due = _WAITING, due
        entry.log.in_hand -= 1
        self._line_up(entry)
        return True

    # ---- offsets are committed ----

    def uncommitted(self, partitions: Collection[Partition] | None = None) -> dict[Partition, int]:
        """The offsets that may be committed and are not."""
        logs = self._logs.values() if partitions is None else self._known(partitions)
        return {
            log.partition: log.position
            for log in logs
            if log.position is not None and log.position != log.committed
        }

    def commit(self, offsets: Iterable[tuple[Partition, int]]) -> None:
        """Note that the group has accepted these offsets."""
        for partition, offset in offsets:
            for log in self._known([partition]):
                log.committed = offset

    def position(self, partition: Partition) -> int | None:
        """The first offset without an outcome, if one of this generation has been settled."""
        log = self._logs.get(partition)
        return None if log is None else log.position

    def begun(self) -> int:
        """How many messages at or above the positions are in hand or settled."""
        logs = self._logs.values()
        return sum(each.stage is not _WAITING for log in logs for each in log.entries)

    # ---- inside ----

    def _known(self, partitions: Iterable[Partition]) -> list[PartitionLog]:
        return [self._logs[each] for each in partitions if each in self._logs]

    def _line_up(self, entry: Entry) -> None:
        if entry.due > 0:
            heapq.heappush(self._parked, (entry.due, entry.place, entry))
        else:
            heapq.heappush(self._again, (entry.place, entry))

    def _free_lane(self, log: PartitionLog, lane: bytes) -> None:
        behind = log.lanes[lane]
        if behind:
            self._line_up(behind.popleft())
        else:
            del log.lanes[lane]

    def _forget_revoked(self) -> None:
        """Drop what was revoked while it waited."""
        self._fresh = deque(each for each in self._fresh if each.stage is _WAITING)
        self._again = [each for each in self._again if each[1].stage is _WAITING]
        self._parked = [each for each in self._parked if each[2].stage is _WAITING]
        heapq.heapify(self._again)
        heapq.heapify(self._parked)

    def _is_ours(self, entry: Entry) -> bool:
        if entry.stage is _IN_HAND:
            return True
        self.late += entry.stage is Stage.REVOKED
        return False

    def _revoke(self, entry: Entry) -> None:
        is_in_hand = entry.stage is _IN_HAND
        entry.stage, entry.message = Stage.REVOKED, None
        self._let_go(entry, is_in_hand=is_in_hand)

    def _let_go(self, entry: Entry, *, is_in_hand: bool = True) -> None:
        entry.log.in_hand -= is_in_hand
        self.held -= 1
        self.held_bytes -= entry.size
