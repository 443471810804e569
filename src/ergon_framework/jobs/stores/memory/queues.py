"""The jobs that wait in a memory store: which goes next, and which must not go yet.

A job of a queue that is not due stands in ``later``; one that is due stands in a heap of those that
name the same executor, so that a worker without a slot for it need not look at it. A job whose
limit key is taken is blocked, with those of its key, queue, executor and limit; whenever one of
that key ends, the first of each such group is due again.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias, TypeVar

from ergon_framework.core.claim import ClaimRequest, lane_executor, waits_for_token
from ergon_framework.core.quota import TokenBucket
from ergon_framework.jobs.stores.memory.rows import MemoryJob
from ergon_framework.ports.jobstore import Queue

ClaimOrder: TypeAlias = tuple[float, ...]
_MAX_WOKEN = 64  # jobs of one limit key that are due again at once
_MAX_DEAD_ENTRIES = 64  # entries of members that have left, before tidying up is worth its while


class Heap:
    """Keys in order. What left stays behind as a dead entry until enough of them have gathered."""

    __slots__ = ("_entries", "_orders")

    def __init__(self) -> None:
        self._entries: list[tuple[ClaimOrder, int]] = []
        self._orders: dict[int, ClaimOrder] = {}

    def __len__(self) -> int:
        return len(self._orders)

    def members(self) -> Iterator[int]:
        """All keys, in no order."""
        return iter(self._orders)

    @property
    def entries(self) -> int:
        """How many entries it holds, those of keys that have left included."""
        return len(self._entries)

    def push(self, key: int, order: ClaimOrder) -> None:
        """Let a key stand there; if it stood elsewhere, it does no more."""
        self._orders[key] = order
        heapq.heappush(self._entries, (order, key))
        self._tidy()

    def discard(self, key: int) -> None:
        """Take a key out, if it is in."""
        if self._orders.pop(key, None) is not None:
            self._tidy()

    def first(self) -> tuple[ClaimOrder, int] | None:
        """The first key with its order."""
        entries = self._entries
        while entries and self._orders.get(entries[0][1]) != entries[0][0]:
            heapq.heappop(entries)
        return entries[0] if entries else None

    def pop(self) -> int:
        """Take out the first key; there must be one."""
        first = self.first()
        if first is None:
            raise IndexError("the heap is empty")
        del self._orders[first[1]]
        return first[1]

    def _tidy(self) -> None:
        if len(self._entries) > 2 * len(self._orders) + _MAX_DEAD_ENTRIES:
            self._entries = [(order, key) for key, order in self._orders.items()]
            heapq.heapify(self._entries)


_Name = TypeVar("_Name", bound=Hashable)


class MemoryQueue:
    """One queue: its settings, and the jobs in it that wait."""

    def __init__(self, name: str) -> None:
        self.settings = Queue(name=name)
        self.later = Heap()
        self.due: dict[str, Heap] = {}  # by the executor that their handlers name
        # The same jobs by limit key and executor, the one first whose turn was the longest ago.
        # Only where each limit key has limits of its own.
        self.turns: OrderedDict[tuple[str, str], Heap] = OrderedDict()
        self.blocked: Counter[str] = Counter()  # how many wait for a limit key, by the same
        self.active = 0
        self.members = 0  # jobs in any state
        self.running: Counter[str] = Counter()  # active jobs by limit key
        self.key_buckets: dict[str, TokenBucket] = {}  # of limit keys of which tokens were taken
        self._bucket: TokenBucket | None = None

    def has_due(self) -> bool:
        """Whether a job waits for something other than time."""
        return next(self.waiting(), None) is not None

    def waiting(self) -> Iterator[str]:
        """The executors named by jobs that wait for something other than time."""
        yield from (named for named, group in self.due.items() if group)
        yield from self.blocked

    def has_room(self) -> bool:
        """Whether the queue's limit allows one more to run."""
        most = self.settings.max_active
        return most is None or self.active < most

    def has_token(self, now: float) -> bool:
        """Whether the queue's rate allows one more to start."""
        if self._bucket is None:
            return True
        self._bucket = self._bucket.healed(now)
        return self._bucket.free(now) > 0

    def take_token(self, now: float) -> None:
        """A job starts."""
        if self._bucket is not None:
            self._bucket = self._bucket.take(1, now)

    @property
    def full_at(self) -> float | None:
        """When the bucket of tokens will be full; None without a rate."""
        return None if self._bucket is None else self._bucket.full_at

    def fill(self, full_at: float) -> None:
        """Say when the bucket will be full; without a rate there is none."""
        if self._bucket is not None:
            self._bucket = replace(self._bucket, full_at=full_at)

    def next_at(self, now: float) -> float:
        """When something changes here by itself."""
        first = self.later.first()
        later = math.inf if first is None else first[0][0]
        if self._bucket is None or self.has_token(now) or not self.has_due():
            return later
        # Without room the next token changes nothing: the end of a job does, and brings a
        # notification.
        return min(later, self._bucket.next_at(now)) if self.has_room() else later

    @property
    def limits_keys(self) -> bool:
        """Whether each of its limit keys has limits of its own."""
        return self.settings.key_max_active is not None or self.settings.key_rate is not None

    def key_room(self, key: str, most: int, now: float) -> int:
        """How many more jobs of a limit key may start, by the queue's limits, up to ``most``."""
        settings = self.settings
        if settings.key_max_active is not None:
            most = min(most, settings.key_max_active - self.running[key])
        if settings.key_rate is not None:
            bucket = self.key_bucket(key, settings.key_rate).healed(now)
            if key in self.key_buckets:
                self.key_buckets[key] = bucket
            most = min(most, bucket.free(now))
        return max(0, most)

    def take_key_token(self, key: str, now: float) -> None:
        """A job of a limit key starts."""
        if self.settings.key_rate is not None:
            bucket = self.key_bucket(key, self.settings.key_rate)
            self.key_buckets[key] = bucket.take(1, now)

    def next_key_token(self, key: str, now: float) -> float | None:
        """When a limit key has a token, if nothing else stands in the way of its jobs."""
        settings = self.settings
        is_full = settings.key_max_active is not None and (
            self.running[key] >= settings.key_max_active
        )
        if settings.key_rate is None or is_full:
            return None
        return self.key_bucket(key, settings.key_rate).next_at(now)

    def fill_keys(self, full_at: Mapping[str, float]) -> None:
        """Set when the buckets of limit keys will be full."""
        rate, burst = self.settings.key_rate, self.settings.key_burst
        if rate is not None:
            self.key_buckets |= {key: TokenBucket(rate, burst, at) for key, at in full_at.items()}

    def key_bucket(self, key: str, rate: float) -> TokenBucket:
        """The tokens of a limit key."""
        full_at = self.key_buckets[key].full_at if key in self.key_buckets else 0.0
        return TokenBucket(rate, self.settings.key_burst, full_at)

    def change(self, settings: Queue, now: float) -> None:
        """Other limits from now on; tokens that were taken stay taken."""
        old, self.settings = self._bucket, settings
        if settings.key_rate is None:
            self.key_buckets.clear()
        if settings.rate is None:
            self._bucket = None
        elif old is None:
            self._bucket = TokenBucket(settings.rate, settings.burst)
        else:
            self._bucket = old.changed(settings.rate, settings.burst, now)


class Offer:
    """What one worker can still take."""

    def __init__(self, request: ClaimRequest) -> None:
        self._request = request
        self._free = dict(request.slots)

    def asks_for(self, queue: MemoryQueue) -> bool:
        """Whether the worker serves this queue, and the queue may be served."""
        asked = self._request.queues is None or queue.settings.name in self._request.queues
        is_ours = queue.settings.pinned_version in (None, self._request.version)
        return asked and is_ours and not queue.settings.is_paused

    def takes(self, queue: str, named: str) -> bool:
        """Whether it has room for a job of this queue that names this executor."""
        return self._free.get(self._executor(queue, named), 0) > 0

    def leaves(self, queue: MemoryQueue) -> bool:
        """Whether a job is due that the worker could run, now or later."""
        own, name = self._request.own, queue.settings.name
        executors = [self._executor(name, named) for named in queue.waiting()]
        return any(each in own or (not own and "#" not in each) for each in executors)

    def take(self, queue: str, named: str) -> None:
        """It got such a job."""
        self._free[self._executor(queue, named)] -= 1

    def _executor(self, queue: str, named: str) -> str:
        return lane_executor(self._request, named, queue)


class QueueSet:
    """All queues, the one that was served least recently first."""

    def __init__(self, records: dict[int, MemoryJob]) -> None:
        self._records = records
        self._queues: OrderedDict[str, MemoryQueue] = OrderedDict()
        self.running: Counter[str] = Counter()  # active jobs by limit key
        # By limit key: those that wait for it, by queue, executor and limit.
        self.blocked: dict[str, dict[tuple[str, str, int], Heap]] = {}
        # By queue and limit key: when jobs that wait for a token are due again.
        self._wakes: dict[tuple[str, str], float] = {}
        self._wake_heap: list[tuple[float, str, str]] = []

    def __iter__(self) -> Iterator[MemoryQueue]:
        return iter(self._queues.values())

    def get(self, name: str) -> MemoryQueue:
        """The queue of that name; it exists from when it is first asked for."""
        return self._queues.setdefault(name, MemoryQueue(name))

    def forget(self, name: str) -> None:
        """Drop a queue that has neither jobs nor settings."""
        queue = self._queues[name]
        if not queue.members and queue.settings == Queue(name=name):
            del self._queues[name]

    # ---- coming and going -----------------------------------------------------------------------

    def wait(self, record: MemoryJob) -> None:
        """A job waits from now on."""
        self.get(record.new.queue).later.push(record.key, (record.run_at, record.key))

    def start(self, record: MemoryJob) -> None:
        """A job that :meth:`next` gave runs from now on."""
        queue = record.new.queue
        self._queues.move_to_end(queue)
        self._queues[queue].active += 1
        if record.new.limit_key is not None:
            self.running[record.new.limit_key] += 1
            self._queues[queue].running[record.new.limit_key] += 1

    def stop(self, record: MemoryJob) -> bool:
        """A job runs no more; whether that lets others go that could not."""
        queue = self._queues[record.new.queue]
        was_full = not queue.has_room()
        queue.active -= 1
        key = record.new.limit_key
        if key is None:
            return was_full and queue.has_due()
        for running in (self.running, queue.running):
            running[key] -= 1
            if not running[key]:
                del running[key]
        return self._unblock(key) or (was_full and queue.has_due())

    def leave(self, record: MemoryJob) -> None:
        """A job waits no more."""
        new = record.new
        queue = self._queues[new.queue]
        queue.later.discard(record.key)
        self._take(queue, record)
        if new.limit_key is None:
            return
        if record.is_limited:
            group = (new.queue, new.executor, new.limit)
            self._remove_blocked(new.limit_key, group, record)
        else:
            self._unblock(new.limit_key)  # it may have been unblocked: then another is now

    # ---- the next job ---------------------------------------------------------------------------

    def next(self, queue: MemoryQueue, offer: Offer, now: float) -> MemoryJob | None:
        """Take the next job of a queue that may start; an expired one may always."""
        self._admit(queue, now)
        if not queue.has_room() or not queue.has_token(now):
            return None
        while (key := self._first(queue, offer)) is not None:
            record = self._records[key]
            self._take(queue, record)
            if not self._is_full(record, now) or record.is_outdated(now):
                return record
            self._block(record)
            self._wake_later(record, now)
        return None

    def _first(self, queue: MemoryQueue, offer: Offer) -> int | None:
        """The job that goes next, of those the worker has room for."""
        if not queue.limits_keys:
            named = _first_group(queue, offer)
            first = None if named is None else queue.due[named].first()
            return None if first is None else first[1]
        name = queue.settings.name
        for (key, named), group in queue.turns.items():
            if offer.takes(name, named) and (first := group.first()) is not None:
                queue.turns.move_to_end((key, named))
                return first[1]
        return None

    def _take(self, queue: MemoryQueue, record: MemoryJob) -> None:
        """A job is due no more."""
        _discard(queue.due, record.new.executor, record.key)
        _discard(queue.turns, _turn_of(record), record.key)

    def take_turns(self, queue: MemoryQueue) -> None:
        """Let the limit keys of a queue take turns from now on, or no more."""
        queue.turns.clear()
        for group in list(queue.due.values()) if queue.limits_keys else ():
            for key in group.members():
                self._join_turns(queue, self._records[key])

    def _join_turns(self, queue: MemoryQueue, record: MemoryJob) -> None:
        order = (-record.new.priority, record.run_at, record.key)
        queue.turns.setdefault(_turn_of(record), Heap()).push(record.key, order)

    def take_tokens(self, record: MemoryJob, now: float) -> None:
        """A job that :meth:`next` gave starts."""
        queue, key = self._queues[record.new.queue], record.new.limit_key
        queue.take_token(now)
        if key is not None and queue.limits_keys:
            queue.take_key_token(key, now)
            # The bucket has changed, and with it the instant at which those are due that wait for a
            # token.
            if any(name[0] == record.new.queue for name in self.blocked.get(key, {})):
                self._wake_later(record, now)

    def _admit(self, queue: MemoryQueue, now: float) -> None:
        while (first := queue.later.first()) is not None and first[0][0] <= now:
            self._make_due(self._records[queue.later.pop()])

    def _make_due(self, record: MemoryJob) -> None:
        new = record.new
        queue = self._queues[new.queue]
        group = queue.due.setdefault(new.executor, Heap())
        group.push(record.key, (-new.priority, record.run_at, record.key))
        if queue.limits_keys:
            self._join_turns(queue, record)

    def _is_full(self, record: MemoryJob, now: float) -> bool:
        queue, key = self._queues[record.new.queue], record.new.limit_key
        if key is not None and queue.limits_keys:
            return queue.key_room(key, 1, now) == 0
        return key is not None and self.running[key] >= record.new.limit

    # ---- limit keys that wait for a token --------------------------------------------------------

    @property
    def wakes_at(self) -> float:
        """When some limit key has tokens again that jobs wait for."""
        heap = self._wake_heap
        while heap and self._wakes.get(heap[0][1:]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def key_wakes_at(self, queue: str, key: str) -> float | None:
        """When jobs of this limit key that wait for a token are due again."""
        return self._wakes.get((queue, key))

    def wake(self, now: float) -> None:
        """Make jobs due whose limit keys have tokens again."""
        while self.wakes_at <= now:
            _, name, key = heapq.heappop(self._wake_heap)
            del self._wakes[name, key]
            # One at least, even without room: the claim that judges it notes when to look again,
            # and that note has just been deleted.
            self._unblock(key, name, self.get(name).key_room(key, _MAX_WOKEN, now) or 1)

    def shorten_key_waits(self, now: float) -> None:
        """Look at keys again whose next token is further away than one comes in."""
        for (name, key), at in list(self._wakes.items()):
            if not waits_for_token(at, self.get(name).settings.key_rate, now):
                self._wakes[name, key] = now
                heapq.heappush(self._wake_heap, (now, name, key))

    def wake_all(self) -> None:
        """Let the next job of every limit key be judged again: limits have changed."""
        for key in list(self.blocked):
            self._unblock(key)

    def _wake_later(self, record: MemoryJob, now: float) -> None:
        """Look at the jobs that wait for a limit key again when it has a token."""
        name, key = record.new.queue, record.new.limit_key or ""
        queue = self._queues[name]
        at = now if queue.key_room(key, 1, now) else queue.next_key_token(key, now)
        if queue.limits_keys and at is not None and self._wakes.get((name, key)) != at:
            self._wakes[name, key] = at
            heapq.heappush(self._wake_heap, (at, name, key))

    def _block(self, record: MemoryJob) -> None:
        new = record.new
        groups = self.blocked.setdefault(new.limit_key or "", {})
        group = groups.setdefault((new.queue, new.executor, new.limit), Heap())
        group.push(record.key, (-new.priority, record.run_at, record.key))
        record.is_limited = True
        self._queues[new.queue].blocked[new.executor] += 1

    def _unblock(self, key: str, queue: str | None = None, most: int = 1) -> bool:
        """Make the first of each group that waits for this key due again."""
        groups = [
            (name, group)
            for name, group in self.blocked.get(key, {}).items()
            if queue in {None, name[0]}
        ]
        for name, group in groups:
            for _ in range(min(most, len(group))):
                record = self._records[group.pop()]
                self._remove_blocked(key, name, record)
                self._make_due(record)
        return bool(groups)

    def _remove_blocked(self, key: str, name: tuple[str, str, int], record: MemoryJob) -> None:
        groups = self.blocked[key]
        _discard(groups, name, record.key)
        if not groups:
            del self.blocked[key]
        record.is_limited = False
        self._queues[record.new.queue].blocked -= Counter((record.new.executor,))


def handler_lanes_in(queues: Iterable[MemoryQueue]) -> tuple[str, ...]:
    """The lanes of handlers in which jobs are due."""
    return tuple(sorted({named for queue in queues for named in queue.due if "#" in named}))


def _first_group(queue: MemoryQueue, offer: Offer) -> str | None:
    """The executor whose jobs have the one that goes next, of those the worker has room for."""
    firsts = [
        (first, named)
        for named, group in queue.due.items()
        if offer.takes(queue.settings.name, named) and (first := group.first()) is not None
    ]
    return min(firsts)[1] if firsts else None


def _turn_of(record: MemoryJob) -> tuple[str, str]:
    """With which jobs it takes turns; those without a limit key have one turn together."""
    return record.new.limit_key or "", record.new.executor


def _discard(groups: dict[_Name, Heap], name: _Name, key: int) -> None:
    group = groups.get(name)
    if group is None:
        return
    group.discard(key)
    if not group:
        del groups[name]
