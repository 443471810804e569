"""Calls, leases and permissions: what reviewers found once, and what must not come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.client.transport import ADMIN, BOUNDARY
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.http.exchange import Caller
from ergon_framework.boundary.node.app import NodeApplication
from ergon_framework.boundary.node.inprocess import InProcessTransport, _Exchange
from ergon_framework.boundary.node.policy import Policy, read_policy
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import BoundaryError, FactInvalidError, NotPermittedError
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from ergon_framework.testing import VirtualClock
from tests.boundary.node.processes import fact

POLICY = """
[identities."mes"]
operations = ["produce", "consume", "pull", "LookupFact", "ListQuarantine", "ReleaseQuarantine",
              "DiscardQuarantine"]
assert = ["mes"]
target = ["plant-b"]
logs = ["inbound:x"]
consumers = ["mes-*"]
buckets = ["mes-files"]

[identities."plant-b"]
operations = ["pull"]
assert = ["plant-b"]
logs = ["outbound"]
consumers = ["zone:plant-b"]
buckets = ["batch-files"]
"""


class Site:
    """A zone in memory, and ways to ask it."""

    def __init__(self, clock: VirtualClock, policy: Policy | None = None) -> None:
        store = MemoryFactStore("plant-a", clock=clock.now)
        self.zone = LocalZone("plant-a", store, MemoryObjectStore(), clock=clock.now)
        self.application = NodeApplication(self.zone, lambda: policy or Policy.open(), threads=0)

    def append(self, message_id: str, content: Any = 1, **envelope: Any) -> int:
        """A fact in the outbound log."""
        body = fact(message_id, content, **envelope)
        return self.zone.append(body["envelope"], body["fact"]).offset

    async def ask(self, method: str, body: dict[str, Any], identity: str = "") -> dict[str, Any]:
        """A unary call as somebody."""
        transport = InProcessTransport(self.application, identity)
        answer: dict[str, Any] = json.loads(await transport.call(method, json.dumps(body).encode()))
        return answer

    async def refused(self, method: str, body: dict[str, Any], identity: str = "") -> BoundaryError:
        """The error of a call that must fail."""
        with pytest.raises(BoundaryError) as caught:
            await self.ask(method, body, identity)
        return caught.value

    def poll(self, **asked: Any) -> tuple[_Exchange, asyncio.Task[None]]:
        """Begin a fetch that waits for facts."""
        caller = Caller("", "in process", is_secure=False)
        body = json.dumps({"consumer_name": "erp", "wait_ms": 30_000, **asked}).encode()
        exchange = _Exchange("POST", f"/{BOUNDARY}FetchFacts", caller, body)
        work = self.application.handle(exchange)
        assert work is not None
        return exchange, asyncio.ensure_future(work)


def on_site(test: Callable[[Site], Awaitable[None]]) -> Callable[[], None]:
    """Run a coroutine test in virtual time, with a site on which everybody may do everything."""

    def run() -> None:
        clock = VirtualClock()

        async def whole() -> None:
            await test(Site(clock))

        clock.run(whole())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


# ---- clients that have gone ----


@pytest.mark.req("C11", "BOUNDARY:consumer")
@on_site
async def test_a_poll_of_a_gone_client_ends(site: Site) -> None:
    """It does not stay for the whole time that the client wanted to wait."""
    site.zone.store.create_consumer("erp", "outbound")
    polls = [site.poll() for _ in range(20)]
    await asyncio.sleep(0.5)
    for exchange, _task in polls:
        exchange.is_gone = True
    await asyncio.sleep(2)
    assert all(task.done() for _exchange, task in polls)
    assert site.application.waiting_fetches == 0


@pytest.mark.req("C11", "BOUNDARY:consumer")
@on_site
async def test_polls_that_began_at_different_facts_are_woken_by_the_same_one(site: Site) -> None:
    """Those that had seen less catch up with the others while nothing comes for them."""
    polls = []
    for n in range(6):
        site.zone.store.create_consumer(f"c{n}", "outbound", to_zone="hq")
        polls.append(site.poll(consumer_name=f"c{n}"))
        await asyncio.sleep(0.1 if n % 2 else 0.0)
        site.append(f"order:{n}:created", to_zone="elsewhere")
    await asyncio.sleep(0.5)
    gone, gone_task = polls.pop(0)
    gone.is_gone = True
    await asyncio.sleep(2)
    assert gone_task.done()
    assert not any(task.done() for _exchange, task in polls)
    offset = site.append("order:9:created", to_zone="hq")
    await asyncio.sleep(0.5)
    assert all(task.done() for _exchange, task in polls)
    pages = [json.loads(exchange.answer.result()[2]) for exchange, _task in polls]
    assert [[each["offset"] for each in page["facts"]] for page in pages] == [[offset]] * 5
    assert site.application.waiting_fetches == 0


@pytest.mark.req("C11", "BOUNDARY:consumer")
@on_site
async def test_polls_that_wait_cost_no_timer_each(site: Site) -> None:
    """One timer looks after the clients of all of them: a thousand polls may wait at a node."""
    loop = asyncio.get_running_loop()
    set_timer, timers = loop.call_at, 0

    def counted(*arguments: Any, **more: Any) -> asyncio.TimerHandle:
        nonlocal timers
        timers += 1
        return set_timer(*arguments, **more)

    site.zone.store.create_consumer("erp", "outbound")
    polls = [site.poll() for _ in range(20)]
    await asyncio.sleep(0.5)
    loop.call_at = counted  # type: ignore[assignment,method-assign]
    await asyncio.sleep(5.25)
    assert timers < len(polls)
    assert site.application.waiting_fetches == len(polls)
    for exchange, _task in polls:
        exchange.is_gone = True
    await asyncio.sleep(2)
    assert all(task.done() for _exchange, task in polls)


@pytest.mark.req("C11", "BOUNDARY:consumer")
@on_site
async def test_a_gone_client_takes_no_lease_and_no_delivery(site: Site) -> None:
    """Facts that come when a client has just gone are the next one's, as if it had never asked."""
    site.zone.store.create_consumer("erp", "outbound")
    gone = [site.poll(holder="dead", lease_ms=1000) for _ in range(9)]
    await asyncio.sleep(0.5)
    for exchange, _task in gone:
        exchange.is_gone = True
    await asyncio.sleep(0.1)
    site.append("order:1")
    await asyncio.gather(*(task for _exchange, task in gone))
    # The lease has ended that it renewed last while it was there: after a third of a second.
    await asyncio.sleep(0.8)
    page = await site.ask(f"{BOUNDARY}FetchFacts", {"consumer_name": "erp", "holder": "live"})
    assert [each["offset"] for each in page["facts"]] == [1]
    assert page["deliveries"] == 1


@pytest.mark.req("C11", "BOUNDARY:consumer")
@on_site
async def test_one_client_counts_once(site: Site) -> None:
    """A page that one holder asks for again and again was given to one process only."""
    site.zone.store.create_consumer("erp", "outbound")
    site.append("order:1")
    asked = {"consumer_name": "erp", "holder": "erp-1"}
    pages = [await site.ask(f"{BOUNDARY}FetchFacts", asked) for _ in range(7)]
    assert [page["deliveries"] for page in pages] == [1] * 7


# ---- what cannot be asked ----


@pytest.mark.req("BOUNDARY:badinput")
@on_site
async def test_a_lone_surrogate_spoils_its_own_item_only(site: Site) -> None:
    """Text that UTF-8 cannot carry is refused in its place; its neighbours are appended."""
    items = [fact("order:1"), fact("order:2", "\ud800"), fact("order:3", {"\udfff": 1})]
    items += [fact("order:\ud800"), fact("order:4")]
    results = (await site.ask(f"{ADMIN}AppendFacts", {"items": items}))["results"]
    assert [each.get("offset") for each in results] == [1, None, None, None, 2]
    codes = [each["error"]["code"] for each in results if "error" in each]
    assert codes == ["invalid_argument"] * 3


@pytest.mark.req("BOUNDARY:badinput", "C11")
@on_site
async def test_a_lease_is_a_day_at_most(site: Site) -> None:
    """A name cannot be taken for ever."""
    site.zone.store.create_consumer("erp", "outbound")
    asked = {"consumer_name": "erp", "holder": "h"}
    for most in (86_400_001, 2**63 - 1, 2**70, 0, -1):
        error = await site.refused(f"{BOUNDARY}FetchFacts", {**asked, "lease_ms": most})
        assert (error.code, error.details["field"]) == ("invalid_argument", "lease_ms")
    assert site.zone.store.consumer("erp").holder is None
    await site.ask(f"{BOUNDARY}FetchFacts", {**asked, "lease_ms": 86_400_000})


@pytest.mark.req("BOUNDARY:badinput", "BOUNDARY:operator")
@on_site
async def test_long_reasons_are_cut(site: Site) -> None:
    """What an operator gives as a reason does not fill the journal."""
    long = "x" * 1_000_000
    site.zone.store.create_consumer("erp", "outbound")
    site.append("order:1")
    site.zone.store.serve("erp", 9, 1 << 20)
    item = site.zone.store.set_aside("erp", 1, reason="r", message="m", attempts=1)
    await site.ask(f"{ADMIN}ReleaseQuarantine", {"id": item.id, "reason": long})
    await site.ask(f"{ADMIN}SeekConsumer", {"consumer_name": "erp", "offset": 0, "reason": long})
    site.zone.store.create_consumer("zone:plant-b", "outbound", to_zone="plant-b")
    await site.ask(f"{ADMIN}Seal", {"peer": "plant-b", "reason": long})
    await site.ask(f"{ADMIN}Open", {"peer": "plant-b", "reason": long})
    written = site.zone.store.journal()
    assert len(written) >= 4
    assert max(len(text) for _at, _action, text in written) < 700


@pytest.mark.req("BOUNDARY:badinput", "BOUNDARY:operator")
@on_site
async def test_an_id_that_no_store_can_hold(site: Site) -> None:
    """Too large a number is the caller's mistake, and not the node's."""
    for number in (2**70, 0, -1):
        error = await site.refused(f"{ADMIN}ReleaseQuarantine", {"id": number})
        assert isinstance(error, FactInvalidError)


@pytest.mark.req("C8", "BOUNDARY:consumer")
@on_site
async def test_a_seek_to_what_is_gone_tells_what_is_lost(site: Site) -> None:
    """It leads nowhere in silence: the range that was lost is in the error."""
    site.zone.store.create_consumer("erp", "outbound")
    for number in range(5):
        site.append(f"order:{number}")
    site.zone.store.truncate("outbound", 3, loss_reason="retention")
    for offset in (0, 1, 2):
        asked = {"consumer_name": "erp", "offset": offset, "reason": "again"}
        error = await site.refused(f"{ADMIN}SeekConsumer", asked)
        assert (error.code, error.reason) == ("out_of_range", "truncated")
        lost = (error.details["first_lost"], error.details["last_lost"])
        assert lost == (offset + 1, 3)
    sought = await site.ask(f"{ADMIN}SeekConsumer", {"consumer_name": "erp", "offset": 3})
    assert sought["cursor"] == 3


# ---- permissions ----


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    """An application and a peer, each with a small part of everything."""
    path = tmp_path / "policy.toml"
    path.write_text(POLICY, encoding="utf-8")
    return read_policy(str(path))


def with_policy(policy: Policy, test: Callable[[Site], Awaitable[None]]) -> None:
    """Run a coroutine test on a site with that policy."""
    clock = VirtualClock()

    async def whole() -> None:
        await test(Site(clock, policy))

    clock.run(whole())


@pytest.mark.req("BOUNDARY:security")
def test_quarantine_is_for_those_who_may_use_the_consumer(policy: Policy) -> None:
    """Items of other consumers are not listed, not released, not discarded."""

    async def test(site: Site) -> None:
        store = site.zone.store
        site.append("order:1")
        for name in ("mes-1", "other"):
            store.create_consumer(name, "outbound")
            store.serve(name, 9, 1 << 20)
            store.set_aside(name, 1, reason="r", message="private", attempts=1)
        mine, other = store.quarantine(None, None)
        for asked in ({}, {"consumer_name": "other"}, {"state": "all"}):
            listed = (await site.ask(f"{ADMIN}ListQuarantine", asked, "mes"))["items"]
            assert {item["consumer_name"] for item in listed} <= {"mes-1"}
        for method in ("ReleaseQuarantine", "DiscardQuarantine"):
            error = await site.refused(f"{ADMIN}{method}", {"id": other.id}, "mes")
            assert isinstance(error, NotPermittedError)
        assert store.quarantine("other") == [other]
        await site.ask(f"{ADMIN}ReleaseQuarantine", {"id": mine.id}, "mes")

    with_policy(policy, test)


@pytest.mark.req("BOUNDARY:security")
@pytest.mark.parametrize(
    ("method", "more"),
    [
        (f"{BOUNDARY}FetchFacts", {"holder": "h"}),
        (f"{BOUNDARY}ConfirmReceipt", {"offset": 1}),
        (f"{ADMIN}SeekConsumer", {"offset": 0}),
        (f"{ADMIN}ReleaseLease", {"holder": "live"}),
        (f"{ADMIN}QuarantineFact", {"offset": 1, "reason": "r", "message": "m", "attempts": 1}),
    ],
    ids=lambda value: value.rpartition("/")[2] if isinstance(value, str) else "",
)
@pytest.mark.parametrize("name", ["mes-1", "other"])
def test_a_consumer_is_for_those_who_may_use_it_and_read_its_log(
    method: str, more: dict[str, Any], name: str, policy: Policy
) -> None:
    """Its name is not enough when it reads a log that the caller may not see, nor the log alone."""

    async def test(site: Site) -> None:
        store = site.zone.store
        site.append("order:1")
        log = "outbound" if name == "mes-1" else "inbound:x"
        store.create_consumer(name, log)
        store.serve(name, 9, 1 << 20, holder="live")
        before = store.consumer(name)
        error = await site.refused(method, {"consumer_name": name, **more}, "mes")
        assert isinstance(error, NotPermittedError)
        assert store.consumer(name) == before
        assert store.quarantine(name) == []

    with_policy(policy, test)


@pytest.mark.req("BOUNDARY:security")
def test_references_are_for_those_who_may_use_the_bucket(policy: Policy) -> None:
    """A fact cannot refer to what its producer may not see, alone or in a batch."""

    async def test(site: Site) -> None:
        parts = {}
        for bucket in ("mes-files", "secret"):
            put = site.zone.put(bucket, "k", b"bytes")
            parts[bucket] = {"bucket": bucket, "key": "k", "digest": put.digest, "size": 5}
        good = fact("order:1", parts["mes-files"], zone="mes")
        bad = fact("order:2", {"list": [parts["mes-files"], parts["secret"]]}, zone="mes")
        error = await site.refused(f"{BOUNDARY}AppendFact", bad, "mes")
        assert isinstance(error, NotPermittedError)
        assert error.details["bucket"] == "secret"
        body = {"items": [bad, good]}
        results = (await site.ask(f"{ADMIN}AppendFacts", body, "mes"))["results"]
        assert results[0]["error"]["code"] == "permission_denied"
        assert results[1]["offset"] == 1

    with_policy(policy, test)


@pytest.mark.req("BOUNDARY:security")
def test_a_peer_cannot_widen_its_view(policy: Policy) -> None:
    """The consumer of a peer shows facts for that peer, whatever it asks for."""

    async def test(site: Site) -> None:
        site.append("order:1", to_zone="plant-c")
        site.append("order:2", to_zone="plant-b")
        asked = {"consumer_name": "zone:plant-b", "log": "outbound"}
        wide = {**asked, "to_zone": "plant-c"}
        error = await site.refused(f"{ADMIN}CreateConsumer", wide, "plant-b")
        assert error.code == "invalid_argument"
        await site.ask(f"{ADMIN}CreateConsumer", asked, "plant-b")
        page = await site.ask(f"{BOUNDARY}FetchFacts", {"consumer_name": "zone:plant-b"}, "plant-b")
        assert [each["envelope"]["message_id"] for each in page["facts"]] == ["order:2"]

    with_policy(policy, test)


@pytest.mark.req("BOUNDARY:security")
def test_a_lookup_is_about_ones_own_facts(policy: Policy) -> None:
    """Who may speak for some zones learns nothing about the facts of others."""

    async def test(site: Site) -> None:
        site.append("order:1", from_zone="hr")
        site.append("order:1", from_zone="mes")
        for log in (None, "outbound"):
            asked = {"from_zone": "hr", "message_id": "order:1", "log": log}
            error = await site.refused(f"{ADMIN}LookupFact", asked, "mes")
            assert isinstance(error, NotPermittedError)
        asked = {"from_zone": "mes", "message_id": "order:1"}
        assert (await site.ask(f"{ADMIN}LookupFact", asked, "mes"))["offset"] == 2

    with_policy(policy, test)
