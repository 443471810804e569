"""The progress bar of long work: for people at a terminal only."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from ergon_framework.cli.output import progress, waiting

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


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_takes_long_is_seen(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    """Work that cannot be counted shows that time passes; for people at a terminal only."""
    screen = Screen(is_terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with waiting("opening the store", after=0.0):
        for _ in range(3000 if is_terminal else 1):
            if "opening the store" in screen.getvalue():
                break
            threading.Event().wait(0.01)
    assert ("opening the store" in screen.getvalue()) is is_terminal
    assert "/?" not in screen.getvalue()


def test_what_is_done_soon_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most commands are, and a bar that flashes up would only be in the way."""
    screen = Screen(is_terminal=True)
    monkeypatch.setattr(sys, "stderr", screen)
    with pytest.raises(ValueError, match="no hope"), waiting("opening the store"):
        raise ValueError("no hope")
    assert screen.getvalue() == ""
