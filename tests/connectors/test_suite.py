from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from ergon_framework import testing
from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.errors import WiringError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.suites import (
    CONNECTOR_CHECKS,
    CheckOutcome,
    ConnectorSuiteError,
    exercise_connector,
)

FIRST = "fetch_has_the_right_colour"
ALL_BUT_ONE = [each.name for each in CONNECTOR_CHECKS if each.name != "first_in_first_out"]


class Bottomless:
    """A source that cannot be dispatched to."""

    def __init__(self) -> None:
        self.rows: list[Transaction] = []

    def fetch_transactions(self, batch_size: int) -> Iterator[Transaction] | None:
        if not self.rows:
            return None
        taken, self.rows = self.rows[:batch_size], self.rows[batch_size:]
        return iter(taken)


def test_there_are_at_least_thirty_checks_and_each_says_what_it_wants() -> None:
    """Names are unique, and every check has a sentence."""
    names = [each.name for each in CONNECTOR_CHECKS]
    assert len(names) == len(set(names)) >= 30
    assert all(each.sentence.endswith(".") for each in CONNECTOR_CHECKS)


@pytest.mark.parametrize(
    ("task", "hook", "meant"),
    [
        (testing.ScriptedConsumer, "proces", "did you mean 'process'"),
        (testing.AsyncScriptedConsumer, "sucess", "did you mean 'success'"),
        (testing.ScriptedProducer, "process", "did you mean 'produce'"),
        (testing.AsyncScriptedProducer, "fetch", "use produce, success, exception"),
    ],
)
def test_a_script_for_an_unknown_hook_is_refused(task: Any, hook: str, meant: str) -> None:
    """A misspelt hook does not follow an empty script silently."""
    with pytest.raises(WiringError, match=f"no hook '{hook}'.*{meant}"):
        task({}, **{hook: [None]})


@pytest.mark.slow
def test_it_needs_no_pytest() -> None:
    """The suite can be imported and run where pytest is not installed."""
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "from ergon_framework.testing import exercise_connector\n"
        "from ergon_framework.connector.memory import MemoryConnector\n"
        "print(exercise_connector(MemoryConnector, colour='sync').ok)\n"
    )
    done = subprocess.run(  # noqa: S603 - our own interpreter, our own code
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_source_without_dispatch_is_seeded() -> None:
    """A generator and None are fine, and what is not offered is skipped and named."""
    report = exercise_connector(
        Bottomless,
        seed=lambda connector, transactions: connector.rows.extend(transactions),
        skip=["batch_size_below_one_is_refused"],
    )
    assert report.ok
    reasons = {
        one.name: one.reason for one in report.results if one.outcome is CheckOutcome.SKIPPED
    }
    assert reasons["ack_forgets"] == "needs ack"
    assert reasons["dispatch_takes_a_snapshot"] == "needs dispatch"
    assert reasons["release_restores_order"] == "needs release, strict_order"


def test_a_source_that_nothing_can_be_put_into_is_refused() -> None:
    """The suite says what it needs instead of passing vacuously."""
    with pytest.raises(WiringError, match=r"Bottomless has no dispatch_transactions.*seed"):
        exercise_connector(Bottomless)


def test_an_instance_is_refused() -> None:
    """A connector instead of a factory is an error that shows the factory."""
    with pytest.raises(WiringError, match=r"not a MemoryConnector.*lambda: MemoryConnector\("):
        exercise_connector(cast(Any, MemoryConnector()))


def test_a_missing_colour_is_refused() -> None:
    """Asking for asyncio of a connector for threads is an error that names the method."""
    with pytest.raises(WiringError, match="no method fetch_transactions_async"):
        exercise_connector(Bottomless, colour="both")
    with pytest.raises(WiringError, match="no method fetch_transactions"):
        exercise_connector(cast(Any, object), colour="auto")


def test_a_waived_check_is_named_and_an_unknown_one_refused() -> None:
    """Waiving is visible in the report; a misspelt name does not waive anything silently."""
    report = exercise_connector(MemoryConnector, skip=ALL_BUT_ONE)
    assert report.passed == ("first_in_first_out",)
    assert FIRST in report.skipped
    with pytest.raises(WiringError, match=f"'{FIRST[:-1]}'.*did you mean '{FIRST}'"):
        exercise_connector(MemoryConnector, skip=[FIRST[:-1]])


def test_it_takes_context_managers_and_async_factories() -> None:
    """The connector may come out of a context manager, which is left after each check."""
    left: list[str] = []

    @contextmanager
    def managed() -> Iterator[MemoryConnector]:
        yield MemoryConnector()
        left.append("sync")

    @asynccontextmanager
    async def managed_async() -> AsyncIterator[MemoryConnector]:
        yield MemoryConnector()
        left.append("async")

    async def made() -> MemoryConnector:
        return MemoryConnector()

    exercise_connector(managed, colour="sync", skip=ALL_BUT_ONE)
    exercise_connector(managed_async, colour="async", skip=ALL_BUT_ONE)
    exercise_connector(made, colour="async", skip=ALL_BUT_ONE)
    assert left == ["sync"] * 2 + ["async"] * 2  # one for the look at it, one for the check


def test_an_async_factory_is_refused_for_threads() -> None:
    """A coroutine is not mistaken for a connector."""

    async def made() -> MemoryConnector:
        return MemoryConnector()

    report = exercise_connector(made, colour="sync", skip=ALL_BUT_ONE, raises=False)
    assert "make_connector is asynchronous" in report.failures()[0].reason


def test_a_factory_that_fails_is_not_the_suites_failure() -> None:
    """What the factory raises comes out as it is."""

    def broken() -> Any:
        raise OSError("no such server")

    with pytest.raises(OSError, match="no such server"):
        exercise_connector(broken)


def test_the_report_tells_everything() -> None:
    """Text for people, plain values for programs, an AssertionError for test frameworks."""

    class Reversed(MemoryConnector):
        def fetch_transactions(self, batch_size: int, **extra: Any) -> list[Transaction]:
            return super().fetch_transactions(batch_size, **extra)[::-1]

    report = exercise_connector(Reversed, colour="sync", raises=False)
    assert not report.ok
    assert "first_in_first_out" in report.failed
    assert "failed: first_in_first_out [sync]: Transactions come in the order" in str(report)
    with pytest.raises(AssertionError, match=r"Reversed failed \d+ of \d+ checks") as caught:
        report.raise_for_failures()
    assert isinstance(caught.value, ConnectorSuiteError)
    assert caught.value.report is report
    told = report.to_dict()
    assert told["ok"] is False
    assert {one["outcome"] for one in told["results"]} == {"passed", "failed", "skipped"}


class Wrapping(MemoryConnector):
    """Takes payloads of one shape only, and has no room for metadata."""

    def dispatch_transactions(self, transactions: Any, **extra: Any) -> None:
        taken = []
        for each in transactions:
            if isinstance(each, Transaction) and set(each.payload) != {"item"}:
                raise ValueError("not the right shape")
            shape = each.to_dict() if isinstance(each, Transaction) else each
            taken.append(Transaction.from_dict({**shape, "metadata": {}}))
        super().dispatch_transactions(taken, **extra)


def test_payloads_may_have_a_shape_and_fields_no_room() -> None:
    """A connector of one shape is exercised in that shape; what it cannot carry is skipped."""
    shape = (lambda data: {"item": data}, lambda payload: payload["item"])
    carries = ("correlation_id", "trace_id", "source", "parent_id", "created_at")
    report = exercise_connector(Wrapping, shape=shape, carries=carries)
    assert "keeps_metadata" in report.skipped
    assert {"keeps_nested_payload", "keeps_created_at", "finds_by_id"} <= set(report.passed)
    assert "keeps_nested_payload" in exercise_connector(Wrapping, raises=False).failed


def test_colours_are_told_apart() -> None:
    """A bug in one colour is reported for that colour."""

    class HalfBroken(MemoryConnector):
        async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> Any:
            return self.fetch_transactions(batch_size, **extra)[:0]

    report = exercise_connector(
        HalfBroken, colour="both", skip=ALL_BUT_ONE, raises=False, patience=0.3
    )
    assert [one.colour for one in report.failures()] == ["async"]


@pytest.mark.slow
def test_the_example_of_a_connector_passes_and_works() -> None:
    """The connector people copy from is checked by the suite and used by an engine."""
    example = Path(__file__).resolve().parents[2] / "examples" / "connector_of_your_own.py"
    done = subprocess.run(  # noqa: S603 - our own interpreter, our own code
        [sys.executable, str(example)], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("TableConnector: ")
    assert rest[-3:] == ["hello, world", "hello, moon", "2 greeted"]
