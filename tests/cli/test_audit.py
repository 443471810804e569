"""``ergon jobs audit``: what people and tokens did to jobs, as a terminal shows it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.cli import invoke
from ergon_framework.errors import JobStateError
from ergon_framework.web.audit import AUDITED, AuditLog
from ergon_framework.web.job_actions import ACTIONS
from tests.app.workplace import Workplace

START = 1_800_000_000.0


class Told:
    """A log beside the settings, with the entries of three people."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "ergon-audit.db"
        self.now = START
        log = AuditLog(self.file, lambda: self.now)
        log.seen("eve", "look", "order-1")
        self.now += 60
        log.record("ada", "cancel", "", "queue=mail: old", lambda: 2)
        self.now += 60

        def refuse() -> None:
            raise JobStateError("it runs")

        with pytest.raises(JobStateError):
            log.record("bob", "requeue", "order-1", "", refuse)


@pytest.fixture
def told(workplace: Workplace) -> Told:
    """The log of a server whose settings are in the working directory."""
    workplace.settings('[store]\nurl = "sqlite:///work.db"\n')
    return Told(workplace.directory)


def rows(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    """The entries that a command prints for programs."""
    capsys.readouterr()
    assert invoke(["jobs", "audit", "--json", *options]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.usefixtures("told")
def test_who_did_what(capsys: pytest.CaptureFixture[str]) -> None:
    """The newest first, as the page has it; the short name of the command says the same."""
    found = rows(capsys)
    assert found[1] == {
        "id": 2,
        "at": "2027-01-15T08:01:00Z",
        "actor": "ada",
        "action": "cancel",
        "target": "",
        "outcome": "done",
        "number": 2,
        "detail": "queue=mail: old",
    }
    assert [(each["actor"], each["outcome"], each["detail"]) for each in found] == [
        ("bob", "refused", "job_state"),
        ("ada", "done", "queue=mail: old"),
        ("eve", "done", ""),
    ]
    assert invoke(["audit"]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = ["at", "actor", "action", "target", "outcome", "number", "detail"]
    assert lines[0].split() == titles
    assert lines[1].split()[1:] == ["bob", "requeue", "order-1", "refused", "job_state"]


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize(
    ("options", "actors"),
    [
        (["--actor", "ada"], ["ada"]),
        (["--action", "look"], ["eve"]),
        (["--job", "order-1"], ["bob", "eve"]),
        (["--since", "2027-01-15T08:01:00Z"], ["bob", "ada"]),
        (["--since", "2027-01-15T08:01:00Z", "--actor", "eve"], []),
        (["--limit", "1"], ["bob"]),
    ],
)
def test_filters(options: list[str], actors: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """By person, action, job and time; all that are given must match."""
    assert [each["actor"] for each in rows(capsys, *options)] == actors


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--action", "steal"], "it tells of requeue, retry, cancel"),
        (["--since", "soon"], "--since 'soon'"),
        (["--file", "gone.db"], "there is no audit log gone.db"),
    ],
)
def test_what_is_refused(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A word that means nothing is told, with those that do."""
    assert invoke(["jobs", "audit", *options]) != 0
    assert said in capsys.readouterr().err


def test_nothing_was_done_yet(workplace: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty list, and a word about why; looking makes no file."""
    workplace.settings("")
    assert rows(capsys) == []
    assert invoke(["jobs", "audit"]) == 0
    assert "when somebody acts in the console" in capsys.readouterr().err
    assert not (workplace.directory / "ergon-audit.db").exists()


@pytest.mark.parametrize("settings", [None, '[server]\naudit = "none"\n'])
def test_no_log(
    settings: str | None, workplace: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the server keeps none in a file, the error says what would make it."""
    if settings is not None:
        workplace.settings(settings)
    assert invoke(["jobs", "audit"]) == 2
    assert 'write audit = "ergon-audit.db" under [server]' in capsys.readouterr().err


def test_another_file(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy of one, wherever it lies; one that nobody may write to is enough."""
    copy = told.file.rename(told.file.with_name("of last year.db"))
    copy.chmod(0o400)
    assert len(rows(capsys, "--file", str(copy))) == 3
    copy.chmod(0o600)
    copy.write_bytes(b"no database at all" * 100)
    assert invoke(["jobs", "audit", "--file", str(copy)]) == 1
    assert "cannot be read: file is not a database" in capsys.readouterr().err


def test_after_a_server_was_killed_while_it_wrote(
    told: Told, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it had written of an entry is taken back: the others can be read at once."""
    copy = tmp_path / "killed.db"
    with closing(sqlite3.connect(told.file, isolation_level=None)) as server:
        # A page at a time, so that the file has some of what is not committed.
        server.execute("PRAGMA cache_size = 1")
        server.execute("BEGIN IMMEDIATE")
        server.execute("UPDATE audit SET detail = hex(zeroblob(9000))")
        copy.write_bytes(told.file.read_bytes())
        journal = told.file.with_name(f"{told.file.name}-journal")
        Path(f"{copy}-journal").write_bytes(journal.read_bytes())
        server.execute("ROLLBACK")
    actors = [each["actor"] for each in rows(capsys, "--file", str(copy))]
    assert actors == ["bob", "ada", "eve"]


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["audit", "--actor", "\udcff"], "'\\udcff' is no UTF-8"),
        (["audit", "--limit", "99999999999999999999"], "99999999999999999999 is too large"),
        (["flows", "list", "--limit", "99999999999999999999"], "is too large"),
        (["jobs", "show", "\udcff"], "is no UTF-8"),
        (["why", "a\udcff"], "is no UTF-8"),
    ],
)
def test_arguments_that_no_store_can_take(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are a mistake of whoever typed them, not a defect of ours."""
    assert invoke(["enqueue", "work"]) == 0
    assert invoke(options) == 2
    assert said in capsys.readouterr().err


def test_every_action_can_be_looked_for() -> None:
    """What can be done to a job is among the words that the filter takes."""
    assert set(ACTIONS) < set(AUDITED)
