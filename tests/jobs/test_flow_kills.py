"""Flows under kills: no step is lost, and none is started twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "flow_kills.py"


@pytest.mark.slow
@pytest.mark.req("JOBS:store")
@pytest.mark.parametrize(
    ("kills", "steps", "siblings"),
    [
        (30, 3_000, 200),
        pytest.param(200, 20_000, 10_000, marks=pytest.mark.campaign),
    ],
)
def test_killed_workers_lose_no_step(kills: int, steps: int, siblings: int, tmp_path: Path) -> None:
    """Four workers end siblings at the same moments, and one after another is killed."""
    line = [sys.executable, str(PROGRAM), str(tmp_path / "jobs.db")]
    numbers = [str(each) for each in (kills, steps, siblings)]
    done = subprocess.run(  # noqa: S603 - a program of ours
        [*line, *numbers], capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout)
    assert report.pop("rescued") > 0
    flows = steps // siblings
    assert report == {"kills": kills, "flows": flows, "lost": 0, "twice": 0, "early": 0}
