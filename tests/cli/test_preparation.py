"""A command is prepared alone: all of them together take longer to prepare than most do to run."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from ergon_framework.cli import invoke
from ergon_framework.cli.commands import app

ALL: Any = typer.main.get_command(app)


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
    """Only where somebody asks what there is, they are needed."""
    prepared: list[str] = []
    prepare = typer.main.get_command_from_info

    def count(command_info: Any, **options: Any) -> Any:
        prepared.append(command_info.callback.__name__)
        return prepare(command_info, **options)

    monkeypatch.setattr(typer.main, "get_command_from_info", count)
    assert invoke(["check", "--help"]) == 0
    assert prepared == ["check"]
    assert invoke(["chekc"]) == 2
    assert "No such command 'chekc'" in capsys.readouterr().err
    assert len(prepared) > len(ALL.commands)
