"""Example projects in a folder of their own, with their servers and workers running."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx

from tests import fork_server
from tests.docs.pages import ROOT
from tests.docs.programs import environment

_ADDRESS = re.compile(r"https?://[\d.]+:\d+")


def copied(example: str, folder: Path) -> Path:
    """The example's own files in a folder, as if they were a project."""
    return Path(shutil.copytree(ROOT / "examples" / example, folder / example))


@contextmanager
def started(folder: Path, *arguments: str, **changes: str) -> Iterator[IO[str]]:
    """A Python program with these arguments, until the block ends; what it writes, both streams."""
    with fork_server.start(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(PYTHONUNBUFFERED="1", **changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def served(folder: Path, *arguments: str, **changes: str) -> Iterator[httpx.Client]:
    """A server, and a client for the address that it writes when it listens."""
    with started(folder, *arguments, **changes) as output:
        seen = []
        for line in output:
            seen.append(line)
            found = _ADDRESS.search(line)
            if found is not None:
                break
        else:
            raise AssertionError(f"the server did not start: {''.join(seen)}")
        # Nobody may be stopped by a full pipe.
        threading.Thread(target=output.read, daemon=True).start()
        # Some servers write their address before they listen.
        transport = httpx.HTTPTransport(retries=5)
        with httpx.Client(base_url=found[0], timeout=30, transport=transport) as client:
            yield client
