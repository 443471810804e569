"""What a worker and its parent tell each other, over real pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from queue import SimpleQueue

import pytest

from ergon_framework.app.console import ExitCode
from ergon_framework.app.liveness import LivenessState, Snapshot
from ergon_framework.app.outcome import RunOutcome
from ergon_framework.app.processes import MAX_IDS, ProcessChild, Spawner, SupervisorLink
from ergon_framework.app.supervisor import Heartbeat, SupervisorEvent, WorkerEnded, worker_specs
from ergon_framework.engine.report import Report

pytestmark = pytest.mark.slow

PATIENCE = 30.0


def test_beats_and_the_outcome_arrive() -> None:
    """What is not understood is skipped; of many ids the parent gets the first."""
    lifeline, held = os.pipe()
    read_end, write_end = os.pipe()
    parent = SupervisorLink(f"{lifeline}:{write_end}")
    assert not os.get_inheritable(write_end)
    report = Report(succeeded=1, stranded=tuple(str(n) for n in range(MAX_IDS + 5)))
    parent.tell_beat(Snapshot(LivenessState.HEALTHY, in_flight=2))
    os.write(write_end, b'not JSON\n[]\n{"kind": "new"}\n')
    parent.tell_outcome(RunOutcome("orders", ExitCode.DONE, report))
    os.close(write_end)
    parent.tell_beat(Snapshot())  # nobody listens any more: no error

    events: SimpleQueue[SupervisorEvent] = SimpleQueue()
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    ProcessChild(3, process, os.fdopen(read_end, "rb")).listen(events)
    assert events.get(timeout=PATIENCE) == Heartbeat(
        3, Snapshot(LivenessState.HEALTHY, in_flight=2)
    )
    end = events.get(timeout=PATIENCE)
    assert isinstance(end, WorkerEnded)
    assert (end.worker, end.code) == (3, 7)
    assert end.outcome is not None
    assert end.outcome["is_complete"]
    assert len(end.outcome["report"]["stranded"]) == MAX_IDS
    os.close(lifeline)
    os.close(held)


def test_a_program_that_cannot_be_started() -> None:
    """The supervisor gets the error, and no pipe is left open."""
    events: SimpleQueue[SupervisorEvent] = SimpleQueue()
    nursery = Spawner(lambda *_: ["/nonexistent/program"], worker_specs(1), events)
    before = len(list(Path("/dev/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        nursery.start(0)
    assert len(list(Path("/dev/fd").iterdir())) == before
    nursery.close()
