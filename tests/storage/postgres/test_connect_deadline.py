"""Connecting for somebody who has little time, to a server that does not answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.storage.deadlines import CALL_BUDGET, SocketWatchdog
from ergon_framework.storage.postgres.address import address_of
from ergon_framework.storage.postgres.pool import ConnectionPool, PostgresTimeouts

pytestmark = pytest.mark.req("SCALE:fleet-outage")
PATIENCE = 30.0


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        yield server


def test_a_connection_is_waited_for_as_long_as_there_is_time(silent: socket.socket) -> None:
    """The next one asks the server all the same: who could not wait says nothing about it."""
    port = silent.getsockname()[1]
    address = address_of(f"postgresql://u@127.0.0.1:{port}/d?connect_timeout=3600&sslmode=disable")
    timeouts = PostgresTimeouts(reconnect_delay=3600.0)
    subject = ConnectionPool(address, 1, SocketWatchdog(), timeouts=timeouts)
    # Lines are closed before it waits for its thread, which wants an answer on one of them.
    with ThreadPoolExecutor(1) as threads, ExitStack() as lines:
        for _ in range(2):
            asked = threads.submit(CALL_BUDGET.run_within, 0.0, subject.connect)
            lines.enter_context(silent.accept()[0])
            error = asked.exception(PATIENCE)
            assert isinstance(error, StoreUnavailableError)
            assert "no connection within" in error.message
