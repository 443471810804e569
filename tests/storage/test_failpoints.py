"""Failpoints, and what survives a process that dies at one."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.errors import SettingsError, StoreUnavailableError
from ergon_framework.storage import failpoints
from ergon_framework.storage.failpoints import armed, check, declare, failpoint
from ergon_framework.storage.sqlite.database import Database
from tests.storage import crash_child
from tests.storage.conftest import SAMPLE, WAIT, add, items

BEFORE, AFTER = "storage.commit.before", "storage.commit.after"


def test_unarmed_failpoints_do_nothing() -> None:
    """Whatever their name."""
    failpoint(BEFORE)
    failpoint("never.heard.of")


def test_an_armed_one_fails_at_its_pass_and_only_then() -> None:
    """The third pass here; others are not touched."""
    with armed(f"{BEFORE}=error@3"):
        failpoint(BEFORE)
        failpoint(AFTER)
        failpoint(BEFORE)
        with pytest.raises(OSError, match=BEFORE):
            failpoint(BEFORE)
        failpoint(BEFORE)
    failpoint(BEFORE)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    """A typing error in a test must not make it pass."""
    wrong = "storage.commit.befor"
    with pytest.raises(SettingsError, match=rf"{wrong}.*{AFTER}"), armed(f"{wrong}=kill"):
        pass
    with armed("elsewhere.point=kill"):
        failpoint(BEFORE)  # a module that is not imported here may know it
        with pytest.raises(SettingsError, match=r"elsewhere\.point"):
            check()
    check()


@pytest.mark.parametrize("text", ["a", "a=explode", "a=kill@0", "a=kill@x", "=kill"])
def test_malformed_settings_are_refused(text: str) -> None:
    """With the offending part and the right form."""
    with pytest.raises(SettingsError, match="write name=kill"), armed(text):
        pass


def test_declared_names_can_be_armed() -> None:
    """Modules declare theirs when they are imported."""
    known = set(failpoints.NAMES)
    try:
        declare("room.a", "room.b")
        with armed("room.b=error, "), pytest.raises(OSError, match=r"room\.b"):
            failpoint("room.b")
    finally:
        failpoints.NAMES.intersection_update(known)


@pytest.mark.parametrize(("point", "is_there"), [(BEFORE, False), (AFTER, True)])
def test_an_error_at_the_commit(database: Database, point: str, is_there: bool) -> None:
    """Before it nothing is kept; after it the caller cannot know, and it is."""
    with armed(f"{point}=error"), pytest.raises(StoreUnavailableError, match=point):
        database.write(add("a"))
    assert ("a" in items(database)) is is_there
    assert database.write(add("b")) == "b"


def run_child(path: Path, variable: str, threads: int) -> subprocess.Popen[bytes]:
    """Start a child that writes to the file."""
    return subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, crash_child.__file__, str(path), str(threads)],
        stdout=subprocess.PIPE,
        env=os.environ | {"ERGON_FAILPOINTS": variable},
    )


class Wreck:
    """What the child said before it died, and what is in the file afterwards."""

    def __init__(self, path: Path, output: bytes) -> None:
        lines = [line.split() for line in output.decode().splitlines()]
        self.began = {name for verb, name in lines if verb == "began"}
        self.acked = {name for verb, name in lines if verb == "acked"}
        with Database(path, schema=SAMPLE) as database:
            self.there = set(items(database))
            self.halves = database.read(
                lambda found: {name for (name,) in found.execute("SELECT name FROM ergon_half")}
            )
            assert database.write(add("afterwards")) == "afterwards"
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    def check(self) -> None:
        """Acknowledged is there; not acknowledged is there whole or not at all."""
        assert self.acked <= self.there <= self.began
        assert self.halves == self.there


@pytest.mark.slow
@pytest.mark.req("JOBS:store", "JOBS:campaign")
@pytest.mark.parametrize("nth", [1, 2, 17])
@pytest.mark.parametrize("point", [BEFORE, AFTER])
def test_killed_at_the_commit(path: Path, point: str, nth: int) -> None:
    """One writer: exactly the item whose commit it was is in question, and we know the answer."""
    child = run_child(path, f"{point}=kill@{nth}", 1)
    output, _ = child.communicate(timeout=WAIT)
    assert child.returncode == -signal.SIGKILL
    wreck = Wreck(path, output)
    wreck.check()
    assert len(wreck.acked) == nth - 1
    assert len(wreck.there) == (nth - 1 if point == BEFORE else nth)


@pytest.mark.slow
@pytest.mark.req("JOBS:store", "JOBS:campaign")
@pytest.mark.parametrize("point", [BEFORE, AFTER])
def test_killed_at_a_shared_commit(path: Path, point: str) -> None:
    """Many writers: what was acknowledged to any of them is there, and no half of anything."""
    child = run_child(path, f"{point}=kill@9", 8)
    output, _ = child.communicate(timeout=WAIT)
    assert child.returncode == -signal.SIGKILL
    wreck = Wreck(path, output)
    wreck.check()
    assert wreck.acked
    assert len(wreck.there - wreck.acked) <= 8 if point == AFTER else True


@pytest.mark.slow
@pytest.mark.req("JOBS:store")
def test_killed_while_paused(path: Path) -> None:
    """A child that stops before a commit and is killed there: the same as dying there."""
    child = run_child(path, f"{BEFORE}=pause@5", 1)
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    child.kill()
    output, _ = child.communicate(timeout=WAIT)
    wreck = Wreck(path, output)
    wreck.check()
    assert len(wreck.there) == 4


@pytest.mark.slow
def test_an_unknown_name_in_the_environment(path: Path) -> None:
    """The child says so instead of running on unharmed."""
    child = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, crash_child.__file__, str(path), "1"],
        capture_output=True,
        env=os.environ | {"ERGON_FAILPOINTS": "storage.commit.never=kill"},
        check=False,
        timeout=WAIT,
    )
    assert b"unknown failpoints: storage.commit.never" in child.stderr
    assert b"acked" not in child.stdout
