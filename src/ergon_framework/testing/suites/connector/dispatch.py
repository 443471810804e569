"""Checks of dispatching: all or nothing, and clear words for what cannot be carried."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from ergon_framework.errors import PayloadError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.suites.check import Check, expect, register
from ergon_framework.testing.suites.connector.subject import Subject, ids_of, one, some

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


def _unserialisable() -> Any:
    return {"fine": 1, "items": ["fine", threading.Lock()]}


@check("dispatch")
def dispatch_accepts_any_iterable(s: Subject) -> None:
    """Transactions may be dispatched from a generator."""
    given = some(3)
    s.call("dispatch", (each for each in given))
    expect(sorted(ids_of(s.drain())) == ids_of(given), "not everything arrived")


@check("dispatch")
def dispatching_nothing_is_fine(s: Subject) -> None:
    """An empty dispatch is no error and delivers nothing."""
    s.call("dispatch", [])
    expect(s.drain() == [], "something came")


@check("dispatch")
def unserialisable_payload_is_refused(s: Subject) -> None:
    """A payload that cannot be carried raises a PayloadError that names the transaction."""
    bad = one(_unserialisable())
    error = s.refusal(lambda: s.call("dispatch", [bad]))
    if error is None:
        came = [s.payload_of(each) for each in s.drain()]
        expect(came == [bad.payload], "it was accepted, and did not come back as it was")
        return
    expect(isinstance(error, PayloadError), f"it raised {type(error).__name__}")
    expect(bad.transaction_id in str(error), "the error does not name the transaction's id")


@check("dispatch")
def refused_payload_loses_nothing(s: Subject) -> None:
    """After a refused payload, what was dispatched before and after is delivered."""
    before, after = some(2, "before"), some(2, "after")
    s.call("dispatch", before)
    s.refusal(lambda: s.call("dispatch", [Transaction("bad", _unserialisable())]))
    s.call("dispatch", after)
    missing = set(ids_of(before + after)) - set(ids_of(s.drain()))
    expect(not missing, f"lost: {sorted(missing)}")


@check("dispatch", required=False)
def dispatch_is_all_or_nothing(s: Subject) -> None:
    """When one payload of a batch is refused, nothing of the batch is delivered."""
    good = some(2)
    mixed = [good[0], one(_unserialisable()), good[1]]
    if s.refusal(lambda: s.call("dispatch", mixed)) is not None:
        came = ids_of(s.drain())
        expect(not came, f"the dispatch failed, but these were delivered: {came}")


@check("dispatch", required=False)
def refuses_what_is_no_transaction(s: Subject) -> None:
    """Dispatching something that is not a Transaction is an error."""
    error = s.refusal(lambda: s.call("dispatch", [{"transaction_id": "t1"}]))
    expect(error, "a dict was accepted")


@check("dispatch")
def dispatches_concurrently(s: Subject) -> None:
    """Dispatches from several threads or tasks at once all arrive, each exactly once."""
    batches = [some(3, f"batch{n}-") for n in range(6)]
    s.together([("dispatch", batch) for batch in batches])
    came = Counter(ids_of(s.drain()))
    given = Counter(each for batch in batches for each in ids_of(batch))
    expect(came == given, f"{given.total()} were dispatched, {came.total()} came")


@check("dispatch", "fifo")
def dispatch_keeps_the_order_of_a_batch(s: Subject) -> None:
    """The transactions of one dispatch come in the order they were given in."""
    given = some(9)
    s.call("dispatch", given)
    expect(ids_of(s.drain(2)) == ids_of(given), "they came in another order")


@check("dispatch", "unique_ids")
def same_again_changes_nothing(s: Subject) -> None:
    """A transaction that is dispatched again, in one batch or later, is delivered once."""
    given = some(2)
    s.call("dispatch", [*given, given[0]])
    s.call("dispatch", given)
    expect(sorted(ids_of(s.drain())) == ids_of(given), "something came twice, or not at all")
    s.call("dispatch", given)
    expect(s.drain() == [], "it came again, although it was done with")


@check("dispatch", "unique_ids")
def other_content_under_an_id_is_refused(s: Subject) -> None:
    """Another payload under an id that is taken is an error that names the id."""
    s.call("dispatch", [Transaction("same", {"n": 1})])
    error = s.refusal(lambda: s.call("dispatch", [Transaction("same", {"n": 2})]))
    expect(error, "it was accepted")
    expect("same" in str(error), "the error does not name the id")
    came = [s.payload_of(each) for each in s.drain()]
    expect(came == [{"n": 1}], "the first one did not come as it was")
