"""``ergon move`` that somebody stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.errors import StoreError
from ergon_framework.jobs.store_urls import open_store
from tests import fork_server
from tests.app.move.stock import WAIT, add, job_sums, moved, with_jobs

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:move")]


def stopped(signum: int, point: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command, and send it a signal while it stands at a failpoint."""
    words = [sys.executable, "-m", "ergon_framework.cli", "move", *arguments]
    process = fork_server.start(
        words,
        env=os.environ | {"ERGON_FAILPOINTS": f"{point}=pause"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    process.send_signal(signum)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=WAIT)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("point", ["move.part.begun", "move.part.copied", "move.part.shut"])
def test_what_is_left_is_told(signum: int, code: int, point: str, tmp_path: Path) -> None:
    """In one line; FROM can be worked with, TO cannot, and the same command ends the move."""
    source, target = with_jobs(f"sqlite:///{tmp_path}/old.db"), f"sqlite:///{tmp_path}/new.db"
    ended = stopped(signum, point, source, target, "--shut")
    assert ended.returncode == code, ended.stderr
    assert ended.stderr.splitlines()[-1] == (
        "error: stopped: what was copied stays in TO, and nothing is lost"
        " (run the same command again: it goes on from there)"
    )
    assert "Traceback" not in ended.stderr
    with pytest.raises(StoreError, match="has not ended"):
        open_store(target)
    with closing(open_store(source)) as store:
        add(store, "more")
    moved(source, target)
    assert job_sums(target) == job_sums(source)


def test_programs_read_it_too(tmp_path: Path) -> None:
    """As the last of the lines."""
    source, target = with_jobs(f"sqlite:///{tmp_path}/old.db"), f"sqlite:///{tmp_path}/new.db"
    ended = stopped(signal.SIGTERM, "move.part.copied", source, target, "--json")
    assert ended.returncode == 143, ended.stderr
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said["error"]["message"].startswith("stopped: what was copied stays")
