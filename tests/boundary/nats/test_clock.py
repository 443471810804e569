"""A node whose clock is five minutes off: instants, leases and retention go by the server's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from ergon_framework.boundary.store_urls import clock_of, open_fact_store
from ergon_framework.errors import ConsumerHeldError
from ergon_framework.ports.factstore import OUTBOUND, FactStore
from ergon_framework.testing.suites.factstore.under_test import new
from tests.boundary.nats.conftest import ZONE, Open

pytestmark = [
    pytest.mark.req("SCALE:fleet-clocks", "SCALE:boundary-nats"),
    pytest.mark.parametrize("skew", [-300.0, 300.0]),
]
LEASE = 30.0
SLACK = 10.0
"""Seconds by which two stores may differ about the server's time: asking may take a while."""


@pytest.fixture
def right(open_store: Open) -> FactStore:
    """The store as a node sees it whose clock is right."""
    store = open_store()
    store.create_consumer("c", OUTBOUND)
    store.append(OUTBOUND, [new("first")])
    return store


@pytest.fixture
def wrong(
    right: FactStore, skew: float, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FactStore]:
    """The same store, opened by a node whose clock is off."""
    real: Callable[[], float] = time.time
    monkeypatch.setattr(time, "time", lambda: real() + skew)
    with closing(open_fact_store(nats_url, zone=ZONE)) as store:
        yield store


def test_instants(right: FactStore, wrong: FactStore) -> None:
    """Facts and names have the instant at which the server took them."""
    began = clock_of(right)()
    wrong.append(OUTBOUND, [new("second")])
    bound = wrong.bind("files", "key", bytes(32), 1)
    ended = clock_of(right)()
    first, second = right.page(OUTBOUND, 0, 9, 1 << 20).facts
    assert first.recorded_at <= began
    assert began - SLACK <= second.recorded_at <= ended + SLACK
    assert began - SLACK <= bound.at <= ended + SLACK


def test_leases(right: FactStore, wrong: FactStore) -> None:
    """Nobody takes over what another holds."""
    right.serve("c", 9, 1 << 20, holder="right", lease=LEASE)
    with pytest.raises(ConsumerHeldError):
        wrong.serve("c", 9, 1 << 20, holder="wrong", lease=LEASE)


def test_a_lease_of_the_node_that_is_wrong(right: FactStore, wrong: FactStore) -> None:
    """It is as long as any other."""
    began = clock_of(right)()
    wrong.serve("c", 9, 1 << 20, holder="wrong", lease=LEASE)
    held = right.consumer("c").held_until
    assert began + LEASE - SLACK <= held <= clock_of(right)() + LEASE + SLACK
    with pytest.raises(ConsumerHeldError):
        right.serve("c", 9, 1 << 20, holder="right", lease=LEASE)


def test_retention(right: FactStore, wrong: FactStore) -> None:
    """Nothing is too old before its time, and everything is in the end."""
    right.bind("files", "key", bytes(32), 1)
    now = clock_of(wrong)
    assert wrong.aged(OUTBOUND, now() - 60.0) == 0
    assert wrong.orphans(now() - 60.0) == []
    assert wrong.aged(OUTBOUND, now() + 60.0) == 1
    assert [each.key for each in wrong.orphans(now() + 60.0)] == ["key"]
