"""Progress bars on a terminal, plain lines everywhere else."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from stages import Stage
from tally import Tally

WIDE = 84
"""Columns a terminal needs for the counts beside the bars."""


class Display:
    """Shows what is told, from a thread of its own: no worker ever waits for the screen."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.console = Console(highlight=False)
        self.tally = Tally(self.tell)
        self._stages = stages
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._printer = threading.Thread(target=self._print, name="engines-display", daemon=True)
        self._began_at = time.monotonic()
        is_live = sys.stdout.isatty() and not self.console.is_dumb_terminal
        self._live = Live(console=self.console, get_renderable=self._bars) if is_live else None

    def tell(self, line: str) -> None:
        """Show a line, soon."""
        self._lines.put(f"{time.monotonic() - self._began_at:5.2f} s  {line}")

    def __enter__(self) -> Self:
        self._printer.start()
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lines.put(None)
        self._printer.join()
        if self._live is not None:
            self._live.stop()

    def _print(self) -> None:
        for line in iter(self._lines.get, None):
            if self._live is None:
                print(line, flush=True)
            else:  # above the bars, cut where the terminal ends
                self.console.print(Text(line, style="dim"), no_wrap=True, overflow="ellipsis")

    def _bars(self) -> Table:
        """The picture of this moment; drawn a few times per second from what was counted so far."""
        grid = Table.grid(padding=(0, 1))
        is_wide = self.console.width >= WIDE
        for stage in self._stages:
            counts = self.tally.of(stage.name)
            ended = counts["succeeded"] + counts["failed"] + counts["timed_out"]
            total = stage.given or 0
            bar = ProgressBar(max(1, total), ended, width=20 if is_wide else 12)
            row: list[Text | ProgressBar] = [Text(stage.kind), bar, Text(f"{ended}/{total or '?'}")]
            if is_wide:
                row.append(_words(counts["succeeded"], "ok", "green"))
                row.append(_words(counts["retries"], "retries", "yellow"))
                row.append(_words(counts["failed"], "failed", "red"))
                row.append(_words(counts["timed_out"], "timed out", "magenta"))
            grid.add_row(*row)
        return grid


def _words(count: int, what: str, style: str) -> Text:
    return Text(f"{count:2} {what}", style=style if count else "dim")
