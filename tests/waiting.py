"""Waiting for what another thread or process does, where nothing tells when it is done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE = 120.0
_SOONEST, _LATEST, _SHARE = 0.005, 0.1, 0.1


def until(condition: Callable[[], object], what: str = "it", seconds: float = PATIENCE) -> None:
    """Look until it is so.

    Every look may ask a server or another process. The longer it takes, the less often somebody
    looks: after another tenth of the time so far.
    """
    began, pause = time.monotonic(), threading.Event()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, f"{what} did not happen in time"
        pause.wait(min(max(waited * _SHARE, _SOONEST), _LATEST))
