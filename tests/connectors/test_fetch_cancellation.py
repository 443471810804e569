"""A fetch that waits for work hears of a stop, and of being cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.zone import LocalZone
from ergon_framework.connector.boundary import BoundaryConnector
from ergon_framework.connector.jobs import JobsConnector
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import FullJobStore, Topic
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.clock import VirtualClock
from tests.boundary.client.scripted import MemoryNode
from tests.connectors.zone_node import (
    PATIENCE,
    eventually,
    fill,
    in_process,
    numbers,
    over_http,
    taking_part,
)
from tests.jobs.manual_worker import NotedSubscription

LONG = 120.0
"""Seconds; longer than anybody here is patient."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FullJobStore]:
    """A store of jobs, in a file."""
    with closing(open_store(f"sqlite:///{tmp_path}/work.db")) as opened:
        yield opened


@pytest.fixture
def jobs(store: FullJobStore) -> Iterator[JobsConnector]:
    """The jobs of that store."""
    with JobsConnector(store, handler="work", wait=LONG) as made:
        yield made


def served(zone: LocalZone) -> list[str]:
    """The names of consumers whose fetches reach the zone, from now on."""
    found: list[str] = []
    serve = zone.store.serve

    def noted(name: str, *given: Any, **options: Any) -> Any:
        found.append(name)
        return serve(name, *given, **options)

    zone.store.serve = noted  # type: ignore[method-assign]
    return found


@pytest.fixture
def facts() -> Iterator[BoundaryConnector]:
    """Facts, over HTTP."""
    with over_http(wait=LONG) as made:
        yield made


def stopped(connector: Any, is_under_way: Callable[[], bool]) -> list[Transaction]:
    """What a fetch brings that would wait for minutes, when a stop is asked meanwhile."""
    came: list[list[Transaction]] = []
    fetching = threading.Thread(target=lambda: came.append(connector.fetch_transactions(5)))
    fetching.daemon = True
    fetching.start()
    eventually(is_under_way)
    connector.stop_waiting()
    fetching.join(PATIENCE)
    assert came, "it still waits"
    return came[0]


@pytest.mark.req("ONE:connector-jobs")
def test_a_stop_ends_a_fetch_of_jobs_that_waits(store: FullJobStore, jobs: JobsConnector) -> None:
    """It returns empty; the next fetch is one like any other."""
    subscription = NotedSubscription(store.subscribe(Topic.WORK))
    store.subscribe = lambda topic: subscription  # type: ignore[method-assign]
    assert stopped(jobs, subscription.is_waited_on.is_set) == []
    jobs.dispatch_transactions([Transaction("a")])
    assert [each.transaction_id for each in jobs.fetch_transactions(5)] == ["a"]


@pytest.mark.req("ONE:connector-jobs")
def test_a_stop_just_before_a_fetch_of_jobs_counts_once(jobs: JobsConnector) -> None:
    """The engine may have decided on a fetch when a stop is asked; only that one does not wait."""
    jobs.stop_waiting()
    assert jobs.fetch_transactions(5) == []
    came: list[Transaction] = []
    fetching = threading.Thread(target=lambda: came.extend(jobs.fetch_transactions(5)))
    fetching.start()
    jobs.dispatch_transactions([Transaction("a")])
    fetching.join(PATIENCE)
    assert [each.transaction_id for each in came] == ["a"]


@pytest.mark.req("ONE:connector-boundary")
@pytest.mark.slow
def test_a_stop_ends_a_fetch_of_facts_that_waits(facts: BoundaryConnector) -> None:
    """It returns empty, also beside a parked fact; the next fetch is one like any other."""
    zone = facts.zone  # type: ignore[attr-defined]
    fetches = served(zone)
    assert stopped(facts, lambda: bool(fetches)) == []
    fill(zone, 1)
    (first,) = facts.fetch_transactions(5)
    facts.release_after(first, LONG)
    fetches.clear()
    assert stopped(facts, lambda: bool(fetches)) == []
    fill(zone, 2)
    assert numbers(facts.fetch_transactions(5)) == [2]


@pytest.mark.req("ONE:connector-boundary")
def test_a_stop_just_before_a_fetch_of_facts_counts_once() -> None:
    """Only the next fetch does not wait; the one after it waits as long as it is told to."""
    node = MemoryNode(VirtualClock())
    options: dict[str, Any] = {"consumer": "c", "log": "outbound"}
    with taking_part(node.clock), BoundaryConnector(node, **options) as connector:
        connector.stop_waiting()
        began = node.clock.now()
        assert connector.fetch_transactions(5, wait=20.0) == []
        assert node.clock.now() == began
        assert connector.fetch_transactions(5, wait=20.0) == []
        assert node.clock.now() - began == pytest.approx(20.0)


@pytest.mark.req("ONE:connector-boundary")
def test_one_that_only_produces_has_nothing_to_stop() -> None:
    """Without a consumer nothing waits."""
    with BoundaryConnector("http://127.0.0.1:1", from_zone="a", to_zone="b") as connector:
        connector.stop_waiting()


async def cancelled(connector: BoundaryConnector) -> None:
    """Cancel a fetch that would wait for minutes."""
    fetches = served(connector.zone)  # type: ignore[attr-defined]
    fetching = asyncio.ensure_future(connector.fetch_transactions_async(5, wait=LONG))
    await asyncio.to_thread(eventually, lambda: bool(fetches))
    fetching.cancel()
    await asyncio.wait([fetching], timeout=PATIENCE)
    assert fetching.cancelled(), "it still waits"


@pytest.mark.req("ONE:connector-boundary")
@pytest.mark.slow
@pytest.mark.parametrize("colour", ["threads", "tasks"])
def test_a_cancelled_fetch_of_facts_does_not_wait_on(colour: str) -> None:
    """It ends when the node has answered, and what comes later is for the next fetch."""

    async def in_threads() -> list[int]:
        with over_http() as connector:
            await cancelled(connector)
            fill(connector.zone, 1)  # type: ignore[attr-defined]
            return numbers(await connector.fetch_transactions_async(5))

    async def in_tasks() -> list[int]:
        async with in_process() as connector:
            await cancelled(connector)
            fill(connector.zone, 1)  # type: ignore[attr-defined]
            return numbers(await connector.fetch_transactions_async(5))

    assert asyncio.run(in_threads() if colour == "threads" else in_tasks()) == [1]
