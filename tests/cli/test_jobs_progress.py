"""The progress bar of long work: for people at a terminal only."""

from __future__ import annotations

import io
import sys

import pytest

from ergon_framework.cli.output import progress

pytestmark = pytest.mark.req("JOBS:operator")


class Screen(io.StringIO):
    """A terminal, or a file that looks like one."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def shown(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool, total: int | None) -> str:
    """What is written while three things are done."""
    screen = Screen(is_terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with progress("requeued", total) as move:
        for done in (1, 2, 3):
            move(done)
    return screen.getvalue()


@pytest.mark.parametrize("total", [3, None])
def test_a_bar_moves_on_a_terminal(monkeypatch: pytest.MonkeyPatch, total: int | None) -> None:
    """With the number of those that are done, and of all if that is known."""
    text = shown(monkeypatch, is_terminal=True, total=total)
    assert "requeued" in text
    assert f"3/{total or '?'}" in text


def test_nothing_is_shown_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log file has no use for it."""
    assert shown(monkeypatch, is_terminal=False, total=3) == ""
