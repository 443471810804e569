"""Calls stores and nodes in threads, off the event loop.

Every store and every zone has threads of its own and a time limit. While one hangs, the others
answer. The log records once that a backend does not answer, and once that it answers again.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import (
    BoundaryError,
    BoundaryNotFoundError,
    JobNotFoundError,
    StoreError,
    StoreUnavailableError,
    UnreadableJobError,
)
from ergon_framework.web.audit import LOOK, AuditLog
from ergon_framework.web.backends import PROVIDERS, Backends, JobBackend, ZoneBackend
from ergon_framework.web.responses import (
    BackendUnavailableError,
    ResourceNotFoundError,
    UnknownOutcomeError,
    UnreadableAnswerError,
)

logger = logging.getLogger("ergon.web")


T = TypeVar("T")

THREADS_PER_BACKEND = 4
"""How many calls one backend handles at the same time. Further calls wait."""


class NoAnswerInTimeError(StoreUnavailableError):
    """The error for a call whose caller waits no more. A thread still runs it, and may
    complete it.
    """


class Bulkhead:
    """The threads of one store or zone. If it hangs, its own threads hang and no others do."""

    def __init__(self, name: str, seconds: float, threads: int = THREADS_PER_BACKEND) -> None:
        self.name = name
        self.seconds = seconds
        self._threads = threads
        self._running = 0
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._lock = threading.Lock()

    async def call(self, question: Callable[[], T], seconds: float | None = None) -> T:
        """What the call returns or raises. Raises ``StoreUnavailableError`` when that takes too
        long.

        A call whose caller has left is dropped, unless a thread has begun with it.
        """
        answer: Future[T] = Future()
        with self._lock:
            self._waiting.append((answer, question))
            # Counted under the lock; otherwise a burst of requests would start a thread each.
            is_needed = self._running < self._threads
            self._running += is_needed
        # Not a ThreadPoolExecutor: at exit Python waits for its threads, also for one that hangs in
        # a store.
        if is_needed:
            SYSTEM_CLOCK.spawn(f"ergon-web-{self.name}", self._work)
        timeout = self.seconds if seconds is None else seconds
        try:
            # The thread goes on, because threads cannot be stopped. Only the caller stops waiting.
            async with asyncio.timeout(timeout):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise NoAnswerInTimeError(f"no answer within {timeout:g} s") from None

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                answer, question = self._waiting.popleft()
            # False: the caller left while the call was queued, and the answer is not wanted.
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(question())
                except BaseException as error:  # Raised in the coroutine that made the call.
                    answer.set_exception(error)


_BACKEND_SHARE = 0.8
"""The share of a request's time that a backend may take. The rest is for the answer that it took
too long.
"""
_PAGE_SHARE = 0.9
"""The same for a page, which may call several backends one after another."""
_KINDS = {"zone": "zone", PROVIDERS: "store of the provider"}
_NAMES = {"jobs": "the job store", PROVIDERS: "the store of provider calls"}


class BackendPool:
    """Calls backends by name. Texts of their errors go to the log only, because they may name
    files.
    """

    def __init__(
        self,
        backends: Backends,
        seconds: float,
        *,
        shows_payloads: bool = False,
        audit: AuditLog | None = None,
    ) -> None:
        self.backends = backends
        self.audit = AuditLog() if audit is None else audit
        self.shows_payloads = shows_payloads
        self.page_seconds = seconds * _PAGE_SHARE
        self._away: set[str] = set()
        self.bulkheads = {
            name: Bulkhead(name, seconds * _BACKEND_SHARE) for name, _ in backends.parts()
        }

    def over(self, backends: Backends) -> BackendPool:
        """The same threads and the same log, for other views of the same backends."""
        found = copy.copy(self)
        found.backends = backends
        return found

    def jobs(self) -> JobBackend:
        """The job store. Raises an error if the settings have none."""
        if self.backends.jobs is None:
            raise _none("job store", "[store] or [jobs]")
        return self.backends.jobs

    def zone(self, name: str) -> ZoneBackend:
        """A zone. Raises an error if the settings do not have it."""
        if name not in self.backends.zones:
            raise ResourceNotFoundError(
                "the settings of this server have no such zone",
                remedy="the page of zones, or /api/v1/boundary, lists those that there are",
            )
        return self.backends.zones[name]

    async def note_look(self, actor: str, target: str = "", detail: str = "") -> None:
        """Record that somebody looks at payloads, before they are shown; raises if that fails.

        ``target`` is the id of a job; ``detail`` says what else is looked at.
        """
        # In a thread, because a locked file makes the caller wait.
        await asyncio.to_thread(self.audit.seen, actor, LOOK, target, detail)

    async def recorded(
        self, part: str, actor: str, action: str, target: str, detail: str, do: Callable[[], T]
    ) -> T:
        """Have a backend do something, with an entry in the audit log before it. Returns its
        result.
        """
        # In a thread of the backend, which goes on when the request has run out of its time, so
        # that the outcome is recorded all the same.
        record = partial(self.audit.record, actor, action, target, detail, do)
        try:
            return await self.call(part, record)
        except BackendUnavailableError as error:
            if isinstance(error.__cause__, NoAnswerInTimeError):
                what = "the job" if part == "jobs" else "what was to be changed"
                raise UnknownOutcomeError(backend_title(part), what) from error
            raise

    async def call(self, part: str, question: Callable[[], T], seconds: float | None = None) -> T:
        """The answer of a backend. Raises ``BackendUnavailableError`` when it does not answer."""
        try:
            found = await self.bulkheads[part].call(question, seconds)
        # This is an answer, and no outage.
        except (JobNotFoundError, BoundaryNotFoundError):
            raise
        except UnreadableJobError as error:  # It concerns one job: the store does answer.
            logger.warning("%s", error)
            raise UnreadableAnswerError(part, error.code) from error
        except (StoreError, BoundaryError, OSError) as error:
            if part not in self._away:  # Logged once per outage, not for every request.
                logger.warning("%s does not answer: %s", part, error)
            self._away.add(part)
            code = error.code if isinstance(error, StoreError | BoundaryError) else "io"
            raise BackendUnavailableError(part, backend_title(part), code) from error
        if part in self._away:
            self._away.discard(part)
            logger.warning("%s answers again", part)
        return found


def backend_title(part: str) -> str:
    """The name of a backend that is shown to users."""
    if part in _NAMES:
        return _NAMES[part]
    kind, _, name = part.partition(":")
    return f"the {_KINDS[kind]} {name!r}"


def _none(what: str, where: str) -> ResourceNotFoundError:
    return ResourceNotFoundError(
        f"this server has no {what}",
        remedy=f"name one under {where} in its settings, such as url ="
        ' "sqlite:///work.db", and start it again',
    )
