"""Ends a burst whose source is away, for connectors wait for a broker until it is back.

A program that runs until it is stopped wants that. One that was started to do what is due, by cron
say, would hang until somebody looked, and the jobs behind its messages would wait as long.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from ergon_framework.app.lifespan import offered
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ConnectorError

MAX_BURST_OUTAGE = 60.0
"""Seconds that a burst waits for a source that is away."""
_LOOKS = 20
"""How often it is looked at in that time."""


class SourceWatch:
    """Asks sources for their health in its own thread, and stops the call that waits for them."""

    def __init__(
        self,
        name: str,
        sources: Iterable[Any],
        stop: Callable[[], object],
        max_outage: float | None,
    ) -> None:
        """``max_outage``: seconds that all sources may be away; None: for ever, and nobody asks."""
        found = [offered(each, ("health",)) for each in sources]
        self._asks = [ask for ask in found if ask and not inspect.iscoroutinefunction(ask)]
        self._name = name
        self._stop = stop
        self._max_outage = max_outage
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_given_up = False

    def __enter__(self) -> Self:
        if self._max_outage is not None and self._asks:
            self._thread = threading.Thread(
                target=self._look, args=(self._max_outage,), name="ergon-source-watch", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: object, __: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._is_given_up and kind is None:
            raise ConnectorError(
                f"the consumer {self._name!r} has waited {self._max_outage:g} seconds for a source"
                " that is away, and a burst waits no longer",
                remedy="see that it runs and can be reached, and start again; ergon doctor tells"
                " more",
            )

    def _look(self, max_outage: float) -> None:
        away_since: float | None = None
        while not self._ended.wait(max_outage / _LOOKS):
            now = SYSTEM_CLOCK.now()
            if all(_is_there(ask) for ask in self._asks):
                away_since = None
            elif away_since is None:
                away_since = now
            elif now - away_since >= max_outage:
                self._is_given_up = True
                self._stop()
                return


def _is_there(ask: Callable[[], object]) -> bool:
    try:
        return ask() is not False  # a connector of a user may answer something else, or nothing
    except Exception:  # what it cannot say is no reason to end
        return True
