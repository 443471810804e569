"""The connection of a connector to a node, for threads and for event loops, and what the connector
refuses.
"""

from __future__ import annotations

import inspect
import threading
from typing import Any, TypeAlias, TypeVar, cast

from ergon_framework.boundary.client.effects import ClientEffects, TaskRunner, ThreadRunner
from ergon_framework.boundary.client.options import ProducerOptions, client_tls
from ergon_framework.boundary.client.transport import AsyncTransport, Transport
from ergon_framework.boundary.http.client import HttpTransport
from ergon_framework.connector.base import OwnThreads
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import ConfigurationError, ConnectorError, WiringError


class BoundaryConnectorError(ConnectorError):
    """The connector refuses what it was asked for."""

    code = "boundary_connector"


class FactPassedError(BoundaryConnectorError):
    """The fact is no longer this process's: another process had the consumer's name meanwhile."""

    code = "fact_passed"
    failure_kind = "lost"


T = TypeVar("T")
NodeOrUrl: TypeAlias = str | Transport | AsyncTransport


class NodeLink:
    """One node. A URL is connected to at the first use. A transport stays the caller's to close."""

    def __init__(self, node: NodeOrUrl, files: ProducerOptions, connecting: dict[str, Any]) -> None:
        if not node:
            raise ConfigurationError(
                "a BoundaryConnector needs a node",
                remedy='BoundaryConnector("http://127.0.0.1:9443"), or node in its settings',
            )
        call = getattr(node, "call", None)
        if not isinstance(node, str) and not callable(call):
            raise ConfigurationError(
                f"{type(node).__name__} is no node", remedy="give its URL or a transport"
            )
        self._node = node
        self._lock = threading.Lock()
        self._is_closed = False
        self.own_threads = OwnThreads()
        self.tasks: AsyncTransport | None = None
        self._threads: Transport | None = None
        if inspect.iscoroutinefunction(call):
            self.tasks = cast(AsyncTransport, node)
        elif isinstance(node, str):
            # Made now, so that a wrong URL or wrong certificates are reported at once.
            self._threads = HttpTransport(node, tls=client_tls(files), **connecting)
        else:
            self._threads = cast(Transport, node)

    def threads(self) -> Transport:
        """The transport for threads."""
        self.check()
        if self._threads is None:
            raise WiringError(
                "this node can be reached from an event loop only",
                remedy="use an async task, or give the connector the node's URL",
            )
        return self._threads

    def run(self, script: ClientEffects[T]) -> T:
        """Run a script of the protocol in this thread."""
        return ThreadRunner(self.threads(), current_clock()).run(script)

    async def run_async(self, script: ClientEffects[T]) -> T:
        """Run a script of the protocol in this task, which must not be cancelled meanwhile."""
        self.check()
        if self.tasks is None:
            return await self.own_threads.run(self.run, script)
        return await TaskRunner(self.tasks).run(script)

    def check(self) -> None:
        """Raise an error if it is closed."""
        if self._is_closed:
            raise BoundaryConnectorError(
                "this BoundaryConnector is closed",
                remedy="make a new one; close it after the last use",
            )

    @property
    def is_closed(self) -> bool:
        """Whether it is closed."""
        return self._is_closed

    def close(self) -> None:
        """Close the connection. Closing twice is fine."""
        self.own_threads.end_idle()
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
        if is_first and isinstance(self._node, str) and self._threads is not None:
            self._threads.close()
