"""What is opened as soon as it is there: a provider can be built while its database is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import (
    ConfigurationError,
    StoreError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.providers.hurry import at_most
from ergon_framework.providers.mapping.text import message_of
from ergon_framework.providers.telling import tell

T = TypeVar("T")


class Late(Generic[T]):
    """Something that is opened once, as early as it can be. Any thread may ask.

    Whoever waits while another one tries in vain does not try again.
    """

    def __init__(
        self, opening: Callable[[], T], ticks: Callable[[], float] = time.monotonic
    ) -> None:
        self.found: T | None = None
        """What was opened, if it was."""
        self._opening = opening
        self._ticks = ticks
        self._failure: ConfigurationError | StoreError | None = None
        self._failed_at = float("-inf")
        self._lock = threading.Lock()
        renew_after_fork(self)

    def begin(self) -> None:
        """Open it; if it is only away, the first who needs it tries again.

        A database of the wrong version, or a file that is none, does not mend itself: that is
        raised.
        """
        try:
            self.get()
        except StoreSchemaError:
            raise
        except StoreError as error:
            tell("store.lost", error=message_of(error))

    def get(self) -> T:
        """What was opened; ``StoreError`` when it cannot be."""
        found = self.found
        return found if found is not None else self._open(self._ticks())

    def settled(self) -> T | None:
        """What was opened, also by somebody who is just about it."""
        with self._lock:
            return self.found

    def renew(self) -> None:
        """In a forked child: a thread that only the parent has may hold the lock."""
        self._lock = threading.Lock()

    def _open(self, asked_at: float) -> T:
        lock = self._lock
        if not lock.acquire(timeout=at_most(threading.TIMEOUT_MAX)):
            raise StoreUnavailableError("the store is still being opened", remedy="try again")
        try:
            if self.found is not None:
                return self.found
            known = self._failure
            if known is not None and self._failed_at > asked_at:
                raise type(known)(known.message, remedy=known.remedy, details=known.details)
            try:
                self.found = self._opening()
            except (ConfigurationError, StoreError) as error:
                self._failure, self._failed_at = error, self._ticks()
                raise
            self._failure = None
            return self.found
        finally:
            lock.release()
