"""The command ``ergon``: it parses, calls and prints. One file per group of commands.

Where to look first: ``catalogue`` lists them all, and ``commands`` turns their errors into exit
codes (``ExitCode`` in ``app.console``). A command is in the file of its name; ``project`` has the
small ones about a project and its machine, ``worker`` those about workers and executors. What
commands share: ``command_run`` (options, streams, being supervised and stopped), ``output``
(tables, JSON, errors) and ``job_client`` (a store of jobs). ``init_process`` is process 1 of a
container.

Everything heavy is imported inside the commands: ``ergon --version`` and ``ergon executor`` start
without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from ergon_framework.cli.distribution import version
from ergon_framework.cli.init_process import step_aside


def main() -> NoReturn:
    """The console script."""
    step_aside()
    try:
        code = invoke(sys.argv[1:], is_process=True)
    except KeyboardInterrupt:  # before a command handles signals: nothing was begun
        code = 130
    sys.exit(code)


def invoke(arguments: Sequence[str], *, is_process: bool = False) -> int:
    """Run one command and return its exit code, without ending the process."""
    if list(arguments) == ["--version"]:  # without importing anything that takes long
        with suppress(OSError):  # nobody reads it: told below, as for every other command
            print(f"ergon {version()}", flush=True)
            return 0
    if arguments[:1] == ["executor"] and not {"--help", "-h"} & {*arguments}:
        # A worker waits for this process: it starts without the command line's own imports.
        from ergon_framework.executor.__main__ import main as execute

        return execute(arguments[1:])
    from ergon_framework.cli.commands import run_command

    return run_command(arguments, is_process=is_process)
