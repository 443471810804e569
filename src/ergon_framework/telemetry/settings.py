"""What is recorded, and how much of it. The defaults keep payloads and results private."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ergon_framework.errors import SettingsError

_ROTATE = 'use "never", "batch" or a number of seconds above 0'


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """Switches for spans, metrics and logs.

    ``payloads`` and ``results`` put the (shortened) text of a payload or a result on spans; without
    them a result shows as the name of its type and a payload not at all. ``parent`` says what a
    trace context that arrives with a transaction becomes: with "link" the transaction stays below
    its loop and links to it, with "parent" it is a part of the incoming trace. ``rotate`` ends the
    loop span after each "batch" or after so many seconds and begins a linked one, for loops that
    run for days. ``conventions`` records durations of each transaction under the names of the
    semantic conventions as well.
    """

    spans: bool = True
    metrics: bool = True
    logs: bool = True
    payloads: bool = False
    results: bool = False
    parent: str = "link"
    rotate: str | float = "never"
    conventions: bool = False

    def __post_init__(self) -> None:
        if self.parent not in {"link", "parent"}:
            raise SettingsError(
                f"telemetry.parent is {self.parent!r}", remedy='use "link" or "parent"'
            )
        if isinstance(self.rotate, str):
            is_fine = self.rotate in {"never", "batch"}
        else:
            is_fine = math.isfinite(self.rotate) and self.rotate > 0
        if not is_fine:
            raise SettingsError(f"telemetry.rotate is {self.rotate!r}", remedy=_ROTATE)
