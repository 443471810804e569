"""The commands of ``ergon`` inside the command lines of other frameworks.

``worker`` runs the jobs of an App, and ``check`` says what it has. Every other command is the one
of ``ergon``, which finds the App's store in the environment.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ergon_framework.app.application import App
from ergon_framework.app.store_location import StoreLocation
from ergon_framework.cli import invoke
from ergon_framework.errors import ErgonError

STORE = "ERGON_STORE__URL"
CONFIG = "ERGON_CONFIG"
"""The variables by which every command finds its store and its settings."""


def run_command(app: App, arguments: Sequence[str], *, program: str) -> int:
    """Run one command on the store of an App. Returns its exit code."""
    before = dict(os.environ)
    try:
        return _run(app, arguments, program)
    finally:  # This process may go on, and its next command may belong to another App.
        os.environ.clear()
        os.environ.update(before)


def _run(app: App, arguments: Sequence[str], program: str) -> int:
    try:
        # Flask passes a tuple, Django a list.
        if arguments[:1] == ("worker",) or arguments[:1] == ["worker"]:
            return _work(app, arguments[1:], program)
        if [*arguments] == ["check"] and app.setup.file is None:
            return _check(app)
        if app.setup.file is not None:
            os.environ[CONFIG] = str(app.setup.file)
        # By the environment and not by options: each command has its own options, and a user's
        # --store still takes precedence.
        os.environ[STORE] = app.setup.url
    except ErgonError as error:  # Errors of other commands are printed by invoke().
        sys.stderr.write(f"{program}: {error}\n")
        return 2
    return invoke([*arguments] or ["--help"])


def _check(app: App) -> int:
    """Print what ``ergon check`` prints of settings, for an App without any: its store and its
    handlers.

    Raises the error of a store that does not answer.
    """
    with app:
        workers = app.client.store.workers()
    rows = {
        "store": StoreLocation(app.setup.url).name,
        "handlers": ", ".join(app.registry.names) or "none",
        "workers": str(len(workers)),
    }
    sys.stdout.writelines(f"{name:9} {value}\n" for name, value in rows.items())
    return 0


def _work(app: App, arguments: Sequence[str], program: str) -> int:
    given = _options(arguments, program)
    # Executors find the project where this process finds it, wherever they are started.
    paths = [str(Path(sys.path[0]).absolute()), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with app:
        report = app.run(**given).jobs
    summary = f"{report.completed} completed, {report.retried} retried, {report.failed} failed"
    sys.stdout.write(f"{summary}\n")
    return 0


def _options(arguments: Sequence[str], program: str) -> dict[str, Any]:
    parser = ArgumentParser(prog=f"{program} worker", description="Run jobs until Ctrl-C.")
    parser.add_argument("--burst", action="store_true", help="end when nothing is due")
    parser.add_argument("--queue", action="append", dest="queues", help="only jobs of this queue")
    parser.add_argument("--processes", type=int, help="processes that run handlers")
    parser.add_argument("--max-in-flight", type=int, help="jobs at once in each of them")
    replaced = "replace a process"
    parser.add_argument("--max-jobs-per-process", type=int, help=f"{replaced} after so many jobs")
    parser.add_argument("--max-memory-per-process", type=int, help=f"{replaced} with so many bytes")
    parser.add_argument("--max-process-age", type=float, help=f"{replaced} after so many seconds")
    return vars(parser.parse_args([*arguments]))
