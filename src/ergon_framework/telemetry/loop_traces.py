"""The traces that loops have begun: one for thousands of units, and nobody's in particular."""

from __future__ import annotations

from collections import deque

MOST = 1024
"""Traces that are remembered; a loop that rotates its span begins a new one each time."""

_order: deque[int] = deque()
_known: set[int] = set()


def add(trace_id: int) -> None:
    """A loop has begun a trace of its own."""
    if trace_id in _known:
        return
    _known.add(trace_id)
    _order.append(trace_id)
    while len(_order) > MOST:
        _known.discard(_order.popleft())


def is_loop(trace_id: int) -> bool:
    """Whether a trace is that of a loop."""
    return trace_id in _known
