"""Runs a Python program as a user would, from the repository's source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import fork_server
from tests.docs.pages import ROOT

LONGEST = 50.0
"""Seconds after which a program is ended: below the time limit of a test."""


def environment(**changes: str) -> dict[str, str]:
    """The environment of a program that finds the package, installed or not."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path.strip(os.pathsep), **changes}


def run_python(
    *arguments: str, cwd: Path = ROOT, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, with its output on pipes."""
    return fork_server.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
