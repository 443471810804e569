"""Checks that need a broker: other programs, dead consumers, lost channels.

None of this can be caused through a connector. So the caller of the suite says how, in
:class:`ConnectorFaults`. Checks whose fault is not given are skipped and named.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ErgonError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.suites.connector.under_test import ConnectorSubject, ids_of, one, some
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[ConnectorSubject]] = []
check = register(CHECKS)

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_LONG = 3600.0
_PARKED = 0.5  # seconds in which what is not parked any more would come
_FLOOD = 5  # malformed messages in a row
_LOOK = 0.02  # seconds between two looks for what is to come back


@dataclass(frozen=True, kw_only=True)
class ConnectorFaults:
    """How to cause faults of a connector, or of its broker, that no caller can cause."""

    crash: Callable[[Any], Any] | None = None
    """Let the consumer die with what it has in hand, unsettled; gives the connector of another one,
    which is closed at the end."""
    cut: Callable[[Any], Any] | None = None
    """Break its connection. The broker stays, and can be reached again at once."""
    put_malformed: Callable[[Any], Any] | None = None
    """Put a message that is no transaction where the connector reads."""
    put_foreign: Callable[[Any, bytes, Mapping[str, str]], Any] | None = None
    """Put a message there as another program would: a body, and headers of its own."""
    read_foreign: Callable[[Any], Iterable[tuple[bytes, Mapping[str, str]]]] | None = None
    """The waiting messages, as another program would read them."""

    @property
    def offered(self) -> frozenset[str]:
        """The names of the faults that are given."""
        return frozenset(f.name for f in fields(self) if getattr(self, f.name) is not None)


@check("put", "ack", "crash")
def redelivers_after_a_crash(s: ConnectorSubject) -> None:
    """What a dead consumer left is delivered to another one, once, and what it settled is not."""
    s.put(some(4))
    done, *left = s.take(4)
    s.call("ack", done)
    with s.replaced(s.fault("crash")):
        came = collected(s, len(left))
        expect(sorted(came) == ids_of(left), f"{ids_of(left)} were left, and {came} came")


@check("put", "ack", "crash")
def redelivery_after_a_crash_is_the_same(s: ConnectorSubject) -> None:
    """It has the id, payload and metadata of the first delivery."""
    s.put([one({"n": 1}, correlation_id="flow", metadata={"tenant": "blue"})])
    first = s.take(1)[0]
    with s.replaced(s.fault("crash")):
        again = returned(s)
        for field in ("transaction_id", "payload", "metadata", "correlation_id"):
            same = getattr(again, field) == getattr(first, field)
            expect(same, f"the redelivery has another {field}")
        s.call("ack", again)


@check("put", "release_after", "crash")
def parked_outlives_its_consumer(s: ConnectorSubject) -> None:
    """The wait of a parked transaction goes on in the broker when its consumer is dead.

    A connector that keeps parked ones itself waives this: then they come back too early, not late.
    """
    s.put(some(2))
    s.call("release_after", s.take(1)[0], _LONG)
    s.take(1)
    with s.replaced(s.fault("crash")):
        came = collected(s, 1)  # what was in hand is there again, so what was parked would be, too
        threading.Event().wait(_PARKED)
        came += ids_of(s.drain())
        expect(came == ["t1"], f"one was in hand and one parked, and {came} came")


@check("put", "ack", "cut")
def lost_channel_is_never_settled_twice(s: ConnectorSubject) -> None:
    """After its channel was lost an ack counts or is refused; refused, it says that it is lost."""
    s.put(some(1))
    first = s.take(1)[0]
    s.fault("cut")
    error = s.refusal(lambda: s.call("ack", first))
    if error is None:
        expect(s.drain() == [], "the ack was accepted, and it came again")
        return
    expect(_says_lost(error), f"it raised {type(error).__name__}, after which it is tried again")
    again = returned(s)
    expect(again.transaction_id == first.transaction_id, "another one came")
    s.call("ack", again)
    expect(s.drain() == [], "it came once more")


@check("put", "ack", "cut")
def goes_on_after_a_cut(s: ConnectorSubject) -> None:
    """A connection that broke is made again, and nothing that waited is lost."""
    s.put(some(5))
    for transaction in s.take(2):
        s.call("ack", transaction)
    s.fault("cut")
    came = collected(s, 3)
    expect(sorted(came) == ["t2", "t3", "t4"], f"three were waiting, and {came} came")


@check("put", "dispatch", "cut")
def dispatches_after_a_cut(s: ConnectorSubject) -> None:
    """A dispatch after a cut arrives, or raises and arrives when it is made again."""
    s.put(some(1, "before"))
    s.fault("cut")
    until = SYSTEM_CLOCK.now() + s.patience
    while s.refusal(lambda: s.call("dispatch", some(1, "after"))) is not None:
        expect(SYSTEM_CLOCK.now() < until, "it did not connect again")
        threading.Event().wait(_LOOK)
    came = set(collected(s, 2))
    expect(came == {"before0", "after0"}, f"two were dispatched, and {sorted(came)} came")


@check("put", "put_malformed")
def malformed_never_blocks(s: ConnectorSubject) -> None:
    """A malformed message is set aside and counted, and what is behind it is delivered."""
    s.put(some(1, "before"))
    s.fault("put_malformed")
    s.put(some(1, "after"))
    came = collected(s, 2)
    expect(sorted(came) == ["after0", "before0"], f"two were in order, and {came} came")
    count = getattr(s.connector, "malformed", None)
    expect(count == 1, f"one was malformed, and malformed says {count}")


@check("put", "put_malformed")
def malformed_flood_is_not_an_empty_source(s: ConnectorSubject) -> None:
    """A fetch that finds only malformed messages goes on: "none" would end a draining consumer."""
    for _ in range(_FLOOD):
        s.fault("put_malformed")
    s.put(some(1, "behind"))
    came = next((batch for batch in (s.fetch(1) for _ in range(_FLOOD)) if batch), [])
    expect([each.transaction_id for each in came] == ["behind0"], f"{ids_of(came)} came")
    expect(s.connector.malformed == _FLOOD, f"malformed says {s.connector.malformed}, not {_FLOOD}")


@check("put_malformed", "dead")
def malformed_is_kept_with_its_reason(s: ConnectorSubject) -> None:
    """A malformed message is where dead letters are, with a reason."""
    s.fault("put_malformed")
    expect(s.drain() == [], "it was delivered")
    dead = s.dead()
    expect(len(dead) == 1, f"set aside: {len(dead)}")
    expect(dead[0][1], "the reason is missing")


@check("put_foreign", "ack", "release")
def foreign_message_is_work(s: ConnectorSubject) -> None:
    """A message of another program is a transaction: a stable id, its body, its headers."""
    s.fault("put_foreign", b'{"n": 1}', {"x-shop": "berlin"})
    first = returned(s)
    expect(first.transaction_id, "it has no id")
    expect(s.payload_of(first) == {"n": 1}, "its body is not the payload")
    headers = first.metadata.get("headers") or {}
    expect(headers.get("x-shop") == "berlin", 'its headers are not in metadata["headers"]')
    s.call("release", first)
    again = returned(s)
    expect(again.transaction_id == first.transaction_id, "the redelivery has another id")
    s.call("ack", again)


@check("put_foreign", "ack")
def foreign_trace_is_taken_up(s: ConnectorSubject) -> None:
    """The W3C trace context of another program is that of the transaction."""
    s.fault("put_foreign", b"1", {"traceparent": TRACEPARENT})
    came = returned(s)
    expect(came.trace_id == TRACEPARENT.split("-")[1], "the transaction is in another trace")
    expect(came.metadata.get("traceparent") == TRACEPARENT, "the span that caused it is unknown")


@check("dispatch", "read_foreign")
def other_programs_can_read_it(s: ConnectorSubject) -> None:
    """The body is the payload, and id, correlation and trace are headers."""
    metadata = {"traceparent": TRACEPARENT, "headers": {"x-shop": "berlin"}}
    s.call("dispatch", [Transaction("t1", {"n": 1}, metadata, correlation_id="flow")])
    found = s.fault("read_foreign")
    expect(len(found := list(found)) == 1, f"one was dispatched, and {len(found)} can be read")
    body, headers = found[0]
    expect(bytes(body).replace(b" ", b"") == b'{"n":1}', "the body is not the payload")
    for name, value in (
        ("ergon-transaction-id", "t1"),
        ("ergon-correlation-id", "flow"),
        ("traceparent", TRACEPARENT),
        ("x-shop", "berlin"),
    ):
        expect(headers.get(name) == value, f"the header {name} is missing or different")


def returned(s: ConnectorSubject) -> Transaction:
    """The next delivery, as soon as there is one."""
    found: list[Transaction] = []
    until, never = SYSTEM_CLOCK.now() + s.patience, threading.Event()
    while not found and SYSTEM_CLOCK.now() < until:
        found += s.fetch(1)
        if not found:
            never.wait(_LOOK)
    expect(found, f"nothing came within {s.patience:g} s")
    return found[0]


def collected(s: ConnectorSubject, count: int) -> list[str]:
    """The ids of so many deliveries, and of any others that come with them. All are settled."""
    came: list[Transaction] = []
    until, never = SYSTEM_CLOCK.now() + s.patience, threading.Event()
    while len(came) < count and SYSTEM_CLOCK.now() < until:
        batch = s.fetch(10)
        for transaction in batch:
            s.call("ack", transaction)
        came += batch
        if not batch:
            never.wait(_LOOK)
    return ids_of([*came, *s.drain()])


def _says_lost(error: Exception) -> bool:
    if isinstance(error, ErgonError):
        return error.failure_kind == "lost"
    return isinstance(error, ConnectionError | EOFError)
