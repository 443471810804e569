"""Fetches that wait for facts, and which of them a commit concerns.

A commit says that some log has grown. One look tells which, and one more for each view that
somebody waits for whether it has anything: a fetch of another log or view is left alone, however
many wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from ergon_framework.boundary.offloop import InThread
from ergon_framework.errors import BoundaryError, StoreError
from ergon_framework.ports.factstore import FactStore, Serving


class Fetch:
    """One fetch that waits, or is about to."""

    __slots__ = ("log", "news", "seen", "to_zone")

    def __init__(self, news: asyncio.Future[None]) -> None:
        self.news = news
        self.log: str | None = None
        self.to_zone: str | None = None
        self.seen = 0

    def has_seen(self, serving: Serving) -> None:
        """There was nothing for it up to here."""
        self.log, self.to_zone = serving.consumer.log, serving.consumer.to_zone
        self.seen = serving.page.through


class WaitingFetches:
    """All fetches of a node that wait. Lives on one event loop."""

    def __init__(self, store: FactStore, in_thread: InThread) -> None:
        self._store = store
        self._in_thread = in_thread
        self._loop = asyncio.get_running_loop()
        self._fetches: set[Fetch] = set()
        self._is_due = False
        self._looking: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        return bool(self._fetches)

    @contextmanager
    def fetch(self) -> Iterator[Fetch]:
        """A fetch that is woken for anything until it says what it waits for."""
        fetch = Fetch(self._loop.create_future())
        self._fetches.add(fetch)
        try:
            yield fetch
        finally:
            self._fetches.discard(fetch)

    def wake_all(self) -> None:
        """Let every one look again."""
        for each in self._fetches:
            _wake(each)

    def look(self) -> None:
        """Some log has grown: wake whom it concerns."""
        self._is_due = True
        if self._looking is None or self._looking.done():
            self._looking = self._loop.create_task(self._look(), name="wake fetches")

    async def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self) -> None:
        while self._is_due and self._fetches:
            self._is_due = False
            for each in self._fetches:
                if each.log is None:  # it is just looking, maybe too early
                    _wake(each)
            waiting = {
                (each.log, each.to_zone, each.seen)
                for each in self._fetches
                if each.log is not None and not each.news.done()
            }
            try:
                found = await self._in_thread(partial(_news, self._store, waiting))
            except (StoreError, BoundaryError):
                self.wake_all()  # each is told by itself what is wrong
                continue
            for each in self._fetches:
                if each.log is None:
                    continue  # it came while the store was asked
                through = found.get((each.log, each.to_zone, each.seen), each.seen)
                if through is None:
                    _wake(each)
                else:
                    each.seen = through


View = tuple[str, str | None, int]


def _news(store: FactStore, waiting: set[View]) -> dict[View, int | None]:
    """Of each view whose log has grown: up to where there is nothing in it, or None: look."""
    heads = {each.name: each.head for each in store.logs()}
    found: dict[View, int | None] = {}
    for log, to_zone, seen in waiting:
        if heads.get(log, 0) <= seen:
            continue
        page = None if to_zone is None else store.page(log, seen, 1, 1, to_zone)
        is_empty = page is not None and not page.facts and not page.gaps
        found[log, to_zone, seen] = page.through if page is not None and is_empty else None
    return found


def _wake(fetch: Fetch) -> None:
    if not fetch.news.done():
        fetch.news.set_result(None)
