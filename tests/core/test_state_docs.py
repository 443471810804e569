from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import pytest

from ergon_framework.core.failure import Kind
from ergon_framework.core.job import ALLOWED
from ergon_framework.core.loop import StopReason
from ergon_framework.core.transaction_lifecycle import VERBS, Cue, Ending, LifecycleStep
from tools import state_docs


class Silent(StrEnum):
    """Members of which one says nothing about itself."""

    LOUD = "loud"  # it speaks
    QUIET = "quiet"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout without pages, and a command line without arguments."""
    monkeypatch.setattr("sys.argv", ["state_docs.py"])
    return tmp_path


def rows(text: str) -> list[list[str]]:
    """The cells of a table's rows, without its head."""
    return [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]


@pytest.mark.req("RFC-004:6a", "RFC-005:6a")
def test_the_lifecycle_has_a_cell_for_every_step_and_cue() -> None:
    """Steps are told from endings at a glance."""
    cells = {step: after for step, *after in rows(state_docs.lifecycle())}
    assert list(cells) == [f"`{step}`" for step in LifecycleStep]
    assert all(len(after) == len(Cue) for after in cells.values())
    assert cells["`process`"] == ["`success`", "`exception`", "`exception`", "**`aborted`**"]
    assert (
        state_docs.lifecycle().splitlines()[0]
        == "| step | `ok` | `failed` | `expired` | `stopped` |"
    )
    assert len(state_docs.cues().splitlines()) == len(Cue)


def test_every_member_of_every_table_has_a_row() -> None:
    """Nothing that exists is left out."""
    assert [row[:2] for row in rows(state_docs.settlement())] == [
        [f"`{how}`", f"`{VERBS[how]}`"] for how in Ending
    ]
    assert [row[0] for row in rows(state_docs.stopping())] == [f"`{why}`" for why in StopReason]
    assert [row[0] for row in rows(state_docs.retries())] == [f"`{kind}`" for kind in Kind]
    assert {type(seen) for _, seen, _ in state_docs.SEEN} == set(ALLOWED)
    assert len(rows(state_docs.jobs())) == len(state_docs.SEEN)


@pytest.mark.req("RFC-004:10e", "RFC-005:8f")
def test_refusals_are_repeated_by_the_success_step_only() -> None:
    """The page says so in the row of refusals."""
    told = {name: answers for name, _, *answers in rows(state_docs.retries())}
    assert told["`rejected`"] == ["no", "yes"]
    assert told["`transient`"] == ["yes", "yes"]
    assert told["`cancelled`"] == ["no", "no"]


def test_a_member_that_explains_nothing_is_refused() -> None:
    """A page with empty meanings would help nobody."""
    with pytest.raises(SystemExit, match=r"Silent\.QUIET needs a comment"):
        state_docs.remarks(Silent)


def test_a_bar_inside_a_cell_does_not_break_the_table() -> None:
    """It is escaped."""
    assert state_docs.table(["a"], [["x | y"]]) == "| a |\n| --- |\n| x \\| y |"


def test_a_page_that_is_missing_or_edited_fails_the_check(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Writing it makes the check pass, and editing it makes the check fail again."""
    page = folder / state_docs.PAGE
    with monkeypatch.context() as checking:
        checking.setattr("sys.argv", ["state_docs.py", "--check"])
        assert state_docs.main(folder) == 1
        assert not page.exists()
    assert state_docs.main(folder) == 0
    monkeypatch.setattr("sys.argv", ["state_docs.py", "--check"])
    assert state_docs.main(folder) == 0
    page.write_text(page.read_text(encoding="utf-8") + "edited\n", encoding="utf-8")
    assert state_docs.main(folder) == 1
    assert "is stale: run make docs" in capsys.readouterr().out
