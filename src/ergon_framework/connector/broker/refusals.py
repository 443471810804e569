"""Remembers what a system refuses: its connector counts as unusable for that meanwhile.

A lost connection is retried until it is back, and health says so. A message that is refused because
a right, a quota or a topic is missing leaves the connection as it was, so the refusal has to be
remembered until a message of that kind is accepted.
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
    """The refusals of one system, by what was requested: a topic, or dead letters. Any thread may
    call it.
    """

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
        """The names of what is refused."""
        return [*self._found]

    def note(self, what: str, error: ErgonError) -> None:
        """Record a refusal until a message of that kind is accepted."""
        now = current_clock().now()
        _, since = self._found.get(what, (error, now))
        is_new = what not in self._found
        self._found[what] = (error, since)
        if is_new:  # whoever dispatches may keep trying, and nobody else would say why
            remedy = error.remedy or ""
            logger.warning("%s; %s", error.message, remedy)
            emit("broker.refused", broker=self._name, reason=error.message[:300], remedy=remedy)

    def taken(self, what: str) -> None:
        """Record that a message was accepted, so nothing of its kind is refused any more."""
        found = self._found.pop(what, None) if self._found else None
        if found is not None:
            seconds = current_clock().now() - found[1]
            logger.info("%s: no refusal any more for %s, after %.1f s", self._name, what, seconds)
            emit("broker.back", broker=self._name, seconds=seconds)

    def observations(self) -> list[Observation]:
        """The refusals as ``observe`` reports them."""
        return [
            Observation("refused", error.message, error.remedy or "", is_grave=True)
            for error, _ in [*self._found.values()]
        ]
