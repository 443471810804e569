"""Sets the trail of a process: where the spans of its traces go, with an SDK or without."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ergon_framework.ports.journal import Journal, SpanRecord
from ergon_framework.storage.urls import SQLITE
from ergon_framework.telemetry.fan_out import add_listener
from ergon_framework.telemetry.journalling import JournalListener, JournalWriter
from ergon_framework.telemetry.tracers import set_trail, trail
from ergon_framework.telemetry.trail import Trail

VARIABLE = "ERGON_JOURNAL"
"""Tells a process that has no settings, such as an executor, which journal its parent writes."""


@contextmanager
def following(keep: Callable[[SpanRecord], None], source: str, path: Path) -> Iterator[None]:
    """Hand the spans of traces to ``keep``; processes started meanwhile learn of the journal."""
    before, named = trail(), os.environ.get(VARIABLE)
    set_trail(Trail(keep, source))
    os.environ[VARIABLE] = f"{SQLITE}{path.absolute()}"
    try:
        yield
    finally:
        set_trail(before)
        if named is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = named


def follow_parent(source: str) -> JournalWriter | None:
    """Write what this process tells where its parent does; None when it named no journal."""
    named = os.environ.get(VARIABLE, "")
    path = Path(named.removeprefix(SQLITE))
    if not named.startswith(SQLITE) or not path.parent.is_dir():
        return None

    def opening() -> Journal:
        from ergon_framework.storage.journal import SqliteJournal

        return SqliteJournal(path)

    writer = JournalWriter(opening)
    set_trail(Trail(writer.keep, source))
    add_listener(JournalListener(writer, source))
    return writer
