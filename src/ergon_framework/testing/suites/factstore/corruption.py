"""Checks of damage: a fact that is not what was stored is noticed, and never given out."""

from __future__ import annotations

from functools import partial

from ergon_framework.ports.factstore import OUTBOUND, Appended, Conflict, Corruption
from ergon_framework.testing.suites.factstore.under_test import (
    INBOX,
    FactStoreSubject,
    offsets,
    other,
    same,
    sent,
)
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[FactStoreSubject]] = []
check = register(CHECKS)


def _problems(s: FactStoreSubject, log: str = OUTBOUND, after: int = 0) -> list[int]:
    return [e.offset for e in s.store.verify(log, after) if isinstance(e, Corruption)]


@check()
def sound_log_has_no_flaws(s: FactStoreSubject) -> None:
    """Verification of a sound log finds nothing, from any place on and after a truncation."""
    s.consumer()
    s.put(*(f"id-{n}" for n in range(40)))
    s.done(30)
    same((_problems(s), _problems(s, after=10), _problems(s, after=99)), ([], [], []), "flaws")
    s.store.truncate(OUTBOUND, 20)
    s.put("later")
    same((_problems(s), _problems(s, after=25), _problems(s, INBOX)), ([], [], []), "flaws later")


@check()
def verification_tells_how_far_it_is(s: FactStoreSubject) -> None:
    """What verification says about its place goes up, and stays within the log."""
    s.put(*(f"id-{n}" for n in range(40)))
    places = [each for each in s.store.verify(OUTBOUND) if isinstance(each, int)]
    same(places, sorted(places), "places")
    expect(all(0 <= place <= 40 for place in places), f"places {places[:9]}")


@check("corrupt")
def damage_is_found(s: FactStoreSubject) -> None:
    """Verification names the damaged fact, and goes on behind it."""
    s.put(*"abcde")
    s.corrupt(OUTBOUND, 2)
    s.corrupt(OUTBOUND, 4)
    found = _problems(s)
    expect({2, 4} <= set(found), f"flaws {found}")
    expect(not {1} & set(found), f"flaws {found}: 1 is sound")
    expect(4 in _problems(s, after=3), "damage behind the given place")


@check("corrupt")
def flaw_says_what_it_is(s: FactStoreSubject) -> None:
    """A flaw names its log and says something."""
    s.put("a")
    s.corrupt(OUTBOUND, 1)
    problems = [each for each in s.store.verify(OUTBOUND) if isinstance(each, Corruption)]
    same([(e.log, e.offset) for e in problems], [(OUTBOUND, 1)], "log and offset")
    expect(problems[0].what, "it says nothing")


@check("corrupt")
def page_ends_before_damage(s: FactStoreSubject) -> None:
    """A page for a consumer ends before a damaged fact."""
    s.consumer()
    s.put(*"abcd")
    s.corrupt(OUTBOUND, 3)
    page = s.serve().page
    same(offsets(page.facts), [1, 2], "offsets")
    expect(page.through == 2, f"through is {page.through}")


@check("corrupt")
def damaged_fact_is_passed(s: FactStoreSubject) -> None:
    """A damaged fact that comes next goes into quarantine as ``corrupted``; the others come."""
    s.consumer()
    s.put(*"abcd")
    s.corrupt(OUTBOUND, 1)
    s.corrupt(OUTBOUND, 2)
    same(s.served(), [3, 4], "offsets")
    told = [(e.consumer, e.offset, e.reason) for e in s.store.quarantine()]
    same(told, [("c", 1, "corrupted"), ("c", 2, "corrupted")], "quarantine")
    same(s.store.consumer("c").cursor, 2, "the cursor")
    s.served()
    same(len(s.store.quarantine()), 2, "items after a second page")
    same(s.store.confirm("c", 4), 4, "the cursor in the end")


@check("corrupt")
def damage_at_the_end_is_passed(s: FactStoreSubject) -> None:
    """When nothing but damage is left, the page is empty and reaches the head."""
    s.consumer()
    s.put(*"ab")
    s.corrupt(OUTBOUND, 1)
    s.corrupt(OUTBOUND, 2)
    page = s.serve().page
    same((page.facts, page.through), ([], 2), "facts and through")
    same(len(s.store.quarantine()), 2, "items")


@check("corrupt")
def damage_is_not_read(s: FactStoreSubject) -> None:
    """Reading without a consumer never gives a damaged fact out either."""
    s.put(*"abc")
    s.corrupt(OUTBOUND, 2)
    seen: set[int] = set()

    def read(after: int) -> None:
        seen.update(offsets(s.page(after).facts))

    for after in range(3):
        error = s.refusal(partial(read, after))
        expect(error is None or after == 1, f"reading after {after} raised {error!r}")
    expect(2 not in seen, "a damaged fact was read")


@check("corrupt")
def damage_harms_no_append(s: FactStoreSubject) -> None:
    """A log with a damaged fact takes new ones, and still knows all its ids."""
    s.put(*"abc")
    s.corrupt(OUTBOUND, 3)
    same((s.put("d"), s.again("c").offset), ([4], 3), "the next offset, and a duplicate")


@check("corrupt", "reopen")
def damage_does_not_stop_the_start(s: FactStoreSubject) -> None:
    """A store with a damaged fact can be opened and used."""
    s.consumer()
    s.put(*"abc")
    s.corrupt(OUTBOUND, 1)
    s.reopen()
    same((s.put("d"), s.served()), ([4], [2, 3, 4]), "the next offset, and what comes")


@check("corrupt")
def passed_damage_is_told(s: FactStoreSubject) -> None:
    """A consumer hears of the damaged facts that were set aside on its way."""
    s.consumer()
    s.put(*"abcd")
    s.corrupt(OUTBOUND, 1)
    s.corrupt(OUTBOUND, 2)
    page = s.serve().page
    same(
        [(gap.first, gap.last, gap.reason) for gap in page.gaps],
        [
            (1, 1, "corrupted"),
            (2, 2, "corrupted"),
        ],
        "gaps",
    )
    same([fact.offset for fact in page.facts], [3, 4], "what is given out")


@check("corrupt")
def damaged_fact_is_repaired_by_a_duplicate(s: FactStoreSubject) -> None:
    """The same fact told again puts a damaged one right: it is read again, and no flaw is left."""
    s.put(*"abc")
    s.corrupt(OUTBOUND, 2)
    told = s.again("b")
    same((told.offset, told.is_repaired), (2, True), "offset, and whether it was repaired")
    same((s.ids(), _problems(s)), ([*"abc"], []), "ids and flaws")
    same((s.again("b").is_repaired, s.put("d"), _problems(s)), (False, [4], []), "afterwards")


@check("corrupt")
def repaired_fact_keeps_its_envelope(s: FactStoreSubject) -> None:
    """A duplicate with other advisory fields repairs the fact; the first envelope stays."""
    s.put(*"ab")
    first = s.page().facts[1]
    s.corrupt(OUTBOUND, 2)
    told = s.again("b", envelope=b'{"later":1}')
    same((told.envelope, told.is_repaired), (first.envelope, True), "envelope, and if repaired")
    same((s.page().facts[1], _problems(s)), (first, []), "the fact, and flaws")


@check("corrupt")
def conflict_repairs_nothing(s: FactStoreSubject) -> None:
    """Other content under the id of a damaged fact is a conflict, and the damage stays known."""
    s.put(*"ab")
    s.corrupt(OUTBOUND, 2)
    answer = s.one(other("b"))
    expect(isinstance(answer, Conflict), f"other content got {answer!r:.200}")
    same((2 in _problems(s), s.again("b").is_repaired), (True, True), "a flaw, and its repair")


@check("corrupt")
def received_duplicate_repairs(s: FactStoreSubject) -> None:
    """What a peer sends again repairs its damaged fact."""
    s.receive(sent("a", 1), sent("b", 2))
    s.corrupt(INBOX, 1)
    (told,) = s.receive(sent("a", 1))
    expect(isinstance(told, Appended) and told.is_repaired, f"a duplicate got {told!r:.200}")
    same((s.ids(INBOX), _problems(s, INBOX)), ([*"ab"], []), "ids and flaws")


@check("corrupt")
def repaired_fact_is_given_out_on_release(s: FactStoreSubject) -> None:
    """A fact that was set aside as damaged is delivered once it was repaired and released."""
    s.consumer()
    s.put(*"ab")
    s.corrupt(OUTBOUND, 1)
    same(s.served(), [2], "what comes first")
    s.again("a")
    (item,) = s.store.quarantine()
    s.store.settle(item.id, "released", reason="repaired")
    expect(1 in s.served(), "the repaired fact does not come")


@check("corrupt", "reopen")
def repair_survives(s: FactStoreSubject) -> None:
    """A repaired fact is in order also for the next process."""
    s.put(*"abc")
    s.corrupt(OUTBOUND, 2)
    s.again("b")
    s.reopen()
    same((s.ids(), _problems(s), s.put("d")), ([*"abc"], [], [4]), "ids, flaws, the next offset")


@check("corrupt")
def repaired_fact_can_be_dropped(s: FactStoreSubject) -> None:
    """Retention drops a repaired fact like any other, and its id stays known."""
    s.consumer()
    s.put(*"abc")
    s.corrupt(OUTBOUND, 2)
    s.again("b")
    s.done(3)
    same((s.store.truncate(OUTBOUND, 2), _problems(s)), (2, []), "how many were dropped, and flaws")
    same((s.ids(), s.again("b").is_repaired), (["c"], False), "ids, and a duplicate")
