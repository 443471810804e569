"""A child process is killed at every failpoint, at every pass: nothing promised may be lost."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from ergon_framework.connector.jsonl import JsonlConnector
from tests import fork_server
from tests.connectors import crash_child
from tests.connectors.crash_child import POINTS

ALL = {f"t{n}" for n in range(10)}


@pytest.fixture(scope="module")
def wrecks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per failpoint with a folder per pass, each left behind by a killed child."""
    folder = tmp_path_factory.mktemp("crash")
    command = [sys.executable, crash_child.__file__, str(folder)]
    done = fork_server.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


class Wreck:
    """What a killed child left behind, and what the next connector makes of it."""

    def __init__(self, home: Path) -> None:
        diary = home / "diary"
        noted = diary.read_text().splitlines() if diary.exists() else []
        self.noted = {
            verb: {each.split()[1] for each in noted if each.startswith(verb)}
            for verb in ("began", "sent", "acked", "nacked")
        }
        with JsonlConnector(home / "in", home / "out", fsync=False) as connector:
            batch = connector.fetch_transactions(99)
            self.delivered = Counter(each.transaction_id for each in batch)
            connector.dispatch_transactions([])
            self.letters = list(connector.read_dead_letters())
            for each in batch:
                connector.ack(each)
        with JsonlConnector(home / "in", home / "out", fsync=False) as connector:
            self.left = connector.fetch_transactions(99)
        # Reading the outbox as an inbox opens its files the way the next consumer would.
        out = home / "out"
        out.mkdir(exist_ok=True)
        with JsonlConnector(out, fsync=False) as connector:
            self.sent = {each.transaction_id for each in connector.fetch_transactions(99)}
            self.sent_malformed = connector.malformed


@pytest.mark.slow
@pytest.mark.req("R0-N", "R1-ID2", "R1-I2")
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_loses_nothing_and_repeats_nothing_settled(wrecks: Path, point: str) -> None:
    """What was acknowledged stays done, what was not comes again, what was sent is there."""
    homes = sorted((wrecks / point).iterdir(), key=lambda each: int(each.name))
    for home in homes:
        wreck = Wreck(home)
        done = wreck.noted["acked"] | wreck.noted["nacked"]
        came = set(wreck.delivered)
        assert wreck.delivered.total() == len(came), home
        assert not came & done, home
        assert came >= ALL - wreck.noted["began"], home
        assert wreck.left == [], home
        dead = {each["transaction_id"] for each in wreck.letters if "transaction_id" in each}
        assert dead >= wreck.noted["nacked"], home
        rubbish = [each for each in wreck.letters if each.get("text") == "rubbish"]
        assert 1 <= len(rubbish) <= 2, home
        assert wreck.sent >= wreck.noted["sent"], home
        # Only the one that was being settled may be done without a note, and then all of it is.
        assert len(ALL - came - done) <= 1, home
        assert ALL - came - done <= dead | wreck.sent, home
        assert wreck.sent_malformed == 0, home
    assert json.loads((homes[-1] / "in" / ".ergon" / "progress.jsonl").read_text().split("\n")[0])
