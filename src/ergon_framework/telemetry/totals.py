"""Sums that are kept in the process and read when the metrics are collected.

A counter of the OpenTelemetry SDK costs about as much per increment as a whole lifecycle of the
engine. An observable one costs nothing until somebody looks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from opentelemetry.metrics import CallbackOptions, Observation

Labels = tuple[str, ...]


class Totals:
    """One sum per combination of label values. Labels come from closed lists, so it stays small."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._lock = threading.Lock()
        self._sums: dict[Labels, int] = {}

    def add(self, labels: Labels, amount: int = 1) -> None:
        """Add to one sum."""
        with self._lock:
            self._sums[labels] = self._sums.get(labels, 0) + amount

    def observe(self, _: CallbackOptions) -> Iterable[Observation]:
        """All sums as they are now."""
        with self._lock:
            sums = list(self._sums.items())
        for labels, value in sums:
            yield Observation(value, dict(zip(self._names, labels, strict=True)))
