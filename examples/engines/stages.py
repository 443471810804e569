"""One engine of the tour: what runs, how much it is given, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ergon_framework import MemoryConnector, Report
from ergon_framework.task import BaseTask


@dataclass
class Stage:
    """A task that is run once. ``given`` is unknown until the stage before it has ended."""

    kind: str
    task: BaseTask
    run: Callable[[], Report]
    source: MemoryConnector | None = None  # a consumer's queue; a producer is given a list
    given: int | None = None
    report: Report | None = None

    @property
    def name(self) -> str:
        """The task's class name, under which notices speak of it."""
        return type(self.task).__name__

    def start(self) -> None:
        """Run it to its end and keep the report."""
        if self.source is not None:
            self.given = self.source.get_transactions_count()
        self.report = self.run()
