"""The bell that wakes an executor's main thread."""

from __future__ import annotations

import os

from ergon_framework.executor.stdio import Bell


def test_a_late_ring_hits_nobody() -> None:
    """Whoever got the descriptor's number after the bell was closed is not written to."""
    bell = Bell()
    numbers = {bell.listener, bell.button}
    bell.close()
    ends = [os.pipe() for _ in range(3)]
    assert numbers & {number for pair in ends for number in pair}
    bell.ring()
    for reader, writer in ends:
        os.close(writer)
        assert os.read(reader, 10) == b""
        os.close(reader)


def test_a_ring_wakes() -> None:
    """A ring before the wait is heard at once."""
    bell = Bell()
    bell.ring()
    bell.wait(until=float("inf"))
    bell.close()
