"""Hearing of new facts goes on after a server did not let us in for a while."""

from __future__ import annotations

import logging
import threading
from contextlib import closing

import psycopg
import pytest

from ergon_framework.boundary.factstore.postgres.database import PostgresTuning
from ergon_framework.boundary.factstore.sql.session import logger
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.storage.postgres.pool import PostgresTimeouts
from ergon_framework.testing.suites.factstore.under_test import new
from tests.boundary.postgres.conftest import Open
from tests.servers.postgres import PostgresServer, name_of
from tests.servers.tls import Door, Papers

pytestmark = pytest.mark.req("SCALE:boundary-postgres", "SCALE:fleet-outage")
WAIT = 30.0


class _Heard(logging.Handler):
    """Tells when something was said that has these words."""

    def __init__(self, words: str) -> None:
        super().__init__(logging.INFO)
        self._words = words
        self.said = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Somebody said something."""
        if self._words in record.getMessage():
            self.said.set()


def test_a_certificate_that_is_wrong_for_a_while(
    postgres_server: PostgresServer,
    url: str,
    signed: Papers,
    open_store: Open,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The thread that looks for new facts outlives it, and wakes who waits once it is fixed."""
    caplog.set_level(logging.INFO, logger=logger.name)
    heard, rung = _Heard("another name"), threading.Event()
    behind = str(postgres_server.folder / ".s.PGSQL.5432")
    with closing(Door(behind, signed, asks_first=True)) as door:
        place = f"postgresql://ergon@127.0.0.1:{door.port}/{name_of(url)}"
        far = open_store(
            url=f"{place}?sslmode=verify-full&sslrootcert={signed.ca}",
            tuning=PostgresTuning(poll_interval=0.1),
            timeouts=PostgresTimeouts(reconnect_delay=0.0),
        )
        near = open_store()
        far.subscribe(rung.set)
        near.append(OUTBOUND, [new("a")])
        assert rung.wait(WAIT)
        logger.addHandler(heard)
        try:
            door.show("elsewhere")
            with psycopg.connect(url) as admin:
                admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )
            assert heard.said.wait(WAIT)
        finally:
            logger.removeHandler(heard)
        rung.clear()
        door.show("server")
        near.append(OUTBOUND, [new("b")])
        assert rung.wait(WAIT)
        far.close()
