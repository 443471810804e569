"""The handler of the steps, as an executor serves it."""

from __future__ import annotations

from typing import Any

from jobs_parts import run_file

from ergon_framework.executor import Registry

registry = Registry()
_run = run_file.handler()


@registry.handler("work")
def work(*given: Any) -> int:
    """Mark the number, which comes after the result of the step before, if there is one."""
    return _run(given[-1])
