"""Checks of the ledger: an id stands for one content, for ever."""

from __future__ import annotations

from ergon_framework.ports.factstore import OUTBOUND, Appended, Conflict, Found, Outcome
from ergon_framework.testing.suites.factstore.subject import (
    INBOX,
    Subject,
    new,
    other,
    same,
)
from ergon_framework.testing.suites.framework import Check, expect, fail, register

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


def _conflict(answer: Outcome) -> Conflict:
    return answer if isinstance(answer, Conflict) else fail(f"no conflict, but {answer!r:.200}")


def _found(s: Subject, message_id: str, log: str | None = None) -> Found:
    found = s.store.find("plant-a", message_id, log)
    return found if found is not None else fail(f"{message_id!r} is not known")


def _forgotten(s: Subject) -> None:
    """Two facts whose payload is gone, and one that is kept."""
    s.consumer()
    s.put("a", "b", "c")
    s.done(2)
    same(s.store.truncate(OUTBOUND, 2), 2, "dropped")


@check()
def duplicate_answers_its_offset(s: Subject) -> None:
    """The same fact again is answered with the offset it has, each time, and stored once."""
    s.put("a", "b")
    same([s.again("a").offset for _ in range(3)], [1, 1, 1], "offsets")
    same(s.ids(), ["a", "b"], "what the log holds")


@check()
def duplicate_in_a_batch(s: Subject) -> None:
    """A fact that occurs twice in one call is stored once."""
    found = s.append(new("a"), new("b"), new("a"))
    told = [(e.offset, e.is_duplicate) for e in found if isinstance(e, Appended)]
    same(told, [(1, False), (2, False), (1, True)], "offset and is_duplicate")
    same(s.ids(), ["a", "b"], "what the log holds")


@check()
def first_envelope_stays(s: Subject) -> None:
    """A repeated fact whose envelope differs is a duplicate, and the first envelope is answered."""
    s.one(new("a", envelope=b'{"n":1}'))
    answer = s.again("a", envelope=b'{"n":2}')
    same(answer.envelope, b'{"n":1}', "the envelope answered")
    same(s.page().facts[0].envelope, b'{"n":1}', "the envelope in the log")


@check()
def conflict_stores_nothing(s: Subject) -> None:
    """Other content under the same id is refused with the offset and digest that the id has."""
    s.put("a", "b")
    before = s.page()
    answer = _conflict(s.one(other("a")))
    same((answer.offset, answer.digest), (1, new("a").digest), "offset and digest")
    same(s.page(), before, "the log")
    same(s.again("a").offset, 1, "what the id stands for")


@check()
def conflict_in_a_batch(s: Subject) -> None:
    """Of two contents under one id in one call, the first counts."""
    first, second = s.append(new("a"), other("a"))
    same(isinstance(first, Appended), True, "the first was stored")
    same(_conflict(second).offset, 1, "offset of the conflict")


@check()
def conflict_is_found_late_in_the_digest(s: Subject) -> None:
    """Digests that differ in a late byte of their first half are different."""
    digest = new("a").digest
    s.one(new("a"))
    near = digest[:15] + bytes([digest[15] ^ 1]) + digest[16:]
    _conflict(s.one(new("a", digest=near)))


@check()
def same_id_in_another_log(s: Subject) -> None:
    """An id is known per log: the same one in another log is another fact."""
    s.put("a")
    same(s.put("a", log=INBOX), [1], "its offset there")
    same(isinstance(s.one(other("b"), INBOX), Appended), True, "other content there")
    s.put("b")


@check()
def same_id_from_another_zone(s: Subject) -> None:
    """An id is known per zone that asserts it."""
    s.put("a")
    same(s.put("a", from_zone="plant-z"), [2], "its offset")
    same(s.again("a", from_zone="plant-z").offset, 2, "its offset again")
    same(s.again("a").offset, 1, "the offset of the first")


@check()
def ids_are_told_apart(s: Subject) -> None:
    """Zones and ids that look alike are different, however they are put together."""
    pairs = [("ab", "c"), ("a", "bc"), ("a", "b:c"), ("a:b", "c"), ("a/b", "c"), ("a", "b/c")]
    pairs += [("A", "bc"), ("a", "BC"), ("a ", "bc"), ("a", "bc "), ("a", "é"), ("a", "e\u0301")]
    pairs += [("a\x1f", "b"), ("a", "\x1fb"), ("a", "1"), ("a", "01"), ("a", "1.0")]
    found = [s.put(each, from_zone=zone)[0] for zone, each in pairs]
    same(found, list(range(1, len(pairs) + 1)), "offsets")
    again = [s.again(each, from_zone=zone).offset for zone, each in pairs]
    same(again, found, "offsets again")


@check()
def ids_may_be_long(s: Subject) -> None:
    """Ids that differ only at their end are different."""
    s.put("x" * 254 + "a", "x" * 254 + "b")
    same(s.again("x" * 254 + "b").offset, 2, "the offset of the second")


@check()
def look_up_tells_what_is_known(s: Subject) -> None:
    """An id is found with its log, offset and digest, and that the payload is there."""
    s.put("a", "b")
    wanted = Found(OUTBOUND, 2, new("b").digest, is_retained=True)
    same(_found(s, "b"), wanted, "found in all logs")
    same(_found(s, "b", OUTBOUND), wanted, "found in its log")


@check()
def look_up_of_nothing(s: Subject) -> None:
    """An id that was never appended, or was refused, is not found."""
    s.put("a")
    s.append(new("full"), capacity=1)
    same(s.store.find("plant-a", "b"), None, "an unknown id")
    same(s.store.find("plant-z", "a"), None, "of another zone")
    same(s.store.find("plant-a", "a", INBOX), None, "in another log")
    same(s.store.find("plant-a", "full"), None, "a refused id")


@check()
def look_up_asks_outbound_first(s: Subject) -> None:
    """Without a log all are searched, and ``outbound`` counts first."""
    s.put("a", "c", log="inbound:aaa")
    s.put("b", "a")
    same((_found(s, "a").log, _found(s, "a").offset), (OUTBOUND, 2), "of an id in both")
    same((_found(s, "c").log, _found(s, "c").offset), ("inbound:aaa", 2), "of the other id")
    same(_found(s, "a", "inbound:aaa").offset, 1, "when the log is named")


@check()
def ledger_outlives_the_payload(s: Subject) -> None:
    """A duplicate of a fact whose payload was dropped is answered with the offset it had."""
    _forgotten(s)
    answer = s.again("a")
    same((answer.offset, answer.envelope), (1, None), "offset and envelope")
    same(s.again("b").offset, 2, "offset of the second")
    same(s.ids(), ["c"], "what the log holds")


@check()
def conflict_outlives_the_payload(s: Subject) -> None:
    """Other content is refused also when the payload of the first was dropped."""
    _forgotten(s)
    answer = _conflict(s.one(other("a")))
    same(answer.offset, 1, "offset")
    expect(len(answer.digest) in {16, 32}, f"a digest of {len(answer.digest)} bytes")
    same(answer.digest, new("a").digest[: len(answer.digest)], "digest")


@check()
def look_up_outlives_the_payload(s: Subject) -> None:
    """An id is found after its payload was dropped, and the answer says that it was."""
    _forgotten(s)
    found = _found(s, "a")
    same((found.offset, found.is_retained), (1, False), "offset and is_retained")
    same(found.digest[:16], new("a").digest[:16], "digest")
    same(_found(s, "c").is_retained, True, "is_retained of what is kept")
