"""A settlement that failed for a passing reason is tried again, on a channel that still lives."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from ergon_framework.errors import ChannelLostError, ConnectorError
from ergon_framework.telemetry import add_listener, remove_listener
from ergon_framework.testing.scripted import Takes, transactions
from tests.engine.bodies import final_report, refusal, rules
from tests.engine.colours import Colour, Outcome, consume
from tests.engine.test_settlement import Settling

PASSING = OSError("the broker is busy")


def _times(source: Settling, name: str = "t1") -> list[float]:
    return [round(at, 6) for _verb, told, at in source.told if told == name]


@pytest.mark.req("T3.18", "R0-I3")
@pytest.mark.parametrize("verb", ["ack", "nack"])
def test_a_settlement_that_fails_once_is_told_again(colour: Colour, verb: str) -> None:
    """The same verb for the same delivery, a moment later; the work is not done again."""
    source = Settling([transactions(1)], **{verb: [PASSING]})
    hooks: dict[str, Any] = {"process": ValueError("x")} if verb == "nack" else {}
    outcome = consume(colour, source, rules(), **hooks)
    assert source.verbs == [(verb, "t1"), (verb, "t1")]
    assert _times(source) == [0.0, 0.1]
    assert outcome.calls("process") == ["t1"]
    assert outcome.report.settlement_failures == 0
    assert (outcome.report == 1, outcome.report.elapsed) == (True, 0.1)


@pytest.mark.req("T3.7", "T3.30")
def test_a_release_that_fails_once_is_told_again(colour: Colour) -> None:
    """At the end of a call, within the grace for handing back."""
    source = Settling([transactions(3)], release={"t2": [PASSING]})
    outcome = consume(colour, source, rules(size=3, limit=1))
    assert _times(source, "t2") == [0.0, 0.1]
    assert (outcome.report.released, outcome.report.stranded) == (2, ())
    assert outcome.report.settlement_failures == 0


@pytest.mark.req("T3.30")
def test_a_release_is_not_told_again_after_the_grace(colour: Colour) -> None:
    """Once it is called stranded, nobody hands it back behind the report's back."""
    source = Settling([transactions(2)], release=PASSING)
    outcome = consume(colour, source, rules(size=2, limit=1, release_grace=0.2))
    assert _times(source, "t2") == [0.0, 0.1]
    assert outcome.report.stranded == ("t2",)


class Noting(Settling):
    """Its ``ack`` only takes a note, so asyncio tasks call it as well."""

    ack_never_waits = True
    awaited = 0

    async def ack_async(self, transaction: Any) -> None:
        self.awaited += 1
        await super().ack_async(transaction)


def test_an_ack_that_never_waits_is_called_and_not_awaited(colour: Colour) -> None:
    """Once for each that succeeded; what failed is settled as everywhere."""
    source = Noting([transactions(3)])
    outcome = consume(colour, source, rules(size=3), process={"t2": [refusal()]})
    assert source.verbs == [("ack", "t1"), ("ack", "t3"), ("nack", "t2")]
    assert (source.awaited, outcome.report.succeeded, outcome.report.failed) == (0, 2, 1)


@pytest.mark.parametrize(
    ("trouble", "times", "failures"),
    [
        ([PASSING], [0.0, 0.1], 0),
        (PASSING, [0.0, 0.1, 0.4, 1.3, 4.0], 1),
        (ChannelLostError("channel 3 is closed"), [0.0], 1),
    ],
    ids=["once", "always", "lost"],
)
def test_an_ack_that_never_waits_may_fail_as_any_other(
    colour: Colour, trouble: Any, times: list[float], failures: int
) -> None:
    """The first call counts as an attempt: nothing is told once more than it may be."""
    source = Noting([transactions(1)], ack=[*trouble] if isinstance(trouble, list) else trouble)
    outcome = consume(colour, source, rules())
    assert _times(source) == times
    assert (outcome.report.succeeded, outcome.report.settlement_failures) == (1, failures)


def test_the_attempts_are_bounded(colour: Colour) -> None:
    """Five by default, with growing waits; then it is a failed settlement, told once."""
    source = Settling([transactions(1)], ack=PASSING)
    outcome = consume(colour, source, rules())
    assert _times(source) == [0.0, 0.1, 0.4, 1.3, 4.0]
    assert (outcome.report.succeeded, outcome.report.settlement_failures) == (1, 1)


def test_the_bound_is_a_setting(colour: Colour) -> None:
    """With one attempt nothing is repeated."""
    source = Settling([transactions(1)], ack=PASSING)
    outcome = consume(colour, source, rules(settlement_attempts=1))
    assert source.verbs == [("ack", "t1")]
    assert outcome.report.settlement_failures == 1


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("reset"),
        EOFError("closed"),
        OSError(errno.ENOTCONN, "not connected"),
        ChannelLostError("channel 3 is closed"),
        TimeoutError("no answer"),
        ConnectorError("closed"),
        refusal(),
        AttributeError("a bug"),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_not_passing_is_not_tried_again(colour: Colour, error: BaseException) -> None:
    """A lost channel, an unknown answer, a refusal, a defect."""
    source = Settling([transactions(1)], ack=error)
    outcome = consume(colour, source, rules())
    assert source.verbs == [("ack", "t1")]
    assert (outcome.report.succeeded, outcome.report.settlement_failures) == (1, 1)


def test_a_channel_that_another_settlement_found_lost_ends_the_wait(colour: Colour) -> None:
    """The delivery came through that channel, too: its tag may mean another one by now."""
    lost = ChannelLostError("channel 3 is closed")
    source = Settling([transactions(2)], ack={"t1": PASSING, "t2": lost})
    hooks: dict[str, Any] = {"process": {"t2": [Takes(0.05)]}}
    outcome = consume(colour, source, rules(size=2, concurrency=2), **hooks)
    assert [each[:2] for each in source.told] == [("ack", "t1"), ("ack", "t2")]
    assert outcome.report.settlement_failures == 2
    assert outcome.report.elapsed == 0.05


def test_a_channel_that_a_fetch_found_lost_ends_the_wait(colour: Colour) -> None:
    """The next fetch raises while an ack waits for its second attempt."""
    answers = [transactions(1), Takes(0.05, ConnectionResetError("reset"))]
    source = Settling(answers, ack=PASSING)
    policy = rules(size=1, concurrency=2, mode="continuous")
    outcome = consume(colour, source, policy)
    assert source.verbs == [("ack", "t1")]
    assert final_report(outcome).settlement_failures == 1
    assert final_report(outcome).elapsed == 0.05


def test_a_stop_lets_the_wait_end_within_its_grace(colour: Colour) -> None:
    """A stop that is asked for while an ack fails: it is told again as long as there is time."""
    for grace, times in ((30.0, [0.0, 0.1]), (0.05, [0.0])):
        holder: list[Outcome] = []

        def stopping(holder: list[Outcome] = holder) -> None:
            holder[0].task.request_stop()
            raise PASSING

        source = Settling([transactions(1)], ack=[stopping])
        outcome = consume(colour, source, rules(stop_grace=grace), meanwhile=holder.append)
        assert _times(source) == times
        assert outcome.report.succeeded == 1
        assert outcome.report.settlement_failures == 2 - len(times)


@pytest.mark.req("T3.17")
def test_an_abort_during_the_wait_abandons_nobody(colour: Colour) -> None:
    """The loop's time is over: the outcome stands, and the source was not told of it."""
    source = Settling([transactions(1)], ack=PASSING)
    outcome = consume(colour, source, rules(timeout=0.2, cancel_grace=0.0))
    assert isinstance(outcome.error, TimeoutError)
    report = final_report(outcome)
    assert _times(source) == [0.0, 0.1]
    assert (report.succeeded, report.aborted, report.abandoned) == (1, 0, 0)
    assert (report.settlement_failures, report.released, report.stranded) == (1, 0, ())


def test_the_attempts_share_one_timeout(colour: Colour) -> None:
    """A wait that would outlast settlement_timeout is not begun."""
    source = Settling([transactions(1)], ack=PASSING)
    outcome = consume(colour, source, rules(settlement_timeout=1.0))
    assert _times(source) == [0.0, 0.1, 0.4]
    assert outcome.report.settlement_failures == 1


def test_a_second_attempt_that_hangs_has_what_is_left_of_the_timeout(colour: Colour) -> None:
    """And is the last: whether the source heard it is unknown."""
    source = Settling([transactions(1)], ack=[PASSING, 1000.0])
    outcome = consume(colour, source, rules(settlement_timeout=5.0, max_abandoned=9))
    assert _times(source) == [0.0, 0.1]
    assert (outcome.report.succeeded, outcome.report.settlement_failures) == (1, 1)
    assert outcome.report.elapsed == 5.0


def test_a_cancellation_during_the_wait_ends_it() -> None:
    """Somebody cancels the worker's task: the outcome stands, and the ack counts as failed."""

    def cancel_workers() -> None:
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task() and task.get_name().startswith("ergon-"):
                task.cancel()

    def failing() -> None:
        asyncio.get_running_loop().call_later(0.05, cancel_workers)
        raise PASSING

    source = Settling([transactions(1)], ack=[failing])
    outcome = consume("async", source, rules())
    assert isinstance(outcome.error, asyncio.CancelledError)
    assert _times(source) == [0.0]
    assert (outcome.report.succeeded, outcome.report.settlement_failures) == (1, 1)


def test_every_settlement_is_told_once_at_its_end(colour: Colour) -> None:
    """With its verb, the number of attempts, and when it began; retries are told like others."""
    told: list[Any] = []
    add_listener(told.append)
    try:
        source = Settling(
            [transactions(4)], ack={"t1": [PASSING], "t2": TimeoutError("?")}, release=[PASSING]
        )
        hooks: dict[str, Any] = {"process": {"t3": ValueError("x")}}
        consume(colour, source, rules(size=4, limit=3), **hooks)
    finally:
        remove_listener(told.append)
    ended = [each for each in told if each.name == "settlement.ended"]
    seen = [
        (each["transaction_id"], each["verb"], each["attempts"], round(each.at, 6))
        for each in ended
    ]
    assert seen == [
        ("t1", "ack", 2, 0.1), ("t2", "ack", 1, 0.1), ("t3", "nack", 1, 0.1),
        ("t4", "release", 2, 0.2),
    ]  # fmt: skip
    kinds = [each["failure"] and each["failure"].kind.value for each in ended]
    assert kinds == [None, "timeout", None, None]
    (again,) = [each for each in told if each.name == "retry.scheduled"]
    assert (again["phase"], again["attempt"], again["delay"]) == ("settle", 0, 0.1)
