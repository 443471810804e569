"""Settings that are read from small files, and read again when the files change."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from ergon_framework.errors import ErgonError

T = TypeVar("T")
Told = Callable[[ErgonError], None]
_Stamp = tuple[bytes | None, ...]


class ReloadingFile(Generic[T]):
    """The last good value of a file. A file that cannot be used leaves it as it is, and is reported
    once.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        load: Callable[[], T],
        *,
        on_problem: Told | None = None,
        every: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load for the first time, which may raise; later look ``every`` so many seconds."""
        self._paths = tuple(paths)
        self._load = load
        self._on_problem = on_problem
        self._every = every
        self._clock = clock
        self._lock = threading.Lock()
        self._stamp = self._stamped()
        self._value = load()
        self._looked_at = clock()
        self.problem: ErgonError | None = None
        """Why the files as they are now are not in use."""

    def current(self) -> T:
        """The value; any thread may ask."""
        now = self._clock()
        if now - self._looked_at >= self._every:
            with self._lock:
                self._looked_at = now
                self._look()
        return self._value

    def _look(self) -> None:
        stamp = self._stamped()
        if stamp == self._stamp:
            return
        try:
            value = self._load()
        except ErgonError as error:
            if self._stamped() == stamp:  # otherwise it is still being written
                self._stamp, self.problem = stamp, error
                if self._on_problem is not None:
                    self._on_problem(error)
            return
        # Files that changed while they were read may not belong together: the next look decides.
        if self._stamped() == stamp:
            self._stamp, self._value, self.problem = stamp, value, None

    def _stamped(self) -> _Stamp:
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: str | os.PathLike[str]) -> bytes | None:
    """A digest of the content: two changes within one tick of the file system's clock have one time
    stamp.
    """
    try:
        # A file that is not there is a state like any other: loading it says what is wrong.
        return hashlib.sha256(Path(path).read_bytes()).digest()
    except OSError:
        return None
