"""What a system that is there refuses to take: its connector cannot be used for it meanwhile.

A lost connection is tried again until it is there, and health says so. A message that is refused
for want of a right, a quota or a topic leaves the connection as it was, so somebody has to remember
it until the like is taken.
"""

from __future__ import annotations

import logging

from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import ErgonError
from ergon_framework.storage.server import Observation
from ergon_framework.telemetry.notices import emit

logger = logging.getLogger("ergon.connector")


class Refusals:
    """What one system refuses, by what was asked of it: a topic, or dead letters. Any thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the refusals in a forked child, which has asked for nothing yet."""
        self._found: dict[str, tuple[ErgonError, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def names(self) -> list[str]:
        """What is refused."""
        return [*self._found]

    def note(self, what: str, error: ErgonError) -> None:
        """It is refused until the like of it is taken."""
        now = current_clock().now()
        _, since = self._found.get(what, (error, now))
        is_new = what not in self._found
        self._found[what] = (error, since)
        if is_new:  # whoever dispatches may keep trying, and nobody else would say why
            remedy = error.remedy or ""
            logger.warning("%s; %s", error.message, remedy)
            emit("broker.refused", broker=self._name, reason=error.message[:300], remedy=remedy)

    def taken(self, what: str) -> None:
        """It was taken, so nothing of it is refused any more."""
        found = self._found.pop(what, None) if self._found else None
        if found is not None:
            seconds = current_clock().now() - found[1]
            logger.info("%s: no refusal any more for %s, after %.1f s", self._name, what, seconds)
            emit("broker.back", broker=self._name, seconds=seconds)

    def observations(self) -> list[Observation]:
        """What ``observe`` says of it."""
        return [
            Observation("refused", error.message, error.remedy or "", is_grave=True)
            for error, _ in [*self._found.values()]
        ]
