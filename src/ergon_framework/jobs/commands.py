"""Whether an executor's command can be started at all; asked before anything else is."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import sys
from pathlib import Path

from ergon_framework.errors import ConfigurationError
from ergon_framework.jobs.settings import ExecutorSettings

logger = logging.getLogger(__name__)

PER_PROCESS, SPARE = 6, 100
"""Descriptors that each executor process takes in its worker, and those for all the rest."""


def checked(name: str, settings: ExecutorSettings) -> ExecutorSettings:
    """The same settings with the program's full path; refused when there is no such program."""
    cwd = settings.cwd
    if cwd is not None and not Path(cwd).is_dir():
        raise ConfigurationError(
            f"executors.{name}.cwd: there is no folder {cwd!r}",
            remedy="create it, or correct the setting",
        )
    program, *rest = settings.command
    path = settings.env.get("PATH", os.environ.get("PATH"))
    base = Path(cwd or os.curdir)
    found = str(base / program) if os.sep in program else _which(program, path)
    if found is None or not os.access(found, os.X_OK) or Path(found).is_dir():
        raise ConfigurationError(
            f"executors.{name}.command: there is no program {program!r} that can be started",
            remedy="install it, give its full path, or correct the setting",
        )
    return settings.model_copy(update={"command": (_absolute(found), *rest)})


def allow_descriptors(processes: int) -> None:
    """Raise this process's limit of open files to what so many executors take, or warn."""
    needed = processes * PER_PROCESS + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    most = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        most = soft
    if most < needed:
        text = "%d executor processes need %d open files, and %d are allowed: raise ulimit -n"
        logger.warning(text, processes, needed, most)


def _which(program: str, path: str | None) -> str | None:
    # A program installed beside this Python counts, although nobody activated the environment.
    beside = os.path.dirname(sys.executable)  # noqa: PTH120 - not resolved: it may be a link
    return shutil.which(program, path=path) or shutil.which(program, path=beside)


def _absolute(path: str) -> str:
    # Not resolved: the Python of a virtual environment is a link whose place is its meaning.
    return os.path.abspath(path)  # noqa: PTH100
