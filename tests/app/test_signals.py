"""SIGTERM and SIGINT against real processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.app.processes import Ergon, open_gate

pytestmark = pytest.mark.slow

COLOURS = pytest.mark.parametrize("task", ["stream:Gated", "stream:AsyncGated"])


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A named pipe nobody has opened yet."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


@pytest.mark.req("R0-R", "T3.30")
@COLOURS
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_drains(task: str, number: signal.Signals, code: int, gate: Path) -> None:
    """Work in flight is finished, nothing else begins, and the exit code names the signal."""
    with Ergon("run", task, "--json", GATE=str(gate)) as ergon:
        ergon.out.until("began t0")
        ergon.signal(number)
        ergon.out.until("stop asked")
        open_gate(gate)
        ergon.out.until("ended t0")
        outcome = json.loads(ergon.out.until("{"))
        assert ergon.code() == code
    assert outcome["exit_code"] == code
    assert outcome["report"]["succeeded"] == 1
    assert outcome["report"]["stop_reason"] == "stopped"


@pytest.mark.req("T3.30")
@COLOURS
def test_a_second_signal_forces(task: str, gate: Path) -> None:
    """It ends although a hook hangs in a thread; the transaction is reported as cut off."""
    with Ergon("run", task, "--json", GATE=str(gate)) as ergon:
        ergon.out.until("began t0")
        ergon.signal(signal.SIGTERM)
        ergon.out.until("stop asked")
        ergon.signal(signal.SIGTERM)
        outcome = json.loads(ergon.out.until("{"))
        assert ergon.code() == 143
    assert outcome["report"]["aborted"] == 1
    assert outcome["report"]["succeeded"] == 0
