"""Dispatching: what is sent arrives once, unchanged, or is refused as a whole."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

from ergon_framework.errors import PayloadError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.suites.connector.under_test import ConnectorSubject, ids_of, one, some
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[ConnectorSubject]] = []
check = register(CHECKS)


def _unserialisable() -> Any:
    return {"fine": 1, "items": ["fine", threading.Lock()]}


@check("dispatch")
def dispatch_accepts_any_iterable(s: ConnectorSubject) -> None:
    """Transactions may be dispatched from a generator."""
    given = some(3)
    s.call("dispatch", (each for each in given))
    expect(sorted(ids_of(s.drain(expected=3))) == ids_of(given), "not everything arrived")


@check("dispatch")
def dispatching_nothing_is_fine(s: ConnectorSubject) -> None:
    """An empty dispatch is no error and delivers nothing."""
    s.call("dispatch", [])
    expect(s.drain() == [], "something came")


@check("dispatch")
def unserialisable_payload_is_refused(s: ConnectorSubject) -> None:
    """A payload that cannot be carried raises a PayloadError that names the transaction."""
    bad = one(_unserialisable())
    error = s.refusal(lambda: s.call("dispatch", [bad]))
    if error is None:
        came = [s.payload_of(each) for each in s.drain(expected=1)]
        expect(came == [bad.payload], "it was accepted, and did not come back as it was")
        return
    expect(isinstance(error, PayloadError), f"it raised {type(error).__name__}")
    expect(bad.transaction_id in str(error), "the error does not name the transaction's id")


@check("dispatch")
def refused_payload_loses_nothing(s: ConnectorSubject) -> None:
    """After a refused payload, what was dispatched before and after is delivered."""
    before, after = some(2, "before"), some(2, "after")
    s.call("dispatch", before)
    s.refusal(lambda: s.call("dispatch", [Transaction("bad", _unserialisable())]))
    s.call("dispatch", after)
    missing = set(ids_of(before + after)) - set(ids_of(s.drain(expected=4)))
    expect(not missing, f"lost: {sorted(missing)}")


@check("dispatch", required=False)
def dispatch_is_all_or_nothing(s: ConnectorSubject) -> None:
    """When one payload of a batch is refused, nothing of the batch is delivered."""
    good = some(2)
    mixed = [good[0], one(_unserialisable()), good[1]]
    if s.refusal(lambda: s.call("dispatch", mixed)) is not None:
        came = ids_of(s.drain())
        expect(not came, f"the dispatch failed, but these were delivered: {came}")


@check("dispatch", required=False)
def refuses_what_is_no_transaction(s: ConnectorSubject) -> None:
    """Dispatching something that is not a Transaction is an error."""
    error = s.refusal(lambda: s.call("dispatch", [{"transaction_id": "t1"}]))
    expect(error, "a dict was accepted")


@check("dispatch")
def dispatches_concurrently(s: ConnectorSubject) -> None:
    """Dispatches from several threads or tasks at once all arrive, each exactly once."""
    batches = [some(3, f"batch{n}-") for n in range(6)]
    s.together([("dispatch", batch) for batch in batches])
    given = Counter(each for batch in batches for each in ids_of(batch))
    came = Counter(ids_of(s.drain(expected=given.total())))
    expect(came == given, f"{given.total()} were dispatched, {came.total()} came")


@check("dispatch", "fifo")
def dispatch_keeps_the_order_of_a_batch(s: ConnectorSubject) -> None:
    """The transactions of one dispatch come in the order they were given in."""
    given = some(9)
    s.call("dispatch", given)
    expect(ids_of(s.drain(2, expected=9)) == ids_of(given), "they came in another order")


@check("dispatch", "unique_ids")
def same_again_changes_nothing(s: ConnectorSubject) -> None:
    """A transaction that is dispatched again, in one batch or later, is delivered once."""
    given = some(2)
    s.call("dispatch", [*given, given[0]])
    s.call("dispatch", given)
    came = ids_of(s.drain(expected=2))
    expect(sorted(came) == ids_of(given), "something came twice, or not at all")
    s.call("dispatch", given)
    expect(s.drain() == [], "it came again, although it was done with")


@check("dispatch", "unique_ids")
def other_content_under_an_id_is_refused(s: ConnectorSubject) -> None:
    """Another payload under an id that is taken is an error that names the id."""
    s.call("dispatch", [Transaction("same", {"n": 1})])
    error = s.refusal(lambda: s.call("dispatch", [Transaction("same", {"n": 2})]))
    expect(error, "it was accepted")
    expect("same" in str(error), "the error does not name the id")
    came = [s.payload_of(each) for each in s.drain(expected=1)]
    expect(came == [{"n": 1}], "the first one did not come as it was")


NESTED: dict[str, Any] = {
    "order": {"lines": [{"sku": "a-1", "qty": 2}, {"sku": "b-2", "qty": 0}], "paid": True},
    "empty": [[], {}, "", None, False, 0],
    "key with spaces": [[[["deep"]]]],
}
TEXT = 'line\u2028separator\u2029 tab\t nul\x00 quote" back\\slash \r\n é ünï 漢字 🧵🏽 \ufeff'


def _round_trip(s: ConnectorSubject, transaction: Transaction) -> Transaction:
    s.put([transaction])
    return s.take(1)[0]


def _keeps(s: ConnectorSubject, field: str, value: Any) -> None:
    came = getattr(_round_trip(s, one("work", **{field: value})), field)
    expect(came == value, f"{field} came back {'empty' if not came else 'different'}")


def _keeps_payload(s: ConnectorSubject, payload: Any) -> None:
    came = s.payload_of(_round_trip(s, one(payload)))
    expect(type(came) is type(payload), f"{type(payload).__name__} became {type(came).__name__}")
    expect(came == payload, "the payload came back different")


@check("put")
def keeps_the_id(s: ConnectorSubject) -> None:
    """transaction_id survives, whatever characters it holds."""
    for identity in ("plain", "with space/and:slash", "ünï-🧵", "x" * 200):
        came = _round_trip(s, Transaction(identity)).transaction_id
        expect(came == identity, f"{identity[:20]!r} became {came[:20]!r}")


@check("put", "carries metadata")
def keeps_metadata(s: ConnectorSubject) -> None:
    """Metadata survives, nested values included."""
    _keeps(s, "metadata", {"tenant": "blue", "attempts": 3, "route": {"hops": ["a", "b"]}})


@check("put", "carries correlation_id")
def keeps_correlation_id(s: ConnectorSubject) -> None:
    """correlation_id survives."""
    _keeps(s, "correlation_id", "flow-1")


@check("put", "carries trace_id")
def keeps_trace_id(s: ConnectorSubject) -> None:
    """trace_id survives."""
    _keeps(s, "trace_id", "0af7651916cd43dd8448eb211c80319c")


@check("put", "carries source")
def keeps_source(s: ConnectorSubject) -> None:
    """A source that is set survives."""
    _keeps(s, "source", "till-7")


@check("put", "carries parent_id")
def keeps_parent_id(s: ConnectorSubject) -> None:
    """parent_id survives."""
    _keeps(s, "parent_id", "cause-1")


@check("put", "carries created_at")
def keeps_created_at(s: ConnectorSubject) -> None:
    """created_at survives to the microsecond, whatever time zone it was given in."""
    instant = datetime(2021, 3, 4, 5, 6, 7, 891011, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    _keeps(s, "created_at", instant.astimezone(UTC))


@check("put")
def unset_fields_stay_unset(s: ConnectorSubject) -> None:
    """What was not set is not invented."""
    came = _round_trip(s, one("work"))
    for field in ("correlation_id", "trace_id", "parent_id"):
        expect(getattr(came, field) is None, f"{field} was None and came back set")


@check("put")
def keeps_nested_payload(s: ConnectorSubject) -> None:
    """A payload of nested objects and lists survives."""
    _keeps_payload(s, NESTED)


@check("put")
def keeps_unicode(s: ConnectorSubject) -> None:
    """Text survives: line separators, control characters, emoji, a byte order mark."""
    _keeps_payload(s, {"text": TEXT, TEXT: "as a key"})


@check("put")
def keeps_large_payload(s: ConnectorSubject) -> None:
    """A payload of one mebibyte survives."""
    _keeps_payload(s, {"blob": "0123456789abcdef" * 65536})


@check("put")
def keeps_empty_payloads(s: ConnectorSubject) -> None:
    """None, False, 0, and empty text, list and object survive as what they are."""
    payloads: list[Any] = [None, False, 0, "", [], {}]
    for payload in payloads:
        _keeps_payload(s, payload)


@check("put")
def keeps_numbers_exactly(s: ConnectorSubject) -> None:
    """Numbers survive exactly, those beyond a float's precision included."""
    _keeps_payload(s, {"large": 2**53 + 1, "negative": -(2**62), "float": 0.1, "whole": 1.0})


@check("put")
def delivered_transactions_are_immutable(s: ConnectorSubject) -> None:
    """A delivered transaction's fields and metadata cannot be changed."""
    came = _round_trip(s, one("work", metadata={"tenant": "blue"}))
    for change in (_change_payload, _change_metadata):
        error = s.refusal(partial(change, came))
        expect(error, "the delivered transaction could be changed")


@check("put", "dispatch", required=False)
def dispatch_takes_a_snapshot(s: ConnectorSubject) -> None:
    """What the caller changes after the dispatch changes nothing in the queue."""
    payload: dict[str, Any] = {"items": [1, 2]}
    route = ["a"]
    s.call("dispatch", [one(payload, metadata={"route": route})])
    payload["items"].append(3)
    payload["late"] = True
    route.append("b")
    came = s.take(1)[0]
    expect(s.payload_of(came) == {"items": [1, 2]}, "a later change to the payload came through")
    if "carries metadata" in s.promised:
        expect(came.metadata.get("route") == ["a"], "a later change to the metadata came through")


@check("put", "release", required=False)
def redelivery_is_pristine(s: ConnectorSubject) -> None:
    """What a handler does to the payload is not seen by the next delivery."""
    s.put([one({"items": [1, 2]})])
    first = s.take(1)[0]
    s.payload_of(first)["items"].append(3)
    s.call("release", first)
    again = s.take(1)[0]
    expect(s.payload_of(again) == {"items": [1, 2]}, "the redelivery has the handler's changes")


def _change_payload(transaction: Transaction) -> None:
    transaction.payload = "changed"


def _change_metadata(transaction: Transaction) -> None:
    transaction.metadata["tenant"] = "red"  # type: ignore[index]
