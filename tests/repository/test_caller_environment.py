"""The tests pass whatever the shell, terminal or CI system around them is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SENSITIVE = (
    "tests/cli/test_move.py::test_a_terminal_shows_a_bar",
    "tests/cli/test_jobs_progress.py",
    "tests/cli/test_tail.py",
    "tests/app/test_signals.py",
)
"""Tests of terminals, signals, files in the home folder and local times."""


def ignore_signals() -> None:
    """As ``nohup`` and shells do for what they start in the background."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_hostile_surroundings_change_nothing() -> None:
    """No terminal, no colours, another time zone and language, ignored signals, no home."""
    hostile = {
        "TERM": "dumb",
        "NO_COLOR": "1",
        "COLUMNS": "20",
        "TZ": "Asia/Kolkata",
        "LANG": "C",
        "LC_ALL": "C",
        "HOME": "/proc",  # read-only, for root too
        "ERGON_STORE__URL": "postgresql://nobody@127.0.0.1:1/none",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SENSITIVE]
    done = subprocess.run(  # noqa: S603 - our own interpreter
        command,
        cwd=ROOT,
        env={**os.environ, **hostile},
        preexec_fn=ignore_signals,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
