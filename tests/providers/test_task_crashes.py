"""A process dies in the middle of a task: what the next delivery of its message does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fork_server

pytestmark = [pytest.mark.slow, pytest.mark.req("PROVIDERS:celery", "PEF:trap-worker-lost")]

PROGRAM = Path(__file__).parent / "programs" / "task_child.py"


def deliver(folder: Path, *words: str, failpoints: str = "") -> subprocess.CompletedProcess[str]:
    """One delivery."""
    store, calls = f"sqlite:///{folder / 'work.db'}", folder / "calls"
    return fork_server.run(
        [sys.executable, str(PROGRAM), store, str(calls), *words],
        # Its hold on the call is in the folder as well: other processes have calls of that name.
        env={**os.environ, "ERGON_FAILPOINTS": failpoints, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize(
    ("point", "end", "calls"),
    [
        ("providers.claim.after", "done", 1),  # it had not called yet
        ("providers.finish.before", "done", 2),  # nobody can know that it had
        ("providers.finish.after", "replayed", 1),
    ],
)
def test_the_next_delivery_goes_on_at_once(
    tmp_path: Path, point: str, end: str, calls: int
) -> None:
    """The lease of the dead process need not run out, and a finished call is not made again."""
    died = deliver(tmp_path, failpoints=f"{point}=kill")
    assert died.returncode == -signal.SIGKILL, died.stderr
    again = deliver(tmp_path, "redelivered")
    assert again.stdout.strip() == end, again.stderr
    assert len((tmp_path / "calls").read_text().splitlines()) == calls


def test_another_copy_of_the_message_waits_for_the_lease(tmp_path: Path) -> None:
    """One that the queue does not call redelivered may be beside a call under way."""
    deliver(tmp_path, failpoints="providers.claim.after=kill")
    assert deliver(tmp_path).stdout.strip() == "defer"
