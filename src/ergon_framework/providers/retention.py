"""Retention: which process deletes old records of provider calls, when, and how many at a time.

One process per store deletes, under a lease; it goes in slices, so that no transaction is long.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from ergon_framework.errors import StoreError
from ergon_framework.ports.providerstore import ALL_TENANTS, ClaimState, ProviderStore

DEFAULT_RETENTION = 90 * 86_400.0
"""Seconds for which attempts and settled dead letters are kept by default."""

PRUNE_INTERVAL = 3600.0
"""Seconds between two looks for what is old; also the lease of the process that looks."""

PRUNE_BATCH = 1000
"""Rows that go at once."""

_FIRST_PRUNE_DELAY = 60.0
"""Seconds after which a process looks for the first time: a short one deletes nothing."""

_MAX_CLOCK_STEP = 60.0
"""Seconds by which the store's clock may drift from ours within an interval."""

_BATCH_PAUSE = 1.0
"""Seconds between two slices."""

_LEASE_NAME = "retention of provider records"


class Retention:
    """Deletes old rows of one store. It belongs to one thread."""

    def __init__(self, store: ProviderStore, clock: Callable[[], float]) -> None:
        self.keep: float | None = DEFAULT_RETENTION
        """Seconds; None: for ever."""
        self.is_said = False
        """Whether a provider has set it; the default gives way to the first that does."""
        self._store = store
        self._clock = clock
        self.renew()

    def renew(self) -> None:
        """Start empty: at first, and in a forked child."""
        self._owner = str(uuid.uuid4())
        self._due_at = self._clock() + _FIRST_PRUNE_DELAY
        self._offset = self._measured_offset()

    def _measured_offset(self) -> float:
        """How far the store's clock is ahead of the monotonic clock."""
        return self._store.now() - self._clock()

    def _was_clock_set(self) -> bool:
        """Whether the store's clock was set since this was asked last.

        Everything would look old after a clock was set forward by mistake: nothing is deleted until
        it has been right, or wrong, for a whole interval.
        """
        before, self._offset = self._offset, self._measured_offset()
        return abs(self._offset - before) > _MAX_CLOCK_STEP

    def prune_when_due(self) -> int:
        """Delete a slice of what is old, if it is time to; how many rows."""
        keep, now = self.keep, self._clock()
        if keep is None or now < self._due_at:
            return 0
        self._due_at = now + PRUNE_INTERVAL
        if self._was_clock_set():
            return 0
        try:
            claim = self._store.claim(
                ALL_TENANTS, _LEASE_NAME, _LEASE_NAME, self._owner, PRUNE_INTERVAL, PRUNE_INTERVAL
            )
            if claim.state is not ClaimState.MINE:
                return 0
            at = self._store.now()
            gone = self._store.prune(at - keep, PRUNE_BATCH, keys_before=at)
        except StoreError:
            return 0  # it is away, or busy: later
        if gone >= PRUNE_BATCH:
            self._due_at = now + _BATCH_PAUSE
        return gone
