"""What connectors of jobs and of facts are asked for is checked, and nothing is done before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ergon_framework.connector.boundary import BoundaryConnector
from ergon_framework.connector.jobs import JobsConnector
from ergon_framework.errors import ConfigurationError, PayloadError
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.clock import VirtualClock
from tests.boundary.client.scripted import MemoryNode
from tests.connectors.test_boundary_connector_machine import ONCE

pytestmark = pytest.mark.req("ONE:connector-jobs", "ONE:connector-boundary")

NO_SECONDS = [True, "x", -1, -0.5, float("nan"), float("inf"), pytest.param(10**400, id="vast")]
NO_COUNTS = ["x", None, 1.5, True, 0, -1]


def _jobs() -> JobsConnector:
    connector = JobsConnector(MemoryJobStore(), handler="work")
    connector.dispatch_transactions([Transaction("a", {"n": 1})])
    return connector


def _facts() -> BoundaryConnector:
    node = MemoryNode(VirtualClock())
    node.fill(1)
    return BoundaryConnector(
        node, consumer="c", log="outbound", from_zone="a", to_zone="b", retry=ONCE
    )


@pytest.fixture(params=[_jobs, _facts])
def connector(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One of each, with one transaction in it."""
    with request.param() as made:
        yield made


@pytest.mark.parametrize("wait", NO_SECONDS)
def test_a_wait_that_is_none_is_refused(connector: Any, wait: Any) -> None:
    """The wait of one fetch is seconds, in both colours; nothing is fetched with another."""
    with pytest.raises(ConfigurationError, match="wait must be"):
        connector.fetch_transactions(1, wait=wait)
    with pytest.raises(ConfigurationError, match="wait must be"):
        asyncio.run(connector.fetch_transactions_async(1, wait=wait))
    assert len(connector.fetch_transactions(1, wait=0)) == 1


@pytest.mark.parametrize("size", NO_COUNTS)
def test_a_batch_that_is_no_number_is_refused(connector: Any, size: Any) -> None:
    """A fetch takes a whole number of transactions."""
    with pytest.raises(ConfigurationError, match="batch_size"):
        connector.fetch_transactions(size)


@pytest.mark.parametrize("seconds", [*NO_SECONDS, None])
def test_nothing_is_parked_for_a_time_that_is_none(connector: Any, seconds: Any) -> None:
    """Nothing is stored, and the transaction may still be settled in another way."""
    (came,) = connector.fetch_transactions(1)
    with pytest.raises(ConfigurationError, match="seconds must be"):
        connector.release_after(came, seconds)
    with pytest.raises(ConfigurationError, match="seconds must be"):
        asyncio.run(connector.release_after_async(came, seconds))
    connector.release(came)
    (again,) = connector.fetch_transactions(1)
    assert again.transaction_id == came.transaction_id


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: JobsConnector("memory://", wait="x"), "wait must be a number, not 'x'"),  # type: ignore[arg-type]
        (lambda: JobsConnector("memory://", wait=None), "wait must be a number, not None"),  # type: ignore[arg-type]
        (lambda: JobsConnector("memory://", wait=10**400), "wait must be .* a number of 1329 bits"),
        (lambda: JobsConnector("memory://", options=3), "options is int"),  # type: ignore[arg-type]
        (lambda: JobsConnector("memory://", options=0), "options is int"),  # type: ignore[arg-type]
        (lambda: JobsConnector("memory://", settings=3), "settings is int"),  # type: ignore[arg-type]
        (lambda: JobsConnector(3), "int is no store"),  # type: ignore[arg-type]
        (
            lambda: BoundaryConnector("http://127.0.0.1:1", from_zone="a", drain=10**400),
            "drain must be .* a number of 1329 bits",
        ),
        (
            lambda: BoundaryConnector("http://127.0.0.1:1", outbox=3),  # type: ignore[arg-type]
            "outbox must be text, not 3",
        ),
    ],
)
def test_arguments_of_the_wrong_type_are_mistakes_of_settings(
    make: Callable[[], Any], told: str
) -> None:
    """They are told as every other mistake is."""
    with pytest.raises(ConfigurationError, match=told):
        make()


@pytest.mark.parametrize(
    ("value", "path"),
    [((1, 2), ""), ({"x": [0, (1,)]}, "['x'][1]"), ([{"y": ()}], "[0]['y']")],
)
def test_a_tuple_would_come_back_as_a_list(value: Any, path: str) -> None:
    """It is refused with its place and without its content, before anything is stored."""
    with _jobs() as jobs:
        with pytest.raises(PayloadError) as caught:
            jobs.dispatch_transactions([Transaction("b", 1), Transaction("c", value)])
        assert f"payload{path} is of type tuple" in caught.value.message
        assert jobs.get_transactions_count() == 1
    fact = {"subject": "order:1", "predicate": "made", "object_json": value}
    with _facts() as facts:
        with pytest.raises(PayloadError) as caught:
            facts.dispatch_transactions([Transaction("order:9:made", fact)])
        assert f"fact.object_json{path} is of type tuple" in caught.value.message


@pytest.mark.parametrize("number", [2**63, 2**64, 10**30, -(2**63) - 1])
def test_large_integers_come_back_or_are_refused(number: int) -> None:
    """A job carries them as they are; a fact does not, for not everybody could read it."""
    with JobsConnector(MemoryJobStore(), handler="work") as jobs:
        jobs.dispatch_transactions([Transaction("a", {"n": [number]})])
        (came,) = jobs.fetch_transactions(1)
        assert came.payload == {"n": [number]}
    fact = {"subject": "order:1", "predicate": "made", "object_json": {"n": number}}
    with _facts() as facts, pytest.raises(PayloadError, match=r"object_json\.n"):
        facts.dispatch_transactions([Transaction("order:9:made", fact)])
