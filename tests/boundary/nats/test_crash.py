"""A process that dies at any failpoint: what it acknowledged is there, and nothing is doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.factstore.nats import NatsFactStore
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.storage.failpoints import NAMES
from tests import fork_server
from tests.boundary.nats import crash_child
from tests.boundary.nats.crash_child import ROUNDS
from tests.boundary.sqlite.crash_child import INBOX, PEER
from tests.boundary.sqlite.test_crash import check_log, check_reading, said
from tests.campaign.parameter_sample import sampled

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:boundary-nats")]
CALLS = ("append", "receive", "confirm", "truncate", "bind", "quarantine")
POINTS = [
    *((f"boundary.{call}.{moment}", 2) for call in CALLS for moment in ("before", "after")),
    ("nats.commit.before", 1),
    ("nats.commit.before", 9),
    ("nats.commit.after", 1),
    ("nats.commit.after", 9),
    # Between two messages of a batch: the first one founds the store.
    ("nats.commit.within", 1),
    ("nats.commit.within", 8),
    ("nats.commit.within", 20),
]
KEPT = (
    ("boundary.append.before", 2),
    ("boundary.append.after", 2),
    ("boundary.receive.after", 2),
    ("boundary.confirm.after", 2),
    ("nats.commit.before", 9),
    ("nats.commit.within", 8),
)
WAIT = 60
ROOT = Path(__file__).resolve().parents[3]


def run(url: str, failpoints: str = "") -> tuple[int, list[list[str]]]:
    """Run the child; its exit code and what it said."""
    child = fork_server.run(
        [sys.executable, "-m", crash_child.__name__, url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env=os.environ | {"ERGON_FAILPOINTS": failpoints},
        check=False,
        timeout=WAIT,
    )
    return child.returncode, [line.split() for line in child.stdout.decode().splitlines()]


def check(url: str, lines: Sequence[Sequence[str]]) -> None:
    """Every promise is kept."""
    store: Any = NatsFactStore(url, zone="plant-a")
    try:
        for log, verb in ((OUTBOUND, "appended"), (INBOX, "received")):
            check_log(store, log, said(lines, verb))
        check_reading(store, lines)
        for (key,) in said(lines, "bound"):
            assert store.object("files", key) is not None
        for (offset,) in said(lines, "pulled"):
            assert store.link(PEER).offset >= int(offset)
    finally:
        store.close()


@pytest.mark.parametrize(("point", "nth"), sampled(POINTS, KEPT))
def test_killed_at_a_failpoint(nats_url: str, point: str, nth: int) -> None:
    """It dies, it is run again to its end, and both times everything is as it was promised."""
    assert point in NAMES
    code, lines = run(nats_url, f"{point}=kill@{nth}")
    assert code == -signal.SIGKILL
    check(nats_url, lines)
    code, rest = run(nats_url)
    assert code == 0
    assert rest[-1] == ["end"]
    check(nats_url, [*lines, *rest])
    assert len(said(rest, "appended")) == 3 * ROUNDS
    first = {tuple(each) for each in said(lines, "appended")}
    assert first <= {tuple(each) for each in said(rest, "appended")}  # the same offsets again
