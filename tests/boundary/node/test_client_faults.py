"""Producers, consumers and outboxes: what reviewers found once, and what must not come back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.client.outbox import Outbox
from ergon_framework.boundary.client.producer import AsyncProducer
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.http.codec import error_of_answer
from ergon_framework.boundary.model import Loss
from ergon_framework.boundary.node.app import NodeApplication
from ergon_framework.boundary.node.inprocess import InProcessTransport
from ergon_framework.boundary.node.policy import EVERYTHING, Permissions, Policy
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import BoundaryError, BufferFullError
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from ergon_framework.testing import VirtualClock
from tests.boundary.client.scripted import (
    ENVELOPE,
    FACT,
    Colour,
    MemoryNode,
    ScriptedTransport,
    consume,
    produce,
)
from tests.boundary.node.processes import fact

BOTH = pytest.mark.parametrize("colour", ["threads", "tasks"])
OK = b'{"offset":42,"duplicate":false,"digest":"sha256:00"}'
EVERY = EVERYTHING
BUSY = Permissions("mes", frozenset({"GetStatus"}), EVERY, EVERY, EVERY, EVERY, EVERY)
POLICIES = {
    "an identity that is not known": Policy(identities={}),
    "an operation that is not allowed": Policy(identities={"mes": BUSY}),
}


# ---- the producer ----


def answered(status: int, code: str | None) -> BoundaryError:
    """The error that a transport makes of an answer."""
    shape: dict[str, Any] = {"code": code, "message": "stumbled", "details": {}}
    return error_of_answer(status, {}, json.dumps(shape).encode() if code else b"<html>")


@BOTH
@pytest.mark.req("P5", "BSFG:Retry", "BSFG:Errors")
@pytest.mark.parametrize(("status", "code"), [(500, "internal"), (500, "unknown"), (500, None)])
def test_a_node_that_stumbled_is_asked_again(colour: Colour, status: int, code: str | None) -> None:
    """What went wrong inside of a node says nothing about the fact, which may be in the log."""
    transport = ScriptedTransport(VirtualClock(), [answered(status, code) for _ in range(3)])
    transport.steps.append(OK)
    receipt = produce(colour, transport, lambda p: p.append_fact(ENVELOPE, FACT))
    assert receipt.offset == 42
    assert transport.times == [0.0, 0.0, 0.1, 0.3]
    assert len({body for _, _, body in transport.calls}) == 1


@BOTH
@pytest.mark.req("P5", "BSFG:Retry")
def test_a_node_cannot_make_a_producer_wait_for_long(colour: Colour) -> None:
    """A node asks for an hour's patience: a second is granted at most."""
    full = [BufferFullError("full", retry_after=3600.0) for _ in range(4)]
    transport = ScriptedTransport(VirtualClock(), list(full))
    with pytest.raises(BufferFullError):
        produce(colour, transport, lambda p: p.append_fact(ENVELOPE, FACT))
    assert transport.times == [0.0, 1.0, 2.0, 3.0]


# ---- the consumer ----


@BOTH
@pytest.mark.req("C6", "C11", "BOUNDARY:consumer")
def test_fetching_and_closing_makes_no_poison(colour: Colour) -> None:
    """One who looks and lets go did not die of what it saw."""
    node = MemoryNode(VirtualClock())
    node.fill(2)
    for number in range(7):
        page = consume(colour, node, lambda c: c.fetch(), holder=f"h{number % 2}")
        assert len(page.facts) == 2
        assert page.deliveries <= 1
    seen: list[int] = []
    report = consume(
        colour,
        node,
        lambda c: c.run(lambda delivery: seen.append(delivery.offset), until_empty=True),
    )
    assert seen == [1, 2]
    assert (report.handled, report.quarantined) == (2, 0)
    assert node.store.quarantine() == []


@BOTH
@pytest.mark.req("C6", "C8", "BOUNDARY:consumer")
def test_gaps_are_told_before_a_crash_loop_is_set_aside(colour: Colour) -> None:
    """The cursor passes the lost facts together with the deadly one: none goes unmentioned."""
    node = MemoryNode(VirtualClock())
    node.fill(6)
    node.store.create_consumer("c", "outbound")
    node.store.truncate("outbound", 3, loss_reason="retention")
    for number in range(9):  # each of them died: its lease ends by itself
        node.store.serve("c", 9, 1 << 20, holder=f"dead-{number}", lease=1.0)
        node.clock.advance(2.0)
    told: list[tuple[int, int]] = []
    seen: list[int] = []

    def note(loss: Loss) -> None:
        told.append((loss.first_offset, loss.last_offset))

    report = consume(
        colour,
        node,
        lambda c: c.run(lambda delivery: seen.append(delivery.offset), until_empty=True),
        on_gap=note,
    )
    assert told == [(1, 3)]
    assert seen == [5, 6]
    assert (report.lost, report.quarantined, report.cursor) == (3, 1, 6)
    assert [item.reason for item in node.store.quarantine("c")] == ["crash_loop"]


# ---- the outbox ----


@pytest.mark.req("BOUNDARY:producer", "BOUNDARY:security")
@pytest.mark.parametrize("forgetful", POLICIES.values(), ids=POLICIES)
def test_an_outbox_waits_until_the_policy_knows_it(forgetful: Policy, tmp_path: Path) -> None:
    """A mistake in the policy refuses the caller and no fact: all of them arrive afterwards."""
    clock = VirtualClock()

    async def whole() -> None:
        zone = LocalZone("plant-a", MemoryFactStore("plant-a"), MemoryObjectStore())
        policies = [forgetful]
        application = NodeApplication(zone, lambda: policies[0], threads=0)
        producer = AsyncProducer(InProcessTransport(application, "mes"))
        with Outbox(tmp_path / "outbox.db") as outbox:
            for number in range(3):
                body = fact(f"order:{number}", number)
                outbox.add(body["envelope"], body["fact"])
            draining = asyncio.create_task(outbox.drain_async(producer, until_empty=True))
            await asyncio.sleep(120)
            assert not draining.done()
            assert (outbox.pending(), outbox.refused()) == (3, [])
            policies[0] = Policy.open()
            report: Any = await draining
            assert (report.sent, outbox.pending(), outbox.refused()) == (3, 0, [])
        held = zone.store.page("outbound", 0, 9, 1 << 20).facts
        assert [each.message_id for each in held] == [f"order:{number}" for number in range(3)]

    clock.run(whole())


@pytest.mark.req("BOUNDARY:producer", "BOUNDARY:security")
def test_an_outbox_sets_aside_what_its_owner_may_not_say(tmp_path: Path) -> None:
    """A fact that speaks for another zone is refused for good, and the next one passes."""
    clock = VirtualClock()
    permit = Permissions(
        "mes", frozenset({"AppendFact", "AppendFacts"}), asserts=EVERY, buckets=EVERY
    )  # to no zone

    async def whole() -> None:
        zone = LocalZone("plant-a", MemoryFactStore("plant-a"), MemoryObjectStore())
        application = NodeApplication(zone, lambda: Policy({"mes": permit}), threads=0)
        producer = AsyncProducer(InProcessTransport(application, "mes"))
        with Outbox(tmp_path / "outbox.db") as outbox:
            body = fact("order:1")
            outbox.add(body["envelope"], body["fact"])
            await outbox.drain_async(producer, until_empty=True)
            assert [each.code for each in outbox.refused()] == ["permission_denied"]

    clock.run(whole())
