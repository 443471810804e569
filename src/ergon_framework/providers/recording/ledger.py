"""What has become of the rows, counted exactly, and told now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from ergon_framework.errors import ErgonError

Tell = Callable[..., None]
"""Called with the name of a notice and its fields."""

_PAUSE = 1.0  # seconds between two tellings
_TOLD = ("dropped", "lost", "spilled", "replayed")


@dataclass(slots=True)
class Counts:
    """Rows by what has become of them."""

    written: int = 0
    dropped: int = 0
    lost: int = 0
    spilled: int = 0
    replayed: int = 0


class Ledger:
    """The counts of one recorder. Any thread may call any method."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.renew()

    def renew(self) -> None:
        """Begin at nothing: at first, and in a forked child."""
        self._lock = threading.RLock()  # counting may be interrupted by a finalizer that counts
        self._counts = Counts()
        self._told = Counts()
        self._told_at = float("-inf")
        self.last_error: str | None = None

    def count(
        self,
        *,
        written: int = 0,
        dropped: int = 0,
        lost: int = 0,
        spilled: int = 0,
        replayed: int = 0,
    ) -> None:
        """Add to the counts."""
        with self._lock:
            counts = self._counts
            counts.written += written
            counts.dropped += dropped
            counts.lost += lost
            counts.spilled += spilled
            counts.replayed += replayed

    def counts(self) -> Counts:
        """The counts as they are now."""
        with self._lock:
            return replace(self._counts)

    def note(self, error: Exception) -> None:
        """Remember the last error. Our own say what is wrong; others may quote a payload."""
        name = type(error).__name__
        self.last_error = f"{name}: {error.message}" if isinstance(error, ErgonError) else name

    def report(self, now: float, *, is_last: bool = False) -> None:
        """Tell which counts have grown, at most once a second unless there is no later."""
        if not is_last and now - self._told_at < _PAUSE:
            return
        counts, told = self.counts(), self._told
        self._told, self._told_at = counts, now
        for name in _TOLD:
            grown = getattr(counts, name) - getattr(told, name)
            if grown:
                self.say(f"records.{name}", rows=grown)

    def say(self, name: str, **fields: object) -> None:
        """Tell of something; nobody's failure to listen reaches the rows."""
        try:
            self._tell(name, **fields)
        except Exception as error:
            self.note(error)
