"""Checks of release_after: a parked transaction comes back when its time has come, and once."""

from __future__ import annotations

import threading

from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.suites.check import Check, expect, fail, register
from ergon_framework.testing.suites.connector.subject import Subject, ids_of, one, some

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)

LONG = 3600.0  # nobody lives to see its end
SHORT = 0.1
LOOK = 0.02  # seconds between two looks for what is to come back


@check("put", "release_after")
def parked_waits_for_its_time(s: Subject) -> None:
    """A parked transaction is not delivered before its time, and the others flow."""
    s.put(some(3))
    parked = s.take(1)[0]
    s.call("release_after", parked, LONG)
    came = ids_of(s.drain())
    expect(parked.transaction_id not in came, f"parked for {LONG:g} s, and it came at once")
    expect(len(came) == 2, f"two more were waiting, and {came} came")


@check("put", "release_after")
def parked_comes_back(s: Subject) -> None:
    """When its time has come, a parked transaction is delivered as it was, and once."""
    s.put([one({"n": 1}, correlation_id="flow")])
    first = s.take(1)[0]
    s.call("release_after", first, SHORT)
    again = _returned(s)
    expect(again.transaction_id == first.transaction_id, "another one came")
    for field in ("payload", "metadata", "correlation_id"):
        same = getattr(again, field) == getattr(first, field)
        expect(same, f"the redelivery has another {field}")
    if "ack" in s.methods:
        s.call("ack", again)
    expect(s.drain() == [], "it came once more")


@check("put", "release_after")
def parks_again_and_again(s: Subject) -> None:
    """A transaction can be parked more than once: a gate may stay closed."""
    s.put(some(1))
    s.call("release_after", s.take(1)[0], 0.0)
    s.call("release_after", _returned(s), 0.0)
    s.call("release_after", _returned(s), LONG)
    expect(s.drain() == [], "the last time was not waited for")


@check("put", "release_after", "release", required=False)
def parking_settles_once(s: Subject) -> None:
    """Settling a parked delivery again, refused or not, brings nothing back and nothing twice."""
    s.put(some(2))
    later, soon = s.take(2)
    s.call("release_after", later, LONG)
    s.refusal(lambda: s.call("release", later))
    expect(s.drain() == [], "a release brought back what was parked")
    s.call("release_after", soon, SHORT)
    s.refusal(lambda: s.call("release_after", soon, SHORT))
    _returned(s)
    expect(s.drain() == [], "parked twice, it came twice")


def _returned(s: Subject) -> Transaction:
    """The one that was parked, as soon as it is there."""
    until, never = SYSTEM_CLOCK.now() + s.patience, threading.Event()
    while SYSTEM_CLOCK.now() < until:
        for transaction in s.fetch(1):
            found: Transaction = transaction
            return found
        never.wait(LOOK)
    return fail(f"it did not come back within {s.patience:g} s")
