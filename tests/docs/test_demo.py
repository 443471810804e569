"""The demo: the whole product, its troubles, and sums that are computed from the stores."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from rich.console import Console

from examples.demo import story, sums
from examples.demo.site import Site
from tests.docs.pages import ROOT
from tests.docs.programs import environment
from tests.docs.terminals import Terminal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.req("ONE:demo"),
]
LONGEST = 200.0
"""Seconds: a little more than the demo gives itself."""
FACTS = 30
DEMO = ("-m", "examples.demo", "--facts", str(FACTS), "--fast")
RUNS = "everything runs"


@dataclass(frozen=True)
class Played:
    """A demo that came to its end, and the folder it left."""

    code: int
    output: str
    errors: str
    folder: Path
    looked_at: httpx.Response | None
    """What the console answered when somebody asked for a job."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """A short demo through a pipe, whose console is looked at when all the rest has ended."""
    folder = tmp_path_factory.mktemp("demo") / "kept"
    errors = folder.with_name("errors.txt")
    output, looked_at = "", None
    with (
        errors.open("w") as sink,
        subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-u", *DEMO, "--keep", str(folder), "--stay"],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=sink,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            output += line
            if "stays open until Ctrl-C" in line:
                break
        if found := re.search(r"in the console: (http://\S+)/console", output):
            looked_at = httpx.get(f"{found[1]}/console/jobs/packed-S-001", timeout=20)
        process.send_signal(signal.SIGINT)
        output += process.stdout.read()
        process.wait(LONGEST)
    return Played(process.returncode, output, errors.read_text(), folder, looked_at)


def test_the_demo_adds_up(played: Played) -> None:
    """Everything that was packed is accounted for, and each trouble was seen."""
    assert played.code == 0, played.output + played.errors
    for told in (
        "SIGKILL for executor process",
        "SIGKILL for the worker",
        "has started worker process",
        "the link between the zones is cut",
        "the enterprise has caught up",
        "its circuit is open",
        "the circuit is closed",
        f"{FACTS} appended = {FACTS} delivered = 28 finished + 2 dead-lettered",
        "lost 0; doubled 0",
        "The sums add up",
    ):
        assert told in played.output
    rows = {line[:43].strip(): line[43:].split() for line in played.output.splitlines()}
    for what in ("packed, and appended to the plant's log", "delivered to the enterprise's log"):
        assert rows[what] == ["30", "30"]
    assert rows["finished + dead-lettered with reason"] == ["30", "30"]
    assert rows["lost"] == rows["doubled"] == ["0", "0"]


def test_plain_output_has_no_escape_codes(played: Played) -> None:
    """Through a pipe there are lines, not too many of them, and nothing else."""
    assert played.errors == ""
    assert "\x1b" not in played.output
    assert len(played.output.splitlines()) < 200


def test_the_demo_shows_why_and_the_trace(played: Played) -> None:
    """Its hints have real ids, and two of them are asked at once."""
    assert "$ ergon why packed-S-007" in played.output
    assert "the carrier does not drive there" in played.output
    _, _, trace = played.output.partition("$ ergon trace packed-S-")
    for span in ("boundary.append", "boundary.pull", "job.run", "provider.call"):
        assert span in trace
    assert f"Everything is in {played.folder}" in played.output


def test_the_demo_serves_the_console(played: Played) -> None:
    """It tells what has happened for as long as somebody looks, and ends with the demo."""
    assert played.looked_at is not None, played.output
    assert played.looked_at.status_code == 200
    assert "packed-S-001" in played.looked_at.text
    if PROC.is_dir():
        assert left_behind(played.folder) == []
    assert f"ergon serve --config {played.folder / 'ergon.toml'}" in played.output


# ---- sums that do not add up --------------------------------------------------------------------

LAST_FACT = "DELETE FROM ergon_boundary_facts WHERE id = (SELECT max(id) FROM ergon_boundary_facts)"
DOCTORED = {
    "a fact is not in the plant": (
        "plant/facts.db",
        LAST_FACT,
        "packed, and appended to the plant's log: 29, and should be 30",
    ),
    "a fact did not come over": (
        "enterprise/facts.db",
        LAST_FACT,
        "delivered to the enterprise's log: 29, and should be 30",
    ),
    "a job is gone": (
        "work.db",
        "DELETE FROM ergon_jobs WHERE id = 'packed-S-002'",
        "made a job: 29, and should be 30",
    ),
    "a job never ended": (
        "work.db",
        "UPDATE ergon_jobs SET status = 'pending' WHERE id = 'packed-S-002'",
        "lost: 1, and should be 0",
    ),
    "a dead letter has no reason": (
        "work.db",
        "UPDATE ergon_jobs SET last_error = NULL WHERE id = 'packed-S-007'",
        "finished + dead-lettered with reason: 29, and should be 30",
    ),
    "a shipment has two jobs": (
        "work.db",
        """UPDATE ergon_jobs SET kwargs = CAST('{"shipment": "S-001"}' AS BLOB)
        WHERE id = 'packed-S-002'""",
        "doubled: 1, and should be 0",
    ),
    "a job was completed twice": (
        "work.db",
        """UPDATE ergon_jobs SET history = history || char(10) || '{"event": "completed"}'
        WHERE id = 'packed-S-002'""",
        "doubled: 1, and should be 0",
    ),
    "an effect is missing": (
        "books.db",
        "DELETE FROM effects WHERE job_id = 'packed-S-001'",
        "effects of the finished jobs: 27, and should be 28",
    ),
    "a dead letter had an effect": (
        "books.db",
        "INSERT INTO effects VALUES ('packed-S-007', 'booking')",
        "effects of any other job: 1, and should be 0",
    ),
}


def doctored(played: Played, place: Path, file: str, statement: str) -> Path:
    """A copy of what the demo left, with one thing changed."""
    folder = place / "doctored"
    shutil.copytree(played.folder, folder)
    with closing(sqlite3.connect(folder / file)) as connection, connection:
        assert connection.execute(statement).rowcount == 1
    return folder


@pytest.mark.parametrize("case", DOCTORED)
def test_the_sums_notice_what_is_wrong(played: Played, tmp_path: Path, case: str) -> None:
    """Whatever is off in a store is told with its line."""
    file, statement, line = DOCTORED[case]
    folder = doctored(played, tmp_path, file, statement)
    console = Console(file=StringIO(), width=200)
    assert not sums.show(console, sums.read(folder))
    assert isinstance(console.file, StringIO)
    assert f"does NOT add up: {line}" in console.file.getvalue()


def test_a_fact_that_is_in_a_log_twice_is_noticed(played: Played) -> None:
    """A log has no way to hold a fact twice, so that what it says is changed instead."""
    right = sums.read(played.folder)
    assert sums.problems(sums.lines(right)) == []
    twice = sums.Ledger(
        right.packed,
        right.plant,
        [*right.enterprise, right.enterprise[0]],
        right.jobs,
        right.effects,
    )
    assert "doubled: 1, and should be 0" in sums.problems(sums.lines(twice))


def test_the_exit_code_is_1_when_the_sums_do_not_add_up(played: Played, tmp_path: Path) -> None:
    """A demo that hides a defect would be worse than none."""
    codes = []
    file, statement, _ = DOCTORED["a job is gone"]
    for folder in (played.folder, doctored(played, tmp_path, file, statement)):
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-m", "examples.demo.sums", str(folder)],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        codes.append(done.returncode)
    assert codes == [0, 1]


def test_without_node_labels_are_printed_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no Node, the same jobs run in Python, and the settings file stays as it is."""
    has_node = shutil.which("node") is not None
    with_node = Site(tmp_path).overrides("http://127.0.0.1:1")
    monkeypatch.setattr("examples.demo.site.shutil.which", lambda *_, **__: None)
    without = Site(tmp_path).overrides("http://127.0.0.1:1")
    command = json.loads(without["ERGON_EXECUTORS__LABELS__COMMAND"])
    assert command[-1] == "examples.demo.handlers:registry"
    assert ("ERGON_EXECUTORS__LABELS__COMMAND" in with_node) is not has_node


@pytest.mark.parametrize(
    ("has_ended", "told"),
    [
        (False, "after 0 seconds it is not so that the sun shines"),
        (True, "ergon run --all ended before the sun shines"),
    ],
)
def test_what_never_comes_true_is_told(has_ended: bool, told: str) -> None:
    """The demo does not wait for ever, and not for processes that are gone."""
    site: Any = SimpleNamespace(has_ended=has_ended, last_words=lambda: "out of order")
    nothing: Any = SimpleNamespace(tell=None)
    tale = story.Story(site, nothing, nothing, nothing, timeout=0.0)
    with pytest.raises(story.Missing, match=told) as raised:
        tale.until("the sun shines", lambda: None)
    assert "out of order" in str(raised.value)


# ---- however it ends, nothing is left behind ----------------------------------------------------

PROC = Path("/proc")
needs_proc = pytest.mark.skipif(not PROC.is_dir(), reason="looks at processes through /proc")


def left_behind(folder: Path) -> list[int]:
    """The processes that work in a folder: all those of a demo do."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cwd").readlink() == folder:
                    found.append(int(entry.name))
            except OSError:  # it is gone already, or somebody else's
                continue
    return found


def wait_until_none_is_left(folder: Path) -> None:
    """Processes take a moment to stop gracefully."""
    pause, until = threading.Event(), time.monotonic() + 60
    while (pids := left_behind(folder)) and time.monotonic() < until:
        pause.wait(0.05)
    assert not pids


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where a demo runs that is ended early; whatever it leaves is killed, and is a failure."""
    kept = tmp_path.resolve() / "kept"
    yield kept
    for pid in left_behind(kept):
        os.kill(pid, signal.SIGKILL)


@needs_proc
def test_ctrl_c_ends_everything(folder: Path) -> None:
    """On a terminal there are bars; Ctrl-C stops every process, and the exit code is 130."""
    seen = ""
    with Terminal(*DEMO, "--keep", str(folder), patience=60.0, NO_COLOR="") as (process, read):
        for text in read:
            seen += text
            if RUNS in seen:
                assert left_behind(folder)
                process.send_signal(signal.SIGINT)
                break
        seen += "".join(read)
    assert process.returncode == 130, seen
    assert "/30" in seen  # a bar
    assert "Traceback" not in seen
    assert left_behind(folder) == []


@needs_proc
def test_a_demo_that_is_killed_leaves_no_process_behind(folder: Path) -> None:
    """Whoever is started watches its parent, so that even SIGKILL ends them all."""
    process = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-u", *DEMO, "--keep", str(folder)],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert any(RUNS in line for line in process.stdout)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    wait_until_none_is_left(folder)
