"""Probes without a certificate at a node that wants one of everybody else."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.certs import issue, make_ca
from ergon_framework.boundary.http.addresses import split_address
from ergon_framework.boundary.node.node import Node
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.errors import ConfigurationError

pytestmark = pytest.mark.req("BOUNDARY:operator", "BOUNDARY:security")


def settings(folder: Path, **more: Any) -> ZoneSettings:
    """A zone with mutual TLS and a place for probes."""
    ca = make_ca(folder)[0]
    cert, key = issue(folder, "plant")
    given: dict[str, Any] = {"cert": str(cert), "key": str(key), "ca": str(ca)}
    given |= {"listen": "127.0.0.1:0", "health_listen": "127.0.0.1:0"} | more
    return ZoneSettings(data=str(folder / "data"), **given)


def serving(made: ZoneSettings, use: Callable[[Node], Awaitable[None]]) -> None:
    """Run a node for the time of a test."""

    async def main() -> None:
        node = Node("plant", made)
        try:
            await node.start()
            try:
                await use(node)
            finally:
                await node.stop()
        finally:
            node.close()

    asyncio.run(main())


async def ask(node: Node, path: str, method: str = "GET", body: str | None = None) -> Any:
    """The status and the JSON of an answer to a probe."""
    assert node.health_address is not None
    host, port = split_address(node.health_address)

    def talk() -> Any:
        connection = http.client.HTTPConnection(host, port, timeout=30)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    return await asyncio.to_thread(talk)


def test_probes_are_answered_in_plain_http(tmp_path: Path) -> None:
    """It lives and is ready; from when its store is gone it only lives."""

    async def use(node: Node) -> None:
        assert await ask(node, "/healthz") == (200, {"status": "ok"})
        assert await ask(node, "/readyz") == (200, {"ready": True})
        node.zone.is_broken = True
        assert await ask(node, "/readyz") == (503, {"ready": False})
        assert await ask(node, "/livez") == (200, {"status": "ok"})

    serving(settings(tmp_path), use)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/bsfg.v1.Boundary/AppendFact"),
        ("POST", "/bsfg.v1.Boundary/FetchFacts"),
        ("POST", "/bsfg.v1.BoundaryAdmin/GetStatus"),
        ("PUT", "/v1/objects/files/a"),
        ("GET", "/v1/objects/files/a"),
        ("GET", "/metrics"),
        ("POST", "/healthz"),
    ],
)
def test_nothing_else_is_there(method: str, path: str, tmp_path: Path) -> None:
    """Nobody without a certificate reads, changes or counts anything."""

    async def use(node: Node) -> None:
        status, told = await ask(node, path, method, "{}" if method != "GET" else None)
        assert (status, told["details"]["reason"]) == (404, "unknown_path")

    serving(settings(tmp_path), use)


def test_it_is_off_unless_asked_for(tmp_path: Path) -> None:
    """A node listens where it was told to and nowhere else."""

    async def use(node: Node) -> None:
        assert node.health_address is None

    serving(settings(tmp_path, health_listen=None), use)


def test_a_place_that_cannot_be_had(tmp_path: Path) -> None:
    """The node does not start, and lets go of everything."""

    async def use(node: Node) -> None:
        made = settings(tmp_path / "other", health_listen=node.address)
        other = Node("plant", made)
        with pytest.raises(ConfigurationError, match="another process listens there"):
            await other.start()
        other.close()

    serving(settings(tmp_path), use)
    with pytest.raises(ConfigurationError, match="is no address to listen on"):
        Node("plant", settings(tmp_path / "wrong", health_listen="9444"))
