"""Engine-managed settlement: each delivered transaction is settled exactly once, by its ending."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework.errors import FetchException, TransactionException, WiringError
from ergon_framework.testing.scripted import ScriptedConnector, Takes, transactions
from tests.engine.bodies import by_hand, final_report, nap, now, refusal, rules
from tests.engine.colours import Colour, consume


class Settling(ScriptedConnector):
    """Notes what it is told, with the instant and the reason; may fail or hang per verb.

    A trouble is seconds, an exception, something to call, or a list with one of them per call.
    """

    def __init__(self, answers: Any, **trouble: Any) -> None:
        super().__init__(answers)
        self.trouble = trouble
        self.told: list[tuple[str, str, float]] = []
        self.reasons: list[Any] = []

    async def _tell(self, verb: str, transaction: Any) -> None:
        self.told.append((verb, transaction.transaction_id, now()))
        trouble = self.trouble.get(verb)
        if isinstance(trouble, dict):
            trouble = trouble.get(transaction.transaction_id)
        if isinstance(trouble, list):
            trouble = trouble.pop(0) if trouble else None
        if isinstance(trouble, float):
            await nap(trouble)
        elif callable(trouble):
            trouble()
        elif trouble is not None:
            raise trouble

    def ack(self, transaction: Any) -> None:
        by_hand(self._tell("ack", transaction))

    def nack(self, transaction: Any, exc: Any) -> None:
        self.reasons.append(exc)
        by_hand(self._tell("nack", transaction))

    def release(self, transaction: Any) -> None:
        by_hand(self._tell("release", transaction))

    async def ack_async(self, transaction: Any) -> None:
        await self._tell("ack", transaction)

    async def nack_async(self, transaction: Any, exc: Any) -> None:
        self.reasons.append(exc)
        await self._tell("nack", transaction)

    async def release_async(self, transaction: Any) -> None:
        await self._tell("release", transaction)

    @property
    def verbs(self) -> list[tuple[str, str]]:
        """What was told about whom, sorted."""
        return sorted((verb, name) for verb, name, _at in self.told)


@pytest.mark.req("R0-I3", "T3.4", "T3.5", "R0-N")
def test_every_ending_is_settled_exactly_once(colour: Colour) -> None:
    """Success acks; failure, timeout and a failed handler nack with the reason."""
    source = Settling([transactions(5)])
    hooks: dict[str, Any] = {
        "process": {"t2": [refusal()], "t3": [Takes(100.0)], "t4": [ValueError("x")], "t5": ["ok"]},
        "success": {"t5": [ValueError("no")]},
        "exception": {"t4": [OSError("handler")]},
    }
    policy = rules(size=5, transaction_timeout=5.0, max_abandoned=9)
    outcome = consume(colour, source, policy, **hooks)
    assert source.verbs == [
        ("ack", "t1"), ("nack", "t2"), ("nack", "t3"), ("nack", "t4"), ("nack", "t5"),
    ]  # fmt: skip
    assert all(isinstance(each, TransactionException) for each in source.reasons)
    assert [each.transaction_id for each in source.reasons] == ["t2", "t3", "t4", "t5"]
    assert outcome.report.settlement_failures == 0


@pytest.mark.req("R0-I3")
def test_settlement_comes_after_the_handler(colour: Colour) -> None:
    """A transaction is acked when its success handler is done, nacked when the other one is."""
    source = Settling([transactions(2)])
    hooks: dict[str, Any] = {"process": {"t1": Takes(1.0), "t2": Takes(1.0, refusal())}}
    consume(colour, source, rules(size=2), success=Takes(2.0), exception=Takes(4.0), **hooks)
    assert source.told == [("ack", "t1", 3.0), ("nack", "t2", 8.0)]


@pytest.mark.req("T3.17", "T3.30")
def test_a_loop_timeout_releases_what_it_aborts(colour: Colour) -> None:
    """In flight and not begun alike; nothing is stranded."""
    source = Settling([transactions(4)])
    policy = rules(size=4, concurrency=2, timeout=5.0)
    outcome = consume(
        colour,
        source,
        policy,
        process={"t1": Takes(1.0), "t2": Takes(100.0), "t3": Takes(100.0), "t4": Takes(100.0)},
    )
    assert isinstance(outcome.error, TimeoutError)
    assert source.verbs == [("ack", "t1"), ("release", "t2"), ("release", "t3"), ("release", "t4")]
    report = final_report(outcome)
    assert report.stranded == ()
    assert report.elapsed == 5.0


@pytest.mark.req("T3.20")
def test_a_fetch_error_leaves_nothing_unsettled(colour: Colour) -> None:
    """Work in flight is finished and acked before the error is raised."""
    source = Settling([transactions(2), OSError("gone")])
    outcome = consume(colour, source, rules(size=2))
    assert isinstance(outcome.error, FetchException)
    assert source.verbs == [("ack", "t1"), ("ack", "t2")]


@pytest.mark.req("T3.18", "RFC-004:15a")
@pytest.mark.parametrize("verb", ["ack", "nack"])
def test_a_settlement_on_a_lost_channel_is_counted_logged_and_not_repeated(
    colour: Colour, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The outcome stays what it was, and the loop goes on."""
    source = Settling([transactions(2)], **{verb: ConnectionResetError("channel gone")})
    hooks: dict[str, Any] = {"process": ValueError("x")} if verb == "nack" else {}
    outcome = consume(colour, source, rules(size=2), **hooks)
    assert source.verbs == [(verb, "t1"), (verb, "t2")]
    report = outcome.report
    assert report == 2
    assert report.settlement_failures == 2
    assert outcome.calls("exception") == (["t1", "t2"] if verb == "nack" else [])
    assert any("t1" in record.getMessage() for record in caplog.records)


@pytest.mark.req("T3.2", "T3.13")
def test_a_hanging_settlement_is_bounded(colour: Colour) -> None:
    """After settlement_timeout the worker is replaced, the failure counted, the next one begun."""
    source = Settling([transactions(2)], ack=1000.0)
    policy = rules(size=2, settlement_timeout=5.0, max_abandoned=9)
    outcome = consume(colour, source, policy)
    assert [each[:2] for each in source.told] == [("ack", "t1"), ("ack", "t2")]
    assert [each[2] for each in source.told] == [0.0, 5.0]
    assert outcome.report.succeeded == 2
    assert outcome.report.settlement_failures == 2
    assert outcome.report.elapsed == 10.0


@pytest.mark.req("T3.30")
def test_a_hanging_release_does_not_hold_the_end(colour: Colour) -> None:
    """What cannot be handed back in time is stranded."""
    source = Settling([transactions(3)], release=1000.0)
    outcome = consume(colour, source, rules(size=3, limit=1))
    assert outcome.report.succeeded == 1
    assert sorted(outcome.report.stranded) == ["t2", "t3"]
    assert outcome.report.elapsed < 60.0


@pytest.mark.req("T3.7", "RFC-004:15a")
def test_a_failing_release_is_reported(colour: Colour) -> None:
    """The rest is still tried, and each failed one is named or counted."""
    source = Settling([transactions(3)], release=ConnectionResetError("gone"))
    outcome = consume(colour, source, rules(size=3, limit=1))
    assert source.verbs == [("ack", "t1"), ("release", "t2"), ("release", "t3")]
    assert outcome.report.settlement_failures == 2
    assert outcome.report.released == 0


@pytest.mark.req("RFC-004:3b")
def test_manual_settlement_calls_nothing(colour: Colour) -> None:
    """The option for hooks that settle themselves."""
    source = Settling([transactions(2)])
    outcome = consume(
        colour, source, rules(size=2, settlement="manual"), process={"t1": ValueError("x")}
    )
    assert source.told == []
    assert outcome.report == 2


@pytest.mark.req("R0-N")
def test_a_connector_may_offer_only_some_verbs(colour: Colour) -> None:
    """Only ack: failures are not settled, and nothing breaks."""

    class OnlyAck(ScriptedConnector):
        def ack(self, transaction: Any) -> None:
            self.settled.append(("ack", transaction.transaction_id))

    source = OnlyAck([transactions(2)])
    outcome = consume(colour, source, rules(size=2), process={"t1": ValueError("x")})
    assert source.settled == [("ack", "t2")]
    assert (outcome.report.failed, outcome.report.succeeded) == (1, 1)


@pytest.mark.req("R0-N")
def test_a_nack_without_a_reason_is_accepted(colour: Colour) -> None:
    """A connector whose nack takes only the transaction still works."""

    class Short(ScriptedConnector):
        def nack(self, transaction: Any) -> None:
            self.settled.append(("nack", transaction.transaction_id))

    source = Short([transactions(1)])
    outcome = consume(colour, source, rules(), process=ValueError("x"))
    assert source.settled == [("nack", "t1")]
    assert outcome.report.settlement_failures == 0


@pytest.mark.req("T3.10")
def test_equal_ids_are_settled_each(colour: Colour) -> None:
    """Two deliveries of one id are two settlements."""
    one = transactions(1)[0]
    source = Settling([[one, one]])
    consume(colour, source, rules(size=2, concurrency=2))
    assert source.verbs == [("ack", "t1"), ("ack", "t1")]


@pytest.mark.req("T3.11")
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_settles_everybody(colour: Colour, kind: type[BaseException]) -> None:
    """The interrupted one, the one beside it and those not begun: one word about each."""
    source = Settling([transactions(4)])
    hooks: dict[str, Any] = {
        "process": {"t1": [Takes(1.0, kind())], "t2": [Takes(5.0)], "t3": ["ok"], "t4": ["ok"]}
    }
    outcome = consume(colour, source, rules(size=4, concurrency=2), **hooks)
    assert isinstance(outcome.error, kind)
    names = sorted(name for _verb, name in source.verbs)
    assert names == ["t1", "t2", "t3", "t4"]
    assert ("ack", "t2") in source.verbs
    assert ("ack", "t1") not in source.verbs


@pytest.mark.req("T3.2")
def test_a_settled_transaction_is_not_settled_again_when_its_zombie_returns(
    colour: Colour,
) -> None:
    """The late result of an abandoned call acks nothing."""
    source = Settling([transactions(2)])
    hooks: dict[str, Any] = {"process": {"t1": [Takes(8.0, "late")], "t2": [Takes(4.0)]}}
    policy = rules(size=2, max_abandoned=9, steps={"process": {"timeout": 5.0}})
    consume(colour, source, policy, **hooks)
    assert source.verbs == [("ack", "t2"), ("nack", "t1")]


@pytest.mark.req("T3.4", "T3.17")
def test_an_abort_during_settlement_does_not_settle_twice(colour: Colour) -> None:
    """The loop timeout hits while ack hangs: no release for what may be acked already."""
    source = Settling([transactions(1)], ack=100.0)
    outcome = consume(colour, source, rules(timeout=5.0, settlement_timeout=50.0))
    assert isinstance(outcome.error, TimeoutError)
    assert source.verbs == [("ack", "t1")]


@pytest.mark.req("R3-K3")
def test_connectors_of_a_sync_task_are_not_called_with_coroutines() -> None:
    """An async-only settlement is no offer to a threaded task."""

    class AsyncOnly(ScriptedConnector):
        async def ack(self, transaction: Any) -> None:
            raise AssertionError("never awaited")

    outcome = consume("sync", AsyncOnly([transactions(1)]))
    assert outcome.report.succeeded == 1
    assert outcome.report.settlement_failures == 0


def test_a_sync_task_warns_of_a_settlement_that_it_cannot_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise everything would succeed, and the source would never hear of it."""

    class Mixed(ScriptedConnector):
        async def nack(self, transaction: Any, exc: Any) -> None:
            raise AssertionError("never awaited")

    for _ in range(2):
        consume("sync", Mixed([transactions(1)]))
    assert caplog.text.count("Mixed.nack is a coroutine function") == 1


@pytest.mark.req("T3.7")
@pytest.mark.parametrize("verb", ["ack", "nack", "release"])
def test_a_settlement_that_only_makes_a_coroutine_has_failed(colour: Colour, verb: str) -> None:
    """The source was not told: by a plain method around one, or by one that was not awaited."""
    told: list[str] = []

    async def tell() -> None:
        told.append(verb)

    class Forgetful(ScriptedConnector):
        def settle(self, _transaction: Any, _exc: Any = None) -> Any:
            return tell()

        async def settle_async(self, _transaction: Any, _exc: Any = None) -> Any:
            return tell()

    source: Any = Forgetful([transactions(2)])
    setattr(source, verb, source.settle)
    setattr(source, f"{verb}_async", source.settle_async)
    answers = [refusal()] if verb == "nack" else ["done"]
    outcome = consume(colour, source, rules(limit=1), process=answers)
    report = outcome.report
    assert (report.settlement_failures, report.released, told) == (1, 0, [])
    assert report.stranded == ("t2",)
    assert report.elapsed == 0.0  # repeating it would not help


@pytest.mark.req("T3.7", "T3.30")
def test_a_slow_source_gets_everything_back(colour: Colour) -> None:
    """1,199 prefetched at 10 ms each fit into the grace, because they go several at a time."""
    source = Settling([transactions(1200)], release=0.01)
    outcome = consume(colour, source, rules(size=1200, limit=1))
    assert (outcome.report.succeeded, outcome.report.stranded) == (1, ())
    assert outcome.report.released == 1199
    assert len({name for verb, name, _at in source.told if verb == "release"}) == 1199


@pytest.mark.req("T3.7", "T3.30")
def test_a_quick_source_gets_them_back_in_order(colour: Colour) -> None:
    """One at a time, so that a queue can be restored."""
    source = Settling([transactions(50)])
    consume(colour, source, rules(size=50, limit=1))
    released = [name for verb, name, _at in source.told if verb == "release"]
    assert released == [f"t{n}" for n in range(2, 51)]


@pytest.mark.req("T3.7", "T3.30")
def test_the_grace_of_a_release_is_a_setting(colour: Colour) -> None:
    """A source that takes ten seconds is waited for when the policy says so, and only then."""
    for grace, released in ((5.0, 0), (60.0, 2)):
        source = Settling([transactions(3)], release=10.0)
        outcome = consume(colour, source, rules(size=3, limit=1, release_grace=grace))
        assert outcome.report.released == released
        assert len(outcome.report.stranded) == 2 - released


@pytest.mark.req("T3.28", "T3.35", "RFC-004:3b")
def test_copies_that_nobody_can_settle_are_refused(colour: Colour) -> None:
    """Hooks that settle need the very object that was delivered, and would get a copy of it."""
    source = Settling([transactions(1)])
    policy = rules(settlement="manual", payload_copies=True)
    outcome = consume(colour, source, policy)
    assert isinstance(outcome.error, WiringError)
    assert "payload_copies" in str(outcome.error)
    assert source.fetches == []
