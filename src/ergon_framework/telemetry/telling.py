"""How code without a sink of its own tells of a change of state."""

from __future__ import annotations

import time
from typing import Any

from ergon_framework.ports.notice import Notice
from ergon_framework.telemetry.fan_out import FanOut, has_listeners

_SINK = FanOut(None, (), ())


def tell(name: str, /, **fields: Any) -> None:
    """A notice to whoever listens to this process; without anybody it costs a look."""
    if has_listeners():
        _SINK.emit(Notice(name, time.time(), fields))
