"""Checks of surviving: everything is as it was when the store is opened anew or restored."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from ergon_framework.errors import ConsumerHeldError
from ergon_framework.ports.factstore import OUTBOUND, Conflict, FactStore, Flaw, Link
from ergon_framework.testing.suites.factstore.references import is_marked
from ergon_framework.testing.suites.factstore.subject import (
    INBOX,
    PEER,
    PLENTY,
    Subject,
    added,
    new,
    offsets,
    other,
    same,
    sent,
)
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


@check("reopen")
def facts_survive(s: Subject) -> None:
    """Facts, offsets and figures are the same, and offsets go on."""
    s.put(*"abc")
    s.receive(sent("x", 4))
    before = s.page(), s.page(1), s.page(log=INBOX), s.store.logs()
    s.reopen()
    same((s.page(), s.page(1), s.page(log=INBOX), s.store.logs()), before, "pages and logs")
    same((s.put("d"), s.put("y", log=INBOX)), ([4], [2]), "the next offsets")
    same([e for e in s.store.verify(OUTBOUND) if isinstance(e, Flaw)], [], "flaws")


@check("reopen")
def ledger_survives(s: Subject) -> None:
    """Duplicates and conflicts are known, also of facts whose payload is gone."""
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
def consumers_survive(s: Subject) -> None:
    """Cursors and views are the same; what was served can still be confirmed."""
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
def leases_survive(s: Subject) -> None:
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
def quarantine_survives(s: Subject) -> None:
    """Items are the same in every state, and released ones still come first."""
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
def gaps_survive(s: Subject) -> None:
    """Recorded losses are the same, and still explain what is missing."""
    s.consumer()
    s.put(*"abc")
    s.store.truncate(OUTBOUND, 2, loss_reason="disk")
    before = s.store.gaps()
    s.reopen()
    same((s.store.gaps(), s.served()), (before, [3]), "gaps, and what comes")


@check("reopen")
def attributes_survive(s: Subject) -> None:
    """The last text under a name is there; others are not."""
    for value in ("one", "two"):
        s.store.set_attribute("name", value)
    s.reopen()
    same((s.store.attribute("name"), s.store.attribute("other")), ("two", None), "attributes")


@check("reopen")
def objects_survive(s: Subject) -> None:
    """Names and marks are the same."""
    added(s.one(new("a", references=(s.bind("k"),))))
    s.bind("l")
    before = s.store.objects()
    s.reopen()
    same(s.store.objects(), before, "objects")
    same((is_marked(s, "k"), is_marked(s, "l")), (True, False), "marks")
    s.refused(lambda: s.store.unbind("files", "k"), "referenced")


@check("reopen")
def links_survive(s: Subject) -> None:
    """Links, seals, the journal, the zone and its epoch are the same."""
    s.receive(sent("a", 5), chain=b"\x02" * 32)
    s.store.seal(PEER, "maintenance")
    s.store.seal("", "drill")
    before = s.store.links(), s.store.journal(), s.store.info()
    s.reopen()
    same((s.store.links(), s.store.journal(), s.store.info()), before, "links, journal, info")


@check("reopen")
def reopening_twice_changes_nothing(s: Subject) -> None:
    """A store can be opened and closed as often as one likes."""
    s.put("a")
    before = s.store.info(), s.page()
    for _ in range(3):
        s.reopen()
    same((s.store.info(), s.page()), before, "info and page")


# ---- backups ------------------------------------------------------------------------------------


@contextmanager
def _restored(s: Subject) -> Iterator[tuple[str, FactStore]]:
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
def backup_is_complete(s: Subject) -> None:
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
def backup_begins_a_new_epoch(s: Subject) -> None:
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
def store_goes_on_after_a_backup(s: Subject) -> None:
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
