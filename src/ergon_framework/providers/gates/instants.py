"""Time that runs evenly, whatever is done to the clock on the wall."""

from __future__ import annotations

import time
from collections.abc import Callable

from ergon_framework.engine.clocks import current_clock
from ergon_framework.ports.clock import Clock


def steady(
    clock: Clock | None = None, wall: Callable[[], float] = time.time
) -> Callable[[], float]:
    """Seconds since 1970 by the clock on the wall as it is now, going on evenly from here.

    For state that nobody shares: it need not follow a clock that is set back or forth.
    """
    now = (clock or current_clock()).now
    ahead = wall() - now()
    return lambda: now() + ahead
