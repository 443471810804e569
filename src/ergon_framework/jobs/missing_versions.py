"""Finds versions that queues are pinned to and no worker runs, and reports them. It changes
nothing.

A pin is the decision of an operator, as a pause is. So jobs of such a queue wait until a worker of
that version starts or the pin is removed, however long that takes, and none is dead-lettered for
it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ergon_framework.core.text import duration
from ergon_framework.jobs.missing_executors import ALERT_AFTER, CHECK_INTERVAL
from ergon_framework.ports.jobstore import JobAdmin

logger = logging.getLogger("ergon.jobs")


class MissingVersions:
    """Finds versions that queues are pinned to and no live worker runs, and warns of them."""

    def __init__(
        self,
        store: JobAdmin,
        now: Callable[[], float],
        report: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.known: frozenset[str] = frozenset()  # the versions of live workers, this one included
        self._store = store
        self._now = now
        self._report = report
        self._since: dict[str, float] = {}  # when this worker first missed each
        self._told: set[str] = set()

    def look(self) -> float:
        """Warn of missing versions. Returns the seconds until the next check."""
        missing: dict[str, list[str]] = {}
        for queue, version in sorted(self._store.pinned_queues().items()):
            if version not in self.known:
                missing.setdefault(version, []).append(queue)
        for version in sorted(self._told - missing.keys()):
            self._told.discard(version)
            logger.warning("a worker runs version %r by now, or no queue is pinned to it", version)
            self._report("version.found", {"version": version})
        now = self._now()
        self._since = {version: self._since.get(version, now) for version in missing}
        for version, queues in missing.items():
            away = now - self._since[version]
            if away >= ALERT_AFTER and version not in self._told:
                self._told.add(version)
                self._alert(version, queues, away)
        return CHECK_INTERVAL

    def _alert(self, version: str, queues: list[str], away: float) -> None:
        logger.warning(
            "no worker has run version %r for %s, and these queues are pinned to it: %s;"
            " start a worker of that version, or let all workers in with: ergon queues unpin QUEUE",
            version,
            duration(away),
            ", ".join(map(repr, queues)),
        )
        self._report("version.missing", {"version": version, "queues": queues, "seconds": away})
