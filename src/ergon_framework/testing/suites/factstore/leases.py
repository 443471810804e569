"""Checks of leases: two processes under one name cannot both run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ergon_framework.errors import ConsumerHeldError
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.testing.suites.factstore.under_test import LEASE, FactStoreSubject, same
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[FactStoreSubject]] = []
check = register(CHECKS)


def _held(s: FactStoreSubject, call: Callable[[], Any]) -> None:
    s.refused(call, "consumer_held", "aborted", ConsumerHeldError)


def _leased(s: FactStoreSubject) -> None:
    """Three facts, and a consumer that ``one`` holds."""
    s.consumer()
    s.put(*"abc")
    s.serve(holder="one", lease=LEASE)


@check()
def holder_is_told(s: FactStoreSubject) -> None:
    """A consumer tells who holds its name, and until when."""
    _leased(s)
    one = s.store.consumer("c")
    same(one.holder, "one", "the holder")
    expect(abs(one.held_until - s.clock() - LEASE) < 0.002, f"held until {one.held_until}")


@check()
def others_are_refused(s: FactStoreSubject) -> None:
    """While one holds the name, others get nothing, whether they name themselves or not."""
    _leased(s)
    _held(s, lambda: s.serve(holder="two"))
    _held(s, s.serve)
    same(s.store.consumer("c").holder, "one", "the holder")


@check()
def others_cannot_confirm(s: FactStoreSubject) -> None:
    """While one holds the name, nobody else moves its cursor."""
    _leased(s)
    _held(s, lambda: s.store.confirm("c", 3, holder="two"))
    _held(s, lambda: s.store.confirm("c", 3))
    same(s.store.consumer("c").cursor, 0, "the cursor")
    same(s.store.confirm("c", 3, holder="one"), 3, "the cursor, by the holder")


@check()
def others_cannot_set_aside(s: FactStoreSubject) -> None:
    """While one holds the name, nobody else sets its facts aside."""
    _leased(s)
    _held(s, lambda: s.set_aside(1, holder="two"))
    _held(s, lambda: s.set_aside(1))
    same((s.store.quarantine(), s.store.consumer("c").cursor), ([], 0), "quarantine, cursor")
    same(s.set_aside(1, holder="one").offset, 1, "by the holder")


@check()
def holder_renews(s: FactStoreSubject) -> None:
    """Each page prolongs the lease."""
    _leased(s)
    for _ in range(5):
        s.clock.forward(LEASE - 1.0)
        s.serve(holder="one", lease=LEASE)
    _held(s, lambda: s.serve(holder="two"))


@check()
def confirming_renews(s: FactStoreSubject) -> None:
    """Each confirmation by the holder prolongs the lease, for as long as it was given."""
    _leased(s)
    for _ in range(5):
        s.clock.forward(LEASE - 1.0)
        s.store.confirm("c", 0, holder="one")
    _held(s, lambda: s.serve(holder="two"))
    s.clock.forward(LEASE + 1.0)
    s.serve(holder="two")


@check()
def lease_outlives_no_clock(s: FactStoreSubject) -> None:
    """A clock that goes back does not make a lease last for hours."""
    _leased(s)
    s.clock.forward(-10_000.0)
    _held(s, lambda: s.serve(holder="two"))
    s.clock.forward(LEASE + 2.0)
    s.serve(holder="two")


@check()
def lease_expires(s: FactStoreSubject) -> None:
    """A holder that does not come back loses the name when its lease ends, not before."""
    _leased(s)
    s.clock.forward(LEASE - 1.0)
    _held(s, lambda: s.serve(holder="two"))
    s.clock.forward(2.0)
    same(s.served(holder="two"), [1, 2, 3], "what the next one gets")
    same(s.store.consumer("c").holder, "two", "the holder")


@check()
def former_holder_is_refused(s: FactStoreSubject) -> None:
    """A holder that lost the name can neither read, confirm nor set aside."""
    _leased(s)
    s.clock.forward(LEASE + 1.0)
    s.serve(holder="two", lease=LEASE)
    _held(s, lambda: s.serve(holder="one"))
    _held(s, lambda: s.store.confirm("c", 3, holder="one"))
    _held(s, lambda: s.set_aside(1, holder="one"))
    same(s.store.consumer("c").cursor, 0, "the cursor")


@check()
def slow_holder_may_confirm(s: FactStoreSubject) -> None:
    """A holder whose lease has ended may still confirm when nobody took its place."""
    _leased(s)
    s.clock.forward(LEASE + 1.0)
    same(s.store.confirm("c", 2, holder="one"), 2, "the cursor")


@check()
def lease_is_given_back(s: FactStoreSubject) -> None:
    """A holder that lets go frees the name at once; letting go twice is fine."""
    _leased(s)
    s.store.release_lease("c", "one")
    s.store.release_lease("c", "one")
    same(s.store.consumer("c").holder, None, "the holder")
    same(s.served(holder="two"), [1, 2, 3], "what the next one gets")


@check()
def only_the_holder_lets_go(s: FactStoreSubject) -> None:
    """Nothing happens when somebody lets go of a name that is not its own."""
    _leased(s)
    s.store.release_lease("c", "two")
    same(s.store.consumer("c").holder, "one", "the holder")
    _held(s, lambda: s.serve(holder="two"))


@check()
def leases_are_per_consumer(s: FactStoreSubject) -> None:
    """A lease on one name does not touch another."""
    _leased(s)
    s.consumer("d")
    same(s.served("d", holder="two"), [1, 2, 3], "what the other consumer gets")
    s.store.release_lease("d", "two")
    same(s.store.consumer("c").holder, "one", "the holder of the first")


@check()
def empty_page_is_leased_too(s: FactStoreSubject) -> None:
    """A holder keeps the name while it waits for facts."""
    s.consumer()
    s.serve(holder="one", lease=LEASE)
    _held(s, lambda: s.serve(holder="two"))


# ---- deliveries ---------------------------------------------------------------------------------


@check()
def deliveries_are_counted(s: FactStoreSubject) -> None:
    """Each holder to whom the fact after the cursor goes out counts once, this one included."""
    s.consumer()
    s.put(*"abc")
    found = [s.serve(holder="one").consumer.deliveries for _ in range(3)]
    same(found, [1, 1, 1], "deliveries")
    same(s.store.consumer("c").deliveries, 1, "deliveries, asked for later")


@check()
def letting_go_starts_the_count_anew(s: FactStoreSubject) -> None:
    """A holder that lets go of the name has not died of what it was given."""
    s.consumer()
    s.put(*"abc")
    for n in range(3):
        s.serve(holder=f"process-{n}")
        s.store.release_lease("c", f"process-{n}")
    same(s.serve(holder="one").consumer.deliveries, 1, "deliveries")


@check()
def deliveries_survive_the_holder(s: FactStoreSubject) -> None:
    """A fact that brings its holders down is counted from one to the next."""
    s.consumer()
    s.put("a")
    for n in range(3):
        s.serve(holder=f"process-{n}", lease=LEASE)
        s.clock.forward(LEASE + 1.0)
    same(s.store.consumer("c").deliveries, 3, "deliveries")


@check()
def nameless_deliveries_do_not_count(s: FactStoreSubject) -> None:
    """A read without a holder does not count as a delivery."""
    s.consumer()
    s.put("a")
    s.serve()
    s.serve()
    same(s.serve(holder="one").consumer.deliveries, 1, "deliveries")


@check()
def empty_pages_do_not_count(s: FactStoreSubject) -> None:
    """A page without facts is no delivery of the fact that comes next."""
    s.consumer()
    for _ in range(3):
        s.serve(holder="one")
    s.put("a")
    same(s.serve(holder="one").consumer.deliveries, 1, "deliveries")


@check()
def progress_starts_the_count_anew(s: FactStoreSubject) -> None:
    """Once the cursor has moved, the count is about the next fact."""
    s.consumer()
    s.put(*"abc")
    s.serve(limit=1, holder="dead", lease=LEASE)
    s.clock.forward(LEASE + 1.0)
    s.serve(limit=1, holder="one")
    s.store.confirm("c", 1, holder="one")
    same(s.serve(limit=1, holder="one").consumer.deliveries, 1, "deliveries of the second")
    s.serve(limit=1, holder="one")
    s.set_aside(2, holder="one")
    same(s.serve(limit=1, holder="one").consumer.deliveries, 1, "deliveries of the third")


@check()
def standing_still_keeps_the_count(s: FactStoreSubject) -> None:
    """A confirmation that moves nothing does not start the count anew."""
    s.consumer()
    s.put(*"ab")
    s.serve(holder="dead", lease=LEASE)
    s.store.confirm("c", 1, holder="dead")
    s.serve(holder="dead", lease=LEASE)
    s.clock.forward(LEASE + 1.0)
    s.serve(holder="one")
    s.store.confirm("c", 1, holder="one")
    same(s.serve(holder="one").consumer.deliveries, 2, "deliveries")


@check()
def others_are_refused_before_anything_else(s: FactStoreSubject) -> None:
    """A caller without the lease is told that, even when facts after its cursor are gone."""
    s.consumer(is_required=False)
    s.consumer("needed")
    s.put(*"ab")
    s.serve(holder="one")
    s.done(2, "needed")
    s.store.truncate(OUTBOUND, 2)
    _held(s, lambda: s.serve(holder="two"))
