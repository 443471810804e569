"""The executors that come with the repository, tried like anybody's."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from ergon_framework.testing.suites.executor import EXECUTOR_CHECKS, exercise_executor
from ergon_framework.testing.suites.framework import SuiteReport
from tests.campaign.parameter_sample import sampled
from tests.conform.executors import ROOT, SOURCE

EXAMPLES = ROOT / "examples" / "executors"
PATIENT = 15.0
BRIEF = 2.0
"""Seconds for an answer, and for one that need not come."""

# The command, and the recommendations it knowingly does not follow.
SHIPPED: dict[str, tuple[list[str], set[str]]] = {
    "runtime": (
        [sys.executable, "-m", "ergon_framework.executor", "--app", "handlers:registry"],
        set(),
    ),
    "reference": (
        [sys.executable, str(ROOT / "reference" / "python" / "stdio_executor.py")],
        {"several_in_flight_when_asked"},  # one request at a time, on purpose
    ),
    "node": (
        ["node", str(EXAMPLES / "node" / "executor.js")],
        {"keeps_large_whole_numbers"},  # JavaScript has doubles only
    ),
    "shell": (
        ["sh", str(EXAMPLES / "shell" / "executor.sh")],
        {"several_in_flight_when_asked", "deadline_ends_a_running_handler"},
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.req("JOBS:conform", "EXEC:Transport", "EXEC:Reference")
@pytest.mark.parametrize("name", sampled(SHIPPED, ["runtime", "reference"]))
def test_a_shipped_executor_conforms(name: str) -> None:
    """It passes every required check, and every recommended one but those it gives reasons for."""
    command, declined = SHIPPED[name]
    if shutil.which(command[0]) is None:
        why = f"{command[0]} is not installed: the {name} executor was NOT tried"
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            pytest.fail(why)
        pytest.skip(why)
    checks = {check.name for check in EXECUTOR_CHECKS}
    report = tried(command, checks - declined, PATIENT)
    report.raise_for_failures()
    assert set(report.passed) == checks - declined, report
    if declined:
        tried(command, declined, BRIEF).raise_for_failures()


def tried(command: list[str], checks: set[str], timeout: float) -> SuiteReport:
    """The kit's report on some checks."""
    env = {"PYTHONPATH": os.fspath(SOURCE)}
    cwd = EXAMPLES / "python"
    return exercise_executor(command, env=env, cwd=cwd, timeout=timeout, only=checks)
