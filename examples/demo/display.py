"""Progress: one live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import time
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .gauges import Reading

EVERY = 5.0
"""Seconds between two plain lines of progress."""
STEPS = {
    "packed": "packed in the plant",
    "plant": "facts in the plant's log",
    "enterprise": "facts in the enterprise's log",
    "ended": "jobs at their end",
}


class Display(Protocol):
    """What the story needs of a display."""

    def tell(self, text: str) -> None:
        """One line of the story."""

    def show(self, reading: Reading) -> None:
        """How far everything is."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


def display(console: Console, count: int, *, is_plain: bool) -> Display:
    """The one that suits: no escape codes where nobody wants them."""
    no_colour = bool(os.environ.get("NO_COLOR"))
    if is_plain or no_colour or not console.is_terminal or console.is_dumb_terminal:
        return PlainLines(console, count)
    return LiveTable(console, count)


class PlainLines:
    """Lines, and not too many of them."""

    def __init__(self, console: Console, count: int) -> None:
        self._console = console
        self._count = count
        self._began_at = time.monotonic()
        self._shown_at = self._began_at
        self._shown = Reading()

    def tell(self, text: str) -> None:
        """One line of the story."""
        self._console.out(f"{time.monotonic() - self._began_at:5.1f} s  {text}", highlight=False)

    def show(self, reading: Reading) -> None:
        """A line when something changed and the last one is a while ago."""
        now = time.monotonic()
        if reading != self._shown and now - self._shown_at >= EVERY:
            self._shown, self._shown_at = reading, now
            steps = ", ".join(f"{name} {getattr(reading, name)}" for name in STEPS)
            self.tell(f"  {steps} of {self._count}; {_state(reading)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass


class LiveTable:
    """Bars that grow, with the story above them."""

    def __init__(self, console: Console, count: int) -> None:
        self._count = count
        self._began_at = time.monotonic()
        self._live = Live(self._bars(Reading()), console=console, transient=True)

    def tell(self, text: str) -> None:
        """One line of the story, above the bars."""
        after = f"{time.monotonic() - self._began_at:5.1f} s  "
        self._live.console.print(Text(after, style="dim") + Text(text, style="bold"))

    def show(self, reading: Reading) -> None:
        """Redraw the bars."""
        self._live.update(self._bars(reading))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._live.stop()

    def _bars(self, reading: Reading) -> RenderableType:
        table = Table.grid(padding=(0, 1))
        for name, title in STEPS.items():
            done = getattr(reading, name)
            bar = ProgressBar(self._count, done, width=40)
            table.add_row(title, bar, f"{done}/{self._count}")
        is_well = reading.circuit == "closed" and reading.link == "normal"
        return Group("", table, Text(_state(reading), style="green" if is_well else "red"))


def _state(reading: Reading) -> str:
    return (
        f"{reading.running} running, {reading.parked} parked, {reading.dead} dead; "
        f"circuit {reading.circuit}, link {reading.link}"
    )
