"""Finds executors and handlers that due jobs need and no worker has, and decides how long jobs wait
for them.

A job waits for its executor, and for a version of it that has its handler. Workers are restarted,
deployed one after another, and cut off from the store, and none of that is the job's fault. Only
when no worker has had the executor or the handler for ``executor_wait``, and the job has been due
for as long, is the job dead-lettered. Jobs that wait for a handler are in a lane of its name (see
``core.claim``), and each worker reports which of these lanes it serves.

When an executor was last seen is kept in the store, so that a restart of the worker that checks
does not start the time anew. A clock that was set, or a store that was away, makes that instant
look old. So this worker must also have missed the executor itself for as long as other workers need
to report.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from ergon_framework.core.job import ExecutorMissing, InvalidTransition, route
from ergon_framework.core.text import duration, first_names
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler, notice_fields
from ergon_framework.ports.jobstore import FullJobStore, Named

logger = logging.getLogger("ergon.jobs")

CHECK_INTERVAL = 30.0
"""Seconds between two searches for jobs whose executor no worker has."""
ALERT_AFTER = 60.0
"""Seconds without an executor after which a warning is logged."""
DEAD_LETTER_BATCH = 100
"""How many jobs one commit dead-letters."""

Report = Callable[[str, dict[str, Any]], None]


class MissingExecutors:
    """Finds executors and handlers that no live worker has, warns, and ends jobs that waited too
    long.
    """

    def __init__(
        self,
        store: FullJobStore,
        settings: JobsSettings,
        settler: Settler,
        now: Callable[[], float],
        report: Report,
        serves: Callable[[str, Iterable[str]], bool] = lambda _lane, _queues: False,
    ) -> None:
        """``serves`` tells whether this worker has the handler that a lane's jobs wait for."""
        self.known: frozenset[str] = frozenset()  # what live workers have, this one included
        self.lookers: tuple[str, ...] = ()  # the names of these workers
        self.served: tuple[str, ...] = ()
        """The lanes of handlers with due jobs that this worker serves."""
        self._serves = serves
        self._store = store
        self._wait = math.inf if settings.executor_wait is None else settings.executor_wait
        self._others_tell = 3 * settings.lease
        self._settler = settler
        self._now = now
        self._report = report
        self._since: dict[str, float] = {}  # when this worker first missed each, by its own clock
        self._alerted: set[str] = set()

    def look(self) -> float:
        """Warn of missing executors, and end what has waited long enough. Returns seconds to the
        next call.
        """
        named = self._store.named()
        lanes = [each for each in named if "#" in each.executor]
        self.served = tuple(
            each.executor for each in lanes if self._serves(each.executor, each.queues)
        )
        there = self.known.union(self.served)
        missing = [each for each in named if each.executor not in there]
        names = {each.executor for each in missing}
        for name in self._alerted - names:
            self._alerted.discard(name)
            self._find(name)
        now = self._now()
        self._since = {name: self._since.get(name, now) for name in names}
        for each in missing:
            self._warn_or_end(each, now - self._since[each.executor])
        return min(CHECK_INTERVAL, max(1.0, self._wait / 10))

    def _warn_or_end(self, missing: Named, seen_missing: float) -> None:
        """Warn or end jobs; ``seen_missing``: seconds for which this worker has missed it."""
        now = self._store.now()
        away = 0.0 if missing.seen_at is None else now - missing.seen_at
        # A handler that no worker has reported yet may be about to be: workers search for such jobs
        # every half minute, and then report that they have it.
        unseen = seen_missing if "#" in missing.executor else away
        if min(away, unseen) >= ALERT_AFTER and missing.executor not in self._alerted:
            self._alerted.add(missing.executor)
            self._alert(missing, min(away, unseen))
        if away >= self._wait and seen_missing >= min(self._wait, self._others_tell):
            self._end(missing.executor, now)

    def _find(self, name: str) -> None:
        executor, handler = route(name) if "#" in name else (name, "")
        if handler:
            text = "a worker has the handler %r by now, or nothing waits for it"
            logger.warning(text, handler)
            self._report("handler.found", {"executor": executor, "handler": handler})
        else:
            logger.warning("executor %r is there again, or nothing waits for it", executor)
            self._report("executor.found", {"executor": executor})

    def _alert(self, missing: Named, away: float) -> None:
        if "#" in missing.executor:
            self._alert_handler(missing, away)
            return
        logger.warning(
            "no worker has had the executor %r for %s, and jobs wait for it in %s; start a worker"
            " with [executors.%s]",
            missing.executor,
            duration(away),
            ", ".join(map(repr, missing.queues)),
            missing.executor,
        )
        fields = {"executor": missing.executor, "queues": missing.queues, "seconds": away}
        self._report("executor.missing", fields)

    def _alert_handler(self, missing: Named, away: float) -> None:
        executor, handler = route(missing.executor)
        logger.warning(
            "no worker has had the handler %r for %s, and jobs wait for it in %s; start a worker of"
            " a version that has it. These looked: %s",
            handler,
            duration(away),
            ", ".join(map(repr, missing.queues)),
            first_names(self.lookers),
        )
        fields = {"executor": executor, "handler": handler, "queues": missing.queues}
        self._report("handler.missing", fields | {"seconds": away, "workers": self.lookers})

    def _end(self, name: str, now: float) -> None:
        """Dead-letter jobs that have been due for as long as a job may wait, some at a time."""
        executor, handler = route(name) if "#" in name else (name, "")
        jobs = self._store.waiting_for(name, now - self._wait, DEAD_LETTER_BATCH)
        event = ExecutorMissing(executor, handler)
        settlements = []
        for job in jobs:
            with suppress(InvalidTransition):  # Another worker has settled it meanwhile.
                settlements.append(self._settler.settle_stored(job, event, now))
        if not settlements:
            return
        applied, _ = self._store.settle_and_claim(settlements, None)
        ended = [
            each for each, was_applied in zip(settlements, applied, strict=True) if was_applied
        ]
        logger.error(
            "%d job(s) were dead-lettered: no worker has had their %s %r for %s",
            len(ended),
            "handler" if handler else "executor",
            handler or executor,
            duration(self._wait),
        )
        for settlement in ended:
            self._report("job.dead_lettered", notice_fields(settlement))
