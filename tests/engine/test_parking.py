"""A closed gate costs no attempt: the source keeps the transaction, or it waits where it is."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.core.transaction_lifecycle import HELD_DELAY
from ergon_framework.errors import ErgonError, ExceptionType, WiringError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.scripted import ScriptedConnector, transactions
from tests.engine.bodies import consumer, nap, rules
from tests.engine.colours import Colour, consume, produce
from tests.engine.test_settlement import Settling

pytestmark = pytest.mark.req("ONE:parked")


class Refused(ErgonError):
    """What a provider raises whose circuit is open."""

    code = "circuit_open"
    failure_kind = "held"

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__("the circuit is open")
        self.retry_after_seconds = seconds


class Keeping(Settling):
    """A source that can keep a transaction for a while."""

    def release_after(self, transaction: Any, seconds: float) -> None:
        self.told.append(("release_after", transaction.transaction_id, seconds))
        if self.trouble.get("release_after"):
            raise self.trouble["release_after"]

    async def release_after_async(self, transaction: Any, seconds: float) -> None:
        self.release_after(transaction, seconds)


def test_a_source_that_can_keeps_it_and_others_flow(colour: Colour) -> None:
    """Parked with the seconds the gate asked for, without a handler, while the next one runs."""
    source = Keeping([transactions(2)])
    hooks: dict[str, Any] = {"process": {"t1": [Refused(7.0)]}}
    outcome = consume(colour, source, rules(size=2), **hooks)
    assert sorted(source.told) == [("ack", "t2", 0.0), ("release_after", "t1", 7.0)]
    assert outcome.calls() == ["process:t1", "process:t2", "success:t2"]
    report = outcome.report
    assert (report.parked, report.succeeded, report.failed, int(report)) == (1, 1, 0, 1)


def test_it_comes_back_when_its_time_has_come(colour: Colour) -> None:
    """The memory connector brings a parked one again, at its old place, and not before."""
    source = MemoryConnector([Transaction("t1"), Transaction("t2")])
    policy = rules(size=1, streaming=True, limit=3, empty_queue={"backoff": 1.0})
    hooks: dict[str, Any] = {"process": {"t1": [Refused(5.0), "ok"]}}
    outcome = consume(colour, source, policy, **hooks)
    assert outcome.calls("process") == ["t1", "t2", "t1"]
    assert outcome.times("process")[-1] >= 5.0
    assert (outcome.report.parked, outcome.report.succeeded) == (1, 2)
    assert source.get_transactions_count() == 0


def test_any_other_waits_in_place_and_is_not_charged(colour: Colour) -> None:
    """With one attempt in all, three refusals and a success are a success."""
    source = ScriptedConnector([transactions(1)])
    script = [Refused(5.0), Refused(2.0), Refused(), "done"]
    outcome = consume(
        colour, source, rules(steps={"process": {"max_attempts": 1}}), process={"t1": script}
    )
    assert outcome.report.succeeded == 1
    assert outcome.times("process") == [0.0, 5.0, 7.0, 7.0 + HELD_DELAY]


def test_an_attempt_that_failed_is_charged_between_two_refusals(colour: Colour) -> None:
    """Two attempts are two attempts, however often a gate was closed meanwhile."""
    script = [Refused(1.0), ValueError("no"), Refused(1.0), ValueError("no")]
    outcome = consume(
        colour,
        [transactions(1)],
        rules(steps={"process": {"max_attempts": 2}}),
        process={"t1": script},
    )
    assert (outcome.report.failed, len(outcome.calls("process"))) == (1, 4)


def test_a_handler_waits_too_and_nothing_begins_anew(colour: Colour) -> None:
    """After the work is done nothing is parked: it would be done twice."""
    source = Keeping([transactions(2)])
    outcome = consume(
        colour,
        source,
        rules(size=2),
        process={"t2": [ValueError("no")]},
        success={"t1": [Refused(3.0), None]},
        exception={"t2": [Refused(4.0), None]},
    )
    assert sorted(source.verbs) == [("ack", "t1"), ("nack", "t2")]
    assert (outcome.report.parked, outcome.report.handler_failures) == (0, 0)


def test_the_transactions_own_time_bounds_the_wait(colour: Colour) -> None:
    """A gate that stays closed leads to the exception phase, as anything that takes too long."""
    policy = rules(transaction_timeout=10.0)
    outcome = consume(colour, [transactions(1)], policy, process={"t1": [Refused(60.0)]})
    assert (outcome.report.timed_out, outcome.times("exception")) == (1, [10.0])


def test_a_stop_ends_the_wait(colour: Colour) -> None:
    """Who waits for a gate longer than the grace hands its transaction back at once."""

    async def process(transaction: Any) -> None:
        if transaction.transaction_id == "t1":
            raise Refused(600.0)
        await nap(1.0)
        task.request_stop()

    source = Settling([transactions(2)])
    task = consumer(colour, source, process=process)
    outcome = consume(colour, source, rules(size=2, concurrency=2, stop_grace=5.0), task=task)
    assert source.verbs == [("ack", "t2"), ("release", "t1")]
    assert outcome.report.elapsed < 10.0


def test_a_source_that_cannot_take_it_back_is_reported(colour: Colour) -> None:
    """A failing release_after is a settlement failure like any other."""
    source = Keeping([transactions(1)], release_after=OSError("gone"))
    outcome = consume(colour, source, rules(), process={"t1": [Refused(1.0)]})
    assert (outcome.report.settlement_failures, outcome.report.parked) == (1, 1)


def test_a_producer_waits_in_place(colour: Colour) -> None:
    """Whoever gave the input cannot keep it."""
    outcome = produce(colour, transactions(1), produce={"t1": [Refused(5.0), None]})
    assert (outcome.report.succeeded, outcome.times("produce")) == (1, [0.0, 5.0])


def test_a_gate_that_says_now_is_not_asked_without_end(colour: Colour) -> None:
    """Between two looks lies a tenth of a second at least."""
    script = [Refused(0.0), Refused(-1.0), "ok"]
    outcome = consume(colour, [transactions(1)], process={"t1": script})
    assert outcome.times("process") == [0.0, 0.1, 0.2]


def test_an_error_that_knows_it_is_a_refusal_is_not_tried_again(colour: Colour) -> None:
    """A wrong request stays wrong; the handler hears of it as BUSINESS."""

    class Wrong(ErgonError):
        code = "bad_request"
        failure_kind = "rejected"

    script: dict[str, Any] = {"t1": [Wrong("no such city")]}
    outcome = consume(
        colour, [transactions(1)], rules(steps={"process": {"max_attempts": 3}}), process=script
    )
    assert (outcome.report.failed, outcome.calls("process")) == (1, ["t1"])
    [handled] = [each for each in outcome.happened if each.hook == "exception"]
    assert handled.argument.category is ExceptionType.BUSINESS


def test_a_parked_one_is_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """It is told at the level of information, with its id."""
    with caplog.at_level(logging.INFO, "ergon.engine"):
        consume("sync", Keeping([transactions(1)]), process={"t1": [Refused(1.0)]})
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("INFO", "transaction t1 is parked: the circuit is open")
    ]


class Nonsense(ErgonError):
    """An error of the user's whose answers nobody can use."""

    failure_kind = "business"
    retry_after_seconds = "soon"  # type: ignore[assignment]

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("kind", ["business", "held", "rejected", 7])
def test_an_error_that_says_nonsense_is_one_like_any_other(colour: Colour, kind: Any) -> None:
    """Whatever an exception says of itself, the transaction gets its outcome."""
    error = Nonsense("odd")
    error.failure_kind = kind
    outcome = consume(colour, Keeping([transactions(1)]), process={"t1": [error]})
    assert (outcome.error, int(outcome.report)) == (None, 1)
    assert outcome.report.failed == 1


@pytest.mark.parametrize("seconds", ["soon", True, float("inf"), 10**400])
def test_a_wait_that_is_no_number_is_the_usual_one(colour: Colour, seconds: Any) -> None:
    """The gate is believed that it is closed, and not when it opens."""
    source = Keeping([transactions(1)])
    refusal = Refused()
    refusal.retry_after_seconds = seconds
    consume(colour, source, process={"t1": [refusal]})
    assert source.told == [("release_after", "t1", HELD_DELAY)]


@pytest.mark.req("ONE:patience")
def test_two_owners_of_patience_are_refused(colour: Colour) -> None:
    """A step with several attempts does not fit a source that delivers again what failed."""
    source = Keeping([transactions(1)])
    source.redelivers = True  # type: ignore[attr-defined]
    outcome = consume(colour, source, rules(steps={"process": {"max_attempts": 2}}))
    assert isinstance(outcome.error, WiringError)
    assert "would multiply" in str(outcome.error)
    assert source.fetches == []


def test_a_call_that_is_to_empty_a_volatile_source_waits_in_place(colour: Colour) -> None:
    """What would be parked in memory would be lost with the process."""
    source = MemoryConnector([Transaction("t1"), Transaction("t2")])
    outcome = consume(colour, source, rules(size=2), process={"t1": [Refused(5.0), "ok"]})
    assert (outcome.report.succeeded, outcome.report.parked) == (2, 0)
    assert source.get_transactions_count() == 0


def test_a_call_that_bounds_its_waits_hands_back_what_would_wait_longer(colour: Colour) -> None:
    """A short wait is waited for; a longer one is left to the source, and nothing is charged."""
    process: dict[str, Any] = {"t1": [Refused(3600.0)], "t2": [Refused(5.0), "ok"]}
    memory = MemoryConnector([Transaction("t1"), Transaction("t2")])
    outcome = consume(colour, memory, rules(size=2, max_hold=10.0), process=process)
    assert (outcome.report.succeeded, outcome.report.parked) == (1, 1)
    assert memory.get_transactions_count() == 1
    cannot_keep = Settling([transactions(2)])
    outcome = consume(colour, cannot_keep, rules(size=2, max_hold=10.0), process=process)
    assert cannot_keep.verbs == [("ack", "t2"), ("release", "t1")]
    assert (outcome.report.succeeded, outcome.report.aborted, outcome.report.released) == (1, 1, 1)
    nobody = ScriptedConnector([transactions(2)])
    outcome = consume(colour, nobody, rules(size=2, max_hold=10.0), process=process)
    assert outcome.report.stranded == ("t1",)
    assert outcome.report.elapsed < 10.0
