"""Three NATS servers that keep the same streams."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from ergon_framework.errors import ErgonError
from tests.servers.nats import NatsServer
from tests.servers.server import free_port, started
from tests.servers.skip_loudly import STARTUP, MissingServerError

_CLUSTER = """
cluster {{ name: ergon, listen: "127.0.0.1:{port}", routes: [{routes}] }}
"""


class NatsCluster:
    """Three servers; each can be ended and started again."""

    def __init__(self) -> None:
        self.servers = [NatsServer() for _ in range(3)]
        ports = [free_port() for _ in self.servers]
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
        while not all(self._leads_to_an_answer(each) for each in self.servers):
            if time.monotonic() > deadline:
                raise MissingServerError("the servers of the cluster did not find each other")

    def _leads_to_an_answer(self, server: NatsServer) -> bool:
        # Here and not above: every run of the tests loads this file, and few of them NATS.
        from ergon_framework.storage.nats import NatsClient, address_of
        from ergon_framework.storage.nats.address import NatsTimeouts
        from ergon_framework.storage.nats.diagnostics import Account

        if not self._asked(server, "/jsz").get("meta_cluster", {}).get("leader"):
            return False
        # What is asked too early is never answered.
        asked = NatsClient(address_of(server.url()), NatsTimeouts(response=1.0))
        with closing(asked), suppress(ErgonError):
            return bool(Account(asked).info())
        return False

    def _asked(self, server: NatsServer, page: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", server.monitor, timeout=5.0)
        with closing(connection), suppress(OSError):
            connection.request("GET", page)
            found: dict[str, Any] = json.loads(connection.getresponse().read())
            return found
        return {}

    def leader_of(self, stream: str) -> NatsServer:
        """Who leads a stream."""
        for server in self.servers:
            found = self._asked(server, "/jsz?streams=true&accounts=true")
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
    with started(NatsCluster) as cluster:
        yield cluster
