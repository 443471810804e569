"""The pool of connections, whatever its borrowers and the server do to them."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ergon_framework.storage.deadlines import SocketWatchdog
from ergon_framework.storage.postgres.address import address_of
from ergon_framework.storage.postgres.pool import Connection, ConnectionPool

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:jobs-postgres")]

SIZE = 3
_uses = st.lists(
    st.sampled_from(["query", "leave_open", "fail", "close", "raise", "kill", "kill_idle"]),
    max_size=8,
)


def use(what: str, connection: Connection, admin: psycopg.Connection[tuple[int]]) -> None:
    """What a borrower, or the server, does with a connection that is lent."""
    if what == "leave_open":
        connection.execute("BEGIN")
    elif what == "fail":
        with suppress(psycopg.Error):
            connection.execute("SELECT 1 / 0")
    elif what == "close":
        connection.close()
    elif what == "raise":
        raise LookupError
    elif what == "kill":
        kill(connection.info.backend_pid, admin)
        with suppress(psycopg.Error):
            connection.execute("SELECT 1")
    else:
        connection.execute("SELECT 1")


def kill(pid: int, admin: psycopg.Connection[tuple[int]]) -> None:
    """Let the server end a connection, and wait until it has."""
    admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


@given(uses=_uses)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_borrower_always_gets_one_that_works(postgres_url: str, uses: list[str]) -> None:
    """Outside of any transaction, whatever became of those before; and never more than there may
    be.
    """
    connections = ConnectionPool(address_of(postgres_url), SIZE, SocketWatchdog())
    with psycopg.connect(postgres_url, autocommit=True) as admin, ExitStack() as stack:
        stack.callback(connections.close)
        for what in uses:
            with suppress(LookupError), connections.borrow() as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
                assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
                pid = connection.info.backend_pid
                use(what, connection, admin)
            if what == "kill_idle":
                kill(pid, admin)
        lent = [stack.enter_context(connections.borrow()) for _ in range(SIZE)]
        assert len({each.info.backend_pid for each in lent}) == SIZE
        assert all(each.execute("SELECT 1").fetchone() == (1,) for each in lent)
