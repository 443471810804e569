"""``benchmarks/check.py`` compares a checkout with a commit, and names what has become slower."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GIT = shutil.which("git")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        GIT is None or not (ROOT / ".git").exists(), reason="needs git and a clone of its own"
    ),
]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout that a test may change."""
    assert GIT is not None
    place = tmp_path / "clone"
    subprocess.run([GIT, "clone", "-q", str(ROOT), str(place)], check=True)  # noqa: S603
    return place


def check(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The script of a checkout, in a process of its own."""
    command = [sys.executable, str(clone / "benchmarks" / "check.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)  # noqa: S603


def test_a_slower_start_is_named(clone: Path) -> None:
    """With the race, the ratio, and the command that looks again."""
    package = clone / "src" / "ergon_framework" / "__init__.py"
    text = package.read_text(encoding="utf-8")
    package.write_text(text + "\nsum(range(30_000_000))\n", encoding="utf-8")
    done = check(clone, "HEAD", "--race", "cold:import", "--rounds", "1")
    assert done.returncode == 1, done.stderr
    (record,) = map(json.loads, done.stdout.splitlines())
    assert (record["race"], record["figure"], record["met"]) == (
        "cold:import", "cpu_seconds", False,
    )  # fmt: skip
    assert record["ratio"] < 0.8
    assert "look again with --race cold:import --rounds 3" in done.stderr


@pytest.mark.campaign
def test_each_side_runs_its_own_benchmarks(clone: Path) -> None:
    """Peers are left out; a benchmark that one side has changed is the other's as it was."""
    done = check(clone, "HEAD", "--race", "providers:success-async", "--rounds", "1", "--floor=0")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert records
    assert all(each["who"].startswith("Ergon") and each["met"] for each in records)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["no-such-commit"], "no-such-commit cannot be checked out"),
        (["--race", "nonsense"], "no race is called nonsense"),
        (["--rounds", "0"], "--rounds must be at least 1"),
    ],
)
def test_what_cannot_be_compared(words: list[str], told: str) -> None:
    """Nothing is measured, and the exit code is not that of a slower race."""
    done = check(ROOT, *words)
    assert done.returncode == 2
    assert told in done.stderr
