"""Objects: what reviewers found once, and what must not come back."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Any

import pytest

from ergon_framework.boundary.client.transport import ADMIN, BOUNDARY
from ergon_framework.boundary.facts.schema import parsed
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.http.exchange import Caller
from ergon_framework.boundary.maintenance import run_maintenance
from ergon_framework.boundary.model import ObjectReceipt
from ergon_framework.boundary.node.app import NodeApplication
from ergon_framework.boundary.node.inprocess import InProcessTransport, _Exchange
from ergon_framework.boundary.node.policy import Policy
from ergon_framework.boundary.settings import DAY
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import (
    ArtifactError,
    BoundaryNotFoundError,
    DataLossError,
    ObjectConflictError,
)
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from ergon_framework.testing import VirtualClock
from tests.boundary.node.processes import fact

pytestmark = pytest.mark.req("BOUNDARY:objects")

DATA = bytes(range(256)) * 4
ONE_AND_TWO = (("1", b"one"), ("2", b"two"))


class Site:
    """A zone in memory, and a way to ask it; make it inside of :func:`run`."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.objects = MemoryObjectStore()
        store = MemoryFactStore("plant-a", clock=lambda: self.now)
        self.zone = LocalZone("plant-a", store, self.objects, clock=lambda: self.now)
        self.application = NodeApplication(self.zone, Policy.open, threads=0)
        self.transport = InProcessTransport(self.application)

    def put(self, key: str = "k", data: bytes = DATA) -> ObjectReceipt:
        """An object in the bucket ``files``."""
        return self.zone.put("files", key, data)

    def about(self, message_id: str, put: ObjectReceipt) -> dict[str, Any]:
        """The body of an append that refers to an object."""
        return fact(
            message_id,
            {"bucket": put.bucket, "key": put.key, "digest": put.digest, "size": put.size},
        )

    async def ask(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        """A unary call."""
        answer: dict[str, Any] = json.loads(
            await self.transport.call(method, json.dumps(body).encode())
        )
        return answer

    async def get(self, key: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """GET with headers: status, headers, body."""
        caller = Caller("", "in process", is_secure=False)
        exchange = _Exchange("GET", f"/v1/objects/files/{key}", caller, sent=headers)
        work = self.application.handle(exchange)
        assert work is not None
        await work
        return await exchange.answer


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine in virtual time."""
    VirtualClock().run(work)


# ---- bytes that the disk lost ----


@pytest.mark.req("P6", "P7", "BSFG:Append")
def test_an_id_keeps_its_offset_when_its_bytes_are_lost() -> None:
    """The fact is in the log: repeating it is answered as ever, in a batch too."""

    async def whole() -> None:
        site = Site()
        body = site.about("order:1", put := site.put())
        first = await site.ask(f"{BOUNDARY}AppendFact", body)
        site.objects.delete(parsed(put.digest, "digest"))
        again = await site.ask(f"{BOUNDARY}AppendFact", body)
        assert (again["offset"], again["duplicate"]) == (first["offset"], True)
        batch = await site.ask(f"{ADMIN}AppendFacts", {"items": [body]})
        assert [each["offset"] for each in batch["results"]] == [first["offset"]]
        assert site.zone.append(body["envelope"], body["fact"]).offset == first["offset"]

    run(whole())


@pytest.mark.req("P1", "BSFG:Artifact")
def test_a_new_fact_about_lost_bytes_is_refused() -> None:
    """The name is known and the bytes are gone: nothing is appended, by whichever way."""

    async def whole() -> None:
        site = Site()
        body = site.about("order:1", put := site.put())
        site.objects.delete(parsed(put.digest, "digest"))
        with pytest.raises(ArtifactError) as caught:
            await site.ask(f"{BOUNDARY}AppendFact", body)
        assert caught.value.reason == "artifact_missing"
        batch = await site.ask(f"{ADMIN}AppendFacts", {"items": [body, fact("order:2")]})
        refused, taken = batch["results"]
        assert refused["error"]["details"]["reason"] == "artifact_missing"
        assert taken["offset"] == 1
        with pytest.raises(ArtifactError):
            site.zone.append(body["envelope"], body["fact"])
        site.put()  # the same bytes again
        assert (await site.ask(f"{BOUNDARY}AppendFact", body))["offset"] == 2

    run(whole())


@pytest.mark.req("BSFG:Errors")
def test_a_spoilt_object_is_data_loss() -> None:
    """Bytes that are not those of the digest are never given out as if they were."""

    async def whole() -> None:
        site = Site()
        digest = parsed(site.put().digest, "digest")
        site.objects.blobs[digest] = DATA[:500] + b"?" + DATA[501:]
        with pytest.raises(DataLossError):
            await site.ask(f"{ADMIN}GetObject", {"bucket": "files", "key": "k"})
        for _ in range(2):
            with pytest.raises(DataLossError):
                await site.transport.get_object("files", "k")
        del site.objects.blobs[digest]
        await site.transport.put_object("files", "k", [DATA], size=len(DATA))
        stream = await site.transport.get_object("files", "k")
        assert await stream.read(1 << 20) == DATA

    run(whole())


# ---- names ----


def test_other_bytes_are_not_given_for_a_digest() -> None:
    """Who asks for a digest gets those very bytes or a 404, never what the name stands for."""

    async def whole() -> None:
        site = Site()
        put = site.put()
        stream = await site.transport.get_object("files", "k", digest=parsed(put.digest, "digest"))
        assert await stream.read(1 << 20) == DATA
        with pytest.raises(BoundaryNotFoundError) as caught:
            await site.transport.get_object("files", "k", digest=b"?" * 32)
        assert caught.value.reason == "object_not_found"

    run(whole())


def test_the_digest_of_a_bucket_that_is_not_ours() -> None:
    """A digest opens no other bucket than the one that is named."""

    async def whole() -> None:
        site = Site()
        put = site.zone.put("secret", "k", DATA)
        with pytest.raises(BoundaryNotFoundError):
            await site.transport.get_object("files", "k", digest=parsed(put.digest, "digest"))

    run(whole())


def test_a_conflicting_put_leaves_nothing_behind() -> None:
    """The refused bytes do not stay on the disk; those that another name has do."""

    async def whole() -> None:
        site = Site()
        kept = {parsed(site.put(key, data).digest, "") for key, data in ONE_AND_TWO}
        for data in (b"other", b"two"):
            with pytest.raises(ObjectConflictError):
                await site.transport.put_object("files", "1", [data], size=len(data))
            with pytest.raises(ObjectConflictError):
                site.put("1", data)
        assert set(site.objects.digests()) == kept

    run(whole())


@pytest.mark.req("P15", "P2")
def test_a_name_that_is_put_again_is_young() -> None:
    """A producer that repeats its put days later has the whole grace for its fact."""

    async def whole() -> None:
        site = Site()
        site.put()
        site.now += 2 * DAY
        put = site.put()
        assert run_maintenance(site.zone, is_thorough=True).objects == 0
        body = site.about("order:1", put)
        assert (await site.ask(f"{BOUNDARY}AppendFact", body))["offset"] == 1

    run(whole())


@pytest.mark.req("P15", "P2")
def test_a_name_that_is_put_again_while_the_list_is_worked_through() -> None:
    """An orphan that was put anew after it was listed stays."""

    async def whole() -> None:
        site = Site()
        site.put("1", b"one")
        site.put("2", b"two")
        site.now += 2 * DAY
        count = site.zone.events.count

        def counted(what: str, label: str = "", times: int = 1) -> None:
            if what == "collected":  # the first one has gone; now somebody puts the second again
                site.zone.events.count = count  # type: ignore[method-assign]
                site.put("2", b"two")
            count(what, label, times)

        site.zone.events.count = counted  # type: ignore[method-assign]
        run_maintenance(site.zone)
        assert site.zone.store.object("files", "1") is None
        assert site.zone.found("files", "2").size == 3

    run(whole())


# ---- ranges ----


@pytest.mark.req("BOUNDARY:http")
@pytest.mark.parametrize(
    "header",
    [
        "bytes=",
        "bytes=-",
        "bytes=a-b",
        "bytes=5-2",
        "bytes=0-1,4-5",
        "bytes=0-" + "9" * 5000,
        "bytes=" + "9" * 5000 + "-",
        "bytes=-" + "9" * 5000,
        "bytes=--5",
        "items=0-5",
    ],
    ids=lambda header: header[:20],
)
def test_a_range_that_cannot_be_served_is_the_whole(header: str) -> None:
    """Odd, several and endless ranges are ignored, as HTTP lets a server do."""

    async def whole() -> None:
        site = Site()
        site.put()
        status, headers, body = await site.get("k", range=header)
        assert (status, body) == (200, DATA)
        assert "content-range" not in headers

    run(whole())


@pytest.mark.req("BOUNDARY:http")
@pytest.mark.parametrize("header", ["bytes=0-", "bytes=0-0", "bytes=-1", "bytes=7-"])
def test_a_range_of_nothing_is_nothing(header: str) -> None:
    """An empty object has no bytes to choose from, and is given whole."""

    async def whole() -> None:
        site = Site()
        site.put("k", b"")
        status, headers, body = await site.get("k", range=header)
        assert (status, body) == (200, b"")
        assert "content-range" not in headers

    run(whole())


@pytest.mark.req("BOUNDARY:http")
@pytest.mark.parametrize(
    ("header", "status", "told", "size"),
    [
        ("bytes=0-", 206, "bytes 0-1023/1024", 1024),
        ("bytes=10-19", 206, "bytes 10-19/1024", 10),
        ("bytes=1000-999999999", 206, "bytes 1000-1023/1024", 24),
        ("bytes=-24", 206, "bytes 1000-1023/1024", 24),
        ("bytes=-5000", 206, "bytes 0-1023/1024", 1024),
        ("bytes=1024-", 416, "bytes */1024", None),
    ],
)
def test_a_range_is_told(header: str, status: int, told: str, size: int | None) -> None:
    """What is given, and of how much; a range behind the end is refused."""

    async def whole() -> None:
        site = Site()
        site.put()
        found, headers, body = await site.get("k", range=header)
        assert (found, headers["content-range"]) == (status, told)
        if size is not None:
            assert len(body) == size
            assert body in DATA

    run(whole())
