"""Threads and asyncio, the written-out happy path and the machine: all must tell the same story."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from ergon_framework.errors import ExceptionType, TransactionException
from ergon_framework.task.mixins import consumer, producer
from ergon_framework.testing.scripted import Takes, transactions
from tests.engine.colours import Colour, Outcome, consume, produce

OK = "ok"
BUSINESS = TransactionException("refused", category=ExceptionType.BUSINESS)
SYSTEM = ValueError("broken")
HANGS = Takes(100.0, "too late")

# With two attempts, whatever follows a success or a refusal is never reached; all others are here.
PROCESS = [(OK,), (BUSINESS,), *itertools.product((SYSTEM, HANGS), (OK, BUSINESS, SYSTEM, HANGS))]
SUCCESS = [(OK,), (SYSTEM, OK), (HANGS,), (BUSINESS,)]
EXCEPTION = [(OK,), (SYSTEM,), (HANGS,)]
LIFECYCLE_TIMEOUTS = (None, 7.0)


def _successes(process: Any) -> Any:
    """The success handler matters only where process gets that far."""
    return SUCCESS if OK in process else SUCCESS[:1]


def _fresh(entry: Any) -> Any:
    """Exceptions are bound to a transaction: each run needs its own."""
    if isinstance(entry, TransactionException):
        return TransactionException(entry.message, entry.category)
    return ValueError("broken") if isinstance(entry, ValueError) else entry


def _policy(first: str, lifecycle: float | None) -> dict[str, Any]:
    retry = {"max_attempts": 2, "backoff": 3.0, "timeout": 5.0}
    return {
        "loop": {
            "batch": {"size": 2},
            "concurrency": {"max_abandoned": 50},
            "transaction_timeout": lifecycle,
        },
        "steps": {name: {"retry": retry} for name in (first, "success", "exception")},
    }


def _story(outcome: Outcome) -> Any:
    report = outcome.report
    told = [
        (each.at, each.hook, each.transaction_id, each.attempt, str(each.argument))
        for each in outcome.happened
    ]
    counts = (report.succeeded, report.failed, report.timed_out, report.handler_failures)
    return told, counts, report.stop_reason, report.elapsed, repr(outcome.error)


def _consume(colour: Colour, script: Any, lifecycle: float | None) -> Any:
    hooks: dict[str, Any] = {
        name: [_fresh(each) for each in entries]
        for name, entries in zip(("process", "success", "exception"), script, strict=True)
    }
    answers = [transactions(1), transactions(1, "u")]
    return _story(consume(colour, answers, _policy("process", lifecycle), **hooks))


def _produce(colour: Colour, script: Any, lifecycle: float | None) -> Any:
    hooks: dict[str, Any] = {
        name: [_fresh(each) for each in entries]
        for name, entries in zip(("produce", "success", "exception"), script, strict=True)
    }
    return _story(produce(colour, transactions(2), _policy("produce", lifecycle), **hooks))


@pytest.fixture
def machine_only(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Drive every step through the core's machine, without the written-out happy path."""

    def switch(is_on: bool) -> None:
        for module, name in ((consumer, "consumer_plan"), (producer, "producer_plan")):
            original = getattr(module, f"_original_{name}", None) or getattr(module, name)
            monkeypatch.setattr(module, f"_original_{name}", original, raising=False)
            made = (
                (
                    lambda *a, _make=original, **k: dataclasses.replace(
                        _make(*a, **k), compiled=False
                    )
                )
                if is_on
                else original
            )
            monkeypatch.setattr(module, name, made)

    return switch


@pytest.mark.req("RFC-004:5.1b", "RFC-004:14f", "R2-D5", "T3.31")
@pytest.mark.parametrize("lifecycle", LIFECYCLE_TIMEOUTS)
@pytest.mark.parametrize("process", PROCESS, ids=str)
def test_both_colours_and_both_ways_tell_the_same_story(
    process: Any, lifecycle: float | None, machine_only: Any
) -> None:
    """Every short script: same calls, same instants, same arguments, same counts."""
    for success, exception in itertools.product(_successes(process), EXCEPTION):
        script = (process, success, exception)
        machine_only(False)
        threads = _consume("sync", script, lifecycle)
        tasks = _consume("async", script, lifecycle)
        machine_only(True)
        assert threads == tasks == _consume("async", script, lifecycle), script


@pytest.mark.req("R2-D5", "T3.31")
@pytest.mark.parametrize("lifecycle", LIFECYCLE_TIMEOUTS)
def test_producers_mirror_consumers(lifecycle: float | None, machine_only: Any) -> None:
    """A producer's script unfolds alike in both colours and both ways."""
    reached = [(each, success) for each in PROCESS for success in _successes(each)]
    for process, success in reached:
        script = (process, success, (SYSTEM, OK))
        machine_only(False)
        threads, tasks = _produce("sync", script, lifecycle), _produce("async", script, lifecycle)
        machine_only(True)
        assert threads == tasks == _produce("sync", script, lifecycle), script
