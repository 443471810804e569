"""How many calls of a provider are retrying at once, against storms."""

from __future__ import annotations

import threading

from ergon_framework.core.guard import RetryBudget


class Retries:
    """Counts the calls under way. Without a budget nothing is counted, and everybody may retry."""

    def __init__(self, budget: RetryBudget | None = None) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._under_way = 0
        self._retrying: set[int] = set()
        self.unreturned_units = 0
        """Units that were to be given back when the store did not answer."""

    def renew(self) -> None:
        """After a fork, in the child: the calls under way are its parent's."""
        self._lock = threading.Lock()
        self._under_way = 0
        self._retrying = set()

    def began(self) -> None:
        """A call is under way."""
        if self._budget is not None:
            with self._lock:
                self._under_way += 1

    def may_begin(self, call: object) -> bool:
        """Whether a call may go on to another attempt; it counts from then on."""
        if self._budget is None:
            return True
        with self._lock:
            if id(call) in self._retrying:
                return True
            if not self._budget.allows(len(self._retrying), self._under_way):
                return False
            self._retrying.add(id(call))
            return True

    def ended(self, call: object) -> None:
        """A call has ended, one way or the other."""
        if self._budget is not None:
            with self._lock:
                self._under_way = max(0, self._under_way - 1)  # it may have begun before a fork
                self._retrying.discard(id(call))

    def unreturned(self, units: int) -> None:
        """A refund got lost: the store did not answer."""
        with self._lock:
            self.unreturned_units += units
