"""The pipe that wakes an executor's main thread."""

from __future__ import annotations

import os

from ergon_framework.executor.stdio import WakePipe


def test_a_late_ring_hits_nobody() -> None:
    """Whoever got the descriptor's number after the pipe was closed is not written to."""
    pipe = WakePipe()
    numbers = {pipe.read_end, pipe.write_end}
    pipe.close()
    ends = [os.pipe() for _ in range(3)]
    assert numbers & {number for pair in ends for number in pair}
    pipe.wake()
    for reader, writer in ends:
        os.close(writer)
        assert os.read(reader, 10) == b""
        os.close(reader)


def test_a_ring_wakes() -> None:
    """A wake-up before the wait ends it at once."""
    pipe = WakePipe()
    pipe.wake()
    pipe.wait(until=float("inf"))
    pipe.close()
