"""``benchmarks/scale.py`` runs, and what it prints can be read by a program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

SCRIPT = ROOT / "benchmarks" / "scale.py"
OPERATIONS = ("enqueue", "bulk", "claim", "settle")


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own."""
    command = [sys.executable, str(SCRIPT), *words, "--folder", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=55)  # noqa: S603


def records_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """One per line, but for the first, which tells of the machine."""
    assert done.returncode == 0, done.stderr
    machine, *records = [json.loads(line) for line in done.stdout.splitlines()]
    assert machine["case"] == "machine"
    return records


@pytest.mark.slow
@pytest.mark.campaign
def test_every_operation_on_a_queue_has_a_rate(tmp_path: Path) -> None:
    """Each is timed at the length that was asked for, and what was made is gone again."""
    words = ("--quick", "--case", "queue", "--engine", "sqlite", "--lengths", "50")
    records = records_of(run(*words, folder=tmp_path))
    assert [each["case"] for each in records] == [f"sqlite-{name}-50" for name in OPERATIONS]
    assert all(each["per_second"] > 0 for each in records), records
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.campaign
def test_workers_drain_a_queue(tmp_path: Path) -> None:
    """Real workers, and the processor time of a job where the system tells it."""
    words = ("--quick", "--case", "drain", "--engine", "sqlite", "--drained", "20000")
    (ours,) = records_of(run(*words, folder=tmp_path))
    assert ours["case"] == "sqlite-drain-20000"
    assert ours["per_second"] > 0, ours


@pytest.mark.slow
@pytest.mark.campaign
def test_ours_stands_beside_the_bare_thing(tmp_path: Path) -> None:
    """Appends have a ratio."""
    words = ("--quick", "--case", "append", "--engine", "sqlite", "--lengths", "10")
    records = records_of(run(*words, folder=tmp_path))
    assert [each["case"] for each in records[::2]] == [
        "sqlite-append-10",
        "sqlite-append-batch-10",
    ]
    assert all(each["who"] == "Ergon" and each["per_second"] > 0 for each in records[::2]), records
    assert all(each["ratio"] > 0 for each in records[1::2]), records


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--case", "nonsense"), "drain"),
        (("--engine", "nonsense"), "postgres"),
        (("--peers", "nonsense"), "pgqueuer"),
    ],
)
def test_what_does_not_exist_is_refused(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    """The error lists what there is."""
    done = run(*words, folder=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
