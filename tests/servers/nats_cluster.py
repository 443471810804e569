"""Three NATS servers that keep the same streams."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.servers.missing import STARTUP, MissingServerError, missing
from tests.servers.nats import NatsServer, quiet_port

_CLUSTER = """
cluster {{ name: ergon, listen: "127.0.0.1:{port}", routes: [{routes}] }}
"""


class NatsCluster:
    """Three servers; each can be ended and started again."""

    def __init__(self) -> None:
        self.servers = [NatsServer() for _ in range(3)]
        ports = [quiet_port() for _ in self.servers]
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
        for server, port in zip(self.servers, ports, strict=True):
            server.configure(more=_CLUSTER.format(port=port, routes=routes))

    def url(self, space: str = "cluster") -> str:
        """How to reach any of them."""
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.servers)
        return f"nats://{hosts}/{space}?replicas=3&monitor={self.servers[0].monitor_url}"

    def start(self) -> None:
        """Start all, and wait until they have chosen one who leads."""
        for server in self.servers:
            server.start()
        deadline = time.monotonic() + STARTUP
        while not all(self._has_leader(each) for each in self.servers):
            if time.monotonic() > deadline:
                raise MissingServerError("the servers of the cluster did not find each other")

    def _has_leader(self, server: NatsServer) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", server.monitor, timeout=5.0)
        with suppress(OSError):
            connection.request("GET", "/jsz")
            found = json.loads(connection.getresponse().read())
            connection.close()
            return bool(found.get("meta_cluster", {}).get("leader"))
        return False

    def leader_of(self, stream: str) -> NatsServer:
        """Who leads a stream."""
        for server in self.servers:
            connection = http.client.HTTPConnection("127.0.0.1", server.monitor, timeout=5.0)
            connection.request("GET", "/jsz?streams=true&accounts=true")
            found = json.loads(connection.getresponse().read())
            connection.close()
            for account in found.get("account_details", ()):
                for each in account.get("stream_detail", ()):
                    if each["name"] == stream:
                        name = each["cluster"].get("leader", "")
                        return next(e for e in self.servers if name == f"ergon-test-{e.port}")
        raise AssertionError(f"nobody knows the stream {stream}")

    def remove(self) -> None:
        """End all and delete what they held."""
        for server in self.servers:
            server.remove()


@pytest.fixture
def nats_cluster() -> Iterator[NatsCluster]:
    """Three servers, started."""
    try:
        cluster = NatsCluster()
    except MissingServerError as error:
        missing(error)
    try:
        cluster.start()
        yield cluster
    except MissingServerError as error:
        missing(error)
    finally:
        cluster.remove()
