"""Checks of what a connector offers beside its work: counting, looking up, health, closing."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.suites.connector.under_test import (
    ConnectorSubject,
    ids_of,
    listed,
    some,
)
from ergon_framework.testing.suites.drivers import outcome
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[ConnectorSubject]] = []
check = register(CHECKS)


@check("put", "count")
def counts_what_waits(s: ConnectorSubject) -> None:
    """The count is the number of transactions that wait; 0 when everything is done."""
    expect(s.call("count") == 0, "an empty connector counts something")
    s.put(some(4))
    count = s.call("count")
    expect(count == 4, f"four were waiting, and it counted {count}")
    s.drain(expected=4)
    expect(s.call("count") == 0, "everything was done with, and it still counts something")


@check("put", "by_id")
def finds_by_id(s: ConnectorSubject) -> None:
    """A waiting transaction is found by its id, and looking does not take it."""
    given = some(3)
    s.put(given)
    found = s.call("by_id", "t1")
    expect(isinstance(found, Transaction), f"it found {type(found).__name__}")
    expect(s.payload_of(found) == given[1].payload, "it found another one")
    expect(len(s.drain(expected=3)) == 3, "looking took something away")


@check("put", "by_id")
def does_not_find_the_unknown(s: ConnectorSubject) -> None:
    """Looking for an unknown id gives None or an error."""
    s.put(some(1))
    found: list[Any] = []
    s.refusal(lambda: found.append(s.call("by_id", "nobody has this id")))
    expect(found in ([], [None]), "it found something")


@check("health")
def is_healthy_when_fresh(s: ConnectorSubject) -> None:
    """health() of a fresh connector is true."""
    expect(s.call("health"), "it is not")


@check("health", "close", required=False)
def is_unhealthy_when_closed(s: ConnectorSubject) -> None:
    """health() of a closed connector is false or an error."""
    s.call("close")
    healthy: list[Any] = []
    s.refusal(lambda: healthy.append(s.call("health")))
    expect(not any(healthy), "it is true")


@check("close")
def closes_twice(s: ConnectorSubject) -> None:
    """Closing a closed connector is no error."""
    s.call("close")
    s.call("close")


@check("close", required=False)
def fetch_after_close_is_refused(s: ConnectorSubject) -> None:
    """A fetch from a closed connector is an error with a message, not an empty batch."""
    s.call("close")
    error = s.refusal(lambda: s.fetch(1))
    expect(error, "it returned a batch")
    expect(str(error), "the error says nothing")


@check("put", colours=("async",), required=False)
def cancelled_fetch_loses_nothing(s: ConnectorSubject) -> None:
    """What a cancelled fetch had in its hands is delivered to the next one."""
    given = some(12)
    s.put(given)
    kept: list[Any] = []
    for steps in range(4):
        kept += s.run(partial(_fetch_and_cancel, s, steps), "a cancelled fetch")
    came = Counter(ids_of([*kept, *s.drain(expected=len(given) - len(kept))]))
    expect(came == Counter(ids_of(given)), f"{len(given)} were waiting, {came.total()} came")


@check(colours=("async",), required=False)
def loop_stays_responsive(s: ConnectorSubject) -> None:
    """The event loop goes on while a fetch finds nothing."""
    fetch = s.caller.start(lambda: s.methods["fetch"](1))
    outcome(s.caller.start(lambda: None), s.patience, "the event loop, during a fetch,")
    outcome(fetch, s.patience, "the fetch")


async def _fetch_and_cancel(s: ConnectorSubject, steps: int) -> list[Any]:
    task = asyncio.ensure_future(s.methods["fetch"](2))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return listed(await task)
    except asyncio.CancelledError:
        return []
