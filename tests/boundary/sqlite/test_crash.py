"""A process that dies at any failpoint: what it acknowledged is there, and nothing is doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from ergon_framework.boundary.store_urls import open_fact_store
from ergon_framework.ports.factstore import OUTBOUND, FactStore
from ergon_framework.storage.failpoints import NAMES
from tests import fork_server
from tests.boundary.sqlite import crash_child
from tests.boundary.sqlite.crash_child import INBOX, PEER, ROUNDS
from tests.campaign.parameter_sample import sampled

pytestmark = [
    pytest.mark.slow,
    pytest.mark.req("BOUNDARY:store", "BOUNDARY:badinput", "P6", "P7", "P11", "P12", "C1"),
]
CALLS = ("append", "receive", "confirm", "truncate", "bind", "quarantine")
POINTS = [
    *(f"boundary.{call}.{moment}" for call in CALLS for moment in ("before", "after")),
    "storage.commit.before",
    "storage.commit.after",
]
WAIT = 60


def run(url: str, failpoints: str = "") -> tuple[int, list[list[str]]]:
    """Run the child; its exit code and what it said."""
    child = fork_server.run(
        [sys.executable, crash_child.__file__, url],
        stdout=subprocess.PIPE,
        env=os.environ | {"ERGON_FAILPOINTS": failpoints},
        check=False,
        timeout=WAIT,
    )
    return child.returncode, [line.split() for line in child.stdout.decode().splitlines()]


def said(lines: Sequence[Sequence[str]], verb: str) -> list[list[str]]:
    """What follows a verb, line by line."""
    return [list(line[1:]) for line in lines if line[0] == verb]


def check(url: str, lines: Sequence[Sequence[str]]) -> None:
    """Every promise is kept."""
    store = open_fact_store(url, zone="plant-a")
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


def check_log(store: FactStore, log: str, acknowledged: list[list[str]]) -> None:
    """Acknowledged ids keep their offsets, no id is there twice, and the chain holds."""
    for message_id, offset in acknowledged:
        found = store.find("plant-a", message_id, log)
        assert found is not None
        assert found.offset == int(offset)
    page = store.page(log, 0, 1000, 1 << 20)
    ids = Counter(each.message_id for each in page.facts)
    assert not ids or max(ids.values()) == 1
    offsets = sorted([each.offset for each in page.facts] + [gap.first for gap in page.gaps])
    assert offsets == list(range(page.head - len(offsets) + 1, page.head + 1))
    sources = [each.source_offset for each in page.facts if log == INBOX]
    lost = [(gap.first, gap.source_first) for gap in page.gaps]
    assert lost == [(n * 3 + 2, n * 5 + 2) for n in range(len(sources) // 2)]
    assert not [each for each in store.verify(log) if not isinstance(each, int)]


def check_reading(store: FactStore, lines: Sequence[Sequence[str]]) -> None:
    """The cursor is where it was confirmed, and what was set aside is there once."""
    confirmed = max((int(offset) for (offset,) in said(lines, "confirmed")), default=0)
    if not store.consumers():
        assert not confirmed
        return
    reader = store.consumer("reader")
    assert confirmed <= reader.cursor
    items = Counter(each.offset for each in store.quarantine("reader", None))
    assert not items or max(items.values()) == 1
    assert {int(offset) for (offset,) in said(lines, "aside")} <= set(items)
    discarded = {each.offset for each in store.quarantine("reader", "discarded")}
    assert {int(offset) for (offset,) in said(lines, "discarded")} <= discarded
    [log] = [each for each in store.logs() if each.name == OUTBOUND]
    assert log.first - 1 <= reader.cursor
    truncated = max((int(offset) for (offset,) in said(lines, "truncated")), default=0)
    undecided = [each.offset for each in store.quarantine("reader", "quarantined")]
    assert log.first >= min(truncated + 1, *undecided, log.head)


def killed(url: str, point: str, nth: int) -> None:
    """A child dies, it is run again to its end, and both times all is as it was promised."""
    code, lines = run(url, f"{point}=kill@{nth}")
    assert code == -signal.SIGKILL
    check(url, lines)
    code, rest = run(url)
    assert code == 0
    assert rest[-1] == ["end"]
    check(url, [*lines, *rest])
    assert len(said(rest, "appended")) == 3 * ROUNDS
    first = {tuple(each) for each in said(lines, "appended")}
    assert first <= {tuple(each) for each in said(rest, "appended")}  # the same offsets again


@pytest.mark.parametrize("nth", sampled([1, 2, 7], [2]))
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_failpoint(tmp_path: Path, point: str, nth: int) -> None:
    """What was acknowledged is in the file, and nothing is there twice."""
    assert point in NAMES
    killed(f"sqlite:///{tmp_path}/facts.db", point, nth)
