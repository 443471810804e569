"""A server that is away for a while, or that hangs, while everybody goes on working."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from tests.campaign.outage_retry import pause
from tests.differential.engines import ServerEngine
from tests.fleet.fleet import LEAVING

STOPPED, FROZEN = "stopped", "frozen"
HOWS = (STOPPED, FROZEN)
"""Ended, so that connections are refused; or hung, as a network that swallows everything."""


@contextmanager
def away(engine: ServerEngine, how: str) -> Iterator[None]:
    """Without the server from here to the end."""
    if how == FROZEN:
        engine.freeze()
    else:
        engine.server.stop()
    try:
        yield
    finally:
        if how == FROZEN:
            engine.thaw()
        else:
            engine.server.start()


class Doer:
    """A thread that does one piece of work after the other, each until it has succeeded."""

    def __init__(self, work: Callable[[int], bool], every: float = 0.05) -> None:
        self.done: list[int] = []
        """The numbers of what was acknowledged."""
        self.begun = 0
        self.failed = 0
        """Attempts that were refused, and made again."""
        self._work, self._every = work, every
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join(LEAVING)

    @property
    def is_alive(self) -> bool:
        """Whether nothing has ended it that it did not expect."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Begin nothing new; what was begun is finished."""
        self._is_over.set()
        self._thread.join(LEAVING)
        assert not self._thread.is_alive(), "it does not come to an end"

    def _run(self) -> None:
        while not self._is_over.is_set():
            self.begun += 1
            while not self._work(self.begun):
                self.failed += 1
                pause(self._every)
            self.done.append(self.begun)
            pause(self._every)
