"""The limit: exact, global, any outcome counts, and nothing that was fetched gets lost."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework.core.loop import StopReason
from ergon_framework.testing.scripted import ScriptedConnector, Takes, transactions
from tests.engine.bodies import Supply, rules
from tests.engine.colours import Colour, consume, produce


@pytest.mark.req("T3.7", "RFC-004:13.1b", "R3-BA1", "RFC-004:3h")
@pytest.mark.parametrize("mode", ["batch", "continuous"])
@pytest.mark.parametrize(("limit", "size"), [(10, 8), (5, 10), (1, 1), (8, 4), (3, 2)])
def test_the_limit_is_exact_across_batches(
    colour: Colour, mode: str, limit: int, size: int
) -> None:
    """Never one more, and the last fetch asks only for what is left."""
    source = Supply(transactions(40))
    policy = rules(size=size, concurrency=4 if size >= 4 else 1, limit=limit, mode=mode)
    outcome = consume(colour, source, policy)
    assert outcome.report == limit
    assert len(outcome.calls("process")) == limit
    assert len(source.waiting) == 40 - limit
    assert sum(source.asked) == limit
    assert max(source.asked) <= size
    assert outcome.report.stop_reason is StopReason.LIMIT


@pytest.mark.req("T3.7")
@pytest.mark.parametrize("streaming", [True, False])
def test_limit_zero_fetches_nothing(colour: Colour, streaming: bool) -> None:
    """The call returns at once, also when streaming."""
    source = Supply(transactions(3))
    outcome = consume(colour, source, rules(limit=0, streaming=streaming))
    assert source.asked == []
    assert (outcome.report, outcome.report.stop_reason) == (0, StopReason.LIMIT)


@pytest.mark.req("T3.7")
def test_every_outcome_counts_towards_the_limit(colour: Colour) -> None:
    """Failures and timeouts are outcomes too."""
    hooks: dict[str, Any] = {"process": {"t1": [ValueError("x")], "t2": [Takes(100.0)]}}
    policy = rules(limit=3, transaction_timeout=5.0, max_abandoned=9)
    outcome = consume(colour, Supply(transactions(9)), policy, **hooks)
    report = outcome.report
    assert (report, report.failed, report.timed_out, report.succeeded) == (3, 1, 1, 1)


@pytest.mark.req("T3.7", "RFC-004:13.1b")
def test_streaming_ends_at_the_limit(colour: Colour) -> None:
    """Empty fetches in between do not count."""
    answers = [transactions(2), None, None, transactions(2, "u"), transactions(2, "v")]
    outcome = consume(colour, answers, rules(size=2, streaming=True, limit=3))
    assert outcome.report == 3
    assert outcome.report.stop_reason is StopReason.LIMIT
    assert outcome.calls("process") == ["t1", "t2", "u1"]
    assert [size for size, _ in outcome.connector.fetches] == [2, 1, 1, 1]


@pytest.mark.req("T3.7")
def test_surplus_beyond_the_limit_is_released(colour: Colour) -> None:
    """A connector that can take back gets what the limit left over, each once."""
    source = ScriptedConnector([transactions(5)], settling=True)
    outcome = consume(colour, source, rules(size=5, limit=3))
    assert outcome.calls("process") == ["t1", "t2", "t3"]
    assert sorted(source.settled) == [
        ("ack", "t1"), ("ack", "t2"), ("ack", "t3"), ("release", "t4"), ("release", "t5"),
    ]  # fmt: skip
    assert (outcome.report.stranded, outcome.report.released) == ((), 2)


@pytest.mark.req("T3.7")
def test_surplus_without_release_is_reported_as_stranded(
    colour: Colour, caplog: pytest.LogCaptureFixture
) -> None:
    """And logged, so that somebody can look for it."""
    outcome = consume(colour, [transactions(5)], rules(size=5, limit=3))
    assert outcome.report == 3
    assert sorted(outcome.report.stranded) == ["t4", "t5"]
    assert any("t4" in record.getMessage() for record in caplog.records)


@pytest.mark.req("T3.7")
def test_surplus_is_stranded_when_settlement_is_manual(colour: Colour) -> None:
    """With settlement in the user's hands the engine calls nothing, and says what is left."""
    source = ScriptedConnector([transactions(3)], settling=True)
    outcome = consume(colour, source, rules(size=3, limit=1, settlement="manual"))
    assert source.settled == []
    assert sorted(outcome.report.stranded) == ["t2", "t3"]


@pytest.mark.req("T3.7", "RFC-005:15.1b", "RFC-005:3h")
@pytest.mark.parametrize(("limit", "size"), [(10, 8), (5, 10), (3, 2)])
def test_a_producer_takes_the_first_of_its_input(colour: Colour, limit: int, size: int) -> None:
    """Exactly the limit, and the rest is reported as not started."""
    policy = rules(size=size, concurrency=2, limit=limit)
    outcome = produce(colour, transactions(12), policy)
    given = [each.transaction_id for each in transactions(12)]
    assert sorted(outcome.calls("produce")) == sorted(given[:limit])
    assert list(outcome.report.stranded) == given[limit:]
    assert (outcome.report, outcome.report.stop_reason) == (limit, StopReason.LIMIT)


@pytest.mark.req("T3.7")
def test_a_producer_with_limit_zero_reads_nothing(colour: Colour) -> None:
    """Not even the first item of a generator."""
    read: list[int] = []

    def items() -> Any:
        for each in transactions(3):
            read.append(1)
            yield each

    outcome = produce(colour, items(), rules(limit=0))
    assert read == []
    assert (outcome.report, outcome.report.stop_reason) == (0, StopReason.LIMIT)


@pytest.mark.req("T3.7", "T3.27")
def test_a_limited_producer_leaves_the_rest_in_the_generator(colour: Colour) -> None:
    """What was not needed can still be taken from it."""
    items = iter(transactions(6))
    outcome = produce(colour, items, rules(size=4, limit=3))
    assert outcome.report == 3
    assert [each.transaction_id for each in items] == ["t4", "t5", "t6"]


@pytest.mark.req("T3.7")
def test_duplicates_do_not_count_towards_a_producers_limit(colour: Colour) -> None:
    """The limit counts lifecycles, and a skipped repeat has none."""
    one, two, three = transactions(3)
    outcome = produce(colour, [one, one, two, three], rules(size=9, limit=2))
    assert outcome.calls("produce") == ["t1", "t2"]
    assert outcome.report.duplicates == ("t1",)
    assert outcome.report.stranded == ("t3",)


@pytest.mark.req("T3.7", "T3.10")
def test_a_deferred_repeat_counts_when_it_runs(colour: Colour) -> None:
    """Equal ids in one consumer batch are all within the limit, none is lost."""
    one, two = transactions(2)
    outcome = consume(colour, [[one, one, two]], rules(size=3, concurrency=3, limit=3))
    assert sorted(outcome.calls("process")) == ["t1", "t1", "t2"]
    assert outcome.report == 3
