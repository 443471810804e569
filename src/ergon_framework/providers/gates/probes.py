"""Keeps the places of probes while their calls are under way.

A probe holds its place in a half-open circuit by a short lease, so that the death of its process
costs the others seconds. A thread of the process renews the leases of probes that are still under
way, but no longer than a call may take.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ergon_framework.core.breaker import Permit
from ergon_framework.errors import StoreError

LEASE = 5.0
"""Seconds that a probe in a shared store holds its place without being renewed."""

LONGEST = 3600.0
"""Seconds for which the lease of a probe is renewed whose call has no timeout budget."""

_PARTS = 3
"""A lease is renewed when a third of it is over: one renewal may fail."""


class Renewable(Protocol):
    """A circuit, as the keeper sees it."""

    def renew_probe(self, permit: Permit) -> bool:
        """Prolong the lease of a probe; whether it still has its place."""


@dataclass(slots=True)
class _Kept:
    circuit: Renewable
    permit: Permit
    lease: float
    due_at: float
    until: float


class ProbeKeeper:
    """The probes of one process. Any thread may call any method."""

    def __init__(self, ticks: Callable[[], float] = time.monotonic) -> None:
        self._ticks = ticks
        self.renew()

    def renew(self) -> None:
        """In a forked child: the probes are the parent's."""
        self._kept: dict[str, _Kept] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def keep(self, circuit: Renewable, permit: Permit, lease: float, longest: float) -> None:
        """Renew a probe's lease from now on, for at most ``longest`` seconds."""
        now = self._ticks()
        kept = _Kept(circuit, permit, lease, now + lease / _PARTS, now + longest)
        with self._changed:
            self._kept[permit.token] = kept
            if self._thread is None:
                self._start()
            self._changed.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="ergon-probes", daemon=True)
        with contextlib.suppress(RuntimeError):  # there are too many: the next probe tries again
            thread.start()
            self._thread = thread

    def forget(self, token: str) -> None:
        """The call has ended."""
        if self._kept:
            with self._changed:
                self._kept.pop(token, None)

    def renew_due(self) -> float | None:
        """Renew what is due; the seconds until the next is, None when there are no probes."""
        now = self._ticks()
        with self._changed:
            due = [each for each in self._kept.values() if each.due_at <= now]
        for each in due:
            is_held = now < each.until and _is_renewed(each)
            each.due_at = self._ticks() + each.lease / _PARTS
            if not is_held:
                self.forget(each.permit.token)
        with self._changed:
            return min((each.due_at - self._ticks() for each in self._kept.values()), default=None)

    def _run(self) -> None:
        while True:
            wait = self.renew_due()
            with self._changed:
                if wait is None and not self._kept:
                    self._thread = None
                    return
                self._changed.wait(max(0.01, wait or 0.0))


def _is_renewed(kept: _Kept) -> bool:
    try:
        return kept.circuit.renew_probe(kept.permit)
    except StoreError:
        return True  # it may answer next time


KEEPER = ProbeKeeper()
"""Of this process."""
os.register_at_fork(after_in_child=KEEPER.renew)
