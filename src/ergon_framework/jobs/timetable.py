"""Cron in a worker: its schedules are written, then fired, in slices of bounded time.

Thousands of either outlast a lease. Between two slices the keeper renews what it holds, settles and
claims, and hears a stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ergon_framework.jobs.schedules import Synced

SLICE = 0.2
"""Seconds after which others have their turn, unless a lease is so short that it must be less."""


class Fires(Protocol):
    """Cron, seen from here. What ``goes_on`` cuts short is gone on with by the next call."""

    def sync(self, *, goes_on: Callable[[], bool]) -> Synced:
        """Bring the stored schedules in line with the settings."""

    def sync_anew(self) -> None:
        """Begin from the first schedule, with the next call."""

    def are_gone(self) -> bool:
        """Whether there are schedules in the settings, and none of them in the store."""

    def fire_due(self, goes_on: Callable[[], bool]) -> float | None:
        """Fire what is due; answers the next instant by the store's clock."""

    def stop(self) -> None:
        """Write nothing more; thousands of schedules would keep a worker that wants to leave."""


class Slice:
    """Asked before each step whether there is time for it; there always is for the first.

    A store that takes longer to be read than a slice is would otherwise never be written.
    """

    def __init__(self, now: Callable[[], float], seconds: float) -> None:
        self.is_cut = False
        self._now = now
        self._seconds = seconds
        self._until: float | None = None

    def __call__(self) -> bool:
        """Whether to take the next step."""
        if self._until is None:
            self._until = self._now() + self._seconds
        else:
            self.is_cut = self.is_cut or self._now() >= self._until
        return not self.is_cut


class Timetable:
    """A worker's schedules. Nothing is fired before all are written: some may be out of date."""

    def __init__(
        self,
        schedules: Fires,
        now: Callable[[], float],
        lease: float,
        tell_lost: Callable[[list[str]], None],
    ) -> None:
        """``tell_lost`` is given the names of what had to be written again."""
        self.is_under_way = False  # the next turn goes on with it
        self._schedules = schedules
        self._now = now
        self._seconds = min(SLICE, lease / 10)
        self._tell_lost = tell_lost
        self._is_synced = False
        self._was_synced = False  # some time ago, or now
        self._added: set[str] = set()
        self._lost: list[str] | None = None

    def write_again(self, lost: list[str]) -> None:
        """The store may have lost everything, and has lost these; tell it when all is written."""
        self._lost = [*(self._lost or ()), *lost]
        self.compare_anew()

    def compare_anew(self) -> None:
        """Write what is not there, or not as the settings say."""
        self._is_synced = False
        self._schedules.sync_anew()

    def are_gone(self) -> bool:
        """Whether the store has nothing of it any more, so that nobody's is written over."""
        return self._schedules.are_gone()

    def stop(self) -> None:
        """Write nothing more."""
        self._schedules.stop()

    def turn(self) -> float | None:
        """One slice; the instant of the next fire, or None when there is none.

        When ``is_under_way`` is set, there is more to do before that.
        """
        is_under_way = False  # after an error it is tried again, but nobody waits for that
        try:
            at, is_under_way = self._turned()
        finally:
            self.is_under_way = is_under_way
        return at

    def _turned(self) -> tuple[float | None, bool]:
        if not self._is_synced and not self._was_written():
            return None, True
        piece = self._slice()
        return self._schedules.fire_due(piece), piece.is_cut

    def _was_written(self) -> bool:
        """Write a piece; whether that was the last."""
        piece = self._slice()
        added = self._schedules.sync(goes_on=piece).added
        if self._lost is not None:
            # What was never there is new: a namesake may leave while we write for the first time.
            self._lost += [name for name in added if self._was_synced or name in self._added]
        self._added.update(added)
        if piece.is_cut:
            return False
        self._is_synced = self._was_synced = True
        self._added.clear()
        lost, self._lost = self._lost, None
        if lost:
            self._tell_lost(lost)
        return True

    def _slice(self) -> Slice:
        return Slice(self._now, self._seconds)
