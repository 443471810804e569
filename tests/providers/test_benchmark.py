"""``benchmarks/providers.py`` runs, and what it prints can be read by a program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.campaign.parameter_sample import sampled

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "providers.py"
CHEAP = ("success", "retries", "rejection", "threads", "memory")


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own."""
    command = [sys.executable, str(SCRIPT), *words, "--folder", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)  # noqa: S603


def lines_of(printed: str) -> list[dict[str, Any]]:
    """The records, one per line."""
    return [json.loads(line) for line in printed.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("case", sampled(CHEAP, CHEAP[:2]))
def test_a_quick_case_prints_one_record_per_contestant(case: str, tmp_path: Path) -> None:
    """Each line is JSON and says who took part in what; ours is never left out."""
    done = run("--quick", "--case", case, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    machine, *records = lines_of(done.stdout)
    assert machine["case"] == "machine"
    assert records
    for record in records:
        assert record["case"].startswith(case)
        is_ours = record["who"].startswith("Ergon")
        assert {"us", "bytes"} & record.keys() or (not is_ours and record["skipped"]), record
        assert ("target" in record) == ("met" in record)
    assert any(record["who"].startswith("Ergon") for record in records)
    assert not list(tmp_path.iterdir()), "what it made is gone again"


@pytest.mark.slow
def test_a_case_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """The error lists the cases there are."""
    done = run("--case", "nonsense", folder=tmp_path)
    assert done.returncode == 2
    assert "rejection" in done.stderr
