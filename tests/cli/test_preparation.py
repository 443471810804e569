"""The list of commands: groups, one line of help each, names from before, and what it costs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from ergon_framework.cli import invoke
from ergon_framework.cli.catalogue import ALIASES, GROUPS, MAX_VISIBLE
from ergon_framework.cli.commands import app

ALL: Any = typer.main.get_command(app)
MAX_CPU = 0.2
"""Seconds of CPU that ``ergon --help`` may take."""
RUNS = 8


def groups(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command that has subcommands."""
    if hasattr(command, "commands"):
        yield words
        for name, each in command.commands.items():
            yield from groups(each, (*words, name))


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command that is listed and has no subcommands."""
    for name, each in getattr(command, "commands", {}).items():
        if hasattr(each, "commands"):
            yield from leaves(each, (*words, name))
        elif not each.hidden:
            yield (*words, name)


@pytest.mark.parametrize("name", sorted(ALL.commands))
def test_alone_it_says_the_same(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its help does not show that the others were left out."""
    assert ALL.main([name, "--help"], prog_name="ergon", standalone_mode=False) == 0
    among_all = capsys.readouterr().out
    assert invoke([name, "--help"]) == 0
    assert capsys.readouterr().out == among_all


def test_the_others_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the command that is asked for is prepared; the help, and a mistyped name, need none."""
    prepared: list[str] = []
    prepare = typer.main.get_command_from_info

    def count(command_info: Any, **options: Any) -> Any:
        prepared.append(command_info.callback.__name__)
        return prepare(command_info, **options)

    monkeypatch.setattr(typer.main, "get_command_from_info", count)
    assert invoke(["check", "--help"]) == 0
    assert prepared == ["check"]
    assert invoke(["chekc"]) == 2
    told = capsys.readouterr().err
    assert "No such command 'chekc'" in told
    assert "'check'" in told
    assert invoke(["--help"]) == 0
    assert prepared == ["check"]


def test_few_are_listed() -> None:
    """Somebody who is new reads the whole list."""
    names = [each.name for entries in GROUPS.values() for each in entries]
    assert len(names) == len({*names, *(each.name for each in ALIASES)}) - len(ALIASES)
    assert len(names) <= MAX_VISIBLE


@pytest.mark.parametrize("words", list(leaves(ALL)), ids=" ".join)
def test_help_ends_in_an_example_that_is_accepted(words: tuple[str, ...]) -> None:
    """Whoever is new pastes it; it fits a line of 80 columns, and the command takes it."""
    command = ALL
    for word in words:
        command = command.commands[word]
    introduction, example = command.help.rsplit("\n\n", 1)
    assert introduction.strip()
    assert example.startswith(f"Example: ergon {' '.join(words)}")
    assert len(f"  {example}") <= 80
    given = shlex.split(example.removeprefix("Example: ergon "))[len(words) :]
    context = command.make_context(words[-1], given)
    assert context.command is command


@pytest.mark.parametrize("words", list(groups(ALL)), ids=" ".join)
def test_help_is_one_line_for_each(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal of 80 columns no line is cut off, and none goes on in the next."""
    monkeypatch.setenv("COLUMNS", "80")
    assert invoke([*words, "--help"]) == 0
    listed = capsys.readouterr().out.partition("Run:" if not words else "Commands:")[2]
    lines = [line for line in listed.partition("\n\n  ")[0].splitlines() if line.startswith("  ")]
    assert lines
    for line in lines:
        assert "..." not in line
        assert "…" not in line
        assert line[2] != " ", line


@pytest.mark.parametrize("alias", ALIASES, ids=lambda each: each.name)
def test_a_name_from_before_works(alias: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """It takes what it took, is the command that is listed elsewhere now, and is not listed."""
    assert invoke([alias.name, "--help"]) == 0
    before = capsys.readouterr().out
    assert invoke([*alias.help.split()[1:], "--help"]) == 0
    now = capsys.readouterr().out
    assert before.partition("\n")[2] == now.partition("\n")[2]
    assert invoke(["--help"]) == 0
    assert f"\n  {alias.name} " not in capsys.readouterr().out


def test_the_help_is_cheap() -> None:
    """It imports no command, and takes little CPU: in one of a few runs, as others run, too."""
    program = (
        "import json, sys, resource\n"
        "from ergon_framework.cli import invoke\n"
        "invoke(['--help'])\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "names = [each for each in sys.modules if each.startswith('ergon_framework.cli.')]\n"
        "print(json.dumps([used.ru_utime + used.ru_stime, names]), file=sys.stderr)\n"
    )
    costs: list[float] = []
    while not costs or (min(costs) > MAX_CPU and len(costs) < RUNS):
        done = subprocess.run(  # noqa: S603 - our own
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "COVERAGE_PROCESS_START": ""},
            check=True,
        )
        cost, imported = json.loads(done.stderr)
        costs.append(cost)
        assert not {"ergon_framework.cli.jobs", "ergon_framework.cli.run"} & {*imported}
    assert min(costs) <= MAX_CPU
