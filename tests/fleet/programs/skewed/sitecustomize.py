"""Read by Python when it starts with this folder on its path: its wall clock is wrong."""

from __future__ import annotations

import os
import time

_SECONDS = float(os.environ.get("FLEET_SKEW", "0"))
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _SECONDS
time.time_ns = lambda: _time_ns() + int(_SECONDS * 1_000_000_000)
