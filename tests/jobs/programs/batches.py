"""An executor with batch handlers that say how many jobs a call had, and one that dies."""

from __future__ import annotations

import os

from ergon_framework.executor import JobContext, Registry

registry = Registry()


@registry.handler(batch=50, linger=0.3, timeout=10)
def count(numbers: list[int], jobs: list[JobContext]) -> list[list[int]]:
    """How many were in the call, and which process and attempt it was."""
    return [[len(numbers), os.getpid(), job.attempt] for job in jobs]


@registry.handler(batch=50, linger=0.3)
async def count_async(numbers: list[int]) -> list[int]:
    """The same on the event loop."""
    return [len(numbers) for _ in numbers]


@registry.handler(batch=50, linger=0.3)
def poison(numbers: list[int]) -> list[int]:
    """Ends the process when a 13 is among its jobs."""
    if 13 in numbers:
        os._exit(3)
    return [len(numbers) for _ in numbers]
