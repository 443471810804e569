"""``ergon conform``: what it prints and its exit codes."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ergon_framework.cli.worker import conform
from ergon_framework.errors import ConfigurationError
from ergon_framework.testing.suites.executor import EXECUTOR_CHECKS
from tests.conform.executors import GOOD, SOURCE

OK = '{"job_id": "x", "status": "ok\\u001b"}'
SAYS_OK = [sys.executable, "-c", f"import sys\nfor line in sys.stdin: print({OK!r}, flush=True)"]
ID, STATUS, UNICODE = "job_id_is_echoed", "status_is_one_of_four", "keeps_unicode"

app = typer.Typer()
app.command()(conform)


def ergon_conform(*arguments: str) -> tuple[int, str]:
    """The exit code and the standard output."""
    result = CliRunner().invoke(app, list(arguments), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value, result.stdout


@pytest.mark.slow
@pytest.mark.req("JOBS:conform")
def test_a_good_executor_is_said_to_conform() -> None:
    """One line for each check with its sentence, the counts, and the exit code 0."""
    code, printed = ergon_conform("--only", ID, "--only", UNICODE, "--", *GOOD)
    assert code == 0
    assert "passed   required     job_id_is_echoed: The outcome carries" in printed
    assert "required: 2 passed, 0 failed, 0 skipped" in printed
    assert "conforms to the Executor Protocol v1" in printed


@pytest.mark.slow
@pytest.mark.req("JOBS:conform")
def test_a_bad_executor_is_told_why() -> None:
    """The failed checks come with their reasons, the skipped ones too, and the exit code is 1."""
    names = ("--only", ID, "--only", STATUS, "--only", UNICODE)
    code, printed = ergon_conform("--timeout", "2", *names, "--", *SAYS_OK)
    assert code == 1
    assert "failed   required     status_is_one_of_four: The status is" in printed
    assert "\n         the status is " in printed
    assert "skipped  required     keeps_unicode" in printed
    assert f"failed: {ID}, {STATUS}" in printed
    assert "does not conform" in printed
    assert "\x1b" not in printed


@pytest.mark.slow
def test_a_row_of_skipped_checks_has_its_reason_once() -> None:
    """A report is not a wall of the same sentence."""
    names = ("--only", UNICODE, "--only", "keeps_emoji", "--only", "keeps_line_separators")
    _, printed = ergon_conform("--timeout", "2", *names, "--", *SAYS_OK)
    assert printed.count("skipped  required") == 3
    assert printed.count("needs a handler 'echo'") == 1


@pytest.mark.slow
def test_programs_get_json() -> None:
    """One object with every result and the counts."""
    code, printed = ergon_conform("--json", "--only", ID, "--", *GOOD)
    shape = json.loads(printed)
    assert code == 0
    assert shape["ok"] is True
    assert [one["name"] for one in shape["results"]] == [ID]
    assert shape["counts"]["required"] == {"passed": 1, "failed": 0, "skipped": 0}


@pytest.mark.slow
def test_a_handler_can_be_named() -> None:
    """Its arguments are JSON, and the checks that need a success use it."""
    source = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    good = (asked['function_name'], asked['args']) == ('double', [2])\n"
        "    shape = {'job_id': asked['job_id'], 'status': 'success' if good else 'error'}\n"
        "    print(json.dumps(shape), flush=True)\n"
    )
    name = ("--only", "success_is_a_success", "--handler", "double")
    for args, expected in (("[2]", 0), ("[3]", 1)):
        command = ("--args", args, "--", sys.executable, "-c", source)
        assert ergon_conform(*name, *command)[0] == expected


def test_the_checks_can_be_listed() -> None:
    """Without starting anything."""
    code, printed = ergon_conform("--list")
    assert code == 0
    assert len(printed.splitlines()) == len(EXECUTOR_CHECKS) + 1
    _, as_json = ergon_conform("--list", "--json", "--required-only")
    assert {row["weight"] for row in json.loads(as_json)} == {"required"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "there is no command to try"),
        (["--", "./no-such-executor"], "no command './no-such-executor'"),
        (["--only", "nothing", "--", "cat"], "no check 'nothing'"),
        (["--args", "[1]", "--", "cat"], "none is named"),
        (["--handler", "h", "--args", "[", "--", "cat"], "--args is no JSON"),
        (["--handler", "h", "--args", "{}", "--", "cat"], "--args is not an array"),
        (["--handler", "h", "--kwargs", "[]", "--", "cat"], "--kwargs is not an object"),
    ],
)
def test_wrong_use_is_refused(arguments: list[str], problem: str) -> None:
    """Each with its own error of configuration, which the command line ends with exit code 2."""
    with pytest.raises(ConfigurationError, match=problem):
        ergon_conform(*arguments)


@pytest.mark.slow
def test_sigterm_ends_the_executor_too(tmp_path: Path) -> None:
    """One that ignores the end of its input would outlive the command otherwise."""
    name = os.fspath(tmp_path / "alive")
    os.mkfifo(name)
    reader = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
    stubborn = f"import os, signal; os.write(os.open({name!r}, os.O_WRONLY), b'.'); signal.pause()"
    source = "from ergon_framework.cli.worker import conform; import sys; conform(sys.argv[1:])"
    with subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-c", source, sys.executable, "-c", stubborn],
        env={**os.environ, "PYTHONPATH": os.fspath(SOURCE)},
    ) as command:
        assert select.select([reader], [], [], 30)[0] == [reader]
        assert os.read(reader, 1) == b"."
        assert select.select([reader], [], [], 0)[0] == []  # it is there, and holds its end open
        command.send_signal(signal.SIGTERM)
        assert command.wait(30) == 143
    assert select.select([reader], [], [], 30)[0] == [reader]
    assert os.read(reader, 1) == b""
    os.close(reader)


@pytest.mark.slow
def test_a_terminal_sees_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the standard error stream, so that the report can go elsewhere."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    options: dict[str, Any] = {"only": [ID], "timeout": 10.0}
    assert conform(GOOD, **options) == 0
    assert "1/1" in terminal.getvalue()
