"""Looks at the queues of a Redis job store: names, counts and what due jobs ask for.

There may be very many queues, and the server serves no other client while it runs a script or a
command. So nothing here reads all of them at once: what is read grows by slices, between which
others are served. Only where there are few queues a whole look is one instant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from ergon_framework.core.claim import NO_LIMITS
from ergon_framework.jobs.stores.bounded_counts import MOST_PRIORITIES, next_names
from ergon_framework.jobs.stores.documents import named_in, queue_of
from ergon_framework.jobs.stores.redis.rows import STATUSES, pairs, read_settings
from ergon_framework.jobs.stores.redis.scripts import JOBS, script
from ergon_framework.jobs.stores.redis.transactions import RedisTransactions
from ergon_framework.jobs.stores.unreadable import UNREADABLE
from ergon_framework.ports.jobstore import Named, Queue, StatusCounts, Unreadable

SLICE = 1000
"""Fields, lanes, or sets of jobs that one call reads."""
QUEUES_AT_ONCE = 100
EXECUTORS_AT_ONCE = 100
_LOOK_AT_QUEUES = script(*JOBS, "look_at_queues")
_WAITING_QUEUES = script(*JOBS, "waiting_queues")
_DUE_QUEUE_NAMES = script("rows", "due_queue_names")
_COUNT_BY_STATUS = script("rows", "count_by_status")
_NAMED_LANES = script("rows", "named_lanes")


class RedisQueues:
    """What the queues of one store look like."""

    def __init__(
        self, transactions: RedisTransactions, unreadable: Callable[[], Sequence[Unreadable]]
    ) -> None:
        self._transactions = transactions
        self._unreadable = unreadable

    def queues(self) -> list[Queue]:
        """Every queue that has jobs or settings, by name; each as of an instant of its own."""
        names = sorted({*self._names(), *(each.queue for each in self._unreadable())})
        after: str | None = None
        oldest: dict[str, float] = {}
        while True:
            times, after = self._waiting(after, SLICE, is_first=after is None)
            for name, instant in times.items():
                oldest[name] = min(instant, oldest.get(name, instant))
            if after is None:
                return list(self._looked_at(names, SLICE, oldest))

    def queue_names(self, *, prefix: str, after: str, limit: int, is_due: bool) -> list[str]:
        """The next queues that have jobs or settings, by name."""
        if is_due:
            names = list(self._waiting(None, SLICE, is_first=True)[0])
            names += self._due_names(prefix, after, limit)
        else:
            names = [*self._names(), *(each.queue for each in self._unreadable())]
        return next_names(names, prefix=prefix, after=after, limit=limit)

    def look_at(self, names: Sequence[str], most: int) -> list[Queue]:
        """The given queues, in this order. The counts are exact, as the server keeps them."""
        if not names:
            return []
        most = min(most, SLICE)
        times, _ = self._waiting(None, most, is_first=True)
        return list(self._looked_at(names, most, times))

    def count_by_status(self) -> StatusCounts:
        """The jobs of the whole store by status; exact, as the server keeps the counts."""
        numbers = self._transactions.run(_COUNT_BY_STATUS, SLICE)
        if numbers is None:
            numbers = [0] * len(STATUSES)
            # By field: while the server makes room for others, it may give one twice.
            for field, number in dict(self._fields("counts")).items():
                numbers[int(field[0])] += int(number)
        counts = {each.value: n for each, n in zip(STATUSES, numbers, strict=True) if n}
        if aside := len(self._unreadable()):
            counts[UNREADABLE] = aside
        return StatusCounts(counts=counts)

    def named(self) -> list[Named]:
        """The executors that due jobs name, by name."""
        lanes: list[tuple[str, str]] = []
        after: str | None = None
        while True:
            found, last = self._transactions.run(_NAMED_LANES, after, SLICE)
            names = [each.decode() for each in found]
            lanes += zip(names[::2], names[1::2], strict=True)
            after = _text(last)
            if after is None:
                break
        seen = pairs(self._transactions.call("HGETALL", "executors"))
        return named_in(lanes, {name: float(instant) for name, instant in seen})

    # ---- slices ---------------------------------------------------------------------------------

    def _fields(self, key: str) -> Iterator[tuple[str, bytes]]:
        """The fields of a hash. One may come twice, and one that is moved meanwhile not at all."""
        cursor = b"0"
        while True:
            cursor, found = self._transactions.call("HSCAN", key, cursor, "COUNT", SLICE)
            yield from pairs(found)
            if int(cursor) == 0:
                return

    def _names(self) -> set[str]:
        counted = {name.partition(":")[2] for name, _ in self._fields("counts")}
        return counted | {name for name, _ in self._fields("queues")}

    def _due_names(self, prefix: str, after: str, limit: int) -> Iterator[str]:
        """Those of lanes, which stand in the order of their executors and then by name."""
        # Not compared by Lua, which does so by the locale of the server.
        bound, name = ("(", after) if after and after >= prefix else ("[", prefix)
        lane: str | None = "-"
        while lane is not None:
            words = (prefix, bound, name, limit, lane, EXECUTORS_AT_ONCE)
            found, last = self._transactions.run(_DUE_QUEUE_NAMES, *words)
            yield from (each.decode() for each in found)
            lane = _text(last)

    def _waiting(
        self, after: str | None, most: int, *, is_first: bool
    ) -> tuple[dict[str, float], str | None]:
        """Since when queues have due jobs that stand in no lane, and after what to go on."""
        words = (after, most, MOST_PRIORITIES, is_first)
        times, last = self._transactions.run(_WAITING_QUEUES, *words)
        return {name: float(instant) for name, instant in pairs(times)}, _text(last)

    def _looked_at(
        self, names: Sequence[str], most: int, oldest: dict[str, float]
    ) -> Iterator[Queue]:
        aside = Counter(each.queue for each in self._unreadable())
        first, states = 0, len(STATUSES)
        while first < len(names):
            some = names[first : first + QUEUES_AT_ONCE]
            words = (list(some), most, MOST_PRIORITIES)
            numbers, blobs, times = self._transactions.run(_LOOK_AT_QUEUES, *words)
            # Fewer than were asked for where some have jobs of very many limit keys.
            first += len(times)
            for n, (name, blob, instant) in enumerate(zip(some, blobs, times, strict=False)):
                counts = {
                    status.value: int(number)
                    for status, number in zip(STATUSES, numbers[n * states :], strict=False)
                    if number is not None
                }
                if aside[name]:
                    counts[UNREADABLE] = aside[name]
                since = [float(each) for each in (instant, oldest.get(name)) if each]
                settings = NO_LIMITS if blob is None else read_settings(blob)
                yield queue_of(name, settings, counts, min(since, default=None))


def _text(answer: bytes | None) -> str | None:
    return None if answer is None else answer.decode()
