"""Checks of moving: what a store holds can be copied out of it and into it, from any other.

The other store of each check is the one in memory, which is the plainest there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

import msgspec

from ergon_framework.boundary.factstore.memory.store import MemoryFactStore
from ergon_framework.errors import StoreError, StoreReadOnlyError
from ergon_framework.ports.factstore import OUTBOUND, Appended, Conflict, Gap
from ergon_framework.ports.transfer import (
    FACT_KINDS,
    PAGE_BYTES,
    AwaitedObjectRecord,
    ConsumerCursorRecord,
    FactIdRecord,
    FactRecord,
    Fence,
    Freezable,
    GapRecord,
    LinkRecord,
    LogRecord,
    ObjectNameRecord,
    OvertakenMoveError,
    QuarantineRecord,
    RecordStore,
    TransferRecord,
    ZoneEpochRecord,
    records_of,
)
from ergon_framework.testing.suites.factstore.under_test import (
    INBOX,
    FactStoreSubject,
    Ways,
    new,
    other,
    same,
    sent,
)
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[FactStoreSubject]] = []
check = register(CHECKS)

C = TypeVar("C", bound=TransferRecord)
NEEDS = "moving"
BODY = b'{"\xc3\xa9":1}'


@check(NEEDS)
def everything_can_be_copied_out(s: FactStoreSubject) -> None:
    """What another store was given in records is all that this one holds."""
    fill(s)
    with _memory(s) as old:
        _copy(_records(s), _records(old))
        _compare(_records(old), _records(s))


@check(NEEDS)
def everything_can_be_copied_in(s: FactStoreSubject) -> None:
    """What came in records is all that the other store holds, also for who opens this one anew."""
    with _filled(s) as old:
        _copy(_records(old), _records(s))
        _compare(_records(s), _records(old))
        s.reopen()
        _compare(_records(s), _records(old))


@check(NEEDS)
def a_moved_store_goes_on_alike(s: FactStoreSubject) -> None:
    """What is appended, received, served and cut afterwards comes out as in the other store."""
    with _filled(s) as old:
        _copy(_records(old), _records(s))
        for each in (old, s):
            each.put("after", to_zone="plant-c")
            each.put("all", "over")
            each.receive(sent("late", 99), offset=99)
            each.serve("guest")
            each.serve("view")
            each.store.confirm("c", 6, holder="h1")
            each.store.truncate(OUTBOUND, 7, loss_reason="disk")
        _compare(_records(s), _records(old))
        s.clock.forward(60.0)
        for name in ("c", "view", "guest", "in"):
            same(s.store.consumer(name), old.store.consumer(name), f"the consumer {name}")
            same(s.serve(name).page, old.serve(name).page, f"what {name} is given")


@check(NEEDS)
def moved_logs_are_sound(s: FactStoreSubject) -> None:
    """Verification finds nothing to complain of, and peers find the chain that they know."""
    with _filled(s) as old:
        _copy(_records(old), _records(s))
        for log in (OUTBOUND, INBOX):
            problems = [each for each in s.store.verify(log) if not isinstance(each, int)]
            same(problems, [], f"flaws of {log}")
            page, known = s.page(4, log=log), old.page(4, log=log)
            same((page.chain, page.end_chain), (known.chain, known.end_chain), f"chains of {log}")
        same(s.store.info(), old.store.info(), "the epoch")


@check(NEEDS)
def moved_ids_are_known_for_ever(s: FactStoreSubject) -> None:
    """Facts that were dropped before the move are neither stored again nor taken for others."""
    with _filled(s) as old:
        _copy(_records(old), _records(s))
    same(s.again("a", to_zone="plant-c").offset, 1, "offset of a dropped one")
    same(s.again("e", fact=BODY).offset, 5, "offset of a kept one")
    conflict = s.one(other("a", to_zone="plant-c"))
    expect(isinstance(conflict, Conflict), f"another fact of its id got {conflict!r:.200}")
    found = s.store.find("plant-a", "a")
    same(found and (found.log, found.offset, found.is_retained), (OUTBOUND, 1, False), "found")
    expect(isinstance(s.one(new("fresh")), Appended), "a new fact could not be appended")


@check(NEEDS)
def many_ids_can_be_moved(s: FactStoreSubject) -> None:
    """Ids come in the order of their keys, each once, however many there are."""
    with _memory(s) as old:
        names = [f"fact-{n}" for n in range(1500)]
        for start in range(0, len(names), 500):
            old.put(*names[start : start + 500], log=INBOX)
        old.store.truncate(INBOX, 1400, loss_reason="disk")
        _copy(_records(old), _records(s), limit=400)
        keys = [copy.key for copy in _all(_records(s), FactIdRecord, 100)]
        expect(keys == sorted(set(keys)), "keys come twice or out of order")
        same(keys, [copy.key for copy in _all(_records(old), FactIdRecord, 100)], "keys")
    same(s.again("fact-7", log=INBOX).offset, 8, "offset of a dropped one")


@check(NEEDS)
def pages_of_large_facts_are_short(s: FactStoreSubject) -> None:
    """Few large facts make a page, and one that is larger than a page is a page."""
    half = b'{"x":"' + b"x" * (PAGE_BYTES // 2) + b'"}'
    s.put("whole", fact=b'{"x":"' + b"x" * PAGE_BYTES + b'"}')
    s.put("one", "two", fact=half)
    records = [copy.fact.message_id for copy in _all(_records(s), FactRecord, 100)]
    same(records, ["whole", "one", "two"], "copies")
    same(len(_records(s).dump(FactRecord, None, 100)), 1, "facts of the first page")


@check(NEEDS)
def loading_again_changes_nothing(s: FactStoreSubject) -> None:
    """A move that begins anew meets what it has done."""
    with _filled(s) as old:
        for _ in range(2):
            _copy(_records(old), _records(s))
        _compare(_records(s), _records(old))


@check(NEEDS)
def what_came_later_is_added(s: FactStoreSubject) -> None:
    """A second move brings the facts that came since, and cuts what was dropped since."""
    with _filled(s) as old:
        _copy(_records(old), _records(s))
        old.put("x", "y", "z", to_zone="plant-c")
        old.receive(sent("v", 50), offset=50)
        old.store.truncate(OUTBOUND, 6, loss_reason="disk")
        old.store.delete_consumer("guest")
        _renew(_records(old), _records(s))
        _compare(_records(s), _records(old))
        same(s.ids(to_zone="plant-c"), old.ids(to_zone="plant-c"), "a view")
        same(s.again("f", fact=BODY).offset, 6, "offset of one that was cut")


@check(NEEDS)
def ids_may_come_before_their_facts(s: FactStoreSubject) -> None:
    """A store that grows while it is moved gives ids out whose facts come in the next turn."""
    with _filled(s) as old:
        source, target = _records(old), _records(s)
        target.load(list(_all(source, LogRecord, 100)))
        target.load(list(_all(source, FactIdRecord, 1000)))
        for limit in (1, 4):
            _copy(source, target, limit)
        keys = [copy.key for copy in _all(target, FactIdRecord, 100)]
        same(keys, [copy.key for copy in _all(source, FactIdRecord, 100)], "keys")
        _compare(target, source)
        for name in ("z1", "z2"):
            kept = old.put(name)
            same(s.put(name), kept, "outcome of a new fact")
            same(s.again(name), old.again(name), "outcome of the same again")


@check(NEEDS)
def a_log_that_was_cut_beyond_is_begun_anew(s: FactStoreSubject) -> None:
    """When all that a first move brought is gone, the log goes on where the other one does."""
    with _memory(s) as old:
        old.put("a", "b", "c")
        old.put("d", to_zone="plant-c")
        _copy(_records(old), _records(s))
        old.put("e", "f", to_zone="plant-c")
        old.put("g")
        old.store.truncate(OUTBOUND, 6, loss_reason="disk")
        _renew(_records(old), _records(s))
        _compare(_records(s), _records(old))
        for each in (old, s):
            each.put("h", to_zone="plant-c")
        same(s.page(to_zone="plant-c"), old.page(to_zone="plant-c"), "a view")
        same(s.page(to_zone="plant-b"), old.page(to_zone="plant-b"), "another view")
        old.store.truncate(OUTBOUND, 8, loss_reason="disk")
        _renew(_records(old), _records(s))
        _compare(_records(s), _records(old))


@check(NEEDS)
def facts_that_do_not_fit_are_refused(s: FactStoreSubject) -> None:
    """A fact that belongs to another chain, or that leaves one out, is not stored."""
    with _memory(s) as old:
        old.put("a", "b", "c")
        records = list(_all(_records(old), FactRecord))
        _records(s).load(list(_all(_records(old), LogRecord)))
    _records(s).load(records[:1])
    forged = replace(records[1].fact, fact=b'{"other":true}')
    for wrong in (records[2], msgspec.structs.replace(records[1], fact=forged)):
        error = s.refusal(lambda wrong=wrong: _records(s).load([wrong]))  # type: ignore[misc]
        expect(isinstance(error, StoreError), f"a fact that does not fit got {error!r:.200}")
        same(s.ids(), ["a"], "what is there")
    _records(s).load(records)
    same(s.ids(), ["a", "b", "c"], "what is there in the end")


@check(NEEDS)
def another_log_is_refused(s: FactStoreSubject) -> None:
    """A log of another number, or one that was cut further, is not an earlier copy."""
    s.put("a", "b", "c")
    s.store.truncate(OUTBOUND, 2, loss_reason="disk")
    [mine] = _records(s).dump(LogRecord, None, 9)
    for wrong in ({"number": 7}, {"first": 1, "chain": bytes(32), "total": 0, "latest": {}}):
        copy = msgspec.structs.replace(mine, **wrong)
        error = s.refusal(lambda copy=copy: _records(s).load([copy]))  # type: ignore[misc]
        expect(isinstance(error, StoreError), f"another log got {error!r:.200}")
    same(s.ids(), ["c"], "what is there")


@check(NEEDS)
def books_can_be_taken_away(s: FactStoreSubject) -> None:
    """What is gone on the other side can go here, and what is left alone stays."""
    fill(s)
    store = _records(s)
    for kind in (
        GapRecord,
        ConsumerCursorRecord,
        QuarantineRecord,
        ObjectNameRecord,
        AwaitedObjectRecord,
        LinkRecord,
    ):
        records = store.dump(kind, None, 100)
        expect(len(records) > 0, f"there is no {kind.__name__}")
        store.discard(records[:1])
        store.discard(records[:1])
        same(store.dump(kind, None, 100), records[1:], f"{kind.__name__} that are left")


@check(NEEDS)
def a_mark_is_kept(s: FactStoreSubject) -> None:
    """What a move wrote down is there until it is taken away, also for who opens it anew."""
    same(_records(s).move_state(), None, "the mark of a fresh store")
    _records(s).set_move_state(b"\x00one")
    _records(s).set_move_state(b"\x00two")
    s.reopen()
    same(_records(s).move_state(), b"\x00two", "the mark")
    _records(s).set_move_state(None)
    same(_records(s).move_state(), None, "the mark when it was taken away")


@check(NEEDS)
def an_overtaken_move_writes_nothing(s: FactStoreSubject) -> None:
    """A run that was stopped writes on after another took over: the store itself refuses it."""
    with _filled(s) as old:
        pages = {kind: list(_all(_records(old), kind)) for kind in FACT_KINDS}
    store = _records(s)
    first, second = Fence(b"the first run"), Fence(b"the second run")
    store.set_move_state(first.state, Fence(None))
    for kind in FACT_KINDS:
        store.load(pages[kind], first)
    store.set_move_state(second.state, first)
    store.set_move_state(second.state, first)  # an answer that was lost is asked for again
    s.store.append(OUTBOUND, [new("since")])
    before = [list(_all(store, kind)) for kind in FACT_KINDS]
    for kind in FACT_KINDS:
        _refused(s, partial(store.load, pages[kind], first), f"loading {kind.title}")
        if kind.may_leave and kind is not ZoneEpochRecord:
            _refused(s, partial(store.discard, pages[kind], first), f"discarding {kind.title}")
    _refused(s, partial(store.set_move_state, first.state, first), "the state")
    _refused(s, partial(store.set_move_state, None, Fence(None)), "no state")
    if isinstance(store, Freezable):
        _refused(s, partial(store.freeze, "elsewhere", first), "freezing")
    same([list(_all(store, kind)) for kind in FACT_KINDS], before, "what is there")
    same(store.move_state(), second.state, "the move state")
    s.store.append(OUTBOUND, [new("more")])
    if isinstance(store, Freezable):
        store.freeze("elsewhere", second)
        _refused(s, partial(store.freeze, None, first), "thawing")
        error = s.refusal(lambda: s.store.append(OUTBOUND, [new("shut out")]))
        expect(isinstance(error, StoreReadOnlyError), f"a frozen store got {error!r:.200}")
        store.freeze(None, second)
    s.store.append(OUTBOUND, [new("at last")])
    store.set_move_state(None, second)


def _refused(s: FactStoreSubject, write: Callable[[], None], what: str) -> None:
    error = s.refusal(write)
    expect(isinstance(error, OvertakenMoveError), f"{what} by an overtaken run got {error!r:.200}")


@check(NEEDS, "corrupt")
def a_damaged_fact_is_not_copied(s: FactStoreSubject) -> None:
    """Who records is told of a row that is not what was stored."""
    s.put("a", "b", "c")
    s.corrupt(OUTBOUND, 2)
    error = s.refusal(lambda: list(_all(_records(s), FactRecord)))
    expect(getattr(error, "reason", "") == "corrupted", f"a damaged row got {error!r:.200}")


def _records(s: FactStoreSubject) -> RecordStore:
    return records_of(s.store)


@contextmanager
def _memory(s: FactStoreSubject) -> Iterator[FactStoreSubject]:
    """A fresh store of the same zone, in memory."""
    with closing(MemoryFactStore(s.store.info().zone, clock=s.clock)) as store:
        yield FactStoreSubject(store, s.clock, Ways(), s.patience)


@contextmanager
def _filled(s: FactStoreSubject) -> Iterator[FactStoreSubject]:
    with _memory(s) as old:
        fill(old)
        yield old


def _all(store: RecordStore, kind: type[C], limit: int = 3) -> Iterable[C]:
    """Every copy of a kind, read in small pages."""
    after = None
    while page := store.dump(kind, after, limit):
        yield from page
        after = page[-1].sort_key


def _copy(store: RecordStore, target: RecordStore, limit: int = 4) -> None:
    for kind in FACT_KINDS:
        after = None
        while page := store.dump(kind, after, limit):
            target.load(page)
            after = page[-1].sort_key


def _renew(store: RecordStore, target: RecordStore) -> None:
    """Copy again, and take away what is gone."""
    for kind in FACT_KINDS:
        if kind.may_leave:
            kept = {copy.sort_key for copy in _all(store, kind)}
            gone = [copy for copy in _all(target, kind) if copy.sort_key not in kept]
            if gone:
                target.discard(gone)
    _copy(store, target)


def _compare(found: RecordStore, wanted: RecordStore) -> None:
    for kind in FACT_KINDS:
        here, there = list(_all(found, kind)), list(_all(wanted, kind))
        places = [copy.sort_key for copy in here], [copy.sort_key for copy in there]
        same(*places, f"places of {kind.__name__}")
        for mine, theirs in zip(here, there, strict=True):
            if mine.content != theirs.content:
                same(mine, theirs, f"{kind.__name__} {mine.sort_key}")


def fill(s: FactStoreSubject) -> None:
    """Put something of everything into a store."""
    s.consumer("c")
    s.consumer("view", to_zone="plant-c")
    s.consumer("guest", is_required=False, from_end=True)
    s.consumer("in", INBOX)
    s.put("a", to_zone="plant-c")
    s.put("b")
    s.put("c", references=(s.bind("one"),))
    s.clock.forward(1.5)
    s.put("d", "e", "f", fact=BODY)
    s.put("g", to_zone="plant-c")
    s.bind("two", b"other bytes")
    s.receive(sent("p", 1), sent("q", 2), chain=b"x" * 32)
    s.receive(sent("r", 9), gaps=[Gap("", 3, 8, "theirs", 7.0)])
    s.append(sent("w", 11, references=(replace(s.bind("three"), key="later"),)), log="inbound:x")
    s.receive(
        sent("w", 10, from_zone="plant-d", references=(replace(s.bind("four"), key="awaited"),)),
        peer="plant-d",
    )
    s.serve("c", holder="h1", lease=20.0)
    item = s.set_aside(1, holder="h1")
    s.set_aside(2, reason="poison", holder="h1")
    s.store.settle(item.id, "released", reason="try again")
    s.serve("c", holder="h1", lease=20.0)
    s.done(4, holder="h1")
    s.receive(new("p", source_offset=12, from_zone="plant-b", fact=b'{"conflict":1}'))
    s.store.seal("plant-e", "by hand")
    s.store.seek("view", 1, reason="read it")
    s.store.truncate(OUTBOUND, 3, loss_reason="disk")
    s.store.truncate(INBOX, 2, loss_reason="disk")
