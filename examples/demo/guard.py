"""Runs a command for as long as somebody holds its standard input open.

    python -m examples.demo.guard COMMAND...

However the demo ends, SIGKILL included, the system closes its end of that pipe. Whatever runs under
``ergon run --all`` watches its own parent in the same way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

PATIENCE = 30.0
"""Seconds for a graceful end; after that a second signal ends everything at once."""


def main(command: list[str]) -> int:
    """The exit code of the command."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - as it was told to
    over = threading.Event()

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)  # nobody writes: this returns when the other end is gone
        while not over.is_set():
            process.terminate()
            over.wait(PATIENCE)

    threading.Thread(target=watch, daemon=True).start()
    code = process.wait()
    over.set()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
