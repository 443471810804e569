"""Checks of references: a fact enters only when its artifacts are there."""

from __future__ import annotations

from dataclasses import replace

from ergon_framework.ports.factstore import OUTBOUND, Reference, StoredObject, Unfounded
from ergon_framework.testing.suites.factstore.subject import Subject, added, new, same
from ergon_framework.testing.suites.framework import Check, fail, register

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)

MISSING = Reference("files", "missing", bytes(32), 5)


def is_marked(s: Subject, key: str) -> bool:
    """Whether a name of the usual bucket is known to be referred to."""
    return _object(s, key).is_referenced


def _object(s: Subject, key: str) -> StoredObject:
    found = s.store.object("files", key)
    return found if found is not None else fail(f"the object {key!r} is gone")


@check()
def missing_object_is_unfounded(s: Subject) -> None:
    """A fact that refers to an object that is not there is refused, and not stored."""
    same(s.one(new("a", references=(MISSING,))), Unfounded(MISSING, None), "the answer")
    same((s.head(), s.store.find("plant-a", "a")), (0, None), "what is there")


@check()
def other_digest_is_unfounded(s: Subject) -> None:
    """A fact whose object has another digest is refused, and told which."""
    there = s.bind("k")
    asked = replace(there, digest=bytes(32))
    same(s.one(new("a", references=(asked,))), Unfounded(asked, there), "the answer")
    same(s.head(), 0, "the head")


@check()
def other_size_is_unfounded(s: Subject) -> None:
    """A fact whose object has another size is refused, and told which."""
    there = s.bind("k")
    asked = replace(there, size=there.size + 1)
    same(s.one(new("a", references=(asked,))), Unfounded(asked, there), "the answer")


@check()
def same_bytes_under_another_name(s: Subject) -> None:
    """It is the name that must be there, not just the bytes."""
    there = s.bind("k")
    for asked in (replace(there, key="K"), replace(there, bucket="other")):
        same(s.one(new("a", references=(asked,))), Unfounded(asked, None), "the answer")


@check()
def founded_fact_is_stored(s: Subject) -> None:
    """A fact whose objects are all there is stored, and the objects are marked."""
    both = s.bind("k"), s.bind("l", b"others")
    s.bind("m")
    same(added(s.one(new("a", references=both))), 1, "its offset")
    same([is_marked(s, key) for key in "klm"], [True, True, False], "marked")


@check()
def every_reference_counts(s: Subject) -> None:
    """One missing object among several refuses the fact, and marks none of the others."""
    there = s.bind("k")
    answer = s.one(new("a", references=(there, MISSING)))
    same(answer, Unfounded(MISSING, None), "the answer")
    same(is_marked(s, "k"), False, "the object that is there is marked")


@check()
def refused_fact_marks_nothing(s: Subject) -> None:
    """A fact that does not enter the log, for whatever reason, marks no object."""
    there = s.bind("k")
    s.put("a")
    s.append(new("a", fact=b"{}", references=(there,)))
    s.append(new("b", references=(there,)), capacity=1)
    same(is_marked(s, "k"), False, "the object is marked")


@check()
def unfounded_fact_may_come_again(s: Subject) -> None:
    """A fact that was refused is taken once its object is there."""
    there = s.bind("k")
    s.store.unbind("files", "k")
    fact = new("a", references=(there,))
    same(s.one(fact), Unfounded(there, None), "before")
    s.bind("k")
    same(added(s.one(fact)), 1, "its offset")


@check()
def unneeded_artifacts_are_marked_all_the_same(s: Subject) -> None:
    """A fact that needs no artifact enters without it, and what it refers to is never an orphan."""
    there = s.bind("k")
    wanted = replace(there, key="later")
    same(added(s.one(new("a", references=(there, wanted), needs_artifacts=False))), 1, "its offset")
    s.bind("later")
    same([is_marked(s, key) for key in ("k", "later")], [True, True], "marked")


@check()
def names_are_marked_on_request(s: Subject) -> None:
    """Those that stand for something, and those that will."""
    s.bind("k")
    s.bind("m")
    s.store.refer([("files", "k"), ("files", "later")])
    s.bind("later")
    same([is_marked(s, key) for key in ("k", "later", "m")], [True, True, False], "marked")


@check()
def duplicate_is_answered_before_its_references(s: Subject) -> None:
    """The ledger is asked first: what is there already needs nothing more."""
    s.put("a")
    same(s.again("a", references=(MISSING,)).offset, 1, "its offset")


@check()
def mark_outlives_the_payload(s: Subject) -> None:
    """An object stays marked when the fact that referred to it was truncated."""
    s.consumer()
    added(s.one(new("a", references=(s.bind("k"),))))
    s.done(1)
    same(s.store.truncate(OUTBOUND, 1), 1, "dropped")
    same(is_marked(s, "k"), True, "the object is marked")


@check()
def reference_in_a_batch(s: Subject) -> None:
    """A refused fact in a batch leaves its neighbours alone."""
    there = s.bind("k")
    found = s.append(new("a"), new("b", references=(MISSING,)), new("c", references=(there,)))
    same(added(found[2]), 2, "offset of the last")
    same((s.ids(), is_marked(s, "k")), (["a", "c"], True), "the log, and the mark")
