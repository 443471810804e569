"""``benchmarks/libraries.py`` runs, and what it prints can be read by a program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaign.parameter_sample import sampled
from tests.docs.pages import ROOT

SCRIPT = ROOT / "benchmarks" / "libraries.py"
CHEAP = (
    *("http-server", "http-client", "http-client-async", "arrays", "redis-command"),
    *(
        "nats-headers",
        "nats-key",
        "metrics",
        "spans",
        "facts",
        "given-facts",
        "fact-records",
        "jobs",
    ),
    *("canonical-json", "instants", "ids", "retry-after", "event-loop", "migrations"),
)


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own."""
    command = [sys.executable, str(SCRIPT), *words, "--folder", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=55)  # noqa: S603


@pytest.mark.slow
@pytest.mark.parametrize("case", sampled(CHEAP, CHEAP[:1]))
def test_each_part_stands_beside_a_library(case: str, tmp_path: Path) -> None:
    """A library that is not installed is skipped and says so; ours never is."""
    done = run("--quick", "--case", case, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    machine, ours, *others = [json.loads(line) for line in done.stdout.splitlines()]
    assert machine["case"] == "machine"
    assert ours["who"] == "Ergon"
    assert ours["cpu_us"] > 0
    assert others
    assert all("ratio" in each or "skipped" in each or each["who"] == "Ergon" for each in others)
    assert not list(tmp_path.iterdir()), "what it made is gone again"


@pytest.mark.slow
def test_a_case_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """The error lists the cases there are."""
    done = run("--case", "nonsense", folder=tmp_path)
    assert done.returncode == 2
    assert "http-server" in done.stderr
