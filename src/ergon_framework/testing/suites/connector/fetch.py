"""Checks of fetching: how much, in which order, how often."""

from __future__ import annotations

import inspect
from collections import Counter
from functools import partial
from typing import Any

from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.suites.connector.under_test import ConnectorSubject, ids_of, some
from ergon_framework.testing.suites.framework import Check, expect, fail, register

CHECKS: list[Check[ConnectorSubject]] = []
check = register(CHECKS)


@check()
def fetch_has_the_right_colour(s: ConnectorSubject) -> None:
    """fetch_transactions returns a batch; fetch_transactions_async returns an awaitable."""
    if s.colour == "sync":
        s.fetch(1)
        return
    awaitable: list[bool] = []

    def fetch() -> Any:
        batch = s.methods["fetch"](1)
        awaitable.append(inspect.isawaitable(batch))
        return batch

    s.run(fetch, "fetch_transactions_async")
    expect(awaitable == [True], "what it returned cannot be awaited")


@check("put")
def batch_is_iterable_or_none(s: ConnectorSubject) -> None:
    """A batch is None or an iterable of transactions, not a mapping, text or one transaction."""
    s.put(some(2))
    batch, items = s.batch(2)
    if batch is None or isinstance(batch, str | bytes | dict | Transaction):
        fail(f"two were waiting, and it returned {type(batch).__name__}")
    expect(items, "two were waiting, and the batch is empty")


@check("put")
def delivers_transactions_only(s: ConnectorSubject) -> None:
    """Everything delivered is a Transaction."""
    s.put(some(3))
    for item in s.drain(expected=3):
        expect(isinstance(item, Transaction), f"it delivered a {type(item).__name__}")


@check("put")
def ids_are_never_empty(s: ConnectorSubject) -> None:
    """Every delivered transaction has an id: text, and not empty."""
    s.put(some(3))
    for identity in ids_of(s.take(3)):
        expect(isinstance(identity, str) and identity, f"it delivered the id {identity!r}")


@check("put")
def batch_size_is_respected(s: ConnectorSubject) -> None:
    """A fetch never delivers more than batch_size."""
    s.put(some(7))
    for size in (1, 2, 3):
        got = len(s.fetch(size))
        expect(got <= size, f"batch_size={size}, and {got} came")


@check("put")
def large_batch_size_takes_what_there_is(s: ConnectorSubject) -> None:
    """A batch_size above what waits gives what waits, without waiting for more."""
    s.put(some(3))
    expect(s.drain(1000, expected=1), "three were waiting, and nothing came")


@check(required=False)
def batch_size_below_one_is_refused(s: ConnectorSubject) -> None:
    """A batch_size of 0 or less is an error."""
    for size in (0, -1):
        error = s.refusal(partial(s.fetch, size))
        expect(error, f"batch_size={size} was accepted")


@check()
def empty_fetch_is_prompt(s: ConnectorSubject) -> None:
    """With nothing to deliver a fetch returns an empty batch or None, and soon."""
    expect(s.fetch(5) == [], "something came out of an empty connector")


@check("put")
def delivers_everything(s: ConnectorSubject) -> None:
    """Whatever was put in comes out."""
    given = some(25)
    s.put(given)
    missing = Counter(ids_of(given)) - Counter(ids_of(s.drain(4, expected=25)))
    expect(not missing, f"lost: {sorted(missing)}")


@check("put")
def runs_dry(s: ConnectorSubject) -> None:
    """When everything was delivered and acknowledged, nothing more comes."""
    s.put(some(5))
    s.drain(2, expected=5)
    expect(s.drain() == [], "something came although everything was done with")


@check("put", "fifo")
def first_in_first_out(s: ConnectorSubject) -> None:
    """Transactions come in the order in which they were put in."""
    given = some(12)
    s.put(given[:6])
    s.put(given[6:])
    expect(ids_of(s.drain(5, expected=12)) == ids_of(given), "they came in another order")


@check("put")
def no_double_delivery(s: ConnectorSubject) -> None:
    """A transaction is not delivered again while nobody settled it."""
    given = some(6)
    s.put(given)
    taken = s.take(6)
    more = s.fetch(6) + s.fetch(6)
    twice = [each for each, count in Counter(ids_of(taken + more)).items() if count > 1]
    expect(not twice, f"delivered twice: {twice}")


@check("put", "repeating_ids")
def same_id_twice_is_delivered_twice(s: ConnectorSubject) -> None:
    """Ids may repeat over time: two transactions with one id are both delivered."""
    s.put([Transaction("same", 1), Transaction("other", 2), Transaction("same", 3)])
    payloads = sorted(s.payload_of(each) for each in s.drain(expected=3))
    expect(payloads == [1, 2, 3], f"{len(payloads)} of 3 came")


@check("put")
def batches_are_independent(s: ConnectorSubject) -> None:
    """What the caller does to a batch changes neither the connector nor other batches."""
    given = some(6)
    s.put(given)
    first, seen = s.batch(2)
    second = s.fetch(2)
    if isinstance(first, list):
        expect(ids_of(first) == ids_of(seen), "the first batch changed with the second fetch")
        first.clear()
    rest = s.take(6 - len(seen) - len(second))
    came = ids_of(seen + second + rest)
    expect(sorted(came) == ids_of(given), f"after a batch was emptied these came: {came}")


@check("put", colours=("sync",))
def fetches_from_any_thread(s: ConnectorSubject) -> None:
    """Fetches may come from different threads."""
    s.put(some(4))
    s.together([("fetch", 1)])
    s.together([("fetch", 1)])
    s.take(2)


@check("put")
def unknown_settings_lose_nothing(s: ConnectorSubject) -> None:
    """A setting the connector does not know is ignored or refused, and nothing gets lost."""
    given = some(3)
    s.put(given)
    taken: list[Any] = []
    s.refusal(lambda: taken.extend(s.fetch(3, a_setting_nobody_knows=True)))
    taken += s.take(3 - len(taken))
    expect(sorted(ids_of(taken)) == ids_of(given), f"only these came: {ids_of(taken)}")
