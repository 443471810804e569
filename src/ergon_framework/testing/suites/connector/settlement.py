"""Ack, nack and release, once each; and parking until later."""

from __future__ import annotations

import threading
from collections import Counter

from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.suites.connector.under_test import ConnectorSubject, ids_of, one, some
from ergon_framework.testing.suites.framework import Check, expect, fail, register

CHECKS: list[Check[ConnectorSubject]] = []
check = register(CHECKS)

REASON = "the customer is unknown"


def _refusal(s: ConnectorSubject, verb: str, transaction: Transaction) -> Exception | None:
    reason = [ValueError(REASON)] if verb == "nack" else []
    return s.refusal(lambda: s.call(verb, transaction, *reason))


@check("put", "ack")
def ack_forgets(s: ConnectorSubject) -> None:
    """An acknowledged transaction is never delivered again."""
    s.put(some(4))
    done = s.take(2)
    for transaction in done:
        s.call("ack", transaction)
    again = set(ids_of(done)) & set(ids_of(s.drain(expected=2)))
    expect(not again, f"delivered again after ack: {sorted(again)}")


@check("put", "nack")
def nack_does_not_redeliver(s: ConnectorSubject) -> None:
    """A transaction that failed for good is not delivered again, and the others still are."""
    s.put(some(3))
    bad = s.take(1)[0]
    s.call("nack", bad, ValueError(REASON))
    rest = ids_of(s.drain(expected=2))
    expect(bad.transaction_id not in rest, "delivered again after nack")
    expect(len(rest) == 2, f"two more were waiting, and {rest} came")


@check("put", "nack", "dead")
def nack_keeps_the_reason(s: ConnectorSubject) -> None:
    """A transaction that failed for good is set aside with its id and the text of the exception."""
    s.put(some(2))
    bad = s.take(1)[0]
    s.call("nack", bad, ValueError(REASON))
    dead = s.dead()
    expect(ids_of(each for each, _ in dead) == [bad.transaction_id], f"set aside: {len(dead)}")
    expect(REASON in dead[0][1], "the reason is missing")


@check("put", "release")
def release_redelivers(s: ConnectorSubject) -> None:
    """A released transaction is delivered again."""
    s.put(some(3))
    taken = s.take(3)
    s.call("release", taken[1])
    again = ids_of(s.drain(expected=1))
    expect(taken[1].transaction_id in again, "it did not come back")


@check("put", "release")
def release_leaves_the_others_alone(s: ConnectorSubject) -> None:
    """Releasing one transaction does not deliver others that are still in flight."""
    s.put(some(4))
    taken = s.take(4)
    s.call("release", taken[2])
    others = set(ids_of(s.drain(expected=1))) - {taken[2].transaction_id}
    expect(not others, f"delivered while in flight: {sorted(others)}")


@check("put", "release")
def release_keeps_the_envelope(s: ConnectorSubject) -> None:
    """A redelivery has the same id, payload and metadata as the first delivery."""
    s.put([one({"n": 1}, metadata={"tenant": "blue"}, correlation_id="flow", parent_id="p")])
    first = s.take(1)[0]
    s.call("release", first)
    again = s.take(1)[0]
    expect(again.transaction_id == first.transaction_id, "the redelivery has another id")
    for field in ("payload", "metadata", "correlation_id", "parent_id"):
        same = getattr(again, field) == getattr(first, field)
        expect(same, f"the redelivery has another {field}")


@check("put", "release")
def releases_again_and_again(s: ConnectorSubject) -> None:
    """A transaction can be released more than once and still be acknowledged in the end."""
    s.put(some(1))
    for _ in range(3):
        s.call("release", s.take(1)[0])
    expect(len(s.drain(expected=1)) == 1, "it did not come back after three releases")


@check("put", "release", "strict_order")
def release_restores_order(s: ConnectorSubject) -> None:
    """Released transactions come back before later ones, in their old order."""
    given = some(6)
    s.put(given)
    taken = s.take(4)
    for index in (2, 0, 3, 1):
        s.call("release", taken[index])
    expect(ids_of(s.drain(expected=4)) == ids_of(given), "they came back in another order")


@check("put", "ack", required=False)
def settlement_is_idempotent(s: ConnectorSubject) -> None:
    """Settling a delivery twice in the same way is no error."""
    s.put(some(1))
    transaction = s.take(1)[0]
    s.call("ack", transaction)
    expect(_refusal(s, "ack", transaction) is None, "the second ack was refused")


@check("put", "ack", "release", required=False)
def second_settlement_does_no_harm(s: ConnectorSubject) -> None:
    """Settling a delivery again, refused or not, neither loses nor repeats anything."""
    second = "same" if "repeating_ids" in s.promised else "second"
    s.put([Transaction("same", 1), Transaction(second, 2), Transaction("other", 3)])
    by_payload = {s.payload_of(each): each for each in s.take(3)}
    for verb, payload in (("ack", 1), ("release", 3)):
        s.call(verb, by_payload[payload])
        _refusal(s, verb, by_payload[payload])
    s.call("release", by_payload[2])
    came = sorted(s.payload_of(each) for each in s.drain(expected=2))
    expect(came == [2, 3], f"two were released, and {len(came)} came")


@check("put", "ack", "release", required=False)
def contradicting_settlement_changes_nothing(s: ConnectorSubject) -> None:
    """After an ack, a release or nack of the same delivery is refused or ignored."""
    s.put(some(1))
    transaction = s.take(1)[0]
    s.call("ack", transaction)
    _refusal(s, "release", transaction)
    expect(s.drain() == [], "a release after the ack brought it back")


@check("put", "ack", required=False)
def settling_the_unknown_is_refused(s: ConnectorSubject) -> None:
    """Settling a transaction that was never delivered is an error and changes nothing."""
    s.put(some(2))
    for verb in ("ack", "nack", "release"):
        if verb in s.methods:
            error = _refusal(s, verb, one("never delivered"))
            expect(error, f"{verb} of a transaction that was never delivered was accepted")
    expect(len(s.drain(expected=2)) == 2, "what was waiting is no longer what was put in")


@check("put", "ack", "release", "repeating_ids")
def same_ids_settle_separately(s: ConnectorSubject) -> None:
    """Of two deliveries with one id, each is settled by its own object."""
    s.put([Transaction("same", "done"), Transaction("same", "again")])
    by_payload = {s.payload_of(each): each for each in s.take(2)}
    s.call("ack", by_payload["done"])
    s.call("release", by_payload["again"])
    came = [s.payload_of(each) for each in s.drain(expected=1)]
    expect(came == ["again"], f"one was released, and {came} came")


@check("put", "ack", "nack", "release")
def settles_concurrently(s: ConnectorSubject) -> None:
    """Settlements from several threads or tasks at once all count, each exactly once."""
    s.put(some(12))
    taken = s.take(12)
    acked, nacked, released = taken[0::3], taken[1::3], taken[2::3]
    s.together(
        [("ack", each) for each in acked]
        + [("nack", each, ValueError(REASON)) for each in nacked]
        + [("release", each) for each in released]
    )
    came = Counter(ids_of(s.drain(expected=len(released))))
    expect(came == Counter(ids_of(released)), f"{len(released)} were released, {len(came)} came")
    if "dead" in s.capabilities:
        dead = Counter(each for each, _ in s.dead())
        expect(dead == Counter(ids_of(nacked)), f"{len(nacked)} were nacked, {len(dead)} are dead")


@check("put", "ack", colours=("sync",))
def settles_from_any_thread(s: ConnectorSubject) -> None:
    """A transaction may be settled from another thread than the one that fetched it."""
    s.put(some(1))
    s.together([("ack", s.take(1)[0])])
    expect(s.drain() == [], "it came back after the ack")


LONG = 3600.0  # nobody lives to see its end
SHORT = 0.1
LOOK = 0.02  # seconds between two looks for what is to come back


@check("put", "release_after")
def parked_waits_for_its_time(s: ConnectorSubject) -> None:
    """A parked transaction is not delivered before its time, and the others flow."""
    s.put(some(3))
    parked = s.take(1)[0]
    s.call("release_after", parked, LONG)
    came = ids_of(s.drain(expected=2))
    expect(parked.transaction_id not in came, f"parked for {LONG:g} s, and it came at once")
    expect(len(came) == 2, f"two more were waiting, and {came} came")


@check("put", "release_after")
def parked_comes_back(s: ConnectorSubject) -> None:
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
def parks_again_and_again(s: ConnectorSubject) -> None:
    """A transaction can be parked more than once: a gate may stay closed."""
    s.put(some(1))
    s.call("release_after", s.take(1)[0], 0.0)
    s.call("release_after", _returned(s), 0.0)
    s.call("release_after", _returned(s), LONG)
    expect(s.drain() == [], "the last time was not waited for")


@check("put", "release_after", "release", required=False)
def parking_settles_once(s: ConnectorSubject) -> None:
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


def _returned(s: ConnectorSubject) -> Transaction:
    """The parked delivery, as soon as it comes back."""
    until, never = SYSTEM_CLOCK.now() + s.patience, threading.Event()
    while SYSTEM_CLOCK.now() < until:
        for transaction in s.fetch(1):
            found: Transaction = transaction
            return found
        never.wait(LOOK)
    return fail(f"it did not come back within {s.patience:g} s")
