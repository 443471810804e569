"""``ergon tail``: what many processes tell, filtered, live, and ended well."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.cli import invoke
from ergon_framework.cli.job_filters import instant_of
from ergon_framework.cli.tail import _follow
from ergon_framework.errors import ConfigurationError
from ergon_framework.ports.journal import JournalEntry, JournalQuery
from ergon_framework.storage.journal import SqliteJournal
from tests import fork_server
from tests.app.workplace import Workplace

pytestmark = pytest.mark.req("ONE:tail")

WAIT = 60.0
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def entry(name: str, **more: Any) -> JournalEntry:
    """Something that was told just now."""
    shape = {"at": time.time(), "source": "worker w1", **more}
    return JournalEntry(name=name, **shape)


@pytest.fixture
def journal(workplace: Workplace) -> Iterator[SqliteJournal]:
    """The journal beside the settings."""
    workplace.settings('[store]\nurl = "sqlite:///work.db"\n')
    with SqliteJournal("ergon-journal.db") as opened:
        yield opened


@pytest.fixture
def told(journal: SqliteJournal) -> SqliteJournal:
    """A journal with a few entries."""
    failure = {"kind": "transient", "code": "connection_error", "message": "gone away"}
    journal.write(
        [
            entry("job.retrying", unit="j1", fields={"failure": failure, "delay": 2.5}),
            entry("circuit.opened", trace_id=TRACE, fields={"provider_name": "rank"}),
            entry("job.late", unit="j2", source="worker w2"),
            entry("fact.refused", unit="m1", source="zone plant", at=time.time() - 7200),
        ]
    )
    return journal


def listed(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """The names that a command without following shows."""
    capsys.readouterr()
    assert invoke(["tail", "--no-follow", "--json", *options]) == 0
    return [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()]


def test_what_does_not_match_is_looked_at_once(
    told: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter that matches nothing must not walk through a full journal again and again."""
    looks: list[int] = []
    read = SqliteJournal.read

    def counted(
        self: SqliteJournal, wanted: JournalQuery, after: int = 0, limit: int = 1
    ) -> list[JournalEntry]:
        looks.append(after)
        return read(self, wanted, after, limit)

    class Rung:
        """A bell that rings at once, and the third time with something that matches."""

        def wait(self, _timeout: float) -> None:
            self.rings = getattr(self, "rings", 0) + 1
            if self.rings == 3:
                told.write([entry("worker.died")])

        def close(self) -> None: ...

    monkeypatch.setattr(SqliteJournal, "read", counted)
    monkeypatch.setattr(told, "subscribe", Rung)
    found = next(_follow(told, JournalQuery(names=("worker",)), 0))
    assert (found.name, found.number) == ("worker.died", 5)
    assert looks == [0, 4]


def test_filters(told: SqliteJournal, capsys: pytest.CaptureFixture[str]) -> None:
    """By name or its beginning, unit, trace, source and time; all that are given must match."""
    assert len(listed(capsys)) == 4
    assert listed(capsys, "--name", "job,fact.refused") == [
        "job.retrying",
        "job.late",
        "fact.refused",
    ]
    assert listed(capsys, "--name", "job", "--name", "circuit", "--source", "worker w1") == [
        "job.retrying",
        "circuit.opened",
    ]
    assert listed(capsys, "--unit", "j2") == ["job.late"]
    assert listed(capsys, "--trace", TRACE.upper()) == ["circuit.opened"]
    assert "fact.refused" not in listed(capsys, "--since", "1h")
    assert listed(capsys, "--limit", "1") == ["job.retrying"]


def test_plain_words(told: SqliteJournal, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal a line per entry: time, name, source, unit, and what is known."""
    assert invoke(["tail", "--no-follow", "--unit", "j1"]) == 0
    line = capsys.readouterr().out.rstrip("\n")
    assert line.endswith(
        "job.retrying          worker w1  j1"
        "  failure connection_error: gone away; delay 2.5 seconds"
    )
    assert "\x1b" not in line


def test_colours_on_a_terminal(
    told: SqliteJournal, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure stands out there, and steering characters of others never get through."""
    told.write([entry("job.dead_lettered", unit="j\x1b[31m9")])
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert invoke(["tail", "--no-follow", "--name", "job.dead_lettered"]) == 0
    line = capsys.readouterr().out
    assert "\x1b[1;31mjob.dead_lettered" in line
    assert "j\\x1b[31m9" in line


def test_another_journal(
    told: SqliteJournal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A journal of somebody else is named by its file."""
    with SqliteJournal(tmp_path / "other.db") as other:
        other.write([entry("zone.started")])
    assert listed(capsys, "--journal", str(tmp_path / "other.db")) == ["zone.started"]


def test_without_a_journal(workplace: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said what to write, and nothing is made by asking."""
    assert invoke(["tail"]) == 2
    assert 'journal = "sqlite:///ergon-journal.db"' in capsys.readouterr().err
    workplace.settings('[telemetry]\njournal = "none"\n')
    assert invoke(["tail"]) == 2
    assert "wants none" in capsys.readouterr().err
    workplace.settings("[telemetry]\nspans = true\n")
    assert invoke(["tail", "--no-follow"]) == 1
    assert "there is no journal" in capsys.readouterr().err
    assert not Path("ergon-journal.db").exists()


def test_a_newer_journal(told: SqliteJournal, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of a later version is refused with what to do."""
    import sqlite3
    from contextlib import closing

    told.close()
    with closing(sqlite3.connect("ergon-journal.db")) as connection, connection:
        connection.execute("UPDATE ergon_schema SET version = 99")
    assert invoke(["tail", "--no-follow"]) == 1
    assert "upgrade ergon-framework" in capsys.readouterr().err


def test_times() -> None:
    """A duration counts back from now; anything else is a time, or refused with the forms."""
    assert instant_of("10m", 1000.0) == 400.0
    assert instant_of("1.5h", 10_000.0) == 4600.0
    assert instant_of("1970-01-01T00:01:00Z", 0.0) == 60.0
    for text in ("", "soon", "10", "-5m"):
        with pytest.raises(ConfigurationError, match="write a duration such as 30s"):
            instant_of(text, 0.0)


# ---- live ----------------------------------------------------------------------------------------


def start(*options: str) -> subprocess.Popen[str]:
    """Follow in a process of its own, which hears SIGINT even if these tests run in background."""
    command = [sys.executable, "-m", "ergon_framework.cli", "tail", *options]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return fork_server.start(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_it_follows_other_processes(journal: SqliteJournal) -> None:
    """What is written while it waits comes out, and SIGINT ends it with 130."""
    journal.write([entry("job.late", unit="old")])
    follower = start("--json", "--since", "1h")
    try:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["unit"] == "old"
        for n in range(3):
            journal.write([entry("job.late", unit=f"j{n}")])
            assert json.loads(follower.stdout.readline())["unit"] == f"j{n}"
        follower.send_signal(signal.SIGINT)
        _, errors = follower.communicate(timeout=WAIT)
    finally:
        follower.kill()
        follower.wait()
    assert follower.returncode == 130
    assert errors == ""


@pytest.mark.slow
def test_it_waits_for_the_first_word(workplace: Workplace) -> None:
    """Started before everything else it says so, and shows what comes from the beginning."""
    workplace.settings("[telemetry]\nspans = true\n")
    follower = start("--limit", "2")
    try:
        assert follower.stderr is not None
        assert "no process has told anything yet" in follower.stderr.readline()
        with SqliteJournal("ergon-journal.db") as journal:
            journal.write([entry("zone.started"), entry("zone.stopped")])
            out, _ = follower.communicate(timeout=WAIT)
    finally:
        follower.kill()
        follower.wait()
    assert follower.returncode == 0
    assert ["zone.started" in out, "zone.stopped" in out] == [True, True]


@pytest.mark.slow
def test_a_closed_pipe_ends_it(journal: SqliteJournal) -> None:
    """Whoever reads may leave; the next line ends it without a traceback."""
    journal.write([entry("job.late")])
    follower = start("--since", "1h")
    try:
        assert follower.stdout is not None
        assert "job.late" in follower.stdout.readline()
        follower.stdout.close()
        journal.write([entry("job.late") for _ in range(3)])
        assert follower.wait(WAIT) == 1
        assert follower.stderr is not None
        assert "Traceback" not in follower.stderr.read()
    finally:
        follower.kill()
        follower.wait()
        if follower.stderr is not None:
            follower.stderr.close()


@pytest.mark.slow
def test_a_closed_pipe_ends_it_although_nothing_happens(journal: SqliteJournal) -> None:
    """It need not write a line to find out that nobody reads."""
    journal.write([entry("job.late")])
    follower = start("--since", "1h")
    try:
        assert follower.stdout is not None
        assert "job.late" in follower.stdout.readline()
        follower.stdout.close()
        assert follower.wait(WAIT) == 1
        assert follower.stderr is not None
        assert follower.stderr.read() == ""
    finally:
        follower.kill()
        follower.wait()
        if follower.stderr is not None:
            follower.stderr.close()
