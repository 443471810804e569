"""Producing from inside a consumer: no deadlock, lineage by itself, one life under a stop."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework.connector.transaction import Transaction
from ergon_framework.core.loop import StopReason
from ergon_framework.task.ready import AsyncHybridTask, HybridTask
from ergon_framework.testing.scripted import ScriptedConnector, transactions
from tests.engine.bodies import method, nap, rules, settled
from tests.engine.colours import Colour, consume, produce


def _hybrid(colour: Colour, source: Any, process: Any, send: Any, **more: Any) -> Any:
    base = HybridTask if colour == "sync" else AsyncHybridTask
    members = {"process_transaction": process, "produce_transaction": send, **more}
    kind = type("Both", (base,), {key: method(colour, body) for key, body in members.items()})
    return kind({"source": source}, {})


@pytest.mark.req("T3.32", "R0-C2", "R1-ID3", "R1-I4", "R0-L5")
def test_children_inherit_their_lineage(colour: Colour) -> None:
    """parent_id is the consumed one; the correlation goes on, or begins with it."""
    children: list[Transaction] = []

    async def process(transaction: Any) -> int:
        given = [
            Transaction(f"{transaction.transaction_id}-a"),
            Transaction(
                f"{transaction.transaction_id}-b", correlation_id="mine", parent_id="other"
            ),
        ]
        return int(await settled(task.produce_transactions(given, rules(size=2))))

    async def send(transaction: Any) -> None:
        children.append(transaction)

    source = ScriptedConnector([[Transaction("p1", correlation_id="flow"), Transaction("p2")]])
    task = _hybrid(colour, source, process, send)
    outcome = consume(colour, source, rules(size=2), task=task)
    assert outcome.report.succeeded == 2
    lineage = [(each.transaction_id, each.parent_id, each.correlation_id) for each in children]
    assert lineage == [
        ("p1-a", "p1", "flow"),
        ("p1-b", "other", "mine"),
        ("p2-a", "p2", "p2"),
        ("p2-b", "other", "mine"),
    ]


@pytest.mark.req("T3.32")
@pytest.mark.parametrize("bound", [1, 3])
def test_producing_inside_needs_none_of_the_consumers_permits(colour: Colour, bound: int) -> None:
    """With every permit taken by a producing hook, all of them get through."""
    sent: list[str] = []

    async def process(transaction: Any) -> None:
        given = [Transaction(f"{transaction.transaction_id}-{n}") for n in range(4)]
        report = await settled(task.produce_transactions(given, rules(size=4, concurrency=2)))
        assert report.succeeded == 4

    async def send(transaction: Any) -> None:
        await nap(1.0)
        sent.append(transaction.transaction_id)

    source = ScriptedConnector([transactions(6)])
    task = _hybrid(colour, source, process, send)
    outcome = consume(colour, source, rules(size=6, concurrency=bound), task=task)
    assert outcome.report.succeeded == 6
    assert len(sent) == 24
    assert outcome.report.elapsed == 2.0 * -(-6 // bound)


@pytest.mark.req("T3.32", "T3.10")
def test_producing_the_very_transaction_that_is_consumed(colour: Colour) -> None:
    """The registries of the two roles are apart, so nothing waits for itself."""
    sent: list[Transaction] = []

    async def process(transaction: Any) -> None:
        await settled(task.produce_transactions([transaction]))

    async def send(transaction: Any) -> None:
        sent.append(transaction)

    source = ScriptedConnector([transactions(2)])
    task = _hybrid(colour, source, process, send)
    assert consume(colour, source, rules(size=2), task=task).report.succeeded == 2
    assert [each.transaction_id for each in sent] == ["t1", "t2"]
    assert [each.parent_id for each in sent] == [None, None]


@pytest.mark.req("T3.32", "T3.30")
def test_a_stop_lets_an_inner_call_finish(colour: Colour) -> None:
    """The inner call belongs to the work that is drained."""
    sent: list[str] = []

    async def process(transaction: Any) -> None:
        task.request_stop()
        given = [Transaction(f"{transaction.transaction_id}-{n}") for n in range(3)]
        report = await settled(task.produce_transactions(given))
        assert report.stop_reason is StopReason.EXHAUSTED

    async def send(transaction: Any) -> None:
        task.request_stop() if transaction.transaction_id == "never" else None
        await nap(1.0)
        sent.append(transaction.transaction_id)

    source = ScriptedConnector([transactions(1), transactions(1, "u")])
    task = _hybrid(colour, source, process, send)
    outcome = consume(colour, source, rules(), task=task)
    assert sent == ["t1-0", "t1-1", "t1-2"]
    assert outcome.report.succeeded == 1
    assert outcome.report.stop_reason is StopReason.STOPPED


@pytest.mark.req("T3.32")
def test_hooks_of_both_roles_coexist(colour: Colour) -> None:
    """Each role calls its own handlers."""
    calls: list[str] = []

    def note(name: str) -> Any:
        async def hook(transaction: Any, _second: Any = None) -> None:
            calls.append(f"{name}:{transaction.transaction_id}")
            if name == "process":
                await settled(task.produce_transactions([Transaction("good"), Transaction("bad")]))
            if transaction.transaction_id == "bad" and name == "send":
                raise ValueError("x")

        return hook

    source = ScriptedConnector([transactions(1)])
    task = _hybrid(
        colour,
        source,
        note("process"),
        note("send"),
        handle_transaction_success=note("consumed"),
        handle_transaction_exception=note("not consumed"),
        handle_produce_success=note("sent"),
        handle_produce_exception=note("not sent"),
    )
    consume(colour, source, task=task)
    assert calls == [
        "process:t1", "send:good", "sent:good", "send:bad", "not sent:bad", "consumed:t1",
    ]  # fmt: skip


@pytest.mark.req("T3.32", "RFC-004:9a", "T3.17")
def test_an_inner_call_is_bounded_by_the_outer_step(colour: Colour) -> None:
    """A step timeout ends waiting for an inner call that hangs, and the inner call ends too."""
    ended: list[str] = []

    async def process(_transaction: Any) -> None:
        await settled(task.produce_transactions([Transaction("inner")]))

    async def send(_transaction: Any) -> None:
        await nap(100.0)

    async def sent(_transaction: Any, _result: Any) -> None:
        ended.append("sent")

    source = ScriptedConnector([transactions(1)])
    task = _hybrid(colour, source, process, send, handle_produce_success=sent)
    policy = rules(steps={"process": {"timeout": 5.0}})
    outcome = consume(colour, source, policy, task=task)
    assert outcome.report.elapsed == 5.0
    assert outcome.report.succeeded == 0
    if colour == "async":
        assert ended == []  # cancelled with the hook that made the call


@pytest.mark.req("T3.32")
def test_consuming_inside_a_producer_works_too(colour: Colour) -> None:
    """Nesting the other way round needs no permits either."""
    seen: list[str] = []

    async def process(transaction: Any) -> None:
        seen.append(transaction.transaction_id)

    async def send(_transaction: Any) -> None:
        await settled(task.consume_transactions(rules(size=2, limit=2)))

    source = ScriptedConnector([transactions(2), transactions(2, "u")])
    task = _hybrid(colour, source, process, send)
    outcome = produce(colour, transactions(2, "out"), task=task)
    assert outcome.report.succeeded == 2
    assert seen == ["t1", "t2", "u1", "u2"]
