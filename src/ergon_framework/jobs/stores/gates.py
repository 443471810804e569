"""What queues allow: paused, so many at once, so many per second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ergon_framework.core.limits import Bucket
from ergon_framework.jobs.stores.queue_changes import checked_changes


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one queue, as stored."""

    is_paused: bool = False
    max_active: int | None = None
    rate: float | None = None
    burst: int = 1
    full_at: float = 0.0

    @property
    def bucket(self) -> Bucket | None:
        """The tokens of a queue with a rate."""
        return None if self.rate is None else Bucket(self.rate, self.burst, self.full_at)

    @property
    def is_plain(self) -> bool:
        """Whether they say nothing."""
        return replace(self, full_at=0.0) == Settings()

    def changed(self, changes: dict[str, Any], now: float) -> Settings:
        """The settings after a change; tokens that are missing are missing still."""
        after = replace(self, **checked_changes(changes))
        if after.rate is None or self.bucket is None:
            return replace(after, full_at=0.0)
        bucket = self.bucket.changed(after.rate, after.burst, now)
        return replace(after, full_at=bucket.full_at)


NONE = Settings()
_as_stored = (bool | int, int | None, int | float | None, int, int | float)


def settings_from(row: Sequence[Any]) -> Settings:
    """The settings of a queue by its row, whose values may be of any type.

    A queue whose limits nobody can read waits, until somebody sets them again.
    """
    if not all(map(isinstance, row, _as_stored)):
        return Settings(is_paused=True)
    return Settings(bool(row[0]), *row[1:])


class Gate:
    """One queue during one claim; a paused one is not even looked at."""

    __slots__ = ("_active", "_bucket", "_was_used", "is_paused", "max_active", "name")

    def __init__(self, name: str, settings: Settings, active: int) -> None:
        self.name = name
        self.is_paused = settings.is_paused
        self.max_active = settings.max_active
        self._active = active
        self._bucket = settings.bucket
        self._was_used = False

    @property
    def full_at(self) -> float | None:
        """When the bucket will be full, if tokens were taken; that has to be written down."""
        return self._bucket.full_at if self._bucket is not None and self._was_used else None

    def room(self, most: int, now: float) -> int:
        """How many more may start now, up to ``most``."""
        if self.max_active is not None:
            most = min(most, self.max_active - self._active)
        if self._bucket is not None:
            most = min(most, self._bucket.free(now))
        return max(0, most)

    def waits_until(self, now: float) -> float | None:
        """When the rate allows another one, if nothing but the rate stands in the way."""
        if self._bucket is None or self._bucket.free(now) > 0:
            return None
        if self.max_active is not None and self._active >= self.max_active:
            return None
        return self._bucket.next_at(now)

    def enter(self, count: int, now: float) -> None:
        """So many have started."""
        self._active += count
        if self._bucket is not None and count:
            self._bucket = self._bucket.take(count, now)
            self._was_used = True
