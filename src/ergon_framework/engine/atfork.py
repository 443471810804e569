"""After a fork: the child gets locks of its own, and counts only what it does itself."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """Holds locks, or counts what the threads of this process do."""

    def renew(self) -> None:
        """Called in the child: a lock that another thread held at the fork would never be free."""


_alive: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_after_fork(part: Renewable) -> None:
    """Call ``part.renew`` in every forked child, for as long as ``part`` lives."""
    _alive.add(part)


def renew_all() -> None:
    """Called in a forked child: renew every part. One that fails does not stop the others."""
    failures = []
    # A copy: a part that makes another one while it is renewed would change the set.
    for part in list(_alive):
        try:
            part.renew()
        except Exception as error:  # the others are renewed all the same
            failures.append(error)
    if failures:
        raise ExceptionGroup("not everything was renewed after a fork", failures)


os.register_at_fork(after_in_child=renew_all)
