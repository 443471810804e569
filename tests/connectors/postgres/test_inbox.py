"""From one database to another: each effect once, whoever dies between the effect and the ack."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from ergon_framework.connector.postgres import PostgresConnector
from ergon_framework.ports.transaction import Transaction
from tests import fork_server
from tests.connectors.diary_consumer import noted
from tests.connectors.postgres import inbox_child
from tests.connectors.postgres.tables import execute
from tests.servers.postgres import PostgresServer

PAYMENTS = (
    "id text PRIMARY KEY, payload jsonb, status text, error text, attempts int DEFAULT 0,"
    " lease text, visible_at timestamptz"
)


@pytest.mark.slow
def test_each_effect_happens_once(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """Consumers die after their effect, the payments come again, and are not added again."""
    source, target = postgres_server.new_database(), postgres_server.new_database()
    execute(source, f"CREATE TABLE payments ({PAYMENTS})")
    execute(target, "CREATE TABLE inbox (consumer text, id text, PRIMARY KEY (consumer, id))")
    execute(target, "CREATE TABLE balances (amount int)")
    execute(target, "INSERT INTO balances VALUES (0)")
    with PostgresConnector(source, table="payments", columns=inbox_child.COLUMNS) as payments:
        given = [Transaction(f"pay-{n}", {"amount": n}) for n in range(30)]
        payments.dispatch_transactions(given)
    diary, deaths = tmp_path / "diary", 0
    while execute(source, "SELECT id FROM payments"):
        program = [sys.executable, inbox_child.__file__, source, target, str(diary)]
        done = fork_server.run(program, check=False, timeout=50)
        assert done.returncode in {0, -signal.SIGKILL}
        deaths += done.returncode != 0
    began = noted(diary, "began")
    assert deaths == 3
    assert all(began[f"pay-{n}"] == 2 for n in (7, 17, 27))
    assert execute(target, "SELECT amount FROM balances") == [(sum(range(30)),)]
    assert execute(target, "SELECT count(*) FROM inbox") == [(30,)]
