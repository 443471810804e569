"""Which artifacts a caller may get: those of its buckets, and those that facts for it refer to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ergon_framework.boundary.client.transport import ADMIN, BOUNDARY
from ergon_framework.boundary.facts.schema import parsed
from ergon_framework.boundary.node.inprocess import InProcessTransport
from ergon_framework.boundary.node.policy import Policy
from ergon_framework.errors import BoundaryNotFoundError, NotPermittedError
from ergon_framework.testing import VirtualClock
from tests.boundary.node.test_call_permissions import Site

ZONES = ("plant-b", "plant-c")


class ZoneWithArtifacts:
    """Zone plant-a with one artifact for each of its peers, and one that no fact refers to."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.offsets: dict[str, int] = {}
        self.parts: dict[str, dict[str, Any]] = {}
        for zone in (*ZONES, "nobody"):
            put = site.zone.put("files", f"for-{zone}", zone.encode())
            self.parts[zone] = {
                "bucket": "files",
                "key": f"for-{zone}",
                "digest": put.digest,
                "size": put.size,
            }
            if zone in ZONES:
                part = {"drawing": self.parts[zone]}
                self.offsets[zone] = site.append(f"order:{zone}", part, to_zone=zone)

    async def get(
        self, zone: str, caller: str, fact: int | None = None, *, digest: bool = True
    ) -> Any:
        """The artifact for a zone, as a caller asks for it."""
        transport = InProcessTransport(self.site.application, caller)
        part = self.parts[zone]
        wanted = parsed(part["digest"], "digest") if digest else None
        stream = await transport.get_object(
            part["bucket"], part["key"], digest=wanted, fact_offset=fact
        )
        return await stream.read()

    async def ask(self, operation: str, zone: str, caller: str, fact: int | None = None) -> Any:
        """The same in one call."""
        part = self.parts[zone]
        body = {"bucket": part["bucket"], "key": part["key"]}
        if fact is not None:
            body["fact_offset"] = fact
        return await self.site.ask(f"{ADMIN}{operation}", body, caller)


def in_shop(test: Callable[[ZoneWithArtifacts], Awaitable[None]]) -> Callable[[], None]:
    """Run a coroutine test in virtual time, under the default policy for two peers."""

    def run() -> None:
        clock = VirtualClock()

        async def whole() -> None:
            await test(ZoneWithArtifacts(Site(clock, Policy.default("plant-a", ZONES))))

        clock.run(whole())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@pytest.mark.req("BOUNDARY:security")
@in_shop
async def test_a_peer_gets_what_a_fact_for_it_refers_to(prepared: ZoneWithArtifacts) -> None:
    """It names the fact; the digest may be left out, and is then the one the fact gives."""
    fact = prepared.offsets["plant-b"]
    assert await prepared.get("plant-b", "plant-b", fact) == b"plant-b"
    assert await prepared.get("plant-b", "plant-b", fact, digest=False) == b"plant-b"
    assert (await prepared.ask("HeadObject", "plant-b", "plant-b", fact))["size"] == 7
    assert (await prepared.ask("GetObject", "plant-b", "plant-b", fact))["size"] == 7


@pytest.mark.req("BOUNDARY:security")
@pytest.mark.parametrize("whose", ["plant-c", "nobody"])
def test_a_peer_gets_nothing_else(whose: str) -> None:
    """Neither another peer's artifact nor an unreferenced one, whichever fact it names, or none."""

    @in_shop
    async def test(prepared: ZoneWithArtifacts) -> None:
        await prepared.site.ask(
            f"{ADMIN}CreateConsumer",
            {"consumer_name": "zone:plant-b", "log": "outbound"},
            "plant-b",
        )
        await prepared.site.ask(
            f"{BOUNDARY}FetchFacts", {"consumer_name": "zone:plant-b"}, "plant-b"
        )
        for fact in (None, *prepared.offsets.values(), 99):
            with pytest.raises(NotPermittedError, match="fact"):
                await prepared.get(whose, "plant-b", fact)
            for operation in ("HeadObject", "GetObject"):
                with pytest.raises(NotPermittedError):
                    await prepared.ask(operation, whose, "plant-b", fact)

    test()


@pytest.mark.req("BOUNDARY:security")
@in_shop
async def test_a_refusal_does_not_tell_whether_the_object_exists(
    prepared: ZoneWithArtifacts,
) -> None:
    """A name that stands for nothing is refused in the same words as one that does."""
    prepared.parts["gone"] = {**prepared.parts["nobody"], "key": "never-put"}
    told = set()
    for whose in ("gone", "nobody"):
        with pytest.raises(NotPermittedError) as caught:
            await prepared.get(whose, "plant-b", prepared.offsets["plant-b"])
        told.add(caught.value.message.replace(prepared.parts[whose]["key"], "KEY"))
    assert len(told) == 1


@pytest.mark.req("BOUNDARY:security")
@in_shop
async def test_a_peer_of_an_older_version_gets_what_it_was_served(
    prepared: ZoneWithArtifacts,
) -> None:
    """It names no fact: the page it has been given, and not yet confirmed, is looked through."""
    name = {"consumer_name": "zone:plant-b"}
    await prepared.site.ask(f"{ADMIN}CreateConsumer", {**name, "log": "outbound"}, "plant-b")
    with pytest.raises(NotPermittedError):
        await prepared.get("plant-b", "plant-b")
    await prepared.site.ask(f"{BOUNDARY}FetchFacts", name, "plant-b")
    assert await prepared.get("plant-b", "plant-b") == b"plant-b"
    done = {**name, "offset": prepared.offsets["plant-b"]}
    await prepared.site.ask(f"{BOUNDARY}ConfirmReceipt", done, "plant-b")
    with pytest.raises(NotPermittedError, match="fact_offset"):
        await prepared.get("plant-b", "plant-b")


@in_shop
async def test_the_zone_itself_gets_everything(prepared: ZoneWithArtifacts) -> None:
    """Who may use a bucket needs no fact, and is told when a name stands for nothing."""
    for zone in prepared.parts:
        assert await prepared.get(zone, "plant-a") == zone.encode()
    prepared.parts["gone"] = {**prepared.parts["nobody"], "key": "never-put"}
    with pytest.raises(BoundaryNotFoundError):
        await prepared.get("gone", "plant-a")
