"""``ergon serve`` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import fork_server

ERGON = [sys.executable, "-m", "ergon_framework.cli", "serve"]


@contextmanager
def serving(
    place: Path, *arguments: str, **environ: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that is ready, over a store in a file, and its first line."""
    named = () if "--config" in arguments else ("--store", "sqlite:///work.db", "--port", "0")
    with started(place, *named, *arguments, **environ) as found:
        yield found


@contextmanager
def started(
    place: Path, *arguments: str, **environ: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that is ready, and its first line; it is killed at the end if it still runs."""
    process = fork_server.start(
        [*ERGON, *arguments],
        cwd=place,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, line
    finally:
        process.kill()
        process.communicate()
