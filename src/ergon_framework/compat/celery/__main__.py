"""``python -m ergon_framework.compat.celery module:app``: reports what moving means for each task.

Nothing is moved, and no task is run.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ergon_framework.compat.celery.bridge import CeleryBridge
from ergon_framework.compat.celery.options import option_problems, to_be_changed, unkept
from ergon_framework.compat.celery.target import CallTarget
from ergon_framework.errors import ErgonError, WiringError
from ergon_framework.executor import Registry

USAGE = "usage: python -m ergon_framework.compat.celery module:app"


def find_app(reference: str) -> Any:
    """The Celery application that ``module:name`` names."""
    place, _, name = reference.partition(":")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as a text
    try:
        module = importlib.import_module(place)
    except ImportError as error:
        raise WiringError(
            f"the module {place!r} cannot be imported: {error}",
            remedy="run it in the folder that holds the module, as the celery command",
        ) from error
    found = getattr(module, name or "app", None)
    if not hasattr(found, "send_task") or not hasattr(found, "loader"):
        raise WiringError(
            f"{reference!r} is no Celery application", remedy="write module:name, as for celery -A"
        )
    return found


def report(celery_app: Any) -> tuple[list[str], int]:
    """Lines about each task, and how many tasks must be changed first."""
    bridge = CeleryBridge(celery_app, CallTarget(registry=Registry()), "celery")
    bridge.load_tasks()
    lines: list[str] = []
    to_change = 0
    for name, task in bridge.tasks.items():
        changes = to_be_changed(task)
        to_change += bool(changes)
        about = () if option_problems(task) else _about(bridge, task)
        lines += [name, *(f"  {each}" for each in about)]
        lines += [f"  change: {each}" for each in changes]
        lines += [f"  differs: {each}" for each in unkept(task)]
    count = len(bridge.tasks)
    ending = f"{to_change} of them must be changed first" if to_change else "all can run as jobs"
    lines.append(f"{count} task{'' if count == 1 else 's'}; {ending}")
    if celery_app.conf.beat_schedule:
        lines.append(f"{len(celery_app.conf.beat_schedule)} entries of beat: see schedules")
    return lines, to_change


def _about(bridge: CeleryBridge, task: Any) -> Iterator[str]:
    policy = bridge.policy_of(task)
    limit = "no time limit" if policy.time_limit is None else f"{policy.time_limit:g} s per attempt"
    crash = "run again" if policy.acks_late else "dead-lettered"
    most = policy.max_attempts - 1
    yield f"at most {most} retries, if it asks for them; {limit}; {crash} if its process dies"


def main(arguments: Sequence[str]) -> int:
    """Report on an application. Returns 1 if a task must be changed before it can move."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write(f"{USAGE}\n")
        return 2
    try:
        lines, to_change = report(find_app(arguments[0]))
    except ErgonError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if to_change else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
