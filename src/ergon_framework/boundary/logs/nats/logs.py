"""Logs and their ledger, in a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from ergon_framework.boundary.logs.grouping import Grouping, nothing
from ergon_framework.boundary.logs.moving import corrupted
from ergon_framework.boundary.logs.nats import pages
from ergon_framework.boundary.logs.nats.books import Books
from ergon_framework.boundary.logs.nats.entering import Entering
from ergon_framework.boundary.logs.nats.ground import Ground
from ergon_framework.boundary.logs.nats.shelves import Shelf
from ergon_framework.boundary.logs.records import Prepared, key_of, prepare
from ergon_framework.boundary.logs.watching import Watching, tell_head
from ergon_framework.errors import StoreError
from ergon_framework.ports.factstore import (
    Flaw,
    Found,
    Full,
    Gap,
    LogInfo,
    Meanwhile,
    NewFact,
    Outcome,
    Page,
)
from ergon_framework.storage.nats.errors import too_large

MOST_FACTS = 300
"""Facts of one commit: each has an id and may have an object's name, and a batch has an end."""
MOST_BYTES = 8 << 20
OVERHEAD = 4096
"""Bytes that a message has beside the fact, at most."""


@dataclass(slots=True)
class Append:
    """One caller's facts on their way in."""

    log: str
    facts: list[Prepared]
    capacity: int | None


class NatsLogs(Ground):
    """The part of the store that keeps facts."""

    def __init__(
        self,
        url: str,
        *,
        zone: str,
        clock: Callable[[], float] | None = None,
        read_only: bool = False,
    ) -> None:
        self._watch: Callable[[int, float], None] | None = None
        self._before_waiting: Meanwhile = nothing
        self._appends: Grouping[Append, list[Outcome]] = Grouping(
            self._append_all, weigh=lambda asked: len(asked.facts), name="ergon-append"
        )
        super().__init__(url, zone=zone, clock=clock, read_only=read_only)

    @property
    def largest(self) -> int | None:
        """Bytes that envelope and fact may take together, as the server says."""
        return self._line.max_payload - OVERHEAD

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[Outcome]:
        """Append in order, each with an outcome of its own; many in several commits."""
        if not facts:
            return []
        asked = self._prepared(log, facts, capacity)
        self._before_waiting()
        return self._appends.call(asked)

    def append_soon(
        self,
        log: str,
        facts: Sequence[NewFact],
        done: Callable[[list[Outcome] | BaseException], None],
        *,
        capacity: int | None = None,
        group_done: Callable[[], None] | None = None,
    ) -> None:
        """The same without waiting: ``done`` is called, by another thread, after the commit."""
        try:
            asked = self._prepared(log, facts, capacity)
        except StoreError as error:
            done(error)
        else:
            self._appends.call_soon(asked, done, group_done)

    def _prepared(self, log: str, facts: Sequence[NewFact], capacity: int | None) -> Append:
        """Work out what can be, and refuse what would make all fail that share its commit."""
        prepared = [prepare(log, each) for each in facts]
        if any(each.size > (self.largest or 0) for each in prepared):
            raise too_large(self.url)
        return Append(log, prepared, capacity)

    def watch_waits(self, seen: Meanwhile) -> None:
        """Tell when an append is about to wait."""
        self._before_waiting = Watching(seen, "waits")

    def watch_heads(self, seen: Callable[[str, int], None]) -> None:
        """Tell up to which offset a log has grown."""
        self._heads_seen = Watching(seen, "heads")

    def watch_commits(self, seen: Callable[[int, float], None]) -> None:
        """Tell of each group of appends: how many facts, and the seconds it took."""
        self._watch = Watching(seen, "commits")

    def close(self) -> None:
        """Let go of everything, after what was left to be appended. Closing twice is fine."""
        self._appends.close()
        super().close()

    def _append_all(self, asked: Sequence[Append]) -> list[list[Outcome]]:
        """Append for several callers, in as few commits as can hold it."""
        began, outcomes = perf_counter(), [list[Outcome]() for _ in asked]
        for each in asked:
            self._refer_ahead(each.facts, "append", is_awaited=False)
        for part in _parts(asked):
            for index, found in zip(part, self._enter(list(part.values())), strict=True):
                outcomes[index] += found
                if any(isinstance(each, Full) for each in found):
                    asked[index].capacity = 0  # nothing enters behind it in a later commit either
        if self._heads_seen is not None:
            for each, found in zip(asked, outcomes, strict=True):
                tell_head(self._heads_seen, each.log, found)
        if self._watch is not None:
            self._watch(sum(len(each.facts) for each in asked), perf_counter() - began)
        return outcomes

    def _enter(self, asked: Sequence[Append]) -> list[list[Outcome]]:
        keys = [fact.key for each in asked for fact in each.facts]

        def work(books: Books) -> list[list[Outcome]]:
            known = books.known(keys, {each.log for each in asked})
            entering = Entering(books, self._clock(), known)
            return [entering.append(each.log, each.facts, each.capacity) for each in asked]

        return self._step(work, "append")

    # ---- reading --------------------------------------------------------------------------------

    def find(self, from_zone: str, message_id: str, log: str | None = None) -> Found | None:
        """Look an id up in one log, or in all: ``outbound`` first."""

        def work(books: Books) -> Found | None:
            found = [each for each in books.shelves() if log in {None, each.name}]
            keys = {each.name: key_of(each.name, from_zone, message_id) for each in found}
            known = books.known(keys.values(), keys)
            for shelf in found:
                one = known.get(keys[shelf.name])
                if one is not None:
                    is_kept = one.offset >= shelf.first
                    return Found(shelf.name, one.offset, one.digest, is_retained=is_kept)
            return None

        return self._look(work)

    def page(
        self, log: str, after: int, limit: int, max_bytes: int, to_zone: str | None = None
    ) -> Page:
        """Read what is kept, without a consumer; a log that is not there is empty."""

        def work(books: Books) -> Page:
            shelf = books.shelf(log)
            if shelf is None:
                return pages.empty(after)
            stretch = pages.read(books, shelf, after, limit, max_bytes, to_zone)
            if stretch.corrupted is not None and not stretch.page.facts:
                raise corrupted(log, stretch.corrupted, self.url)
            return stretch.page

        return self._look(work)

    def logs(self) -> list[LogInfo]:
        """Every log, ``outbound`` first and always."""
        return self._look(lambda books: [each.info() for each in books.shelves()])

    def gaps(self, log: str | None = None) -> list[Gap]:
        """Every recorded loss."""

        def work(books: Books) -> list[Gap]:
            found = [each for each in books.shelves() if log in {None, each.name}]
            return [gap for shelf in found for gap in pages.gaps_of(books, shelf)]

        return self._look(work)

    def aged(self, log: str, before: float) -> int:
        """The highest offset such that it and all below it were recorded before an instant."""

        def work(books: Books) -> int:
            shelf = books.shelf(log)
            if shelf is None:
                return 0
            if shelf.cut_risen_at >= before:  # the clock has gone back since: look at each
                return _aged_one_by_one(books, shelf, before)
            last = pages.search(books, shelf, lambda entry: entry.risen_at < before)
            return shelf.first - 1 if last is None else last.offset

        return self._look(work)

    def verify(self, log: str, after: int = 0) -> Iterator[Flaw | int]:
        """Walk the hash chain as it was when the walk began."""
        shelf = self._look(lambda books: books.shelf(log))
        at = after if shelf is None else max(after, shelf.first - 1)
        while shelf is not None and at < shelf.head:
            found, at = self._look(_leg(shelf, at))
            yield from found


def _leg(shelf: Shelf, at: int) -> Callable[[Books], tuple[list[Flaw | int], int]]:
    """Some steps of the walk along a log, and where they ended."""

    def work(books: Books) -> tuple[list[Flaw | int], int]:
        found: list[Flaw | int] = []
        chain, seen = pages.place_of(books, shelf, at).chain, at
        for each in pages.all_after(books, shelf, at):
            if isinstance(each, pages.Hole):
                found.append(Flaw(shelf.name, each.offset, "it is not what was stored there"))
                chain = b""
            elif chain and not each.follows(chain):
                found.append(Flaw(shelf.name, each.offset, "it does not follow the one before it"))
                chain = each.chain
            else:
                chain = each.chain
            seen = each.offset
            found.append(seen)
            if len(found) >= pages.CHUNK:
                break
        return found, seen if found else shelf.head

    return work


def _aged_one_by_one(books: Books, shelf: Shelf, before: float) -> int:
    last = shelf.first - 1
    for each in pages.all_after(books, shelf, last):
        if isinstance(each, pages.Hole) or each.recorded_at >= before:
            break
        last = each.offset
    return last


def _parts(asked: Sequence[Append]) -> Iterator[dict[int, Append]]:
    """What callers want appended, in order, in parts that fit into one commit."""
    part: dict[int, Append] = {}
    count = size = 0
    for index, each in enumerate(asked):
        for fact in each.facts:
            weight = 1 + len(fact.new.references)
            if part and (count + weight > MOST_FACTS or size + fact.size > MOST_BYTES):
                yield part
                part, count, size = {}, 0, 0
            mine = part.setdefault(index, Append(each.log, [], each.capacity))
            mine.facts.append(fact)
            count, size = count + weight, size + fact.size
    if part:
        yield part
