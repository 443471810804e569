"""Commands in this process: exit codes, shapes of JSON, and one line for each kind of bad input."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from ergon_framework.cli import invoke
from ergon_framework.cli.catalogue import GROUPS
from ergon_framework.cli.commands import app
from ergon_framework.cli.distribution import version
from ergon_framework.ports.notice import CATALOGUE
from tests import fork_server
from tests.app.workplace import Workplace

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
SHOP = """
class Orders(ConsumerTask):
    @staticmethod
    def build_connectors():
        return {"source": MemoryConnector([Transaction(f"t{n}", {"n": n}) for n in range(3)])}

    def process_transaction(self, transaction):
        print("chatter")
        if transaction.payload["n"] == 1:
            raise TransactionException("out of stock", category=ExceptionType.BUSINESS)
        return {"secret": transaction.payload["n"]}

class Unreachable(ConsumerTask):
    @staticmethod
    def build_connectors():
        source = MemoryConnector()
        source.close()
        return {"source": source}

    def process_transaction(self, transaction):
        return None

class Inbox(ConsumerTask):
    def process_transaction(self, transaction):
        return None

class Leaving(Orders):
    def process_transaction(self, transaction):
        raise SystemExit(5)

class Hopeless(BaseTask):
    def execute(self):
        raise ValueError("no hope")
"""
SETTINGS = """
[tasks.orders]
task = "shop:Orders"
workers = 1
consumer.loop.limit = 2
consumer.steps.fetch.extra.password = "hunter2"
"""


@pytest.fixture(autouse=True)
def shop(workplace: Workplace) -> None:
    """A module and a settings file in the working directory."""
    workplace.module(SHOP)
    workplace.settings(SETTINGS)


class Answer:
    """What a command printed and how it ended."""

    def __init__(self, code: int, captured: Any) -> None:
        self.code = code
        self.out: str = captured.out
        self.err: str = captured.err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Ergon:
    """Runs commands without a process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Answer:
        self._capsys.readouterr()
        return Answer(invoke(arguments), self._capsys.readouterr())


@pytest.fixture
def ergon(capsys: pytest.CaptureFixture[str]) -> Ergon:
    """The command line."""
    return Ergon(capsys)


# ---- run ----------------------------------------------------------------------------------------


@pytest.mark.req("R0-R")
def test_run(ergon: Ergon) -> None:
    """A summary of the report for people."""
    answer = ergon("run", "shop:Orders", "--limit", "3")
    assert answer.code == 0
    assert re.search(r"^succeeded +2$", answer.out, re.MULTILINE)
    assert re.search(r"^stop reason +limit$", answer.out, re.MULTILINE)


def test_run_json(ergon: Ergon) -> None:
    """One object, whatever user code prints."""
    answer = ergon("run", "orders", "--json")
    assert answer.code == 0
    assert set(answer.json) == {"task", "exit_code", "report", "error"}
    assert answer.json["report"]["processed"] == 2
    assert answer.json["error"] is None
    assert "chatter" in answer.err


def test_run_says_which_lines_were_set_aside(
    ergon: Ergon, workplace: Workplace, caplog: pytest.LogCaptureFixture
) -> None:
    """Malformed lines are in the report, with the file that keeps them, and logged at once."""
    workplace.settings(
        '[tasks.inbox]\ntask = "shop:Inbox"\nconnectors = ["files"]\n'
        '[connectors.files]\ntype = "jsonl"\ninbox = "incoming"\n'
    )
    inbox = workplace.directory / "incoming"
    inbox.mkdir()
    kept_in = "incoming/.ergon/dead_letters.jsonl"
    (inbox / "monday.jsonl").write_text('{"order": 1}\n' * 5)
    answer = ergon("run", "inbox")
    assert answer.code == 0
    assert re.search(r"^malformed +5$", answer.out, re.MULTILINE)
    assert kept_in in answer.out
    assert "monday.jsonl, line 1: not a transaction" in caplog.text
    assert f"5 malformed lines, kept in {kept_in}" in caplog.text
    (inbox / "tuesday.jsonl").write_text('{"order": 1}\n' * 3)
    report = ergon("run", "inbox", "--json").json["report"]
    assert (report["processed"], report["malformed"]) == (0, 3)
    assert report["dead_letters"] == [kept_in]


def test_a_failed_run(ergon: Ergon) -> None:
    """Code 1, the report, and the error in both shapes."""
    answer = ergon("run", "shop:Unreachable", "--json")
    assert answer.code == 1
    assert answer.json["exit_code"] == 1
    assert answer.json["error"]["code"] == "fetch"
    assert answer.json["report"]["stop_reason"] == "fetch_failed"
    assert answer.err.startswith("error: the connector of Unreachable could not be read")
    assert "Traceback" not in answer.err


def test_a_broken_task(ergon: Ergon) -> None:
    """One line without a traceback, unless it is asked for."""
    answer = ergon("run", "shop:Hopeless")
    assert (answer.code, answer.err) == (1, "error: ValueError: no hope\n")
    assert "Traceback" in ergon("run", "shop:Hopeless", "--debug").err


@pytest.mark.req("R3-K2")
def test_check(ergon: Ergon) -> None:
    """It says what would run and keeps the arguments of each fetch to itself."""
    answer = ergon("run", "orders", "--check")
    assert answer.code == 0
    assert "loop.limit=2" in answer.out
    assert "hunter2" not in answer.out
    shape = ergon("run", "orders", "--check", "--json").json
    assert (shape["task"], shape["role"], shape["colour"]) == ("orders", "consumer", "sync")
    assert shape["policy"]["steps"]["fetch"]["extra"] == ["password"]
    assert "chatter" not in answer.err


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ('type = "jsonl"\ninbox = "."', 2),
        ('type = "jsonl"\noutbox = "out"', 0),
        ('type = "shop:Exclusive"', 2),
        ('type = "shop:exclusive_for_each"', 0),
    ],
)
def test_several_workers_need_parts_to_share(ergon: Ergon, parts: str, code: int) -> None:
    """What only one process can have is refused before anything is built."""
    with Path("shop.py").open("a") as module:
        module.write("class Exclusive(MemoryConnector):\n    exclusive = True\n\n")
        module.write("def exclusive_for_each():\n    return Exclusive()\n")
    Path("ergon.toml").write_text(
        f"[connectors.source]\n{parts}\n"
        '[tasks.orders]\ntask = "shop:Orders"\nconnectors = ["source"]\n'
    )
    answer = ergon("run", "orders", "--check", "--workers", "2")
    assert answer.code == code
    assert ("use one worker" in answer.err) == (code == 2)
    assert ergon("run", "orders", "--check").code == 0


def test_a_policy_file(ergon: Ergon) -> None:
    """It replaces the policy of the settings."""
    Path("policy.toml").write_text("[loop]\nlimit = 1\n")
    answer = ergon("run", "orders", "--policy", "policy.toml", "--json")
    assert answer.json["report"]["processed"] == 1


# ---- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("rnu", "No such command 'rnu'"),
        ("run", "what is to run? (give a name, or --all; this lists what there is:  ergon check)"),
        ("run orders --wrokers 2", "No such option"),
        ("run orders --workers 0", "Invalid value for '--workers'"),
        ("run orders --limit x", "Invalid value for '--limit'"),
        ("run order", "did you mean 'orders'?"),
        ("run nowhere:Orders", "there is no module 'nowhere'"),
        ("run orders --config missing.toml", "missing.toml: there is no such file"),
        ("run orders --config broken.toml", "broken.toml:1: not TOML"),
        ("run orders --policy missing.toml", "missing.toml: there is no such file"),
        ("run orders --policy wrong.toml", "unknown key 'limt'"),
        ("run orders --log-level loud", "the log level 'loud' is unknown"),
        ("run orders --liveness-file no/where", "cannot be written"),
        ("run orders --supervised 1", "names no open pipes"),
        ("process orders", "give either --payload or --by-id"),
        ("process orders --payload 1 --by-id 2", "give either --payload or --by-id"),
        ("process orders --by-id 2 --id 3", "leave out --id and --metadata"),
        ("process orders --payload {", "the payload is not JSON"),
        ("process orders --payload 1 --metadata 2", "metadata must be a JSON object"),
        ("process orders --payload @missing", "cannot read 'missing': No such file"),
        ("process orders --payload @binary", "the payload is not UTF-8 text"),
        ("process orders --payload - --metadata -", "can be read once"),
        ("process orders --payload 1 --id=", "transaction_id must be a non-empty string"),
        ("live", "Missing argument"),
        ("tasks --config missing.toml", "there is no such file"),
    ],
)
def test_bad_input(ergon: Ergon, line: str, text: str) -> None:
    """Exit code 2, one line with the remedy, no traceback."""
    Path("broken.toml").write_text("x = \n")
    Path("wrong.toml").write_text("[loop]\nlimt = 1\n")
    Path("binary").write_bytes(b"\xff\xfe")
    answer = ergon(*line.split())
    assert answer.code == 2
    assert text in answer.err
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1


def test_bad_input_as_json(ergon: Ergon) -> None:
    """Programs get the error's shape on the standard output."""
    answer = ergon("run", "order", "--json")
    assert answer.code == 2
    assert set(answer.json) == {"error"}
    assert set(answer.json["error"]) == {"code", "message", "details"}


def test_a_defect_of_ours_is_no_traceback_either(
    ergon: Ergon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named as what it is, and --debug shows it."""

    def broken(*_arguments: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("ergon_framework.app.settings.load_settings", broken)
    answer = ergon("tasks")
    assert answer.code == 1
    assert "this is a defect of Ergon" in answer.err
    assert "Traceback" in ergon("tasks", "--debug").err


@pytest.mark.parametrize("words", ["jobs list --config", "db export"])
def test_a_file_that_cannot_be_opened_is_no_defect_of_ours(ergon: Ergon, words: str) -> None:
    """A name that is too long, for example: the user names another one."""
    answer = ergon(*words.split(), "x" * 5000)
    assert answer.code == 1
    assert "File name too long" in answer.err
    assert "or name another one" in answer.err
    assert "defect" not in answer.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", ["check --config nowhere.toml --json", "notices", "tasks --json", "--version"]
)
def test_a_reader_who_has_left_is_no_traceback(line: str) -> None:
    """Neither for what a command shows, nor for why it failed."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "ergon_framework.cli", *line.split()]
    try:
        done = fork_server.run(
            command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


READ_BY_NOBODY = """
import os, sys
from ergon_framework.cli import invoke

code = invoke(["tasks", "--json"], is_process=True)
os.write(1, b"x")  # the pipe is left: nothing that is still in a buffer can fail there
print("returned", code, file=sys.stderr)
"""


@pytest.mark.slow
def test_nothing_is_left_to_be_written_to_a_reader_who_has_left() -> None:
    """What stays in the buffer is reported when the interpreter ends, by Python 3.13 at times."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", READ_BY_NOBODY]
    try:
        done = fork_server.run(
            command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "returned 1\n")


ENQUEUES = """
import sys
from ergon_framework.cli import invoke

assert invoke(["enqueue", "resize", "--store", "sqlite:///work.db"]) == 0
print([name for name in ("asyncio", "concurrent.futures", "ssl") if name in sys.modules])
"""


@pytest.mark.slow
def test_an_enqueue_loads_no_event_loop(tmp_path: Path) -> None:
    """Cron and shell scripts start it often: asyncio was a tenth of its time."""
    command = [sys.executable, "-c", ENQUEUES]
    done = subprocess.run(  # noqa: S603
        command, stdout=subprocess.PIPE, cwd=tmp_path, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("line", ["--version", "worker --help", "nonsense"])
def test_the_package_is_the_command(line: str) -> None:
    """``python -m ergon_framework`` says what ``ergon`` says, under the same name."""
    done = [
        fork_server.run(
            [sys.executable, "-m", module, *line.split()],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        for module in ("ergon_framework", "ergon_framework.cli")
    ]
    told = [(each.returncode, each.stdout, each.stderr) for each in done]
    assert told[0] == told[1]
    assert "ergon" in told[0][1] or told[0][0] == 2
    assert "__main__" not in told[0][1] + told[0][2]


# ---- process ------------------------------------------------------------------------------------


def test_process(ergon: Ergon) -> None:
    """The outcome, and of the result only its type."""
    answer = ergon("process", "orders", "--payload", '{"n": 5}', "--id", "t9")
    assert answer.code == 0
    assert re.search(r"^outcome +succeeded$", answer.out, re.MULTILINE)
    assert "secret" not in answer.out
    shown = ergon("process", "orders", "--payload", '{"n": 5}', "--show-result", "--json")
    assert shown.json["result"] == {"secret": 5}
    people = ergon("process", "orders", "--payload", '{"n": 5}', "--show-result")
    assert re.search(r"^result +\{'secret': 5\}$", people.out, re.MULTILINE)


def test_process_that_fails(ergon: Ergon) -> None:
    """Exit code 1 and the reason."""
    answer = ergon("process", "orders", "--by-id", "t1", "--json")
    assert answer.code == 1
    assert answer.json["outcome"] == "failed"
    assert answer.json["error"]["details"]["category"] == "business"
    assert "error: out of stock" in answer.err


def test_process_that_wants_to_leave(ergon: Ergon) -> None:
    """A hook does not choose the exit code: the outcome is told, and the code is 1."""
    answer = ergon("process", "shop:Leaving", "--payload", "1", "--json")
    assert (answer.code, answer.json["exit_code"]) == (1, 1)
    assert answer.json["outcome"] == "failed"
    assert answer.json["error"]["message"] == "SystemExit: 5"
    assert "failed" in ergon("process", "shop:Leaving", "--payload", "1").out


def test_process_by_an_unknown_id(ergon: Ergon) -> None:
    """Well asked, but not there: code 1."""
    answer = ergon("process", "orders", "--by-id", "lost")
    assert answer.code == 1
    assert "has no transaction 'lost'" in answer.err


def test_payloads_from_files_and_pipes(ergon: Ergon, monkeypatch: pytest.MonkeyPatch) -> None:
    """``@FILE`` and ``-`` keep payloads out of the shell's history."""
    Path("payload.json").write_text('{"n": 6}')
    arguments = ("process", "orders", "--show-result", "--json", "--payload")
    assert ergon(*arguments, "@payload.json").json["result"] == {"secret": 6}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"n": 7}')))
    assert ergon(*arguments, "-").json["result"] == {"secret": 7}


# ---- looking ------------------------------------------------------------------------------------


def test_tasks(ergon: Ergon) -> None:
    """The tasks of the settings file."""
    assert ergon("tasks", "--json").json == [
        {
            "name": "orders",
            "task": "shop:Orders",
            "connectors": [],
            "services": [],
            "workers": 1,
        }
    ]


def test_notices(ergon: Ergon) -> None:
    """The whole catalogue."""
    rows = ergon("notices", "--json").json
    assert [row["name"] for row in rows] == list(CATALOGUE)
    assert set(rows[0]) == {"name", "part", "meaning", "fields", "routine"}
    assert "call.began" in ergon("notices").out


def test_doctor(ergon: Ergon) -> None:
    """Code 0 when nothing is bad, 1 when something is."""
    answer = ergon("doctor", "--json")
    assert answer.code == 0
    assert {"check", "status", "found", "remedy"} == set(answer.json[0])
    Path("ergon.toml").write_text("[taks]\n")
    assert ergon("doctor").code == 1


def test_doctor_asks_servers(ergon: Ergon) -> None:
    """What cannot be reached is bad, unless nobody wants to know; user code may print."""
    Path("parts.py").write_text("def broken():\n    print('chatter')\n    raise OSError('gone')\n")
    Path("ergon.toml").write_text('[services.mail]\nfactory = "parts:broken"\n')
    answer = ergon("doctor", "--json", "--timeout", "30")
    rows = {row["check"]: row for row in answer.json}
    assert (answer.code, rows["service mail"]["status"]) == (1, "bad")
    assert "gone" in rows["service mail"]["found"]
    assert "chatter" in answer.err
    answer = ergon("doctor", "--json", "--no-connect")
    assert answer.code == 0
    assert "service mail" not in {row["check"] for row in answer.json}


def test_live(ergon: Ergon) -> None:
    """A probe for a file: 0 for live, 1 for anything else."""
    answer = ergon("live", "live.json", "--json")
    assert (answer.code, answer.json["live"]) == (1, False)
    ergon("run", "orders", "--liveness-file", "live.json")
    answer = ergon("live", "live.json", "--max-age", "60", "--json")
    assert (answer.code, answer.json["state"]) == (1, "stopped")
    content = json.loads(Path("live.json").read_text())
    Path("live.json").write_text(json.dumps({**content, "state": "healthy"}))
    assert ergon("live", "live.json").code == 0


def test_help_and_version(ergon: Ergon) -> None:
    """The commands are listed in groups; without arguments the same help is shown."""
    answer = ergon("--help")
    assert answer.code == 0
    for title, entries in GROUPS.items():
        group = re.search(rf"^{title}:\n((?:  .*\n)+)", answer.out, re.MULTILINE)
        assert group, title
        assert [line.split()[0] for line in group[1].splitlines()] == [
            each.name for each in entries
        ]
    assert ergon().out == answer.out
    assert ergon("--version").out.startswith("ergon ")
    assert ergon("--debug", "--version").out.startswith("ergon ")


def test_help_is_whole_in_a_narrow_terminal(ergon: Ergon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every command with subcommands: lines are wrapped, and none ends in dots."""
    monkeypatch.setenv("COLUMNS", "40")
    for path, group in _groups((), typer.main.get_command(app)):
        answer = ergon(*path, "--help")
        assert answer.code == 0
        below = answer.out.partition("Options:")[2]
        assert "…" not in below
        assert "..." not in below, path
        words = " ".join(below.split())
        for command in group.commands.values() if path else ():
            whole = " ".join((command.help or "").partition("\n\n")[0].split())
            assert command.hidden or whole.partition(". ")[0].rstrip(".") in words, command.name


def _groups(path: tuple[str, ...], group: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _groups((*path, name), command)


def test_the_version_of_a_source_tree() -> None:
    """Without an installed distribution there is no number, and that is no failure."""
    assert version("no-such-distribution") == "(from a source tree, not installed)"


def test_the_example_of_the_reference_page_runs(ergon: Ergon) -> None:
    """A file with a class and a policy is all it takes."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    Path("one_file.py").write_text(found[1])
    answer = ergon("run", "one_file:Orders", "--json")
    assert (answer.code, answer.json["report"]["succeeded"]) == (0, 1)


def test_the_reference_page_names_every_option() -> None:
    """``docs/reference/cli.md`` cannot fall behind."""
    page = PAGE.read_text()
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        assert command.hidden or f"## ergon {name}" in page
        for parameter in command.params:
            if not getattr(parameter, "hidden", False) and parameter.param_type_name == "option":
                assert f"`{parameter.opts[0]}" in page, (name, parameter.opts)


@pytest.mark.parametrize("command", [(), ("jobs",), ("jobs", "list"), ("executor",)])
def test_h_is_help(ergon: Ergon, command: tuple[str, ...]) -> None:
    """Many who are new try it first."""
    short, long = ergon(*command, "-h"), ergon(*command, "--help")
    assert (short.code, short.out) == (0, long.out)
