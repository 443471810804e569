"""Checks of consumers: durable names, and what is known about them."""

from __future__ import annotations

from functools import partial

from ergon_framework.errors import BoundaryNotFoundError
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.testing.suites.factstore.subject import (
    INBOX,
    PLENTY,
    Subject,
    same,
)
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


@check()
def consumer_begins_at_the_start(s: Subject) -> None:
    """A new consumer gets everything the log holds."""
    s.put(*"ab")
    same(s.consumer().cursor, 0, "its cursor")
    same(s.served(), [1, 2], "offsets")


@check()
def consumer_begins_at_the_end(s: Subject) -> None:
    """A new consumer may ask for what is yet to come alone."""
    s.put(*"ab")
    same(s.consumer(from_end=True).cursor, 2, "its cursor")
    same(s.served(), [], "offsets")
    s.put("c")
    same(s.served(), [3], "offsets later")


@check()
def start_is_the_first_kept_fact(s: Subject) -> None:
    """A consumer that is created after a truncation begins with the first fact that is kept."""
    s.consumer()
    s.put(*"abc")
    s.done(3)
    s.store.truncate(OUTBOUND, 2)
    same(s.consumer("late").cursor, 2, "its cursor")
    same(s.served("late"), [3], "offsets")


@check()
def consumer_tells_what_it_is(s: Subject) -> None:
    """A consumer is known by its name, log, view and whether retention waits for it."""
    made = s.consumer("c", INBOX, to_zone="z", is_required=False)
    told = made.name, made.log, made.to_zone, made.is_required, made.holder
    same(told, ("c", INBOX, "z", False, None), "name, log, to_zone, is_required, holder")
    expect(abs(made.created_at - s.clock()) < 0.002, f"created_at is {made.created_at}")
    same(s.store.consumer("c"), made, "the consumer, asked for later")
    made = s.consumer("d")
    same((made.to_zone, made.is_required), (None, True), "what is assumed")


@check()
def same_consumer_again(s: Subject) -> None:
    """Creating the same consumer again answers the one there is, where it stands."""
    s.put(*"abc")
    s.consumer(to_zone="plant-b")
    s.done(2)
    again = s.consumer(to_zone="plant-b")
    same((again.cursor, len(s.store.consumers())), (2, 1), "its cursor, and how many there are")
    same(s.consumer(to_zone="plant-b", from_end=True).cursor, 2, "its cursor, asked from the end")


@check()
def other_log_is_refused(s: Subject) -> None:
    """A name that reads one log cannot be made to read another."""
    s.consumer()
    s.refused(lambda: s.consumer("c", INBOX), "consumer_exists", "already_exists")
    same(s.store.consumer("c").log, OUTBOUND, "its log")
    same([log.name for log in s.store.logs()], [OUTBOUND], "logs")


@check()
def other_view_is_refused(s: Subject) -> None:
    """A name that reads one view cannot be made to read another."""
    s.consumer(to_zone="b")
    for zone in ("c", None):
        call = partial(s.consumer, to_zone=zone)
        s.refused(call, "consumer_exists", "already_exists")
    same(s.store.consumer("c").to_zone, "b", "its view")


@check()
def consumers_are_listed(s: Subject) -> None:
    """Consumers are listed by name."""
    for name in ("b", "a", "c"):
        s.consumer(name)
    same([one.name for one in s.store.consumers()], ["a", "b", "c"], "names")


@check()
def unknown_consumer(s: Subject) -> None:
    """Whoever acts under a name that does not exist is told so."""
    s.put("a")
    calls = (
        lambda: s.store.consumer("x"),
        lambda: s.serve("x"),
        lambda: s.store.confirm("x", 1),
        lambda: s.store.seek("x", 0, reason="why not"),
        lambda: s.set_aside(1, "x"),
    )
    for call in calls:
        s.refused(call, "consumer_not_found", "not_found", BoundaryNotFoundError)


@check()
def deleted_consumer_is_gone(s: Subject) -> None:
    """A deleted consumer is forgotten with its quarantine; its name begins anew."""
    s.consumer()
    s.consumer("other")
    s.put(*"ab")
    s.set_aside(1)
    s.set_aside(1, "other")
    s.store.delete_consumer("c")
    s.refused(
        lambda: s.store.consumer("c"), "consumer_not_found", "not_found", BoundaryNotFoundError
    )
    same([one.name for one in s.store.consumers()], ["other"], "consumers")
    same([each.consumer for each in s.store.quarantine()], ["other"], "quarantine")
    same((s.consumer().cursor, s.served()), (0, [1, 2]), "a new one of that name")


@check(required=False)
def deletion_is_in_the_journal(s: Subject) -> None:
    """That retention no longer waits for a consumer is written down."""
    s.consumer("billing")
    s.store.delete_consumer("billing")
    texts = [text for _, _, text in s.store.journal()]
    expect(any("billing" in text for text in texts), f"the journal has {texts}")


# ---- figures ------------------------------------------------------------------------------------


@check()
def lag_is_counted(s: Subject) -> None:
    """A consumer's lag is the number of facts of its view above its cursor."""
    s.consumer()
    s.consumer("view", to_zone="b")
    for n, zone in enumerate("cbbcb", 1):
        s.put(f"id-{n}", to_zone=zone)
    s.done(2)
    same((s.store.consumer("c").lag, s.store.consumer("view").lag), (3, 3), "lags")
    same([one.lag for one in s.store.consumers()], [3, 3], "lags in the list")
    s.done(5)
    same(s.store.consumer("c").lag, 0, "lag of one who is done")


@check()
def waiting_since_the_oldest(s: Subject) -> None:
    """A consumer tells when the oldest fact that waits for it was recorded."""
    s.consumer()
    same(s.store.consumer("c").waiting_since, None, "when nothing waits")
    began = s.clock()
    for each in "abc":
        s.put(each)
        s.clock.forward(10.0)
    since = s.store.consumer("c").waiting_since
    expect(since is not None and abs(since - began) < 0.002, f"{since}, expected {began}")
    s.done(2)
    since = s.store.consumer("c").waiting_since
    expect(since is not None and abs(since - began - 20.0) < 0.002, f"{since} after two")
    s.done(3)
    same(s.store.consumer("c").waiting_since, None, "when all is done")


@check()
def pages_without_a_holder(s: Subject) -> None:
    """Who names no holder takes no lease, and anybody else may read too."""
    s.consumer()
    s.put("a")
    serving = s.store.serve("c", 9, PLENTY)
    same((serving.consumer.holder, serving.consumer.deliveries), (None, 0), "holder, deliveries")
    same(s.served(holder="h"), [1], "what a holder gets")
