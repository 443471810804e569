"""The handlers of our executor."""

from __future__ import annotations

from ergon_framework.executor import Registry
from jobs_parts import run_file

registry = Registry()
_run = run_file.handler()


@registry.handler("noop")
def noop(number: int) -> int:
    """Do nothing."""
    return _run(number)
