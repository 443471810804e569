"""Options that several commands share are declared once, and each command has them in its help."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import pytest
import typer
from typer.testing import CliRunner

from ergon_framework.cli.command_run import expanded
from ergon_framework.cli.jobs import app as jobs


class Chosen(NamedTuple):
    """What the group makes of its options."""

    queue: str | None
    tag: list[str] | None
    limit: int


def chosen_of(
    queue: Annotated[str | None, typer.Option("--queue")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag")] = None,
    limit: Annotated[int, typer.Option(min=1)] = 50,
) -> Chosen:
    """The options of the group."""
    return Chosen(queue, tag, limit)


@expanded(chosen=chosen_of)
def wider(*, chosen: Chosen, dry_run: Annotated[bool, typer.Option("--dry-run")] = False) -> str:
    """A group that holds another one."""
    return f"{chosen} {dry_run}"


def program() -> typer.Typer:
    """Two commands of one group; the second does without one of its options."""
    app = typer.Typer()

    @app.command()
    @expanded(chosen=chosen_of)
    def show(
        job: Annotated[str | None, typer.Argument()] = None,
        *,
        first: Annotated[bool, typer.Option("--first")] = False,
        chosen: Chosen,
        last: Annotated[bool, typer.Option("--last")] = False,
    ) -> None:
        """Show what was given."""
        typer.echo(f"{job} {first} {chosen} {last}")

    @app.command()
    @expanded(leaves_out=("queue",), everything=wider)
    def count(*, everything: str) -> None:
        """Count what was given."""
        typer.echo(everything)

    return app


def said(*words: str) -> str:
    """What the program prints."""
    result = CliRunner().invoke(program(), list(words))
    assert result.exit_code == 0, result.output
    return result.output.strip()


def test_a_command_gets_its_group_as_one_argument() -> None:
    """Values keep their types, and what is not given has the default of the group."""
    expected = "7 False Chosen(queue='mail', tag=['a', 'b'], limit=3) True"
    given = ("7", "--tag=a", "--tag=b", "--queue=mail", "--limit=3", "--last")
    assert said("show", *given) == expected
    assert said("show") == "None False Chosen(queue=None, tag=None, limit=50) False"


def test_the_options_stand_in_the_place_of_the_argument() -> None:
    """The help lists the options of the group between those around the argument."""
    text = said("show", "--help")
    places = [text.index(each) for each in ("--first", "--queue", "--tag", "--limit", "--last")]
    assert places == sorted(places)


def test_a_group_within_a_group_may_lack_an_option() -> None:
    """An option that is left out is refused, and the inner group uses its default for it."""
    assert said("count", "--dry-run") == "Chosen(queue=None, tag=None, limit=50) True"
    refused = CliRunner().invoke(program(), ["count", "--queue=mail"])
    assert refused.exit_code == 2


def test_options_are_checked_as_if_the_command_had_declared_them() -> None:
    """A value below the least is a mistake of use."""
    assert CliRunner().invoke(program(), ["show", "--limit=0"]).exit_code == 2


@pytest.mark.parametrize("command", ["list", "cancel", "requeue", "reschedule", "delete"])
def test_the_commands_about_jobs_have_the_same_filters(command: str) -> None:
    """Only requeue lacks --status: it is about failed jobs alone."""
    text = CliRunner().invoke(jobs, [command, "--help"], env={"COLUMNS": "120"}).output
    for option in ("--queue", "--handler", "--tag", "--metadata", "--error", "--since", "--until"):
        assert option in text
    assert ("--status" in text) is (command != "requeue")
