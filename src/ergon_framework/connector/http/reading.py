"""Reads page after page, and moves the cursor over those whose items are all settled.

Pages are read ahead of the cursor as far as the connector has room. An item is known by its id: it
is delivered when it is neither done nor in hand, on however many pages it stands. So a page may be
read again at any time, and after a crash it is.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ergon_framework.connector.broker.wakeup import Wakeup
from ergon_framework.connector.http.client import Answer, ClientRules, PageClient, RequestError
from ergon_framework.connector.http.page import (
    Item,
    PageError,
    PageRules,
    document_of,
    items_of,
    later,
    not_in_future,
)
from ergon_framework.connector.http.paging import MAX_POSITION, Paging
from ergon_framework.connector.http.progress import Cursor, PollProgress
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import ConfigurationError
from ergon_framework.providers.mapping.retry_after import retry_after_seconds
from ergon_framework.telemetry.propagation import outgoing_metadata

logger = logging.getLogger("ergon.connector")
MAX_FRUITLESS = 1000
"""Pages in a row without anything new, after which the API is left alone for a while."""
_MAX_ETAG = 1024
_GONE = frozenset({400, 404, 410, 416, 422})
_PASSING = frozenset({408, 409, 425, 429})


class HeldItem:
    """An item that was read and is not settled."""

    __slots__ = ("item", "place")

    def __init__(self, item: Item, place: int) -> None:
        self.item = item
        self.place = place


@dataclass(eq=False, slots=True)
class _Page:
    position: str | None
    next: str | None = None
    etag: str | None = None
    highest: Any = None
    count: int = 0
    waiting: set[str] = field(default_factory=set)
    """Ids on it that are not done."""

    @property
    def is_done(self) -> bool:
        return not self.waiting


class PageReader:
    """One consumer's way through the pages. One thread at a time reads; any thread settles."""

    def __init__(
        self,
        paging: Paging,
        rules: PageRules,
        client: ClientRules,
        progress: PollProgress,
        *,
        is_sweeping: bool,
        interval: float,
        remember: int,
    ) -> None:
        self._paging = paging
        self._rules = rules
        self._client = PageClient(paging.url, client)
        self.progress = progress
        self._is_sweeping = is_sweeping
        self._interval = interval
        self._remember = remember
        self._cursor = self._loaded(progress.cursor())
        self._pages: deque[_Page] = deque()
        self._open: dict[str, HeldItem] = {}
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # for whoever reads, or moves the cursor
        self._places = itertools.count()
        self._asking: Future[Answer] | None = None
        self._fruitless: set[str | None] = set()
        self._malformed = 0
        self._is_resting = False
        self.due_at = 0.0
        """The instant, by the current clock, before which no request is made."""

    def close(self) -> None:
        """Move the cursor as far as it goes, and close."""
        try:
            self._client.close()
            self.advance()
        finally:
            self.progress.close()

    @property
    def is_held_up(self) -> bool:
        """Whether the next pass has to wait for items of this one."""
        with self._lock:
            is_at_end = self._is_sweeping and bool(self._pages) and self._pages[-1].next is None
            return is_at_end and any(page.waiting for page in self._pages)

    @property
    def is_at_end(self) -> bool:
        """Whether the last known page was read, or no request may be made now."""
        with self._lock:
            return not self._pages or self._pages[-1].next is None or self._is_resting

    def take_malformed(self) -> int:
        """How many items were set aside since the last time."""
        found, self._malformed = self._malformed, 0
        return found

    def is_open(self, held: HeldItem) -> bool:
        """Whether this reader has read the item, and the item is not settled."""
        with self._lock:
            return self._open.get(held.item.identity) is held

    # ---- settling -------------------------------------------------------------------------------

    def settle(self, held: HeldItem, reason: str | None) -> bool:
        """Settle an item: it succeeded, or failed for good with a reason. On disk when this
        returns.

        Returns whether it was the last item of a page.
        """
        item = held.item
        if reason is None:
            self.progress.settle(item.identity, self._cursor.number)
        else:
            self.progress.bury(item.identity, self._cursor.number, reason, item.data)
        with self._lock:
            self._open.pop(item.identity, None)
            concerned = [page for page in self._pages if item.identity in page.waiting]
            for page in concerned:
                page.waiting.discard(item.identity)
            return any(not page.waiting for page in concerned)

    # ---- reading --------------------------------------------------------------------------------

    def read(self, wakeup: Wakeup) -> list[HeldItem] | None:
        """The new items of the next page; None when a stop was asked for meanwhile."""
        with self._turn:
            return self._read(wakeup)

    def _read(self, wakeup: Wakeup) -> list[HeldItem] | None:
        position, etag = self._wanted()
        answer = self._answer(wakeup, position, etag)
        if answer is None:
            return None
        if answer.status == 304 and etag is not None:
            self.due_at = current_clock().now() + self._interval
            return []
        if answer.status in _GONE and position is not None and self._is_sweeping:
            self._begin_again()
            return []
        self._refuse(answer, position)
        return self._taken(position, answer)

    def _loaded(self, cursor: Cursor) -> Cursor:
        """What was kept; a place that another way to the next page led to means nothing here."""
        if cursor.position is None:
            return cursor
        way, _, position = cursor.position.partition(":")
        if way != self._paging.way:
            raise ConfigurationError(
                f"the cursor was kept with {way}=, and now the connector has {self._paging.way}=",
                remedy="give it another consumer=, which begins at the first page",
            )
        return replace(cursor, position=position)

    def _kept(self, cursor: Cursor) -> Cursor:
        """The same as it is kept."""
        if cursor.position is None:
            return cursor
        return replace(cursor, position=f"{self._paging.way}:{cursor.position}")

    def _wanted(self) -> tuple[str | None, str | None]:
        """The next page to read, and what is known of it."""
        if not self._pages:
            return self._cursor.position, self._cursor.etag
        last = self._pages[-1]
        return (last.position, last.etag) if last.next is None else (last.next, None)

    def _answer(self, wakeup: Wakeup, position: str | None, etag: str | None) -> Answer | None:
        if self._asking is None:
            since = None if self._cursor.since is None else msgspec.json.decode(self._cursor.since)
            url = self._paging.request(position, since)
            headers = dict(outgoing_metadata())
            if etag is not None:
                headers["if-none-match"] = etag
            self._asking = self._client.ask(url, headers)
            self._asking.add_done_callback(lambda _: wakeup.notify())
        asking = self._asking
        wakeup.wait(None, asking.done)
        if not asking.done():
            return None
        self._asking = None
        return asking.result()

    def _refuse(self, answer: Answer, position: str | None) -> None:
        """Raise the error that an answer without a page means."""
        status = answer.status
        if 200 <= status < 300:
            return
        if status in _PASSING or status >= 500 or status < 400:
            error = RequestError(f"the API answers {status}")
            error.retry_after_seconds = retry_after_seconds(
                answer.headers, time.time(), is_throttled=status == 429
            )
            raise error
        if status in (401, 403):
            raise ConfigurationError(
                f"the API does not let us in: it answers {status}",
                remedy="see that token, headers or the user in the URL are right, and suffice",
            )
        if position is not None and status in _GONE:
            raise ConfigurationError(
                f"the API does not know the page any more at which the cursor stands: it answers"
                f" {status}",
                remedy="give a new consumer= to begin at the first page; with since= or"
                ' again="first" a look begins there by itself',
            )
        raise ConfigurationError(
            f"the API refuses what is asked: it answers {status}",
            remedy="correct the path and the query of the URL",
        )

    def _taken(self, position: str | None, answer: Answer) -> list[HeldItem]:
        """Take in the page of an answer. It is checked before anything is changed."""
        if answer.status == 204 or (self._rules.is_lines and not answer.body.strip()):
            document, items = None, []
        else:
            document = document_of(answer.body, is_lines=self._rules.is_lines)
            items = items_of(document, self._rules)
        follows = self._follows(position, document, answer.headers, len(items))
        by_id: dict[str, Item] = {}
        for item in items:
            by_id.setdefault(item.identity, item)
        done = self.progress.done(list(by_id), self._cursor.number)
        for item in by_id.values():
            if item.problem and item.identity not in done:
                self._set_aside(item)
                done.add(item.identity)
        found = self._note(position, follows, answer.headers.get("etag"), by_id, done)
        self._pace(position, follows, is_fruitless=not found)
        return found

    def _note(
        self,
        position: str | None,
        follows: str | None,
        etag: str | None,
        items: Mapping[str, Item],
        done: set[str],
    ) -> list[HeldItem]:
        with self._lock:
            page = self._pages[-1] if self._pages else None
            if page is None or page.position != position or page.next is not None:
                page = _Page(position)
                self._pages.append(page)
            page.next, page.count = follows, len(items)
            page.etag = etag if etag and len(etag) <= _MAX_ETAG and etag.isprintable() else None
            found: list[HeldItem] = []
            for identity, item in items.items():
                page.highest = later(page.highest, item.since)
                if identity in done:
                    continue
                page.waiting.add(identity)
                if identity not in self._open:
                    self._open[identity] = HeldItem(item, next(self._places))
                    found.append(self._open[identity])
            return found

    def _follows(
        self, position: str | None, document: Any, headers: Mapping[str, str], count: int
    ) -> str | None:
        found = self._paging.next(position, document, headers, count)
        if found is None:
            return None
        _check_position(found)
        if self._paging.has_links:
            found = self._client.resolve(position or self._paging.url, found)
        if len(found) > MAX_POSITION:
            raise PageError(f"the cursor of the next page has more than {MAX_POSITION} characters")
        if found in (position, self._paging.url):
            return None
        if found in self._fruitless:
            logger.warning(
                "the pages of %s lead back to one that was read; this one counts as the last",
                self._paging.url.partition("?")[0],
            )
            return None
        return found

    def _pace(self, position: str | None, follows: str | None, *, is_fruitless: bool) -> None:
        """When the next request may be made."""
        if is_fruitless and follows is not None:
            self._fruitless.add(position)
        else:
            self._fruitless.clear()
        self._is_resting = len(self._fruitless) >= MAX_FRUITLESS
        if self._is_resting:
            self._fruitless.clear()
            logger.warning(
                "%d pages in a row of %s had nothing new; reading goes on in a while",
                MAX_FRUITLESS,
                self._paging.url.partition("?")[0],
            )
            self.due_at = current_clock().now() + max(1.0, self._interval)
        elif follows is None:
            self.due_at = current_clock().now() + self._interval

    def _set_aside(self, item: Item) -> None:
        self.progress.bury(item.identity, self._cursor.number, item.problem, item.data or None)
        self._malformed += 1
        logger.warning("an item is set aside: %s", item.problem)

    # ---- the cursor -----------------------------------------------------------------------------

    def advance(self) -> None:
        """Move the cursor over pages that are done."""
        with self._turn:
            self._advance()

    def _advance(self) -> None:
        with self._lock:
            pages, cursor = list(self._pages), self._cursor
            done = list(itertools.takewhile(lambda page: page.is_done, pages))
            moved = [page for page in done if page.next is not None]
            tail = done[-1] if done and done[-1].next is None else None
            # Whatever is on a page that may be asked for again is remembered in any case.
            keep = self._remember + sum(page.count for page in pages)
        for page in moved:
            cursor = replace(cursor, position=page.next, etag=None, highest=_later(cursor, page))
        if tail is not None and self._is_sweeping:
            self._end_pass(cursor, tail)
            return
        if tail is not None:
            cursor = replace(cursor, etag=tail.etag)
        if cursor != self._cursor:
            self.progress.move(self._kept(cursor), None if self._is_sweeping else keep)
            self._cursor = cursor
        with self._lock:
            for _ in moved:
                self._pages.popleft()

    def _end_pass(self, cursor: Cursor, tail: _Page) -> None:
        """End a pass whose pages were all read and settled."""
        highest, since = _later(cursor, tail), None
        if self._paging.since is not None:
            known = None if cursor.since is None else msgspec.json.decode(cursor.since)
            found = None if highest is None else msgspec.json.decode(highest)
            since = _encoded(later(known, not_in_future(found, time.time())))
        is_one_page = tail.position is None
        etag = tail.etag if is_one_page and since == cursor.since else None
        after = replace(cursor, position=None, etag=etag, since=since, highest=None)
        self._cursor = self.progress.end_pass(after)
        with self._lock:
            self._pages.clear()

    def _begin_again(self) -> None:
        """The API does not know a page of this pass any more: read it from the first page."""
        logger.warning(
            "%s does not know a page any more; reading begins at the first one",
            self._paging.url.partition("?")[0],
        )
        cursor = replace(self._cursor, position=None, etag=None, highest=None)
        self.progress.move(cursor, None)
        self._cursor = cursor
        self.due_at = current_clock().now() + max(1.0, self._interval)
        with self._lock:
            self._pages.clear()


def first_page(paging: Paging, rules: PageRules, client_rules: ClientRules) -> int:
    """How many items the first page has. Nothing is recorded."""
    client = PageClient(paging.url, client_rules)
    try:
        url = paging.request(None, None)
        answer = client.ask(url, {}).result()
    finally:
        client.close()
    if answer.status == 204:
        return 0
    if not 200 <= answer.status < 300:
        raise RequestError(f"the API answers {answer.status}")
    return len(items_of(document_of(answer.body, is_lines=rules.is_lines), rules))


def _check_position(found: str) -> None:
    """Refuse a position that cannot be sent in a request."""
    try:
        found.encode()
    except UnicodeEncodeError:
        raise PageError(
            "the cursor or link of the next page is not valid Unicode text",
            remedy="see that the API answers in UTF-8; the page is asked for again",
        ) from None


def _later(cursor: Cursor, page: _Page) -> str | None:
    known = None if cursor.highest is None else msgspec.json.decode(cursor.highest)
    return _encoded(later(known, page.highest))


def _encoded(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
