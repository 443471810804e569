"""A connector as tests drive it: the same verbs with threads and with asyncio."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ergon_framework.testing.suites.connector.under_test import ASYNC, SYNC
from ergon_framework.testing.suites.drivers import CheckCaller, LoopCaller, ThreadCaller

COLOURS = ("sync", "async")
PATIENCE = 120.0


class InColour:
    """Calls the methods of one colour, where they belong."""

    def __init__(self, connector: Any, colour: str, caller: CheckCaller) -> None:
        self.connector = connector
        self._names = SYNC if colour == "sync" else ASYNC
        self._caller = caller

    def __call__(self, verb: str, *given: Any, **extra: Any) -> Any:
        return self.begin(verb, *given, **extra).result(PATIENCE)

    def begin(self, verb: str, *given: Any, **extra: Any) -> Any:
        """The same, without waiting: a future."""
        method = getattr(self.connector, self._names[verb])
        return self._caller.start(lambda: method(*given, **extra))

    def take(self, count: int = 1) -> list[Any]:
        """So many transactions, however many fetches it takes."""
        taken: list[Any] = []
        while len(taken) < count:
            batch = self("fetch", count - len(taken), wait=PATIENCE)
            assert batch, f"{len(taken)} of {count} came"
            taken += batch
        return taken


@contextmanager
def driven(colour: str, connector: Any) -> Iterator[InColour]:
    """A connector that is closed at the end, in the colour it was used in."""
    caller: CheckCaller = ThreadCaller() if colour == "sync" else LoopCaller()
    given = InColour(connector, colour, caller)
    try:
        yield given
    finally:
        given("close")
        caller.close()
