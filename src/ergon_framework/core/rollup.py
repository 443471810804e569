"""What a minute of calls came to, in a form that adds up: over minutes, and over processes.

Up to ``MAX_EXACT_SAMPLES`` durations are kept as they are, so that a quiet lane's percentiles are
exact. More are counted in buckets: one per millisecond below 64, then 32 per doubling, of which the
middle is wrong by at most one part in 64. Whether durations are kept or counted depends on how many
there are and on nothing else; so the order in which roll-ups are merged does not matter.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

MAX_EXACT_SAMPLES = 100
"""How many durations are kept as they are."""

_EXACT = 64  # below this, every millisecond has a bucket of its own
_STEPS = 32  # buckets per doubling above it
_LARGEST = (1 << 31) - 1
_KEPT, _COUNTED = b"\0", b"\1"


def _bucket_of(milliseconds: int) -> int:
    if milliseconds < _EXACT:
        return milliseconds
    shift = milliseconds.bit_length() - 6
    return shift * _STEPS + (milliseconds >> shift)


def _middle_of(bucket: int) -> int:
    if bucket < _EXACT:
        return bucket
    shift = bucket // _STEPS - 1
    return (bucket - shift * _STEPS << shift) + (1 << shift >> 1)


def _tallied(few: Iterable[int]) -> dict[int, int]:
    buckets: dict[int, int] = {}
    for value in few:
        bucket = _bucket_of(value)
        buckets[bucket] = buckets.get(bucket, 0) + 1
    return buckets


def _rank_of(count: int, hundredths: int) -> int:
    return max(1, -(-count * hundredths // 100))


def _ranked(buckets: Mapping[int, int], order: Sequence[int], above: int) -> int:
    """The middle of the bucket, in a descending order of all, that so many lie above of."""
    place, left = 0, above - buckets[order[0]]
    while left >= 0:
        place += 1
        left -= buckets[order[place]]
    return _middle_of(order[place])


class DurationHistogram:
    """How long things took, in whole milliseconds."""

    __slots__ = ("_buckets", "_few", "count")

    def __init__(self) -> None:
        self._few: list[int] = []
        self._buckets: dict[int, int] = {}
        self.count = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DurationHistogram) and self.encode() == other.encode()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"<{self.count} durations>"

    def add(self, milliseconds: int) -> None:
        """Count one duration."""
        value = 0 if milliseconds < 0 else min(milliseconds, _LARGEST)
        self.count += 1
        if self.count <= MAX_EXACT_SAMPLES:
            self._few.append(value)
            return
        self._spread()
        bucket = _bucket_of(value)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def extend(self, values: Sequence[int]) -> None:
        """Count several durations. Beyond the exact samples, equal ones are counted together."""
        if self.count + len(values) <= MAX_EXACT_SAMPLES:
            for value in values:
                self.add(value)
            return
        self.count += len(values)
        self._spread()
        buckets = self._buckets
        for value, times in Counter(values).items():
            bucket = _bucket_of(0 if value < 0 else min(value, _LARGEST))
            buckets[bucket] = buckets.get(bucket, 0) + times

    def merge(self, other: DurationHistogram) -> None:
        """Add the counts of another one, which is not changed."""
        self.count += other.count
        if self.count <= MAX_EXACT_SAMPLES:
            self._few += other._few
            return
        self._spread()
        buckets = self._buckets
        for bucket, count in other.tally().items():
            buckets[bucket] = buckets.get(bucket, 0) + count

    def percentile(self, hundredths: int) -> int | None:
        """The smallest duration that so many in a hundred do not exceed; None when there is none.

        Nearest rank; exact for up to ``MAX_EXACT_SAMPLES``, within 2 % beyond.
        """
        if not self.count:
            return None
        rank = _rank_of(self.count, hundredths)
        if not self._buckets:
            return sorted(self._few)[rank - 1]
        return _ranked(self._buckets, sorted(self._buckets, reverse=True), self.count - rank)

    def tally(self) -> Mapping[int, int]:
        """How many are in which bucket."""
        return self._buckets or _tallied(self._few)

    def counted(self, bounds: Sequence[float]) -> tuple[list[int], float]:
        """How many took up to each bound, in seconds, and how many longer; and their sum.

        As exact as :meth:`percentile`: a bound between two buckets has the one below it.
        """
        counts, total = [0] * (len(bounds) + 1), 0.0
        values = self._buckets.items() if self._buckets else ((each, 1) for each in self._few)
        for value, count in values:
            seconds = (_middle_of(value) if self._buckets else value) / 1000
            counts[sum(bound < seconds for bound in bounds)] += count
            total += seconds * count
        return counts, total

    def encode(self) -> bytes:
        """The histogram as bytes, equal for equal durations. A bucket holds less than 2**32 of
        them.
        """
        if not self._buckets:
            return _KEPT + struct.pack(f"<{self.count}I", *sorted(self._few))
        found = sorted(self._buckets)
        counts = [self._buckets[bucket] for bucket in found]
        return _COUNTED + struct.pack(f"<{len(found)}H{len(found)}I", *found, *counts)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """What :meth:`encode` wrote; ValueError when it did not."""
        durations = cls()
        kind, rest = data[:1], data[1:]
        if kind == _KEPT and len(rest) % 4 == 0 and len(rest) <= 4 * MAX_EXACT_SAMPLES:
            durations._few = list(struct.unpack(f"<{len(rest) // 4}I", rest))
            durations.count = len(durations._few)
        elif kind == _COUNTED and rest and len(rest) % 6 == 0:
            size = len(rest) // 6
            found = struct.unpack(f"<{size}H{size}I", rest)
            durations._buckets = dict(zip(found[:size], found[size:], strict=True))
            durations.count = sum(found[size:])
        else:
            raise ValueError(f"these {len(data)} bytes are not durations")
        return durations

    def _spread(self) -> None:
        """Count what was kept so far."""
        if self._few:
            self._buckets = _tallied(self._few)
            self._few = []


@dataclass(slots=True)
class Rollup:
    """Counts of how executions ended, and how long their attempts took."""

    succeeded: int = 0
    failed: int = 0
    dead_lettered: int = 0
    durations: DurationHistogram = field(default_factory=DurationHistogram)

    @property
    def attempts(self) -> int:
        """Attempts that were made, refused calls left out."""
        return self.durations.count

    @property
    def success_rate(self) -> float | None:
        """The share of executions that succeeded; None when none has ended."""
        ended = self.succeeded + self.failed + self.dead_lettered
        return self.succeeded / ended if ended else None

    @property
    def p95(self) -> int | None:
        """Milliseconds that 95 of 100 attempts did not exceed; None when none was made."""
        return self.durations.percentile(95)

    def merge(self, other: Rollup) -> None:
        """Add the counts of another one, which is not changed."""
        self.succeeded += other.succeeded
        self.failed += other.failed
        self.dead_lettered += other.dead_lettered
        self.durations.merge(other.durations)


def merged(rollups: Iterable[Rollup]) -> Rollup:
    """One roll-up with the counts of all."""
    whole = Rollup()
    for rollup in rollups:
        whole.merge(rollup)
    return whole


class SlidingHour:
    """The latest minutes of a lane, whose sum is kept as they come and go."""

    __slots__ = ("_buckets", "_ended", "_order", "_p95", "_succeeded", "attempts", "minutes")

    def __init__(self) -> None:
        self.minutes: dict[int, Rollup] = {}
        """The roll-ups by the start of their minute. Only the methods below change them."""
        self._buckets: dict[int, int] = {}
        self._order: list[int] = []  # of the buckets, from above; empty when it is not known
        self._succeeded = 0
        self._ended = 0
        self._p95: int | None = None
        self.attempts = 0
        """Attempts that were made, refused calls left out."""

    def __len__(self) -> int:
        return len(self.minutes)

    def put(self, minute: int, rollup: Rollup) -> None:
        """Replace the roll-up of a minute."""
        before = self.minutes.get(minute)
        if before is not None:
            self._count(before, -1)
        self.minutes[minute] = rollup
        self._count(rollup, 1)

    def add(self, minute: int, rollup: Rollup) -> None:
        """Add to the roll-up of a minute."""
        self.minutes.setdefault(minute, Rollup()).merge(rollup)
        self._count(rollup, 1)

    def forget(self, before: float, limit: int | None = None) -> int:
        """Drop minutes that began before an instant, at most ``limit``; returns how many were
        dropped.
        """
        old = sorted(minute for minute in self.minutes if minute < before)[:limit]
        for minute in old:
            self._count(self.minutes.pop(minute), -1)
        return len(old)

    def since(self, minute: int) -> tuple[int, int]:
        """The number of minutes from this one on, and the attempts in them."""
        found = [rollup.attempts for at, rollup in self.minutes.items() if at >= minute]
        return len(found), sum(found)

    @property
    def success_rate(self) -> float | None:
        """The share of executions that succeeded; None when none has ended."""
        return self._succeeded / self._ended if self._ended else None

    @property
    def p95(self) -> int | None:
        """Milliseconds that 95 of 100 attempts did not exceed; None when none was made."""
        if self._p95 is None and self.attempts:
            if self.attempts <= MAX_EXACT_SAMPLES:
                self._p95 = merged(self.minutes.values()).p95
            else:
                self._order = self._order or sorted(self._buckets, reverse=True)
                above = self.attempts - _rank_of(self.attempts, 95)
                self._p95 = _ranked(self._buckets, self._order, above)
        return self._p95

    def _count(self, rollup: Rollup, sign: int) -> None:
        self._p95 = None
        self._succeeded += sign * rollup.succeeded
        self._ended += sign * (rollup.succeeded + rollup.failed + rollup.dead_lettered)
        self.attempts += sign * rollup.attempts
        buckets = self._buckets
        size = len(buckets)
        for bucket, count in rollup.durations.tally().items():
            # One that is empty stays, since it is likely to be filled again.
            buckets[bucket] = buckets.get(bucket, 0) + sign * count
        # Counts do not change the order of the buckets; only a new bucket does.
        if len(buckets) != size:
            self._order = []
