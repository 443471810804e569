"""Checks of object names: a name stands for the same bytes for ever, or is taken away unused."""

from __future__ import annotations

import hashlib
from functools import partial

from ergon_framework.errors import ObjectConflictError
from ergon_framework.ports.factstore import StoredObject
from ergon_framework.testing.suites.factstore.under_test import FactStoreSubject, added, new, same
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[FactStoreSubject]] = []
check = register(CHECKS)

DIGEST = hashlib.sha256(b"bytes").digest()


def _names(found: list[StoredObject]) -> list[tuple[str, str]]:
    return [(each.bucket, each.key) for each in found]


@check()
def name_is_found(s: FactStoreSubject) -> None:
    """A name tells the digest, the size, when it was given, and that nobody refers to it yet."""
    made = s.store.bind("files", "k", DIGEST, 5)
    told = made.bucket, made.key, made.digest, made.size, made.is_referenced
    same(told, ("files", "k", DIGEST, 5, False), "the object")
    expect(abs(made.at - s.clock()) < 0.002, f"it is dated {made.at}")
    same(s.store.object("files", "k"), made, "the object, asked for later")


@check()
def unknown_name(s: FactStoreSubject) -> None:
    """A name that was never given stands for nothing."""
    s.bind("k")
    same(s.store.object("files", "K"), None, "another key")
    same(s.store.object("file", "k"), None, "another bucket")


@check()
def same_bytes_again(s: FactStoreSubject) -> None:
    """Giving the same name to the same bytes again is fine."""
    s.bind("k")
    s.clock.forward(60.0)
    again = s.store.bind("files", "k", DIGEST, 5)
    same((again.digest, again.size), (DIGEST, 5), "the object")
    same(len(s.store.objects()), 1, "names")


@check()
def same_bytes_again_when_referenced(s: FactStoreSubject) -> None:
    """Giving the name again does not make the store forget that facts refer to it."""
    added(s.one(new("a", references=(s.bind("k"),))))
    same(s.store.bind("files", "k", DIGEST, 5).is_referenced, True, "is_referenced")
    same(s.store.orphans(s.clock() + 1e6), [], "orphans")


@check()
def other_bytes_are_refused(s: FactStoreSubject) -> None:
    """A name never stands for other bytes, referred to or not."""
    s.bind("k")
    for digest, size in ((bytes(32), 5), (DIGEST, 6)):
        call = partial(s.store.bind, "files", "k", digest, size)
        s.refused(call, "object_conflict", "already_exists", ObjectConflictError)
    found = s.store.object("files", "k")
    same(found and (found.digest, found.size), (DIGEST, 5), "what the name stands for")
    same(s.store.is_bound(bytes(32)), False, "the other bytes have a name")


@check()
def names_are_told_apart(s: FactStoreSubject) -> None:
    """Buckets and keys that look alike are different names."""
    pairs = [("a", "b/c"), ("a/b", "c"), ("a", "B/c"), ("a", "b/c "), ("a", "../x"), ("a", "é")]
    for bucket, key in pairs:
        s.bind(key, f"{bucket}|{key}".encode(), bucket)
    same(sorted(_names(s.store.objects())), sorted(pairs), "names")


@check()
def names_are_listed_in_order(s: FactStoreSubject) -> None:
    """Names are listed by bucket and key, and from a place on."""
    for bucket, key in (("b", "1"), ("a", "2"), ("b", "0"), ("a", "1"), ("c", "9")):
        s.bind(key, bucket=bucket)
    wanted = [("a", "1"), ("a", "2"), ("b", "0"), ("b", "1"), ("c", "9")]
    same(_names(s.store.objects()), wanted, "all")
    same(_names(s.store.objects(after=("a", "2"))), wanted[2:], "after a name")
    same(_names(s.store.objects(after=("a", "3"))), wanted[2:], "after a name that is not there")
    same(_names(s.store.objects(limit=2)), wanted[:2], "the first two")
    same(_names(s.store.objects("b")), wanted[2:4], "of one bucket")
    same(_names(s.store.objects("b", after=("b", "0"))), wanted[3:4], "of it, after a name")
    same(s.store.objects("nothing"), [], "of an unknown bucket")


@check()
def orphans_are_old_and_alone(s: FactStoreSubject) -> None:
    """Orphans are the names given before an instant to which no fact refers."""
    referenced = s.bind("referenced")
    s.bind("old")
    added(s.one(new("a", references=(referenced,))))
    s.clock.forward(100.0)
    s.bind("young")
    same(_names(s.store.orphans(s.clock() - 50.0)), [("files", "old")], "orphans")
    same(s.store.orphans(s.clock() - 200.0), [], "orphans of long ago")
    found = {key for _, key in _names(s.store.orphans(s.clock() + 1.0))}
    same(found, {"old", "young"}, "orphans up to now")


@check()
def orphans_are_bounded(s: FactStoreSubject) -> None:
    """No more orphans are listed than asked for."""
    for n in range(5):
        s.bind(f"k{n}")
    s.clock.forward(1.0)
    same(len(s.store.orphans(s.clock(), 3)), 3, "orphans")


@check()
def name_is_taken_away(s: FactStoreSubject) -> None:
    """A name that no fact refers to can be taken away; the object is answered, to be deleted."""
    s.bind("k")
    gone = s.store.unbind("files", "k")
    same(gone and (gone.bucket, gone.key, gone.digest), ("files", "k", DIGEST), "the object")
    same((s.store.object("files", "k"), s.store.is_bound(DIGEST)), (None, False), "what is left")
    same(s.store.unbind("files", "k"), None, "the second time")


@check()
def freed_name_may_stand_for_others(s: FactStoreSubject) -> None:
    """A name that was taken away may be given to other bytes."""
    s.bind("k")
    s.store.unbind("files", "k")
    same(s.bind("k", b"others").size, 6, "its size")


@check()
def referenced_name_stays(s: FactStoreSubject) -> None:
    """The name of an object that a fact refers to can never be taken away."""
    added(s.one(new("a", references=(s.bind("k"),))))
    s.refused(lambda: s.store.unbind("files", "k"), "referenced")
    found = s.store.object("files", "k")
    same(found and found.is_referenced, True, "is_referenced")


@check()
def shared_bytes_stay(s: FactStoreSubject) -> None:
    """While another name stands for the same bytes they may not be deleted."""
    s.bind("one")
    s.bind("two", bucket="other")
    same(s.store.unbind("files", "one"), None, "the object, at the first name")
    same(s.store.is_bound(DIGEST), True, "the bytes have a name")
    gone = s.store.unbind("other", "two")
    same(gone and gone.digest, DIGEST, "the object, at the last name")


@check()
def each_name_is_referred_to_on_its_own(s: FactStoreSubject) -> None:
    """Of two names for the same bytes, one may be referred to and the other be an orphan."""
    one = s.bind("one")
    s.bind("two")
    added(s.one(new("a", references=(one,))))
    same(_names(s.store.orphans(s.clock() + 1.0)), [("files", "two")], "orphans")
    same(s.store.unbind("files", "two"), None, "the object: its bytes have another name")


@check()
def naming_again_makes_young(s: FactStoreSubject) -> None:
    """A name that is given again is no orphan of old, and is not taken away as one."""
    s.store.bind("files", "k", b"d" * 32, 1)
    s.clock.forward(100.0)
    s.store.bind("files", "k", b"d" * 32, 1)
    before = s.clock() - 50.0
    same(s.store.orphans(before), [], "orphans")
    same(s.store.unbind("files", "k", before=before), None, "what was taken away")
    expect(s.store.object("files", "k") is not None, "the name is gone")
    s.clock.forward(100.0)
    expect(s.store.unbind("files", "k", before=s.clock() - 50.0) is not None, "an old one stays")


@check()
def objects_are_totalled(s: FactStoreSubject) -> None:
    """The names and their bytes are counted."""
    same(s.store.object_totals(), (0, 0), "of none")
    s.store.bind("files", "a", b"a" * 32, 3)
    s.store.bind("files", "b", b"b" * 32, 4)
    same(s.store.object_totals(), (2, 7), "of two")
