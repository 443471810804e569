"""The one way of printing: tables, plain lines, JSON."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ergon_framework.app.console import ExitCode
from ergon_framework.app.processes import WorkersOutcome
from ergon_framework.app.supervisor import Slot, worker_specs
from ergon_framework.cli.output import (
    colour_of,
    keep_stdout,
    printable,
    show_error,
    show_list,
    show_one,
)
from ergon_framework.cli.run import _show_workers
from ergon_framework.errors import SettingsError

ROWS = [
    {"name": "a", "is_open": True, "size": 1.5, "ids": ["x", "y"], "note": None},
    {"name": "longer", "is_open": False, "size": 2, "ids": [], "note": "n"},
]
COLUMNS = ["name", "is_open", "size", "ids", "note"]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_list_as_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal: a header and aligned columns."""
    show_list(ROWS, COLUMNS, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "name    is open  size   ids   note",
        "a       yes      1.500  x, y",
        "longer  no       2            n",
    ]


def test_a_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One array with one element per line, holding whole rows."""
    show_list(iter(ROWS), ["name"], as_json=True)
    out = capsys.readouterr().out
    assert json.loads(out) == ROWS
    assert len(out.splitlines()) == len(ROWS) + 2
    show_list([], ["name"], as_json=True)
    assert json.loads(capsys.readouterr().out) == []


def test_an_empty_list_shows_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """A header alone is an answer, too."""
    show_list([], COLUMNS, as_json=False)
    assert capsys.readouterr().out.strip() == "name  is open  size  ids  note"


def test_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it is drawn by rich, which reads no markup from values."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    show_list([{"name": "[red]a"}], ["name"], as_json=False)
    show_one({"name": "b"}, as_json=False, title="found")
    assert "[red]a" in screen.getvalue()
    assert "found" in screen.getvalue()


JOB = {
    "id": "01a1ebb4-1607-7000-96f6-9d561659e439",
    "status": "failed",
    "handler": "thumbs#shrink",
    "queue": "default",
    "created_at": "2026-11-17T22:50:10.311790Z",
    "why": "ValueError, and all its attempts are spent",
}


@pytest.mark.parametrize("width", [20, 60, 100, 160])
def test_ids_are_whole(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However narrow the terminal is; nothing else is lost either."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    show_list([JOB, {**JOB, "id": "short"}], list(JOB), as_json=False)
    show_one(JOB, as_json=False)
    lines = screen.getvalue().splitlines()
    assert sum(JOB["id"] in line for line in lines) == 2
    if width >= 60:
        assert screen.getvalue().split().count("attempts") == 3
        assert all(len(line) <= width for line in lines if "\x1b" not in line)


@pytest.mark.parametrize("width", ["20", "1"])
def test_a_narrow_terminal_has_values_below_their_names(
    width: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside them there would be room for one character in a line."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    queue = {"name": "default", "oldest_due_at": JOB["created_at"], "missing_executors": "thumbs"}
    show_list([queue], list(queue), as_json=False)
    show_one(queue, as_json=False, title="the queue")
    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert [lines.count(f"  {each}") for each in ("default", "thumbs")] == [2, 2]
    assert lines.count("missing executors") == 2
    assert any("the queue" in line for line in lines)  # in bold


def test_states_have_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the column they stand in: an open circuit is bad, an open gate is not."""
    assert colour_of("status", "completed") == "green"
    assert "red" in colour_of("status", "failed")
    assert "red" in colour_of("circuit", "open until 2030-01-31T12:00:00Z")
    assert colour_of("gate", "open") == colour_of("why", "failed") == ""
    shown = {}
    for name, value in (("TERM", "xterm-256color"), ("NO_COLOR", "1"), ("TERM", "dumb")):
        screen = Terminal()
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setenv(name, value)
        show_list([JOB], ["status"], as_json=False)
        shown[f"{name}={value}"] = "[1;31m" in screen.getvalue()
    assert shown == {"TERM=xterm-256color": True, "NO_COLOR=1": False, "TERM=dumb": False}


def test_one_thing(capsys: pytest.CaptureFixture[str]) -> None:
    """A line per field, or one object."""
    show_one({"exit_code": 0, "task": "orders"}, as_json=False, title="done")
    assert capsys.readouterr().out == "done\nexit code  0\ntask       orders\n"
    show_one({"exit_code": 0}, as_json=True)
    assert capsys.readouterr().out == '{"exit_code": 0}\n'


def test_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """One line with the remedy for people; for programs its shape as well."""
    error = SettingsError("wrong key", remedy="correct it")
    show_error(error)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "error: wrong key (correct it)\n")
    show_error(error, as_json=True)
    shape = json.loads(capsys.readouterr().out)
    assert shape == {
        "error": {
            "code": "settings",
            "message": "wrong key",
            "details": {"remedy": "correct it"},
        }
    }


def test_nothing_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences and line ends in values are shown, not sent."""
    assert printable("a\x1b[2Jb\nc") == "a\\x1b[2Jb\\nc"
    assert printable("größer ✓") == "größer ✓"
    show_one({"id": "\x1b]0;title\x07"}, as_json=False)
    assert "\x1b" not in capsys.readouterr().out


def test_standard_output_is_kept_for_json(capsys: pytest.CaptureFixture[str]) -> None:
    """What user code prints meanwhile goes to the other stream."""
    with keep_stdout(True):
        sys.stdout.write("chatter\n")
    with keep_stdout(False):
        sys.stdout.write("welcome\n")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("welcome\n", "chatter\n")


def test_parked_transactions_of_workers_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """For each worker and for all of them."""
    slots = [Slot(post, n) for n, post in enumerate(worker_specs(2))]
    for slot in slots:
        slot.outcomes.append({"report": {"succeeded": 1, "parked": 3}, "error": None})
    assert _show_workers(WorkersOutcome("orders", ExitCode.DONE, 0, slots), False) == 0
    title, *lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert "parked" in title
    assert [line[-1] for line in lines] == ["3", "3", "6"]


def test_letters_that_the_output_cannot_carry(tmp_path: Path) -> None:
    """They are spelled, and JSON stays JSON; one job with such a name hides no other."""
    store = f"sqlite:///{tmp_path / 'work.db'}"

    def said(*words: str) -> tuple[int, str]:
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "ergon_framework.cli", *words, "--store", store],
            capture_output=True,
            timeout=60,
            env={**os.environ, "PYTHONIOENCODING": "latin-1"},
            check=False,
        )
        return done.returncode, done.stdout.decode("latin-1")

    for name, handler in (("first", "resize"), ("größe✓", "naïve✓日本")):
        assert said("enqueue", handler, "--id", name)[0] == 0
    code, listed = said("jobs", "list")
    assert (code, "first" in listed, "größe\\u2713" in listed) == (0, True, True)
    code, shown = said("jobs", "show", "größe✓", "--json")
    assert (code, json.loads(shown)["handler"]) == (0, "naïve✓日本")
    code, refused = said("jobs", "show", "nöt✓", "--json")
    assert (code, "nöt✓" in json.loads(refused)["error"]["message"]) == (1, True)


def test_what_was_done_is_told_when_nothing_can_be_printed(tmp_path: Path) -> None:
    """A job that is stored is not one that a script should enqueue again; no defect is claimed."""
    store = f"sqlite:///{tmp_path / 'work.db'}"
    ergon = f"{sys.executable} -m ergon_framework.cli"

    def said(line: str) -> tuple[int, str]:
        done = subprocess.run(  # noqa: S603 - our own command
            ["sh", "-c", line],  # noqa: S607 - any shell will do
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stderr

    for name, place in (("a", ">/dev/full"), ("b", ">&-")):
        if place == ">/dev/full" and not Path("/dev/full").exists():
            continue  # only Linux has one
        code, told = said(f"{ergon} enqueue ship --id {name} --store {store} {place}")
        assert "defect" not in told
        if name == "a":
            assert code == 1
            assert told.startswith("job a is stored\nerror: standard output cannot be written")
        else:
            assert (code, told) == (0, "")
    code, told = said(f"{ergon} worker --burst --store {store} >&-")
    assert "defect" not in told


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_line_is_written_as_one(stream: str) -> None:
    """Also where Python buffers nothing: lines of several processes do not run into each other."""
    text = (
        "import sys\n"
        "from ergon_framework.cli.output import prepare_streams, print_line\n"
        "prepare_streams()\n"
        f"print_line('ready zones.plant', sys.{stream})\n"
        f"sys.{stream}.write('no end yet')\n"
        "sys.stdin.read()\n"
    )
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)  # a message for each write
    with ours, theirs:
        process = subprocess.Popen(  # noqa: S603 - this Python
            [sys.executable, "-c", text],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=theirs.fileno() if stream == "stdout" else None,
            stderr=theirs.fileno() if stream == "stderr" else None,
        )
        with process:  # at its end the standard input is closed
            ours.settimeout(60)
            assert ours.recv(100) == b"ready zones.plant\n"
            assert ours.recv(100) == b"no end yet"  # what the user asks Python for


def test_what_a_full_disk_does_not_take_is_told(tmp_path: Path) -> None:
    """Also where Python buffers nothing: a file that took a part of it is not whole."""
    text = (
        "import resource, sys\n"
        "from ergon_framework.cli.output import StdoutBytes, prepare_streams\n"
        "prepare_streams()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "StdoutBytes().write(b'x' * 5000)\n"
        "StdoutBytes().flush()\n"
        "print('all of it', file=sys.stderr)\n"
    )
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(  # noqa: S603 - this Python
            [sys.executable, "-c", text],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert "all of it" not in done.stderr
    assert "File too large" in done.stderr
