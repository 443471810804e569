"""Checks of appending: offsets, duplicates and conflicts, capacity, references to artifacts."""

from __future__ import annotations

from dataclasses import replace

from ergon_framework.ports.factstore import (
    OUTBOUND,
    Appended,
    AppendOutcome,
    CapacityExceeded,
    Conflict,
    LedgerEntry,
    MissingReference,
    Reference,
    StoredObject,
)
from ergon_framework.testing.suites.factstore.under_test import (
    INBOX,
    FactStoreSubject,
    added,
    new,
    offsets,
    other,
    same,
)
from ergon_framework.testing.suites.framework import Check, expect, fail, register

CHECKS: list[Check[FactStoreSubject]] = []
check = register(CHECKS)


@check()
def offsets_start_at_one(s: FactStoreSubject) -> None:
    """The first fact of a log has the offset 1."""
    same(s.put("a"), [1], "the first offset")


@check()
def offsets_are_dense(s: FactStoreSubject) -> None:
    """Offsets go up by one, whoever appends and however many at a time."""
    found = [*s.put("a"), *s.put("b", "c"), *s.put("d"), *s.put("e", "f", "g")]
    same(found, [1, 2, 3, 4, 5, 6, 7], "offsets")
    same(offsets(s.page().facts), found, "offsets in the log")


@check()
def refusals_leave_no_hole(s: FactStoreSubject) -> None:
    """A refused fact does not use an offset up."""
    s.put("a")
    s.append(other("a"), new("x", references=(MISSING,)))
    s.append(new("y"), capacity=1)
    same(s.put("b"), [2], "the next offset")


@check()
def logs_count_on_their_own(s: FactStoreSubject) -> None:
    """Each log has offsets of its own."""
    s.put("a", "b")
    same(s.put("c", log=INBOX), [1], "the first offset of another log")
    same(s.put("d"), [3], "the next one of the first")
    same((s.ids(), s.ids(INBOX)), (["a", "b", "d"], ["c"]), "what the logs hold")


@check()
def batch_keeps_its_order(s: FactStoreSubject) -> None:
    """The facts of one call lie in the log as they were given."""
    ids = [f"id-{n * 7 % 50}" for n in range(50)]
    same(s.put(*ids), list(range(1, 51)), "offsets")
    same(s.ids(), ids, "order in the log")


@check()
def batch_answers_item_by_item(s: FactStoreSubject) -> None:
    """A call with facts of every kind has an outcome for each, in order, and stores the good."""
    s.put("a", "b")
    missing = new("e", references=(MISSING,))
    found = s.append(new("c"), new("a"), other("b"), missing, new("d"), new("c"))
    kinds = [Appended, Appended, Conflict, MissingReference, Appended, Appended]
    same([type(each) for each in found], kinds, "kinds of outcomes")
    told = [(e.offset, e.is_duplicate) for e in found if isinstance(e, Appended)]
    same(told, [(3, False), (1, True), (4, False), (3, True)], "offset and is_duplicate")
    same(s.ids(), ["a", "b", "c", "d"], "what the log holds")


@check()
def empty_batch_is_fine(s: FactStoreSubject) -> None:
    """Appending nothing is answered with nothing, and changes nothing."""
    same(s.store.append(OUTBOUND, []), [], "outcomes")
    same(s.head(), 0, "the head")


@check()
def large_batch_fits(s: FactStoreSubject) -> None:
    """A thousand facts may come in one call."""
    ids = [f"id-{n}" for n in range(1000)]
    same(s.put(*ids), list(range(1, 1001)), "offsets")
    same(s.ids(), ids, "what the log holds")


@check()
def fact_keeps_every_field(s: FactStoreSubject) -> None:
    """What is read is what was appended, field by field."""
    fact = new("a", from_zone="Plant A", to_zone="Zone Ü", source_offset=77)
    added(s.one(fact, INBOX))
    read = s.page(log=INBOX).facts[0]
    for name in ("from_zone", "message_id", "to_zone", "digest", "source_offset"):
        same(getattr(read, name), getattr(fact, name), name)
    same((read.offset, read.previous), (1, 0), "offset and previous")


@check()
def bytes_are_untouched(s: FactStoreSubject) -> None:
    """Envelope and fact come out byte by byte as they went in."""
    envelope = b'{ "labels" : {"k":"\xc3\xa9 \\u00e9"},\n "n": 1.0 }'
    body = b'{"object_json": [1, 1.0, 1e2, "\\u0000", null, {"b":1,"a":2}] }  '
    added(s.one(new("a", envelope=envelope, fact=body)))
    read = s.page().facts[0]
    same((read.envelope, read.fact), (envelope, body), "envelope and fact")


@check()
def source_offset_may_be_absent(s: FactStoreSubject) -> None:
    """A fact of this zone has no source offset."""
    s.put("a")
    same(s.page().facts[0].source_offset, None, "source_offset")


@check()
def recorded_at_is_the_stores_time(s: FactStoreSubject) -> None:
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
def clock_may_go_back(s: FactStoreSubject) -> None:
    """A clock that jumps back does not change offsets or order."""
    s.put("a")
    s.clock.forward(-3600.0)
    same(s.put("b"), [2], "the next offset")
    s.clock.forward(7200.0)
    s.put("c")
    same(s.ids(), ["a", "b", "c"], "order in the log")


def _conflict(answer: AppendOutcome) -> Conflict:
    return answer if isinstance(answer, Conflict) else fail(f"no conflict, but {answer!r:.200}")


def _found(s: FactStoreSubject, message_id: str, log: str | None = None) -> LedgerEntry:
    found = s.store.find("plant-a", message_id, log)
    return found if found is not None else fail(f"{message_id!r} is not known")


def _forgotten(s: FactStoreSubject) -> None:
    """Two facts whose payload is gone, and one that is kept."""
    s.consumer()
    s.put("a", "b", "c")
    s.done(2)
    same(s.store.truncate(OUTBOUND, 2), 2, "dropped")


@check()
def duplicate_answers_its_offset(s: FactStoreSubject) -> None:
    """The same fact again is answered with the offset it has, each time, and stored once."""
    s.put("a", "b")
    same([s.again("a").offset for _ in range(3)], [1, 1, 1], "offsets")
    same(s.ids(), ["a", "b"], "what the log holds")


@check()
def duplicate_in_a_batch(s: FactStoreSubject) -> None:
    """A fact that occurs twice in one call is stored once."""
    found = s.append(new("a"), new("b"), new("a"))
    told = [(e.offset, e.is_duplicate) for e in found if isinstance(e, Appended)]
    same(told, [(1, False), (2, False), (1, True)], "offset and is_duplicate")
    same(s.ids(), ["a", "b"], "what the log holds")


@check()
def first_envelope_stays(s: FactStoreSubject) -> None:
    """A repeated fact whose envelope differs is a duplicate, and the first envelope is answered."""
    s.one(new("a", envelope=b'{"n":1}'))
    answer = s.again("a", envelope=b'{"n":2}')
    same(answer.envelope, b'{"n":1}', "the envelope answered")
    same(s.page().facts[0].envelope, b'{"n":1}', "the envelope in the log")


@check()
def conflict_stores_nothing(s: FactStoreSubject) -> None:
    """Other content under the same id is refused with the offset and digest that the id has."""
    s.put("a", "b")
    before = s.page()
    answer = _conflict(s.one(other("a")))
    same((answer.offset, answer.digest), (1, new("a").digest), "offset and digest")
    same(s.page(), before, "the log")
    same(s.again("a").offset, 1, "what the id stands for")


@check()
def conflict_in_a_batch(s: FactStoreSubject) -> None:
    """Of two contents under one id in one call, the first counts."""
    first, second = s.append(new("a"), other("a"))
    same(isinstance(first, Appended), True, "the first was stored")
    same(_conflict(second).offset, 1, "offset of the conflict")


@check()
def conflict_is_found_late_in_the_digest(s: FactStoreSubject) -> None:
    """Digests that differ in a late byte of their first half are different."""
    digest = new("a").digest
    s.one(new("a"))
    near = digest[:15] + bytes([digest[15] ^ 1]) + digest[16:]
    _conflict(s.one(new("a", digest=near)))


@check()
def same_id_in_another_log(s: FactStoreSubject) -> None:
    """An id is known per log: the same one in another log is another fact."""
    s.put("a")
    same(s.put("a", log=INBOX), [1], "its offset there")
    same(isinstance(s.one(other("b"), INBOX), Appended), True, "other content there")
    s.put("b")


@check()
def same_id_from_another_zone(s: FactStoreSubject) -> None:
    """An id is known per zone that asserts it."""
    s.put("a")
    same(s.put("a", from_zone="plant-z"), [2], "its offset")
    same(s.again("a", from_zone="plant-z").offset, 2, "its offset again")
    same(s.again("a").offset, 1, "the offset of the first")


@check()
def ids_are_told_apart(s: FactStoreSubject) -> None:
    """Zones and ids that look alike are different, however they are put together."""
    pairs = [("ab", "c"), ("a", "bc"), ("a", "b:c"), ("a:b", "c"), ("a/b", "c"), ("a", "b/c")]
    pairs += [("A", "bc"), ("a", "BC"), ("a ", "bc"), ("a", "bc "), ("a", "é"), ("a", "e\u0301")]
    pairs += [("a\x1f", "b"), ("a", "\x1fb"), ("a", "1"), ("a", "01"), ("a", "1.0")]
    found = [s.put(each, from_zone=zone)[0] for zone, each in pairs]
    same(found, list(range(1, len(pairs) + 1)), "offsets")
    again = [s.again(each, from_zone=zone).offset for zone, each in pairs]
    same(again, found, "offsets again")


@check()
def ids_may_be_long(s: FactStoreSubject) -> None:
    """Ids that differ only at their end are different."""
    s.put("x" * 254 + "a", "x" * 254 + "b")
    same(s.again("x" * 254 + "b").offset, 2, "the offset of the second")


@check()
def look_up_tells_what_is_known(s: FactStoreSubject) -> None:
    """An id is found with its log, offset and digest, and that the payload is there."""
    s.put("a", "b")
    wanted = LedgerEntry(OUTBOUND, 2, new("b").digest, is_retained=True)
    same(_found(s, "b"), wanted, "found in all logs")
    same(_found(s, "b", OUTBOUND), wanted, "found in its log")


@check()
def look_up_of_nothing(s: FactStoreSubject) -> None:
    """An id that was never appended, or was refused, is not found."""
    s.put("a")
    s.append(new("full"), capacity=1)
    same(s.store.find("plant-a", "b"), None, "an unknown id")
    same(s.store.find("plant-z", "a"), None, "of another zone")
    same(s.store.find("plant-a", "a", INBOX), None, "in another log")
    same(s.store.find("plant-a", "full"), None, "a refused id")


@check()
def look_up_asks_outbound_first(s: FactStoreSubject) -> None:
    """Without a log all are searched, and ``outbound`` counts first."""
    s.put("a", "c", log="inbound:aaa")
    s.put("b", "a")
    same((_found(s, "a").log, _found(s, "a").offset), (OUTBOUND, 2), "of an id in both")
    same((_found(s, "c").log, _found(s, "c").offset), ("inbound:aaa", 2), "of the other id")
    same(_found(s, "a", "inbound:aaa").offset, 1, "when the log is named")


@check()
def ledger_outlives_the_payload(s: FactStoreSubject) -> None:
    """A duplicate of a fact whose payload was dropped is answered with the offset it had."""
    _forgotten(s)
    answer = s.again("a")
    same((answer.offset, answer.envelope), (1, None), "offset and envelope")
    same(s.again("b").offset, 2, "offset of the second")
    same(s.ids(), ["c"], "what the log holds")


@check()
def conflict_outlives_the_payload(s: FactStoreSubject) -> None:
    """Other content is refused also when the payload of the first was dropped."""
    _forgotten(s)
    answer = _conflict(s.one(other("a")))
    same(answer.offset, 1, "offset")
    expect(len(answer.digest) in {16, 32}, f"a digest of {len(answer.digest)} bytes")
    same(answer.digest, new("a").digest[: len(answer.digest)], "digest")


@check()
def look_up_outlives_the_payload(s: FactStoreSubject) -> None:
    """An id is found after its payload was dropped, and the answer says that it was."""
    _forgotten(s)
    found = _found(s, "a")
    same((found.offset, found.is_retained), (1, False), "offset and is_retained")
    same(found.digest[:16], new("a").digest[:16], "digest")
    same(_found(s, "c").is_retained, True, "is_retained of what is kept")


SIZE = len(new("a").envelope) + len(new("a").fact)


@check()
def full_log_refuses(s: FactStoreSubject) -> None:
    """A fact that would take the log above its capacity is refused, and not stored."""
    s.put("a", "b")
    same(s.one(new("c"), capacity=3 * SIZE - 1), CapacityExceeded(2 * SIZE), "the answer")
    same((s.ids(), s.store.find("plant-a", "c")), (["a", "b"], None), "what is there")


@check()
def log_may_be_filled(s: FactStoreSubject) -> None:
    """A fact that just fits is stored."""
    s.put("a", "b")
    same(s.one(new("c"), capacity=3 * SIZE), Appended(3), "the answer")


@check()
def full_log_answers_duplicates(s: FactStoreSubject) -> None:
    """What is there already is answered even when the log is full; so is a conflict."""
    s.put("a", "b")
    found = s.append(new("b"), other("a"), new("c"), capacity=1)
    same(
        [type(each) for each in found], [Appended, Conflict, CapacityExceeded], "kinds of outcomes"
    )


@check()
def batch_fills_item_by_item(s: FactStoreSubject) -> None:
    """In one call facts are taken as long as they fit."""
    found = s.append(*(new(each) for each in "abcd"), capacity=2 * SIZE)
    same(
        [type(each) for each in found],
        [Appended, Appended, CapacityExceeded, CapacityExceeded],
        "kinds of outcomes",
    )
    same(s.ids(), ["a", "b"], "what the log holds")


@check()
def nothing_overtakes_in_a_full_log(s: FactStoreSubject) -> None:
    """In one call a small fact does not enter behind a large one that did not fit."""
    large = new("b")
    large.fact = large.fact + b" " * SIZE
    found = s.append(new("a"), large, new("c"), capacity=2 * SIZE)
    same(
        [type(each) for each in found],
        [Appended, CapacityExceeded, CapacityExceeded],
        "kinds of outcomes",
    )


@check()
def refused_fact_may_come_again(s: FactStoreSubject) -> None:
    """A fact that was refused by a full log is taken when there is room."""
    s.one(new("a"), capacity=1)
    same(s.put("a"), [1], "its offset")


@check()
def dropping_makes_room(s: FactStoreSubject) -> None:
    """What was truncated no longer counts."""
    s.consumer()
    s.put("a", "b")
    s.done(2)
    s.store.truncate(OUTBOUND, 1)
    same(s.one(new("c"), capacity=2 * SIZE), Appended(3), "the answer")


@check()
def logs_fill_on_their_own(s: FactStoreSubject) -> None:
    """The capacity of one log is not used up by another."""
    s.put("a", "b", log=INBOX)
    same(s.one(new("a"), capacity=SIZE), Appended(1), "the answer")


MISSING = Reference("files", "missing", bytes(32), 5)


def is_marked(s: FactStoreSubject, key: str) -> bool:
    """Whether a name of the usual bucket is known to be referred to."""
    return _object(s, key).is_referenced


def _object(s: FactStoreSubject, key: str) -> StoredObject:
    found = s.store.object("files", key)
    return found if found is not None else fail(f"the object {key!r} is gone")


@check()
def missing_object_is_unfounded(s: FactStoreSubject) -> None:
    """A fact that refers to an object that is not there is refused, and not stored."""
    same(s.one(new("a", references=(MISSING,))), MissingReference(MISSING, None), "the answer")
    same((s.head(), s.store.find("plant-a", "a")), (0, None), "what is there")


@check()
def other_digest_is_unfounded(s: FactStoreSubject) -> None:
    """A fact whose object has another digest is refused, and told which."""
    there = s.bind("k")
    asked = replace(there, digest=bytes(32))
    same(s.one(new("a", references=(asked,))), MissingReference(asked, there), "the answer")
    same(s.head(), 0, "the head")


@check()
def other_size_is_unfounded(s: FactStoreSubject) -> None:
    """A fact whose object has another size is refused, and told which."""
    there = s.bind("k")
    asked = replace(there, size=there.size + 1)
    same(s.one(new("a", references=(asked,))), MissingReference(asked, there), "the answer")


@check()
def same_bytes_under_another_name(s: FactStoreSubject) -> None:
    """It is the name that must be there, not just the bytes."""
    there = s.bind("k")
    for asked in (replace(there, key="K"), replace(there, bucket="other")):
        same(s.one(new("a", references=(asked,))), MissingReference(asked, None), "the answer")


@check()
def founded_fact_is_stored(s: FactStoreSubject) -> None:
    """A fact whose objects are all there is stored, and the objects are marked."""
    both = s.bind("k"), s.bind("l", b"others")
    s.bind("m")
    same(added(s.one(new("a", references=both))), 1, "its offset")
    same([is_marked(s, key) for key in "klm"], [True, True, False], "marked")


@check()
def every_reference_counts(s: FactStoreSubject) -> None:
    """One missing object among several refuses the fact, and marks none of the others."""
    there = s.bind("k")
    answer = s.one(new("a", references=(there, MISSING)))
    same(answer, MissingReference(MISSING, None), "the answer")
    same(is_marked(s, "k"), False, "the object that is there is marked")


@check()
def refused_fact_marks_nothing(s: FactStoreSubject) -> None:
    """A fact that does not enter the log, for whatever reason, marks no object."""
    there = s.bind("k")
    s.put("a")
    s.append(new("a", fact=b"{}", references=(there,)))
    s.append(new("b", references=(there,)), capacity=1)
    same(is_marked(s, "k"), False, "the object is marked")


@check()
def unfounded_fact_may_come_again(s: FactStoreSubject) -> None:
    """A fact that was refused is taken once its object is there."""
    there = s.bind("k")
    s.store.unbind("files", "k")
    fact = new("a", references=(there,))
    same(s.one(fact), MissingReference(there, None), "before")
    s.bind("k")
    same(added(s.one(fact)), 1, "its offset")


@check()
def unneeded_artifacts_are_marked_all_the_same(s: FactStoreSubject) -> None:
    """A fact that needs no artifact enters without it, and what it refers to is never an orphan."""
    there = s.bind("k")
    wanted = replace(there, key="later")
    same(added(s.one(new("a", references=(there, wanted), needs_artifacts=False))), 1, "its offset")
    s.bind("later")
    same([is_marked(s, key) for key in ("k", "later")], [True, True], "marked")


@check()
def names_are_marked_on_request(s: FactStoreSubject) -> None:
    """The names of the objects that exist, and of those that will."""
    s.bind("k")
    s.bind("m")
    s.store.refer([("files", "k"), ("files", "later")])
    s.bind("later")
    same([is_marked(s, key) for key in ("k", "later", "m")], [True, True, False], "marked")


@check()
def duplicate_is_answered_before_its_references(s: FactStoreSubject) -> None:
    """The ledger is asked first: what is there already needs nothing more."""
    s.put("a")
    same(s.again("a", references=(MISSING,)).offset, 1, "its offset")


@check()
def mark_outlives_the_payload(s: FactStoreSubject) -> None:
    """An object stays marked when the fact that referred to it was truncated."""
    s.consumer()
    added(s.one(new("a", references=(s.bind("k"),))))
    s.done(1)
    same(s.store.truncate(OUTBOUND, 1), 1, "dropped")
    same(is_marked(s, "k"), True, "the object is marked")


@check()
def reference_in_a_batch(s: FactStoreSubject) -> None:
    """A refused fact in a batch leaves its neighbours alone."""
    there = s.bind("k")
    found = s.append(new("a"), new("b", references=(MISSING,)), new("c", references=(there,)))
    same(added(found[2]), 2, "offset of the last")
    same((s.ids(), is_marked(s, "k")), (["a", "c"], True), "the log, and the mark")
