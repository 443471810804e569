"""How long records of provider calls are kept, and who deletes them: whoever writes new ones.

One process per store does it, by a lease, in small slices between two batches of rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from ergon_framework.errors import StoreError
from ergon_framework.ports.providerstore import EVERYBODY, ClaimState, ProviderStore

KEEP = 90 * 86_400.0
"""Seconds for which attempts and settled dead letters are kept, unless somebody says otherwise."""

EVERY = 3600.0
"""Seconds between two looks for what is old; also the lease of the process that looks."""

SLICE = 1000
"""Rows that go at once."""

_FIRST = 60.0
"""Seconds after which a process looks for the first time: a short one deletes nothing."""

_NEXT = 1.0
"""Seconds between two slices."""

_NAME = "retention of provider records"


class Retention:
    """Deletes what is old in one store. It belongs to one thread."""

    def __init__(self, store: ProviderStore, clock: Callable[[], float]) -> None:
        self.keep: float | None = KEEP
        """Seconds; None: for ever."""
        self.is_said = False
        """Whether somebody asked for that."""
        self._store = store
        self._clock = clock
        self.renew()

    def renew(self) -> None:
        """At first, and in a forked child, which is another process than its parent."""
        self._owner = str(uuid.uuid4())
        self._due_at = self._clock() + _FIRST

    def look(self) -> int:
        """Delete a slice of what is old, if it is time to; how many rows."""
        keep, now = self.keep, self._clock()
        if keep is None or now < self._due_at:
            return 0
        self._due_at = now + EVERY
        try:
            claim = self._store.claim(EVERYBODY, _NAME, _NAME, self._owner, EVERY, EVERY)
            if claim.state is not ClaimState.MINE:
                return 0
            at = self._store.now()
            gone = self._store.prune(at - keep, SLICE, keys_before=at)
        except StoreError:
            return 0  # it is away, or busy: later
        if gone >= SLICE:
            self._due_at = now + _NEXT
        return gone
