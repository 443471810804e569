"""Checks of what survives: reopening, backups, new epochs, and the journal."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ergon_framework.errors import ConsumerHeldError, StoreError
from ergon_framework.ports.factstore import OUTBOUND, Conflict, Corruption, FactStore, Link
from ergon_framework.testing.suites.factstore.append import is_marked
from ergon_framework.testing.suites.factstore.under_test import (
    INBOX,
    PEER,
    PLENTY,
    FactStoreSubject,
    added,
    new,
    offsets,
    other,
    same,
    sent,
)
from ergon_framework.testing.suites.framework import Check, expect, fail, register

CHECKS: list[Check[FactStoreSubject]] = []
check = register(CHECKS)

BRIEF = 0.05  # seconds in which a call that must not come would have come


def _wakes(s: FactStoreSubject, call: Callable[[], Any], wait: float) -> bool:
    """Whether a waiting thread is woken by a call."""
    woken = threading.Event()
    s.store.subscribe(woken.set)
    try:
        s.together([call])
        return woken.wait(wait)
    finally:
        s.store.unsubscribe(woken.set)


@check()
def appends_wake(s: FactStoreSubject) -> None:
    """A thread that waits for facts is woken when another thread appends one."""
    expect(_wakes(s, lambda: s.put("a"), s.patience), "nobody was woken")
    expect(_wakes(s, lambda: s.put("b", log=INBOX), s.patience), "nobody was woken by another log")


@check()
def received_facts_wake(s: FactStoreSubject) -> None:
    """A thread that waits for facts is woken when some come from a peer."""
    expect(_wakes(s, lambda: s.receive(sent("a", 1)), s.patience), "nobody was woken")


@check()
def woken_sees_the_facts(s: FactStoreSubject) -> None:
    """A woken thread finds the facts that woke it, from within the call."""
    seen: list[list[int]] = []
    woken = threading.Event()

    def wake() -> None:
        seen.append(offsets(s.page().facts))
        woken.set()

    s.store.subscribe(wake)
    s.put("a", "b")
    expect(woken.wait(s.patience), "nobody was woken")
    same(seen[0], [1, 2], "what was there")
    s.store.unsubscribe(wake)


@check()
def everybody_is_woken(s: FactStoreSubject) -> None:
    """All waiting threads are woken, not just one."""
    events = [threading.Event() for _ in range(3)]
    for event in events:
        s.store.subscribe(event.set)
    s.put("a")
    same([event.wait(s.patience) for event in events], [True] * 3, "woken")
    for event in events:
        s.store.unsubscribe(event.set)


@check()
def nothing_new_wakes_nobody(s: FactStoreSubject) -> None:
    """A waiting thread sleeps on when nothing was added."""
    s.consumer()
    s.put("a")
    calls: dict[str, Callable[[], Any]] = {
        "a duplicate": lambda: s.again("a"),
        "a conflict": lambda: s.one(other("a")),
        "a refusal": lambda: s.one(new("b"), capacity=1),
        "a page": lambda: s.done(1),
        "an empty page of a peer": s.receive,
        "a truncation": lambda: s.store.truncate(OUTBOUND, 1),
    }
    for what, call in calls.items():
        expect(not _wakes(s, call, BRIEF), f"{what} woke somebody")


@check()
def unsubscribed_sleeps(s: FactStoreSubject) -> None:
    """An unsubscribed listener is not called; unsubscribing one that never subscribed
    is allowed.
    """
    woken = threading.Event()
    s.store.unsubscribe(woken.set)
    s.store.subscribe(woken.set)
    s.store.unsubscribe(woken.set)
    s.put("a")
    expect(not woken.wait(BRIEF), "it was woken")


# ---- closing ------------------------------------------------------------------------------------


@check()
def acknowledgement_is_a_sentence(s: FactStoreSubject) -> None:
    """The store says in one sentence what an acknowledged append survives."""
    text = s.store.acknowledgement
    expect(text.endswith(".") and len(text.split()) >= 5, f"it says {text!r}")


@check()
def closes_twice(s: FactStoreSubject) -> None:
    """Closing a second time is no error."""
    s.put("a")
    s.store.close()
    s.store.close()


@check()
def closed_store_refuses(s: FactStoreSubject) -> None:
    """A closed store takes no facts and gives none: it says so instead of losing them."""
    s.consumer()
    s.put("a")
    s.store.close()
    for what, call in (("append", lambda: s.put("b")), ("serve", s.serve), ("page", s.page)):
        error = s.refusal(call)
        expect(isinstance(error, StoreError), f"{what}: no StoreError, but {error!r}")


@check()
def answers_are_copies(s: FactStoreSubject) -> None:
    """What a caller does to an answer does not reach the store."""
    s.consumer()
    s.put("a", "b")
    page, one = s.page(), s.store.consumer("c")
    if not page.facts:
        fail("nothing was read")
    page.facts[0].fact = b"scribbled"
    page.facts.clear()
    one.cursor = 2
    same((s.page().facts[0].fact, s.served()), (new("a").fact, [1, 2]), "fact, what comes")


@check()
def facts_are_copied_in(s: FactStoreSubject) -> None:
    """What a caller does to a fact after it was acknowledged does not reach the store."""
    fact = new("a")
    s.append(fact)
    fact.fact, fact.message_id = b"scribbled", "b"
    same((s.page().facts[0].fact, s.ids()), (new("a").fact, ["a"]), "fact and id")


@check("reopen")
def facts_survive(s: FactStoreSubject) -> None:
    """After reopening, facts, offsets and figures are the same, and offsets go on."""
    s.put(*"abc")
    s.receive(sent("x", 4))
    before = s.page(), s.page(1), s.page(log=INBOX), s.store.logs()
    s.reopen()
    same((s.page(), s.page(1), s.page(log=INBOX), s.store.logs()), before, "pages and logs")
    same((s.put("d"), s.put("y", log=INBOX)), ([4], [2]), "the next offsets")
    same([e for e in s.store.verify(OUTBOUND) if isinstance(e, Corruption)], [], "flaws")


@check("reopen")
def ledger_survives(s: FactStoreSubject) -> None:
    """After reopening, duplicates and conflicts are known, also of facts whose payload is gone."""
    s.consumer()
    s.put(*"abc")
    s.done(2)
    s.store.truncate(OUTBOUND, 2)
    s.reopen()
    same([s.again(each).offset for each in "abc"], [1, 2, 3], "offsets")
    same(s.again("c").envelope, new("c").envelope, "the first envelope")
    for each in "ac":
        answer = s.one(other(each))
        expect(isinstance(answer, Conflict), f"{each!r} with other content got {answer!r:.100}")
    same((s.put("d"), s.ids()), ([4], ["c", "d"]), "the next offset, and the log")


@check("reopen")
def consumers_survive(s: FactStoreSubject) -> None:
    """After reopening, cursors and views are the same, and what was served can be confirmed."""
    s.put(*"abcde")
    s.consumer()
    s.consumer("view", to_zone="z", is_required=False)
    s.done(2)
    s.serve(limit=2)
    s.reopen()
    one, view = s.store.consumers()
    same((one.cursor, one.log, one.lag), (2, OUTBOUND, 3), "cursor, log, lag")
    same((view.to_zone, view.is_required), ("z", False), "to_zone, is_required")
    same(s.store.confirm("c", 4), 4, "a late confirmation")
    same(s.served(), [5], "what comes")


@check("reopen")
def leases_survive(s: FactStoreSubject) -> None:
    """A holder keeps its name, and deliveries their count, over a restart of the node."""
    s.consumer()
    s.put("a")
    s.serve(holder="dead", lease=1.0)
    s.clock.forward(2.0)
    s.serve(holder="one")
    s.reopen()
    error = s.refusal(lambda: s.serve(holder="two"))
    expect(isinstance(error, ConsumerHeldError), f"another one got {error!r}")
    same(s.serve(holder="one").consumer.deliveries, 2, "deliveries")


@check("reopen")
def quarantine_survives(s: FactStoreSubject) -> None:
    """After reopening, quarantined items are the same in every state, and released ones
    come first.
    """
    s.consumer()
    s.put(*"abcd")
    items = [s.set_aside(n) for n in (1, 2, 3)]
    s.store.settle(items[0].id, "released")
    s.store.settle(items[1].id, "discarded", reason="why not")
    s.store.receive(PEER, [sent("x", 1), sent("x", 2, fact=b"{}")], Link(PEER))
    s.serve()
    before = s.store.quarantine(state=None)
    s.reopen()
    same(s.store.quarantine(state=None), before, "items")
    serving = s.serve()
    same((offsets(serving.page.facts), serving.is_released), ([1], True), "what comes first")
    s.store.confirm("c", 1)
    same(s.served(), [4], "what comes then")


@check("reopen")
def gaps_survive(s: FactStoreSubject) -> None:
    """After reopening, recorded losses are the same, and explain what is missing."""
    s.consumer()
    s.put(*"abc")
    s.store.truncate(OUTBOUND, 2, loss_reason="disk")
    before = s.store.gaps()
    s.reopen()
    same((s.store.gaps(), s.served()), (before, [3]), "gaps, and what comes")


@check("reopen")
def attributes_survive(s: FactStoreSubject) -> None:
    """After reopening, each name has its last text, and no other name exists."""
    for value in ("one", "two"):
        s.store.set_attribute("name", value)
    s.reopen()
    same((s.store.attribute("name"), s.store.attribute("other")), ("two", None), "attributes")


@check("reopen")
def objects_survive(s: FactStoreSubject) -> None:
    """After reopening, object names and their marks are the same."""
    added(s.one(new("a", references=(s.bind("k"),))))
    s.bind("l")
    before = s.store.objects()
    s.reopen()
    same(s.store.objects(), before, "objects")
    same((is_marked(s, "k"), is_marked(s, "l")), (True, False), "marks")
    s.refused(lambda: s.store.unbind("files", "k"), "referenced")


@check("reopen")
def links_survive(s: FactStoreSubject) -> None:
    """After reopening, links, seals, the journal, the zone and its epoch are the same."""
    s.receive(sent("a", 5), chain=b"\x02" * 32)
    s.store.seal(PEER, "maintenance")
    s.store.seal("", "drill")
    before = s.store.links(), s.store.journal(), s.store.info()
    s.reopen()
    same((s.store.links(), s.store.journal(), s.store.info()), before, "links, journal, info")


@check("reopen")
def reopening_twice_changes_nothing(s: FactStoreSubject) -> None:
    """A store can be opened and closed any number of times."""
    s.put("a")
    before = s.store.info(), s.page()
    for _ in range(3):
        s.reopen()
    same((s.store.info(), s.page()), before, "info and page")


# ---- backups ------------------------------------------------------------------------------------


@contextmanager
def _restored(s: FactStoreSubject) -> Iterator[tuple[str, FactStore]]:
    """A backup of the store as it is, opened."""
    folder = tempfile.mkdtemp(prefix="fact-store-suite-")
    copy: FactStore | None = None
    try:
        s.store.backup(folder)
        copy = s.restore(folder)
        yield folder, copy
    finally:
        if copy is not None:
            copy.close()
        shutil.rmtree(folder, ignore_errors=True)


@check("restore")
def backup_is_complete(s: FactStoreSubject) -> None:
    """A backup that is opened has every fact, id, consumer, item, object and link."""
    s.consumer()
    added(s.one(new("a", references=(s.bind("k"),))))
    s.put(*"bcd")
    s.set_aside(1)
    s.done(3)
    s.receive(sent("x", 7))
    s.store.seal(PEER, "drill")
    before = _everything(s.store)
    with _restored(s) as (_, copy):
        same(_everything(copy), before, "what the backup holds")
        answer = copy.append(OUTBOUND, [other("b"), new("e")])
        expect(isinstance(answer[0], Conflict), "a conflict was not noticed")
        same(added(answer[1]), 5, "the next offset")


@check("restore")
def backup_begins_a_new_epoch(s: FactStoreSubject) -> None:
    """A store that is opened from a backup has an epoch of its own; the zone is the same."""
    s.put("a")
    before = s.store.info()
    with _restored(s) as (folder, copy):
        info = copy.info()
        expect(info.epoch not in {"", before.epoch}, f"its epoch is {info.epoch!r}")
        same(info.zone, before.zone, "its zone")
        copy.close()
        again = s.restore(folder)
        same(again.info().epoch, info.epoch, "its epoch when it is opened once more")
        again.close()
    same(s.store.info(), before, "the store that was backed up")


@check("restore")
def store_goes_on_after_a_backup(s: FactStoreSubject) -> None:
    """What is appended after a backup is in the store and not in the backup."""
    s.put("a")
    with _restored(s) as (_, copy):
        s.put("b")
        same(copy.page(OUTBOUND, 0, 9, PLENTY).head, 1, "the backup's head")
        same(s.ids(), ["a", "b"], "the log")


def _everything(store: FactStore) -> tuple[object, ...]:
    return (
        store.page(OUTBOUND, 0, 99, PLENTY),
        store.page(INBOX, 0, 99, PLENTY),
        store.logs(),
        store.consumers(),
        store.quarantine(state=None),
        store.objects(),
        store.links(),
    )
