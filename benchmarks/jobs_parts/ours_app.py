"""The handlers of our executor."""

from __future__ import annotations

from ergon_framework.executor import Registry
from jobs_parts import marks

registry = Registry()
_run = marks.handler()


@registry.handler("noop")
def noop(number: int) -> int:
    """Do nothing."""
    return _run(number)
