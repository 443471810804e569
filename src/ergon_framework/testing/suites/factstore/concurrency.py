"""Checks of many threads at once: one offset per id, and no fact that turns up late."""

from __future__ import annotations

import threading
from functools import partial
from itertools import chain

from ergon_framework.errors import ConsumerHeldError, ObjectConflictError, StoreError
from ergon_framework.ports.factstore import (
    OUTBOUND,
    Appended,
    AppendOutcome,
    CapacityExceeded,
    Conflict,
)
from ergon_framework.testing.suites.factstore.under_test import (
    PLENTY,
    FactStoreSubject,
    new,
    offsets,
    other,
    same,
)
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[FactStoreSubject]] = []
check = register(CHECKS)


@check()
def threads_share_one_offset(s: FactStoreSubject) -> None:
    """Of many threads that append the same fact at once, one stores it and all get its offset."""
    for n in range(5):
        found = s.together([partial(s.one, new(f"id-{n}"))] * 16)
        told = [(e.offset, e.is_duplicate) for e in found if isinstance(e, Appended)]
        same(sorted(told), [(n + 1, False)] + [(n + 1, True)] * 15, "offset and is_duplicate")
    same(s.ids(), [f"id-{n}" for n in range(5)], "the log")


@check()
def threads_conflict_once(s: FactStoreSubject) -> None:
    """Of many threads with different contents under one id, one wins and the others are told."""
    facts = [new("a", fact=b'{"n":%d}' % n) for n in range(12)]
    found = s.together([partial(s.one, fact) for fact in facts])
    winners = [fact for fact, e in zip(facts, found, strict=True) if isinstance(e, Appended)]
    same(len(winners), 1, "winners")
    same([fact.fact for fact in s.page().facts], [winners[0].fact], "the log")
    digests = {e.digest for e in found if isinstance(e, Conflict)}
    same(digests, {winners[0].digest}, "what the others were told")


@check()
def threads_append_densely(s: FactStoreSubject) -> None:
    """Offsets of many threads are dense, different, and in order for each of them."""

    def work(name: str) -> list[int]:
        return [offset for n in range(10) for offset in s.put(f"{name}-{n}", f"{name}-{n}x")]

    parts = s.together([partial(work, f"t{n}") for n in range(8)])
    same(sorted(chain.from_iterable(parts)), list(range(1, 161)), "all offsets")
    expect(all(part == sorted(part) for part in parts), "a thread's offsets are out of order")
    same(offsets(s.page().facts), list(range(1, 161)), "the log")


@check()
def nothing_turns_up_late(s: FactStoreSubject) -> None:
    """A reader that has seen an offset never later finds one below it that it had not seen."""
    writers = 4
    done = threading.Semaphore(0)

    def write(name: str) -> None:
        try:
            for n in range(25):
                s.put(f"{name}-{n}")
        finally:
            done.release()

    def read() -> list[int]:
        seen: list[int] = []
        left = writers
        while left or s.page(len(seen), 1).facts:
            left -= left > 0 and done.acquire(blocking=False)
            seen += offsets(s.page(len(seen), 7).facts)
            if seen != list(range(1, len(seen) + 1)):
                break
        return seen

    *_, seen = s.together([*(partial(write, f"w{n}") for n in range(writers)), read])
    same(seen, list(range(1, 101)), "offsets in the order of seeing them")


@check()
def threads_race_for_the_lease(s: FactStoreSubject) -> None:
    """Of many processes that come under one name at once, one gets it."""
    s.consumer()
    s.put("a")

    def take(holder: str) -> bool:
        error = s.refusal(partial(s.store.serve, "c", 9, PLENTY, holder=holder))
        expect(error is None or isinstance(error, ConsumerHeldError), f"it raised {error!r}")
        return error is None

    found = s.together([partial(take, f"h{n}") for n in range(12)])
    same(sum(found), 1, "holders")


@check()
def threads_confirm_upwards(s: FactStoreSubject) -> None:
    """Confirmations that arrive in any order end at the highest."""
    s.consumer()
    s.put(*(f"id-{n}" for n in range(20)))
    s.serve()
    found = s.together([partial(s.store.confirm, "c", n) for n in range(1, 21)])
    expect(all(f >= n for n, f in enumerate(found, 1)), f"cursors {found}")
    same(s.store.consumer("c").cursor, 20, "the cursor")


@check()
def threads_bind_one(s: FactStoreSubject) -> None:
    """Of many threads that give one name to different bytes, one wins."""

    def bind(n: int) -> bool:
        error = s.refusal(lambda: s.store.bind("files", "k", bytes([n]) * 32, n))
        expect(error is None or isinstance(error, ObjectConflictError), f"it raised {error!r}")
        return error is None

    found = s.together([partial(bind, n) for n in range(10)])
    same(sum(found), 1, "winners")
    kept = s.store.object("files", "k")
    same(kept and kept.size, found.index(True), "what the name stands for")


@check()
def reference_and_removal_exclude_each_other(s: FactStoreSubject) -> None:
    """A fact never ends up with its object gone, however the two race."""
    for n in range(20):
        there = s.bind(f"k{n}", b"%d" % n)
        fact = new(f"id-{n}", references=(there,))

        def remove(key: str = there.key) -> bool:
            return s.refusal(lambda: s.store.unbind("files", key)) is None

        answer, is_gone = s.together([partial(s.one, fact), remove])
        is_stored = isinstance(answer, Appended)
        expect(is_stored != is_gone, f"stored: {is_stored}, object gone: {is_gone}")


@check()
def truncation_among_appends(s: FactStoreSubject) -> None:
    """Truncation while others append loses nothing that was not confirmed."""
    s.consumer()
    s.put(*(f"id-{n}" for n in range(20)))
    s.done(20)

    def write(name: str) -> None:
        for n in range(10):
            s.put(f"{name}-{n}")

    def drop() -> int:
        return sum(s.store.truncate(OUTBOUND, 1000) for _ in range(10))

    *_, dropped = s.together([partial(write, "a"), partial(write, "b"), drop])
    same((dropped, s.served()), (20, list(range(21, 41))), "dropped, and what comes")


@check()
def appending_soon(s: FactStoreSubject) -> None:
    """An append that is not waited for is answered later, with the same outcomes."""
    answers: list[list[AppendOutcome] | BaseException] = []
    answered = threading.Semaphore(0)

    def done(answer: list[AppendOutcome] | BaseException) -> None:
        answers.append(answer)
        answered.release()

    s.put("a")
    s.store.append_soon(OUTBOUND, [new("b"), new("a"), other("a")], done)
    s.store.append_soon(OUTBOUND, [new("c")], done, capacity=1)
    expect(all(answered.acquire(timeout=s.patience) for _ in range(2)), "no answer came")
    kinds = [[type(e) for e in each] for each in answers if isinstance(each, list)]
    same(kinds, [[Appended, Appended, Conflict], [CapacityExceeded]], "kinds of outcomes")
    same(s.ids(), ["a", "b"], "the log")


@check()
def answer_of_appending_soon_is_true(s: FactStoreSubject) -> None:
    """When the answer comes, the fact is there and is found."""
    seen: list[object] = []
    answered = threading.Event()

    def done(answer: list[AppendOutcome] | BaseException) -> None:
        seen.append(answer)
        seen.append(s.store.find("plant-a", "a") is not None)
        answered.set()

    s.store.append_soon(OUTBOUND, [new("a")], done)
    expect(answered.wait(s.patience), "no answer came")
    same(seen, [[Appended(1)], True], "the answer, and whether it was found")


@check()
def many_appends_soon(s: FactStoreSubject) -> None:
    """Appends of many threads that wait for nothing are each answered once, and none is lost."""
    told: list[tuple[str, int]] = []
    answered = threading.Semaphore(0)

    def done(message_id: str, answer: list[AppendOutcome] | BaseException) -> None:
        if isinstance(answer, list) and isinstance(answer[0], Appended):
            told.append((message_id, answer[0].offset))
        answered.release()

    def work(name: str) -> None:
        for n in range(20):
            each = f"{name}-{n}"
            s.store.append_soon(OUTBOUND, [new(each)], partial(done, each))

    s.together([partial(work, f"t{n}") for n in range(4)])
    expect(all(answered.acquire(timeout=s.patience) for _ in range(80)), "answers are missing")
    wanted = [(fact.message_id, fact.offset) for fact in s.page().facts]
    same(sorted(told), sorted(wanted), "answers, and what is in the log")
    same(len(wanted), 80, "facts")


@check()
def closed_store_answers_an_append_soon(s: FactStoreSubject) -> None:
    """A closed store says so, by raising or by answering with the error; it is not silent."""
    answers: list[list[AppendOutcome] | BaseException] = []
    answered = threading.Event()

    def done(answer: list[AppendOutcome] | BaseException) -> None:
        answers.append(answer)
        answered.set()

    s.store.close()
    error: object = s.refusal(lambda: s.store.append_soon(OUTBOUND, [new("a")], done))
    if error is None:
        expect(answered.wait(s.patience), "no answer came")
        error = answers[0]
    expect(isinstance(error, StoreError), f"no StoreError, but {error!r}")
