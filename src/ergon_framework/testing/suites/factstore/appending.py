"""Checks of appending: dense offsets, order, and facts that stay as they were given."""

from __future__ import annotations

from ergon_framework.ports.factstore import OUTBOUND, Appended, Conflict, Unfounded
from ergon_framework.testing.suites.factstore.references import MISSING
from ergon_framework.testing.suites.factstore.subject import (
    INBOX,
    Subject,
    added,
    new,
    offsets,
    other,
    same,
)
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


@check()
def offsets_start_at_one(s: Subject) -> None:
    """The first fact of a log has the offset 1."""
    same(s.put("a"), [1], "the first offset")


@check()
def offsets_are_dense(s: Subject) -> None:
    """Offsets go up by one, whoever appends and however many at a time."""
    found = [*s.put("a"), *s.put("b", "c"), *s.put("d"), *s.put("e", "f", "g")]
    same(found, [1, 2, 3, 4, 5, 6, 7], "offsets")
    same(offsets(s.page().facts), found, "offsets in the log")


@check()
def refusals_leave_no_hole(s: Subject) -> None:
    """A refused fact does not use an offset up."""
    s.put("a")
    s.append(other("a"), new("x", references=(MISSING,)))
    s.append(new("y"), capacity=1)
    same(s.put("b"), [2], "the next offset")


@check()
def logs_count_on_their_own(s: Subject) -> None:
    """Each log has offsets of its own."""
    s.put("a", "b")
    same(s.put("c", log=INBOX), [1], "the first offset of another log")
    same(s.put("d"), [3], "the next one of the first")
    same((s.ids(), s.ids(INBOX)), (["a", "b", "d"], ["c"]), "what the logs hold")


@check()
def batch_keeps_its_order(s: Subject) -> None:
    """The facts of one call lie in the log as they were given."""
    ids = [f"id-{n * 7 % 50}" for n in range(50)]
    same(s.put(*ids), list(range(1, 51)), "offsets")
    same(s.ids(), ids, "order in the log")


@check()
def batch_answers_item_by_item(s: Subject) -> None:
    """A call with facts of every kind has an outcome for each, in order, and stores the good."""
    s.put("a", "b")
    missing = new("e", references=(MISSING,))
    found = s.append(new("c"), new("a"), other("b"), missing, new("d"), new("c"))
    kinds = [Appended, Appended, Conflict, Unfounded, Appended, Appended]
    same([type(each) for each in found], kinds, "kinds of outcomes")
    told = [(e.offset, e.is_duplicate) for e in found if isinstance(e, Appended)]
    same(told, [(3, False), (1, True), (4, False), (3, True)], "offset and is_duplicate")
    same(s.ids(), ["a", "b", "c", "d"], "what the log holds")


@check()
def empty_batch_is_fine(s: Subject) -> None:
    """Appending nothing is answered with nothing, and changes nothing."""
    same(s.store.append(OUTBOUND, []), [], "outcomes")
    same(s.head(), 0, "the head")


@check()
def large_batch_fits(s: Subject) -> None:
    """A thousand facts may come in one call."""
    ids = [f"id-{n}" for n in range(1000)]
    same(s.put(*ids), list(range(1, 1001)), "offsets")
    same(s.ids(), ids, "what the log holds")


@check()
def fact_keeps_every_field(s: Subject) -> None:
    """What is read is what was appended, field by field."""
    fact = new("a", from_zone="Plant A", to_zone="Zone Ü", source_offset=77)
    added(s.one(fact, INBOX))
    read = s.page(log=INBOX).facts[0]
    for name in ("from_zone", "message_id", "to_zone", "digest", "source_offset"):
        same(getattr(read, name), getattr(fact, name), name)
    same((read.offset, read.previous), (1, 0), "offset and previous")


@check()
def bytes_are_untouched(s: Subject) -> None:
    """Envelope and fact come out byte by byte as they went in."""
    envelope = b'{ "labels" : {"k":"\xc3\xa9 \\u00e9"},\n "n": 1.0 }'
    body = b'{"object_json": [1, 1.0, 1e2, "\\u0000", null, {"b":1,"a":2}] }  '
    added(s.one(new("a", envelope=envelope, fact=body)))
    read = s.page().facts[0]
    same((read.envelope, read.fact), (envelope, body), "envelope and fact")


@check()
def source_offset_may_be_absent(s: Subject) -> None:
    """A fact of this zone has no source offset."""
    s.put("a")
    same(s.page().facts[0].source_offset, None, "source_offset")


@check()
def recorded_at_is_the_stores_time(s: Subject) -> None:
    """Each fact carries the instant of its appending by the store's clock, fractions included."""
    s.clock.forward(0.25)
    first = s.clock()
    s.put("a")
    s.clock.forward(10.5)
    s.put("b")
    found = [fact.recorded_at for fact in s.page().facts]
    expect(
        all(abs(a - b) < 0.002 for a, b in zip(found, (first, first + 10.5), strict=True)),
        f"expected {first} and 10.5 s later, found {found}",
    )


@check()
def clock_may_go_back(s: Subject) -> None:
    """A clock that jumps back does not change offsets or order."""
    s.put("a")
    s.clock.forward(-3600.0)
    same(s.put("b"), [2], "the next offset")
    s.clock.forward(7200.0)
    s.put("c")
    same(s.ids(), ["a", "b", "c"], "order in the log")
