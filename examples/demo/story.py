"""Who tells the story: waits until something is so, and shows meanwhile how far everything is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ergon_framework.testing.link import CuttableLink

from .books import Books
from .display import Display
from .floor import Floor
from .gauges import Gauges
from .site import Site

T = TypeVar("T")
TIMEOUT = 170.0
"""Seconds after which the demo gives up, whatever is missing."""
POLL_INTERVAL, SHOW_INTERVAL = 0.05, 0.3
"""Seconds between two looks at what is waited for, and between two looks at everything."""


class Missing(Exception):
    """Something that should have happened did not."""


class Story:
    """All that troubles need."""

    def __init__(
        self,
        site: Site,
        link: CuttableLink,
        floor: Floor,
        display: Display,
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        self.site = site
        self.link = link
        self.floor = floor
        self.tell = display.tell
        self._display = display
        self._pause = threading.Event()
        self._timeout = timeout
        self._ends_at = time.monotonic() + timeout
        self._shown_at = 0.0
        self._gauges: Gauges | None = None
        self._books: Books | None = None

    def begin(self) -> None:
        """Start everything, and wait until it is ready."""
        self.site.start(f"http://127.0.0.1:{self.link.port}")
        for part in ("zones.plant", "zones.enterprise", "worker", "tasks.announce", "tasks.accept"):
            self.until(f"{part} is ready", partial(self.site.pids, part))
            self.tell(f"{part} is ready")
        self._gauges = Gauges(self.site)
        self._books = Books(self.site.folder / "books.db")

    def open_console(self) -> str | None:
        """The URL of the console, or None when it could not be started."""
        return self.site.open_console(f"http://127.0.0.1:{self.link.port}")

    @property
    def gauges(self) -> Gauges:
        """The stores, open for looking, once everything runs."""
        if self._gauges is None:
            raise RuntimeError("the story has not begun")
        return self._gauges

    @property
    def books(self) -> Books:
        """The handlers' own database."""
        if self._books is None:
            raise RuntimeError("the story has not begun")
        return self._books

    def pack(self, part: float, then: float) -> None:
        """Wait until so much of the shift is packed; ``then`` is where the floor will rest."""
        count = self.floor.count
        goal = round(part * count)
        self.floor.work_until(round(then * count))
        self.until(f"{goal} shipments are packed", lambda: self.gauges.packed() >= goal)

    def until(self, what: str, is_so: Callable[[], T | None]) -> T:
        """Wait for something, and give back what it was."""
        while not (found := is_so()):
            self._show()
            if self.site.has_ended:
                raise Missing(f"ergon run --all ended before {what}:\n{self.site.last_words()}")
            if time.monotonic() > self._ends_at:
                told = self.site.last_words()
                raise Missing(
                    f"after {self._timeout:.0f} seconds it is not so that {what}:\n{told}"
                )
            self._pause.wait(POLL_INTERVAL)
        return found

    def end(self) -> None:
        """Let everything come to its end; after that only files are left."""
        if self._gauges is not None:
            self._gauges.close()
            self._gauges = None
        self.site.stop()

    def _show(self) -> None:
        now = time.monotonic()
        if self._gauges is not None and now - self._shown_at >= SHOW_INTERVAL:
            self._shown_at = now
            self._display.show(self._gauges.read())
